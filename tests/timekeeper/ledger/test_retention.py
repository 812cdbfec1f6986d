"""Folding: old sessions become rows by day, no report changes by it, and nothing that happens on the way
doubles or loses anything."""

import re
import shutil
import sqlite3
from contextlib import closing
from itertools import pairwise
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
from timekeeper.store import retention
from timekeeper.store.audit_rows import posted_in
from timekeeper.store.engine.engine import open_store
from timekeeper.store.engine.schema import (
    DAYS,
    DECISIONS,
    FIGURES,
    FOLDED,
    HEARTBEATS,
    NODES,
    POSTINGS,
    SESSIONS,
)
from timekeeper.store.engine.upgrade import upgrade
from timekeeper.store.retention import forget, forget_old, give_back, roll_up_all, roll_up_daily

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


def measured(town: Town, hours: int, pods: int = 1) -> None:
    """Each pod's use in each of the hours before now."""
    used = {"source": "node", "covered_ms": HOUR, "used_milli_ms": 1, "memory_mib_ms": 1}
    rows = [
        {"session_uid": f"uid-{pod}", "hour_ms": town.clock() - at * HOUR, **used}
        for at in range(1, hours + 1)
        for pod in range(pods)
    ]
    with town.store.writing() as connection:
        connection.execute(insert(FIGURES), rows)


def test_use_of_the_oldest_hours_is_deleted_first_and_no_more_than_a_batch_at_once(town: Town) -> None:
    measured(town, hours=48, pods=2)
    before_ms = town.clock() - DAY
    with town.store.writing() as connection:
        assert forget(connection, FIGURES.c.hour_ms, before_ms, 47) == 47
    assert count(town, FIGURES, FIGURES.c.hour_ms < before_ms) == 1
    assert count(town, FIGURES, FIGURES.c.hour_ms == before_ms - HOUR) == 1

    with town.store.writing() as connection:
        assert forget(connection, FIGURES.c.hour_ms, before_ms, 47) == 1
    assert count(town, FIGURES) == 48


def test_decisions_and_use_are_deleted_beside_the_settler_each_by_its_own_time(town: Town) -> None:
    measured(town, hours=60, pods=30)
    decided = {"source": "extender", "kind": "placed", "reason": "Bound", "is_generated": False, "budget": ""}
    decided |= {"namespace": "a", "owner": "", "subject": "p", "uid": "u", "figures": "{}", "count": 1}
    with town.store.writing() as connection:
        rows = [decided | {"first_ms": 1, "last_ms": town.clock() - at * HOUR} for at in range(600)]
        connection.execute(insert(DECISIONS), rows)
    stop = Event()
    forgetting = Thread(target=forget_old, args=(town.store, town.clock, 10 * HOUR, 40 * HOUR, 0, stop))

    forgetting.start()
    eventually(lambda: (count(town, DECISIONS), count(town, FIGURES)) == (11, 40 * 30))
    stop.set()
    forgetting.join(LONGEST_S)

    assert not forgetting.is_alive()


def test_killed_between_any_two_statements_a_batch_is_deleted_or_there(database_url: str) -> None:
    town = Town(database_url)
    grow(town)
    measured(town, hours=48)
    whole, audited = posted(town), differences(town)
    fuse = Fuse(town.store)
    kills, left = 0, [count(town, FIGURES)]
    while True:
        fuse.light(kills % 7 + 1, killed=True)
        try:
            with town.store.writing() as connection:
                done = forget(connection, FIGURES.c.hour_ms, town.clock() - DAY, 5)
        except KilledError:
            kills, done = kills + 1, 5
            fuse.out()
            town.store.engine.dispose()
        fuse.out()
        left.append(count(town, FIGURES))
        if not done:
            break
    batches = [before - after for before, after in pairwise(left)]
    assert kills > 3
    assert sum(batches) == left[0] - 24
    assert {*batches} <= {0, 5, sum(batches) % 5}
    assert (posted(town), differences(town)) == (whole, audited)
    town.close()


def test_what_folding_frees_is_given_back_to_the_volume_while_others_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_PAGES", 100)
    town = Town(tmp_path)
    measured(town, hours=200, pods=100)
    with town.store.writing() as connection:
        assert forget(connection, FIGURES.c.hour_ms, town.clock(), 20_000) == 20_000
    before, _ = town.store.space()
    writing = open_store(town.url)

    given: list[tuple[int, int]] = []
    giving = Thread(target=lambda: given.append(give_back(town.store)))
    giving.start()
    written = 0
    while giving.is_alive():
        with writing.writing() as connection:
            connection.execute(insert(NODES).values(name=f"n{written}", watermark_ms=1))
        written += 1
    giving.join()
    writing.close()

    ((back, stay),) = given
    assert stay == 0
    assert back > 1 << 20
    assert written > 3
    assert count(town, NODES) == written
    assert differences(town) == []
    town.close()
    assert (tmp_path / "ledger.db").stat().st_size < before - back


def test_a_file_of_an_earlier_release_gives_nothing_back_and_fold_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ledger.db"
    with closing(sqlite3.connect(file)) as former:
        former.execute("CREATE TABLE earlier (x)")
    store = open_store(f"sqlite:///{file}")
    upgrade(store)
    store.close()
    town = Town(f"sqlite:///{file}")
    measured(town, hours=200, pods=100)
    with town.store.writing() as connection:
        forget(connection, FIGURES.c.hour_ms, town.clock(), 20_000)
    capsys.readouterr()

    assert main(["fold", "--older-than", "400d", "--database", town.url]) == 0
    assert re.search("[1-9] MiB that are free in the file stay in it", capsys.readouterr().out)
    town.close()


def test_the_size_of_the_database_is_that_of_its_files_or_the_servers(town: Town) -> None:
    size, free = town.store.space()

    assert size > 100_000
    assert (free is None) == town.store.is_shared
    assert free is None or free <= shutil.disk_usage(town.url.removeprefix("sqlite:///")).total
