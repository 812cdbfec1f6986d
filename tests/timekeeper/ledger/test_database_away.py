"""The database is full, locked or gone: clear answers, nothing half written, and nothing forgotten."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import event

from deploy.local.limits import LONGEST_S
from tests.postgresql import EMPTY, fresh_postgresql, server
from tests.timekeeper.worlds import (
    GPU,
    MINUTE,
    SECOND,
    T0,
    Town,
    agent_status,
    budgets,
    gpu_pod,
    lease,
    node,
    token,
)
from timekeeper.settler.settler import Settler
from timekeeper.store import ledger as reading
from timekeeper.store.engine import postgresql
from timekeeper.store.engine.engine import Store, UnavailableError, open_store
from timekeeper.store.engine.schema import NODES
from timekeeper.store.engine.upgrade import upgrade

BOTH_DATABASES = "each database is away in its own way"
POD = gpu_pod(started_ms=T0)
BUDGET = "gpuHours: 1\nperiod: month"


class Disk:
    """Full while ``full``: SQLite may then not add a single page. ``torn``: nothing at all can be written.
    PostgreSQL is read only in both cases by its default, as a managed one whose disk is full."""

    def __init__(self, town: Town) -> None:
        self.full = self.torn = False
        is_shared = town.store.is_shared
        event.listen(town.store.engine, "checkout", self._read_only if is_shared else self._bound)

    def _read_only(self, connection: Any, *_: object) -> None:
        connection.autocommit = True
        connection.execute(f"SET default_transaction_read_only = {int(self.full or self.torn)}")
        connection.autocommit = False

    def _bound(self, connection: Any, *_: object) -> None:
        (pages,) = connection.execute("PRAGMA page_count").fetchone() if self.full else (2**30,)
        connection.execute(f"PRAGMA max_page_count = {pages}")
        connection.execute(f"PRAGMA query_only = {int(self.torn)}")


@pytest.fixture
def disk(town: Town) -> Disk:
    town.begin(
        ("nodes", node()), ("leases", lease(T0)), ("configmaps", budgets(team_a="gpuHours: 1\nperiod: month"))
    )
    return Disk(town)


def fill(town: Town, count: int = 60) -> None:
    """More pods than the pages that are there can hold."""
    for number in range(count):
        town.hear("pods", gpu_pod(f"fill-{number}" + "x" * 80, namespace="team-b", card=number % 2))


def test_a_full_disk_fails_the_tick_whole_and_the_next_one_catches_up(town: Town, disk: Disk) -> None:
    disk.full = True
    town.hear("pods", gpu_pod(started_ms=T0, ended_ms=T0 + MINUTE))
    fill(town)
    town.clock.turn(61 * MINUTE)

    assert town.tick() is False
    assert town.postings() == []
    assert town.charged() == 0
    assert town.settler.ledger.sessions == {}

    disk.full = False
    assert town.tick() is True
    assert town.postings() == [(T0, T0 + MINUTE, GPU, "settled")]


def test_while_the_settler_cannot_write_readyz_fails_and_livez_holds(town: Town, disk: Disk) -> None:
    disk.full = True
    fill(town)
    silent_s = 0 if town.store.is_shared else 10  # a PostgreSQL that may not write says so at once
    for _ in range(silent_s):
        town.advance(SECOND, heard=False)
        assert town.get("/readyz").status_code == 200
    town.advance(SECOND, heard=False)

    assert town.get("/readyz").status_code == 503
    assert town.get("/livez").status_code == 200


def test_a_pod_that_lived_and_went_while_the_database_was_away_is_charged(town: Town, disk: Disk) -> None:
    disk.full = True
    fill(town)
    town.change("pods", POD)
    town.clock.turn(MINUTE)
    town.change("pods", gpu_pod(started_ms=T0, ended_ms=T0 + MINUTE), deleted=True)
    disk.full = False
    town.advance(MINUTE, heard=False)

    assert town.postings() == [(T0, T0 + MINUTE, GPU, "settled")]


def test_what_waits_in_memory_is_bounded(town: Town, disk: Disk, capfd: pytest.CaptureFixture[str]) -> None:
    town.settler.cluster.pods.most_deleted = 3
    disk.full = True
    fill(town)
    for number in range(5):
        town.hear("pods", gpu_pod(f"gone-{number}", started_ms=T0, ended_ms=T0 + SECOND), deleted=True)
    town.tick()
    assert len(town.settler.cluster.pods.deleted) == 3

    disk.full = False
    town.tick()

    assert "event=pod-ends-lost count=2" in capfd.readouterr().err
    assert town.charged() == GPU * 3 * SECOND


def test_heartbeats_are_refused_so_that_sidecars_keep_them(town: Town, disk: Disk) -> None:
    town.change("pods", POD)
    town.clock.turn(MINUTE)
    disk.torn = True

    answer = town.beat(POD, 1)

    assert (answer.status_code, answer.content_type) == (503, "application/problem+json")
    assert answer.headers["Retry-After"] == "2"
    disk.torn = False
    assert town.beat(POD, 1).status_code == 200
    assert town.budget()["pending"] == GPU * MINUTE


def test_an_outage_is_logged_once_and_its_end_too(
    town: Town, disk: Disk, capfd: pytest.CaptureFixture[str]
) -> None:
    town.hear("pods", POD)
    town.tick()
    for _ in range(2):
        disk.torn = True
        assert [town.beat(POD, number).status_code for number in (1, 2, 3)] == [503] * 3
        disk.torn = False
        assert town.beat(POD, 1).status_code == 200

    said = capfd.readouterr().err
    assert said.count("event=database-unavailable kind=write route=/v1/heartbeats") == 2
    assert said.count("event=database-recovered kind=write") == 2


def test_a_nodes_report_is_refused_so_that_its_agent_keeps_it(town: Town, disk: Disk) -> None:
    town.begin(("nodes", node()), ("pods", POD))
    agent = token("agent")
    town.reviews.tokens[agent] = agent_status()
    sent = {"version": 1, "boot": "b", "sequence": 1, "uses": [{"age_ms": 0, "pods": [], "cards": []}]}

    disk.torn = True
    assert town.post("/v1/nodeusage", sent, agent).status_code == 503

    disk.torn = False
    assert town.get("/v1/nodeusage").get_json()["nodes"] == {}
    assert town.post("/v1/nodeusage", sent, agent).status_code == 200
    assert town.get("/v1/nodeusage").get_json()["nodes"] == {"n1": {}}


def test_a_grant_that_could_not_be_written_was_not_made(town: Town, disk: Disk) -> None:
    disk.torn = True
    refused = town.post("/budget/team-a/increase", {"minutes": 60}, **{"Idempotency-Key": "k"})
    disk.torn = False

    assert refused.status_code == 503
    assert town.budget()["gpuHours"]["granted"] == "1"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_without_its_file_everything_is_503_but_livez(town: Town, tmp_path: Path) -> None:
    town.begin()
    town.store.close()
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    (tmp_path / "ledger.db").mkdir()

    for route in ("/v1/standings", "/v1/budgets", "/v1/budgets/team-a", "/v1/usage", "/budget/team-a"):
        answer = town.get(route)
        assert (route, answer.status_code, answer.content_type) == (route, 503, "application/problem+json")
    assert town.post("/budget/team-a/increase", {"minutes": 1}, **{"Idempotency-Key": "k"}).status_code == 503
    assert town.get("/readyz").status_code == 503
    assert "database: unable to open" in town.get("/readyz").get_data(as_text=True)
    assert town.get("/livez").status_code == 200
    assert town.tick() is False


@contextmanager
def server_stopped() -> Iterator[None]:
    """PostgreSQL is stopped, as for an upgrade; whoever is connected is thrown out."""
    server().stop()
    try:
        yield
    finally:
        server().start()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_while_postgresql_is_stopped_everything_is_503_but_livez_and_afterwards_all_goes_on(
    town: Town,
) -> None:
    town.begin(("nodes", node()), ("leases", lease(T0)), ("configmaps", budgets(team_a=BUDGET)))
    with server_stopped():
        for route in ("/v1/budgets", "/v1/budgets/team-a", "/v1/usage", "/budget/team-a"):
            answer = town.get(route)
            told = (route, answer.status_code, answer.content_type)
            assert told == (route, 503, "application/problem+json")
        assert town.beat(POD, 1).status_code == 503
        assert town.get("/readyz").status_code == 503
        assert "database: " in town.get("/readyz").get_data(as_text=True)
        assert town.get("/livez").status_code == 200
        town.hear("pods", POD)
        assert town.tick() is False
        town.clock.turn(MINUTE)
        town.hear("pods", gpu_pod(started_ms=T0, ended_ms=T0 + MINUTE), deleted=True)
        assert town.tick() is False

    assert town.get("/v1/standings").status_code == 200
    assert town.tick() is True
    assert town.postings() == [(T0, T0 + MINUTE, GPU, "settled")]
    assert town.get("/readyz").status_code == 200


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_caller_that_did_not_call_while_postgresql_restarted_notices_nothing(town: Town) -> None:
    town.begin(("nodes", node()), ("leases", lease(T0)))
    with server_stopped():
        town.clock.turn(SECOND)

    assert town.get("/v1/budgets").status_code == 200
    assert town.tick() is True


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("at", range(2))
def test_a_connection_cut_in_the_middle_of_a_tick_costs_that_tick_and_nothing_else(
    town: Town, at: int
) -> None:
    town.begin(("nodes", node()), ("leases", lease(T0)))
    town.hear("pods", gpu_pod(started_ms=T0, ended_ms=T0 + MINUTE))
    cut = Cut(town.store, at)
    town.clock.turn(MINUTE)

    assert town.tick() is False
    assert cut.done
    assert town.tick() is True
    assert town.postings() == [(T0, T0 + MINUTE, GPU, "settled")]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_tick_that_stood_still_in_a_transaction_says_so(
    town: Town, capfd: pytest.CaptureFixture[str]
) -> None:
    town.begin(("nodes", node()), ("leases", lease(T0)))
    StandStill(town.store, 1)
    town.clock.turn(MINUTE)

    with pytest.MonkeyPatch.context() as impatient:
        impatient.setattr(postgresql, "_STANDSTILL_MS", StandStill.MS)
        assert town.tick() is False

    assert 'event=tick-failed error="a transaction stood still for ' in capfd.readouterr().err
    assert town.tick() is True


class Cut:
    """The server ends the session before the ``at``-th statement of a transaction that writes."""

    def __init__(self, store: Store, at: int) -> None:
        self.left, self.done = at, False
        event.listen(store.engine, "before_cursor_execute", self._before)

    def _end(self, driver: Any) -> None:
        server().as_admin(f"SELECT pg_terminate_backend({driver.info.backend_pid}, 5000)")

    def _before(self, connection: Any, *_: Any) -> None:
        if self.done or "bursar_writes" not in connection.get_execution_options():
            return
        if self.left == 0:
            self.done = True
            self._end(connection.connection.dbapi_connection)
        self.left -= 1


class StandStill(Cut):
    """The process stops there for longer than the server waits."""

    MS = 10

    def _end(self, driver: Any) -> None:
        driver.execute(f"SET idle_in_transaction_session_timeout = {self.MS}")
        until_s = time.monotonic() + self.MS / 1000
        there = f"SELECT FROM pg_stat_activity WHERE pid = {driver.info.backend_pid}"
        while server().as_admin(there) or time.monotonic() < until_s:
            pass


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_who_finds_all_connections_in_use_waits_no_longer_than_its_patience(database_url: str) -> None:
    hurried = open_store(database_url, patience_ms=20, connections=2)
    with hurried.reading(), hurried.reading(), pytest.raises(UnavailableError, match="in use"):
        watermarks(hurried)

    assert watermarks(hurried) == {}
    hurried.close()


def watermarks(store: Store) -> dict[str, int]:
    with store.reading() as connection:
        return reading.watermarks(connection)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_report_sees_one_moment_and_can_write_nothing(town: Town) -> None:
    with town.store.reading() as before:
        assert reading.watermarks(before) == {}
        write_node(town.store, "later")
        assert reading.watermarks(before) == {}

    with pytest.raises(UnavailableError, match="read-only"), town.store.reading() as connection:
        connection.execute(NODES.insert(), {"name": "never", "watermark_ms": 1})
    assert watermarks(town.store) == {"later": 1}


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_writers_wait_for_those_of_their_own_turn_alone(town: Town) -> None:
    hurried = open_store(town.url, patience_ms=20)
    with town.store.writing("grants"):
        with hurried.writing("beats") as connection:
            connection.execute(NODES.insert(), {"name": "beats", "watermark_ms": 1})
        with pytest.raises(UnavailableError, match="lock timeout"), hurried.writing("grants"):
            pass
    with hurried.writing("grants") as connection:
        connection.execute(NODES.insert(), {"name": "grants", "watermark_ms": 1})

    assert watermarks(hurried) == {"beats": 1, "grants": 1}
    hurried.close()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_two_that_wait_for_each_other_are_parted_and_one_of_them_goes_on(town: Town) -> None:
    for name in ("a", "b"):
        write_node(town.store, name)
    told: list[str] = []
    both = Barrier(2)

    def change(first: str, second: str) -> None:
        try:
            with town.store.writing() as connection:
                for name in (first, second):
                    connection.execute(NODES.update().where(NODES.c.name == name).values(watermark_ms=2))
                    if name == first:
                        both.wait(LONGEST_S)
        except UnavailableError as error:
            told.append(str(error))

    threads = [Thread(target=change, args=names) for names in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONGEST_S)

    assert [text.partition(" DETAIL")[0] for text in told] == ["deadlock detected"]
    assert watermarks(town.store) == {"a": 2, "b": 2}


def test_a_settler_cannot_begin_without_the_ledger(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/no/such/folder/ledger.db")

    with pytest.raises(UnavailableError):
        Settler(store, lambda: T0, lambda _: None)


def test_a_settler_cannot_begin_where_there_are_no_tables() -> None:
    with fresh_postgresql(EMPTY) as url:
        store = open_store(url)
        with pytest.raises(UnavailableError, match='relation "terms" does not exist'):
            Settler(store, lambda: T0, lambda _: None)
        store.close()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_writer_waits_for_another_one_and_then_goes_on(town: Town) -> None:
    with town.store.writing() as connection:
        connection.execute(NODES.insert(), {"name": "first", "watermark_ms": 1})
        waits = Thread(target=write_node, args=(town.store, "second"))
        waits.start()
        assert waits.is_alive()
    waits.join(LONGEST_S)

    with town.store.reading() as connection:
        assert reading.watermarks(connection) == {"first": 1, "second": 1}


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_writer_that_waited_too_long_gets_an_error_and_can_write_later(town: Town) -> None:
    hurried = open_store(town.url, patience_ms=20)
    with town.store.writing(), pytest.raises(UnavailableError, match="locked"):
        write_node(hurried, "late")

    write_node(hurried, "late")

    with town.store.reading() as connection:
        assert reading.watermarks(connection) == {"late": 1}
    hurried.close()


def write_node(store: Store, name: str) -> None:
    with store.writing() as connection:
        connection.execute(NODES.insert(), {"name": name, "watermark_ms": 1})


def test_a_file_that_is_no_database_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is a letter, and not a short one either " * 100)
    store = open_store(f"sqlite:///{tmp_path}/text.db")

    with pytest.raises(UnavailableError, match="file is not a database"):
        upgrade(store)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_fault_of_ours_is_not_taken_for_a_database_that_is_away(town: Town) -> None:
    with pytest.raises(sqlalchemy.exc.SQLAlchemyError), town.store.reading() as connection:
        connection.exec_driver_sql("SELECT ?", (object(),))
