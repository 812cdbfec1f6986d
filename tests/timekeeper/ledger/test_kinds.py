"""What a session is for stands in its row, whoever wrote the row: this release, the one before, or a file."""

import json
from typing import Any

import pytest
import sqlalchemy
from alembic import command
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select, update

from tests.support.clock import Clock
from tests.timekeeper.claims import allocated, device_claim, device_slice
from tests.timekeeper.ledger.test_reserved_cards import FREE, SINCE, reserved
from tests.timekeeper.ledger.test_upgrades import ENDING, RECORDED, SAID, config_of
from tests.timekeeper.past import differences
from tests.timekeeper.rows import insert
from tests.timekeeper.worlds import DAY, GPU, HOUR, SECOND, T0, Json, Town, gpu_pod, lease, node
from timekeeper.__main__ import main
from timekeeper.accounts.session import BEFORE, CLAIM, HOLD, HOST, ChargeKind, kind_of
from timekeeper.store.engine import kinds
from timekeeper.store.engine.engine import ConflictError, Store
from timekeeper.store.engine.schema import FOLDED, SESSIONS
from timekeeper.store.engine.upgrade import upgrade
from timekeeper.store.retention import roll_up_all

BOTH_DATABASES = "columns, partial indexes and triggers are a database's"

EARLIER = f"uid-p:before:{T0}"
HOST_UID, CLAIM_UID, HOLD_UID = f"uid-p:host:{T0}", f"claim-c:claim:{T0}", f"uid-w:hold:{FREE}"
KINDS = {
    "uid-p": ("pod", "pod", False, "uid-p"),
    EARLIER: ("pod", "pod", True, "uid-p"),
    HOLD_UID: ("pod", "reserved", False, "uid-w"),
    CLAIM_UID: ("claim", "claim", False, "claim-c"),
    HOST_UID: ("host", "host", False, "uid-p"),
}
OF_SESSIONS = '{"table":"sessions"'
NULL = {SESSIONS.c.charge: None, SESSIONS.c.is_earlier: None, SESSIONS.c.owner_uid: None}

owners = st.uuids().map(str) | st.uuids().map(lambda each: f"static:{each.hex}")
numbers = st.integers(0, 2**52)


@st.composite
def uids(draw: st.DrawFn) -> str:
    """Of every session that a release makes or has made."""
    mark = draw(st.sampled_from(("", HOLD, HOST, CLAIM)))
    own = draw(owners) + (f"{mark}{draw(numbers)}" if mark else "")
    return own + (f"{BEFORE}{draw(numbers)}" if mark in ("", HOLD) and draw(st.booleans()) else "")


@given(uids())
def test_a_uid_says_what_each_place_that_searched_its_text_found_in_it(uid: str) -> None:
    kind = kind_of(uid)

    assert (kind.charge == "reserved") == (":hold:" in uid)
    assert (kind.charge == "claim") == (":claim:" in uid)
    assert (kind.charge == "host") == (":host:" in uid)
    assert kind.is_earlier == (":before:" in uid)
    if kind.charge == "host":
        assert kind.owner_uid == uid.split(":host:")[0]
    if kind.charge == "claim":
        assert kind.owner_uid == uid.partition(":claim:")[0]
    if not uid.startswith("static:"):  # of these that place found "static"
        assert kind.owner_uid == uid.partition(":")[0]
    elif kind.charge == "pod":
        assert kind.owner_uid == uid.partition(":before:")[0]


@pytest.fixture
def lived(town: Town) -> Town:
    """A pod that etcd's backup has on another node, and its life before; cards that are reserved for a pod; a
    claim; and a pod's CPU and memory, which an earlier release charged. All but the life before are open."""
    town.begin(
        *(("nodes", node(name, cards=2)) for name in ("n1", "n2")),
        *(("leases", lease(T0, name)) for name in ("n1", "n2")),
        ("resourceslices", device_slice("gpu-0", "gpu-1")),
        ("resourceclaims", device_claim()),
        ("pods", gpu_pod("w", node="")),
    )
    town.change("resourceclaims", device_claim("c", allocated("gpu-1"), at_ms=T0))
    town.change("pods", gpu_pod(started_ms=T0))
    town.clock.turn(SINCE - T0)
    town.change("pods", reserved(free=None, name="w"))
    town.clock.turn(FREE - SINCE + SECOND)
    town.node_heard()
    town.change("pods", reserved(name="w"))
    town.objects["pods"]["team-a/p/uid-p"] = gpu_pod(node="n2", bound_ms=T0, started_ms=town.clock())
    town.hear_all("pods")
    town.quiet("resourceclaims")
    town.tick()
    host = {"uid": HOST_UID, "namespace": "team-a", "name": "p", "node": "n1", "kind": "host", "bound_ms": T0}
    insert(town.store, "sessions", **host, opened_ms=T0, started_ms=T0, rate_milli=20)
    return town


def said(store: Store) -> dict[str, tuple[Any, ...]]:
    """What each session's row says of it."""
    its = SESSIONS.c
    with store.reading() as connection:
        rows = connection.execute(select(its.uid, its.kind, its.charge, its.is_earlier, its.owner_uid))
        return {uid: tuple(kind) for uid, *kind in rows}


def charges(town: Town) -> dict[str, tuple[str, str, int]]:
    """The state and the amount of each session, with its kind."""
    rows: list[Json] = town.get("/v1/sessions?limit=100").get_json()["sessions"]
    return {row["uid"]: (row["kind"], row["state"], row["amount"]) for row in rows}


def test_a_settler_writes_what_each_session_is_for_and_what_the_release_before_reads(lived: Town) -> None:
    assert said(lived.store) == KINDS | {HOST_UID: ("host", None, None, None)}

    lived.resume()

    assert said(lived.store) == KINDS


def test_sessions_that_the_release_before_opened_go_on_as_if_this_one_had(lived: Town) -> None:
    """It ran after a downgrade, and wrote none of the columns. Readers do not wait for the next settler."""
    town = lived
    before = charges(town)
    with town.store.writing() as connection:
        connection.execute(update(SESSIONS).values(NULL))
    assert charges(town) == before
    assert differences(town) == []

    town.resume()

    assert said(town.store) == KINDS
    assert {uid for uid, (_, state, _) in charges(town).items() if state == "settled"} == {EARLIER, HOST_UID}
    for _ in range(2):
        town.clock.turn(10 * SECOND)
        town.node_heard()
        town.node_heard("n2")
        town.quiet("resourceclaims")
        town.tick()
    after, whole = charges(town), 20 * SECOND * GPU
    assert {uid: after[uid][2] - amount for uid, (_, _, amount) in before.items()} == {
        **dict.fromkeys(("uid-p", HOLD_UID, CLAIM_UID), whole),
        **dict.fromkeys((EARLIER, HOST_UID), 0),
    }
    assert differences(town) == []


def test_a_downgrade_by_one_revision_and_the_upgrade_again_with_open_sessions(lived: Town) -> None:
    town = lived
    lived.resume()
    config, before = config_of(town.url), charges(town)

    def names() -> set[str]:
        with town.store.reading() as connection:
            found = sqlalchemy.inspect(connection)
            both = (found.get_columns, found.get_indexes)
            return {
                str(each["name"]) for of in both for table in ("sessions", "folded") for each in of(table)
            }

    newest = names()
    command.downgrade(config, "0034")
    gone = {*ChargeKind._fields, "ix_sessions_unfilled", "ix_folded_unfilled"}
    assert names() == newest - gone

    upgrade(town.store)
    assert names() == newest
    kinds.fill(town.store)

    assert said(town.store) == KINDS
    assert charges(town) == before
    town.resume()
    assert differences(town) == []


def insert_folded(store: Store) -> None:
    """As the release before rolls up what a pod's CPU and memory cost."""
    with store.writing() as connection:
        connection.exec_driver_sql(
            "INSERT INTO folded (id, session_uid, namespace, name, owner, node, models, labels, from_ms,"
            " to_ms, rate_milli, amount, requested_milli, requested_mib, created_ms, kind, devices)"
            " VALUES (1, 'uid-x:host:5', 'a', 'x', '', 'n', '', '{}', 1, 3, 5, 10, 0, 0, 1, 'host', '')"
        )


def test_of_rolled_up_rows_the_owner_alone_is_written_later(store: Store, database_url: str) -> None:
    insert_folded(store)

    kinds.fill(store)

    with store.reading() as connection:
        assert connection.scalar(select(FOLDED.c.owner_uid)) == "uid-x"
    for column in {each.name for each in FOLDED.c} - {"owner_uid"}:
        with pytest.raises(ConflictError, match="written once"), store.writing() as connection:
            connection.execute(update(FOLDED).values({column: FOLDED.c[column]}))
    command.downgrade(config_of(database_url), "0034")
    with pytest.raises(ConflictError, match="written once"), store.writing() as connection:
        connection.exec_driver_sql("UPDATE folded SET created_ms = 9")


def test_rows_are_filled_a_few_in_each_transaction(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "_AT_ONCE", 3)
    for number in range(7):
        insert(store, "sessions", uid=f"u{number}:hold:1")

    with store.writing() as connection:
        assert kinds.fill_some(connection)
        filled = select(func.count()).where(SESSIONS.c.charge == "reserved")
        assert connection.scalar(filled) == 3
    kinds.fill(store)

    assert {kind[1:] for kind in said(store).values()} == {("reserved", False, f"u{at}") for at in range(7)}


def by_pod(town: Town) -> list[tuple[str, str, int]]:
    rows: list[Json] = town.get(f"/v1/usage?from=0&to={T0 + DAY}&group=pod").get_json()["rows"]
    return sorted((row["pod"], row["uid"], row["amount"]) for row in rows)


@pytest.mark.parametrize("file", [ENDING, RECORDED], ids=["0034", "0027"])
def test_what_a_file_of_an_earlier_release_does_not_say_is_filled(database_url: str, file: Any) -> None:
    assert main(["import", str(file), "--database", database_url]) == 0

    town = Town(database_url, Clock(SAID["now"]))
    rows = [json.loads(line)["row"] for line in file.read_text().splitlines() if OF_SESSIONS in line]
    assert said(town.store) == {row["uid"]: (row["kind"], *kind_of(row["uid"])) for row in rows}
    town.close()


def test_a_pod_and_its_cpu_and_memory_stay_one_row_of_reports(database_url: str) -> None:
    """After the import; once they are folded; and where the release before has folded them."""
    assert main(["import", str(ENDING), "--database", database_url]) == 0
    town = Town(database_url, Clock(SAID["now"]))
    town.objects |= SAID["objects"]
    before = by_pod(town)
    assert len(before) == len({pod for pod, _, _ in before}) == 6
    town.resume()
    assert by_pod(town) == before
    hog = next(pod for pod in town.objects["pods"].values() if pod["metadata"]["name"] == "hog")
    assert town.beat(hog, 1).status_code == 200

    town.clock.turn(DAY)
    assert roll_up_all(town.store, town.clock, HOUR).sessions
    assert differences(town) == []  # also where a pod beats whose CPU and memory are folded
    folded = by_pod(town)
    with town.store.writing() as connection:
        hosts = select(func.count(FOLDED.c.owner_uid.distinct())).where(FOLDED.c.kind == "host")
        assert connection.scalar(hosts)
        connection.execute(update(FOLDED).values(owner_uid=None))
    town.resume()

    assert by_pod(town) == folded
    assert [pod for pod, _, _ in folded] == [pod for pod, _, _ in before]
    town.close()
