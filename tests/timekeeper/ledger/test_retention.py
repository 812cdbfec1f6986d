"""Folding: old sessions become rows by day, no report changes by it, and nothing that happens on the way
doubles or loses anything."""

from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from sqlalchemy import func, insert, select, update

from deploy.local.limits import LONGEST_S
from tests.support.waiting import eventually
from tests.timekeeper.faults import Fuse, KilledError
from tests.timekeeper.past import MIDNIGHT, differences, live
from tests.timekeeper.rows import SESSION
from tests.timekeeper.worlds import DAY, HOUR, MINUTE, T0, Json, Town, budgets, gpu_pod, lease, node
from timekeeper.__main__ import main
from timekeeper.store.audit_rows import posted_in
from timekeeper.store.engine.engine import open_store
from timekeeper.store.engine.schema import DAYS, FIGURES, FOLDED, HEARTBEATS, NODES, POSTINGS, SESSIONS
from timekeeper.store.retention import roll_up_all, roll_up_daily

BOTH_DATABASES = "what is folded and forgotten is SQL"
OLD = HOUR


def grow(town: Town) -> None:
    """A ledger with a past, and a while later, so that all that has ended in it is OLD."""
    live(town)
    town.clock.turn(2 * HOUR)


WHOLE, PART = f"from=0&to={T0 + 9 * DAY}", f"from={T0 - DAY - 7}&to={T0 + 2 * DAY + 11}"
REPORTS = (
    f"usage?{WHOLE}&group=pod,label:app,group&use=true",
    f"usage?from={T0 - 40 * DAY}&to={T0 + 40 * DAY}&group=owner,node,model&by=month",
    f"usage?{WHOLE}&group=pod&format=csv",
    f"usage?{PART}&group=namespace,pod&by=day",
    f"usage?from={T0 + 7}&to={T0 + 3 * HOUR}&group=model&by=hour&format=csv",
    f"usage?{PART}&format=focus",
    "budgets/team-a",
    "budgets/team-b",
)


def reports(town: Town) -> dict[str, bytes]:
    """Reports of every kind, byte for byte, as users get them."""
    return {path: report(town, path) for path in REPORTS}


def report(town: Town, path: str) -> bytes:
    with town.get(f"/v1/{path}") as answer:  # whole ones are streamed, and each keeps a connection till then
        data: bytes = answer.data
    assert answer.status_code == 200, data
    return data


def count(town: Town, table: Any, *where: Any) -> int:
    with town.store.reading() as connection:
        return int(connection.execute(select(func.count()).select_from(table).where(*where)).scalar_one())


def test_no_report_changes_when_old_sessions_are_folded(town: Town) -> None:
    grow(town)
    before = reports(town)

    total = roll_up_all(town.store, town.clock, OLD)

    assert (total.sessions, total.rows, total.doubtful) == (5, 9, ())
    assert reports(town) == before
    assert differences(town) == []
    assert count(town, SESSIONS) == 1
    assert count(town, POSTINGS) == 0
    assert count(town, HEARTBEATS) == 1


def test_what_is_kept_is_the_net_of_a_session_by_day(town: Town) -> None:
    grow(town)
    roll_up_all(town.store, town.clock, OLD)

    with town.store.reading() as connection:
        rows = connection.execute(select(FOLDED).order_by(FOLDED.c.session_uid, FOLDED.c.from_ms)).all()

    assert [(row.session_uid, row.from_ms, row.to_ms, row.rate_milli) for row in rows] == [
        ("uid-corrected", T0 + 7, T0 + 2 * HOUR, 500),
        ("uid-left", T0 + 10 * MINUTE, T0 + 5 * HOUR + 30_000, 330),
        ("uid-long", T0 + MINUTE, MIDNIGHT + DAY, 1000),
        ("uid-long", MIDNIGHT + DAY, MIDNIGHT + 2 * DAY, 1000),
        ("uid-long", MIDNIGHT + 2 * DAY, MIDNIGHT + 3 * DAY, 1000),
        ("uid-long", MIDNIGHT + 3 * DAY, T0 + 3 * DAY + 11, 1000),
        ("uid-older", T0 - 2 * DAY, MIDNIGHT - DAY, 300),
        ("uid-older", MIDNIGHT - DAY, MIDNIGHT, 300),
        ("uid-older", MIDNIGHT, T0 + 11 * HOUR, 300),
    ]
    assert {(row.requested_milli, row.node, row.models) for row in rows if row.name == "long"} == {
        (1000, "n1", "A100")
    }


def test_measured_use_stays_hour_by_hour(town: Town) -> None:
    grow(town)
    roll_up_all(town.store, town.clock, OLD)

    assert count(town, FIGURES, FIGURES.c.session_uid == "uid-long") == 3


def test_only_what_ended_and_was_settled_for_so_long_is_folded(town: Town) -> None:
    grow(town)

    assert roll_up_all(town.store, town.clock, DAY).sessions == 3  # the others were settled a while ago
    town.clock.turn(DAY)
    assert roll_up_all(town.store, town.clock, 2 * DAY).sessions == 0
    assert roll_up_all(town.store, town.clock, DAY).sessions == 2
    town.clock.turn(999 * DAY)
    assert roll_up_all(town.store, town.clock, DAY).sessions == 0  # it still runs
    assert count(town, SESSIONS, SESSIONS.c.uid == "uid-running") == 1


def test_folding_again_does_nothing_more(town: Town) -> None:
    grow(town)
    before = reports(town)
    roll_up_all(town.store, town.clock, OLD)

    assert roll_up_all(town.store, town.clock, OLD).sessions == 0
    assert reports(town) == before


def test_batches_of_any_size_do_the_same(town: Town) -> None:
    grow(town)

    total = roll_up_all(town.store, town.clock, OLD, batch=1)

    assert (total.sessions, total.rows) == (5, 9)
    assert differences(town) == []


def test_killed_between_any_two_statements_nothing_is_doubled_or_lost(database_url: str) -> None:
    town = Town(database_url)
    grow(town)
    before = posted(town)
    fuse = Fuse(town.store)
    kills = 0
    while True:
        fuse.light(kills % 30 + 1, killed=True)
        try:
            roll_up_all(town.store, town.clock, OLD, batch=2)
        except KilledError:
            kills += 1
            fuse.out()
            town.store.engine.dispose()
            assert differences(town) == []
            assert posted(town) == before
            continue
        fuse.out()
        break
    assert kills > 10
    assert (count(town, SESSIONS), count(town, FOLDED)) == (1, 9)
    assert posted(town) == before
    town.close()


def posted(town: Town) -> list[int]:
    with town.store.reading() as connection:
        return [posted_in(connection, name, 0, 2 * T0) for name in ("team-a", "team-b")]


def total_charged(town: Town) -> list[int]:
    return [town.charged("team-a"), town.charged("team-b")]


def test_a_session_whose_postings_are_not_its_own_is_left_for_the_audit(
    database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    town = Town(database_url)
    grow(town)
    town.clock.turn(60 * DAY)
    with town.store.writing() as connection:
        connection.execute(update(SESSIONS).where(SESSIONS.c.uid == "uid-left").values(rate_milli=7))

    total = roll_up_all(town.store, town.clock, OLD)

    assert (total.sessions, total.doubtful) == (4, ("uid-left",))
    assert count(town, POSTINGS, POSTINGS.c.session_uid == "uid-left") == 1
    town.close()


def test_a_pod_whose_session_was_folded_gets_no_second_one(
    town: Town, capfd: pytest.CaptureFixture[str]
) -> None:
    grow(town)
    before = [town.charged("team-a"), town.charged("team-b")]
    roll_up_all(town.store, town.clock, OLD)

    for raw in (ended("long"), ended("corrected"), running("left")):
        town.objects["pods"][f"team-a/{raw['metadata']['name']}/{raw['metadata']['uid']}"] = raw
    town.resume()
    town.change("pods", ended("long", T0 + 4 * DAY))
    town.change("pods", ended("long"), deleted=True)

    assert total_charged(town) == before
    assert count(town, SESSIONS) == 1
    assert "event=pod-ignored uid=uid-long" in capfd.readouterr().err
    assert differences(town) == []


def ended(name: str, ended_ms: int = T0 + 3 * DAY) -> Json:
    return gpu_pod(name, started_ms=T0, ended_ms=ended_ms)


def running(name: str) -> Json:
    return gpu_pod(name, started_ms=T0)


def test_a_pod_that_ended_without_a_charge_keeps_its_session(town: Town) -> None:
    grow(town)
    town.change("pods", gpu_pod("brief", started_ms=town.clock(), bound_ms=town.clock(), card=5))
    now = town.clock()
    town.change("pods", gpu_pod("brief", card=5, bound_ms=now, started_ms=now, ended_ms=now))
    town.clock.turn(40 * DAY)

    roll_up_all(town.store, town.clock, OLD)

    assert count(town, SESSIONS, SESSIONS.c.uid == "uid-brief") == 1
    assert count(town, SESSIONS, SESSIONS.c.uid == "uid-nothing") == 0


def test_balances_and_new_settlers_count_what_was_folded(town: Town) -> None:
    grow(town)
    before = town.budget("team-a")
    roll_up_all(town.store, town.clock, OLD)

    town.resume()

    assert town.budget("team-a") == before
    assert before["posted"] == 1000 * (3 * DAY - MINUTE + 11) + 500 * (2 * HOUR - 7) + 300 * (59 * HOUR)


def test_postings_of_the_first_release_count_in_the_totals_by_day_once_folded(town: Town) -> None:
    grow(town)
    roll_up_all(town.store, town.clock, OLD)

    with town.store.reading() as connection:
        rows = connection.execute(select(DAYS.c.day_ms, DAYS.c.amount).where(DAYS.c.namespace == "team-a"))
        totals = {(day_ms - MIDNIGHT) // DAY: amount for day_ms, amount in rows}

    assert (totals[-2], totals[-1]) == (300 * 14 * HOUR, 300 * DAY)


def test_a_settler_and_a_fold_at_once_come_to_the_same(town: Town) -> None:
    grow(town)
    other = open_store(town.url)
    folding = Thread(target=roll_up_all, args=(other, town.clock, OLD, 1))

    folding.start()
    while folding.is_alive():
        town.advance(250)
    folding.join()
    other.close()

    assert differences(town) == []
    assert count(town, FOLDED) == 9


def test_with_retain_sessions_are_folded_without_a_command(town: Town) -> None:
    grow(town)
    stop = Event()
    folding = Thread(target=roll_up_daily, args=(town.store, town.clock, OLD, stop))

    folding.start()
    eventually(lambda: count(town, FOLDED) == 9)
    stop.set()
    folding.join(LONGEST_S)

    assert not folding.is_alive()


def test_the_command_folds_and_prints_how_much(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    town = Town(tmp_path)
    grow(town)
    with town.store.writing() as connection:  # as if it had all been two years ago
        years = 2 * 365 * DAY
        old = {name: SESSIONS.c[name] - years for name in ("ended_ms", "vanished_ms", "settled_ms")}
        connection.execute(
            update(SESSIONS)
            .where(SESSIONS.c.settled_ms.is_not(None), SESSIONS.c.uid != "uid-nothing")
            .values(**old, bound_ms=SESSIONS.c.bound_ms - years, opened_ms=SESSIONS.c.opened_ms - years)
        )
    capsys.readouterr()

    assert main(["fold", "--older-than", "700d", "--database", town.url]) == 0
    assert capsys.readouterr().out == "4 sessions were folded into 9 rows\n"
    assert main(["fold", "--older-than", "800d", "--database", town.url]) == 0
    assert capsys.readouterr().out == "0 sessions were folded into 0 rows\n"
    town.close()


def test_the_command_ends_with_1_where_a_session_had_to_be_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    town = Town(tmp_path)
    with town.store.writing() as connection:
        session = {**SESSION, "uid": "odd", "rate_milli": 5, "ended_ms": 9, "settled_ms": 9}
        posting = {
            **{"session_uid": "odd", "sequence": 0, "namespace": "a", "from_ms": 0, "to_ms": 9},
            **{"rate_milli": 6, "amount": 54, "kind": "settled", "reason": "", "created_ms": 9},
        }
        connection.execute(insert(SESSIONS).values(session))
        connection.execute(insert(POSTINGS).values(posting))

    assert main(["fold", "--older-than", "400d", "--database", town.url]) == 1
    assert "session odd was not folded" in capsys.readouterr().out
    town.close()


def test_a_namespace_of_which_all_is_folded_has_still_spent_what_it_spent(town: Town) -> None:
    entry = "gpuHours: 1\nperiod: once"
    town.begin(("nodes", node()), ("configmaps", budgets(_defaults=entry)))
    town.hear("pods", gpu_pod(started_ms=T0, ended_ms=T0 + 2 * HOUR))
    town.advance(4 * HOUR, heard=False)
    town.change("pods", gpu_pod(started_ms=T0, ended_ms=T0 + 2 * HOUR), deleted=True)
    before = town.get("/v1/standings").get_json()["namespaces"]["team-a"]

    town.clock.turn(40 * DAY)
    assert roll_up_all(town.store, town.clock, DAY).sessions == 1
    town.resume()

    assert town.get("/v1/standings").get_json()["namespaces"]["team-a"] == before
    assert before["standing"] == "OVER_BUDGET"


def watermarks(town: Town) -> dict[str, int]:
    with town.store.reading() as connection:
        return {row.name: row.watermark_ms for row in connection.execute(select(NODES))}


def lives_on(town: Town, name: str, node_name: str) -> None:
    """A pod that runs for a minute on a node that comes and goes."""
    town.change("nodes", node(node_name))
    pod = gpu_pod(name, node=node_name, started_ms=town.clock(), bound_ms=town.clock())
    town.change("pods", pod)
    town.clock.turn(MINUTE)
    town.hear("leases", lease(town.clock(), node_name))
    town.quiet()
    town.tick()
    done = gpu_pod(
        name,
        node=node_name,
        bound_ms=town.clock() - MINUTE,
        started_ms=town.clock() - MINUTE,
        ended_ms=town.clock(),
    )
    town.change("pods", done)
    town.change("pods", done, deleted=True)


def test_nodes_that_come_and_go_leave_no_row_behind_once_their_sessions_are_folded(town: Town) -> None:
    town.begin()
    for number in range(3):
        lives_on(town, f"p{number}", f"spot-{number}")
    town.change("pods", gpu_pod("runs", node="silent", started_ms=town.clock(), bound_ms=town.clock()))
    town.hear("leases", lease(town.clock(), "silent"))
    town.advance(MINUTE)
    town.clock.turn(2 * DAY)
    lives_on(town, "later", "kept")
    with town.store.writing() as connection:
        connection.execute(insert(NODES), [{"name": "heard", "watermark_ms": town.clock() - DAY + 1}])
    assert watermarks(town).keys() == {"spot-0", "spot-1", "spot-2", "silent", "kept", "heard"}

    roll_up_all(town.store, town.clock, DAY)
    assert watermarks(town).keys() == {"silent", "kept", "heard"}

    # one of them comes back: the settler, which remembers it, writes its watermark again
    lives_on(town, "again", "spot-1")
    assert watermarks(town)["spot-1"] == town.clock()
    assert town.postings("uid-again") == [(town.clock() - MINUTE, town.clock(), 1000, "settled")]
    town.resume()
    assert differences(town) == []
