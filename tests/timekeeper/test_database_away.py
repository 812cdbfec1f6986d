"""The database is full, locked or gone: clear answers, nothing half written, and nothing forgotten."""

from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import event

from tests.timekeeper.worlds import GPU, MINUTE, SECOND, T0, Town, budgets, gpu_pod, lease, node
from timekeeper.settler.run import Settler
from timekeeper.store import reading
from timekeeper.store.engine import Store, UnavailableError, open_store
from timekeeper.store.upgrade import upgrade

POD = gpu_pod(started_ms=T0)


class Disk:
    """Full while ``full``: SQLite may then not add a single page. ``torn``: nothing at all can be written."""

    def __init__(self, town: Town) -> None:
        self.full = self.torn = False
        event.listen(town.store.engine, "checkout", self._bound)

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
    assert town.settler.book.sessions == {}

    disk.full = False
    assert town.tick() is True
    assert town.postings() == [(T0, T0 + MINUTE, GPU, "settled")]


def test_while_the_settler_cannot_write_readyz_fails_and_livez_holds(town: Town, disk: Disk) -> None:
    disk.full = True
    fill(town)
    for _ in range(12):
        town.clock.turn(SECOND)
        town.tick()

    assert town.get("/readyz").status_code == 503
    assert town.get("/livez").status_code == 200


def test_a_pod_that_lived_and_went_while_the_database_was_away_is_charged(town: Town, disk: Disk) -> None:
    disk.full = True
    fill(town)
    town.hear("pods", POD)
    town.tick()
    town.clock.turn(MINUTE)
    town.hear("pods", gpu_pod(started_ms=T0, ended_ms=T0 + MINUTE), deleted=True)
    town.tick()
    disk.full = False
    town.clock.turn(MINUTE)
    town.tick()

    assert town.postings() == [(T0, T0 + MINUTE, GPU, "settled")]


def test_what_waits_in_memory_is_bounded(town: Town, disk: Disk, capsys: pytest.CaptureFixture[str]) -> None:
    town.settler.world.most_gone = 3
    disk.full = True
    fill(town)
    for number in range(5):
        town.hear("pods", gpu_pod(f"gone-{number}", started_ms=T0, ended_ms=T0 + SECOND), deleted=True)
    town.tick()
    assert len(town.settler.world.gone) == 3

    disk.full = False
    town.tick()

    assert "ends of pods forgotten count=2" in capsys.readouterr().err
    assert town.charged() == GPU * 3 * SECOND


def test_heartbeats_are_refused_so_that_sidecars_keep_them(town: Town, disk: Disk) -> None:
    town.hear("pods", POD)
    town.tick()
    town.clock.turn(MINUTE)
    disk.torn = True

    answer = town.beat(POD, 1)

    assert (answer.status_code, answer.content_type) == (503, "application/problem+json")
    assert answer.headers["Retry-After"] == "2"
    disk.torn = False
    assert town.beat(POD, 1).status_code == 200
    assert town.budget()["pending"] == GPU * MINUTE


def test_a_grant_that_could_not_be_written_was_not_made(town: Town, disk: Disk) -> None:
    disk.torn = True
    refused = town.post("/budget/team-a/increase", {"minutes": 60}, **{"Idempotency-Key": "k"})
    disk.torn = False

    assert refused.status_code == 503
    assert town.budget()["gpuHours"]["granted"] == "1"


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


def test_a_settler_cannot_begin_without_the_ledger(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/no/such/folder/ledger.db")

    with pytest.raises(UnavailableError):
        Settler(store, lambda: T0, lambda _: None)


def test_a_writer_waits_for_another_one_and_then_goes_on(town: Town) -> None:
    with town.store.writing() as connection:
        connection.exec_driver_sql("INSERT INTO nodes VALUES ('first', 1)")
        waits = Thread(target=write_node, args=(town.store, "second"))
        waits.start()
        assert waits.is_alive()
    waits.join(10)

    with town.store.reading() as connection:
        assert reading.watermarks(connection) == {"first": 1, "second": 1}


def test_a_writer_that_waited_too_long_is_told_so_and_can_write_later(town: Town) -> None:
    hurried = open_store(town.url, patience_ms=20)
    with town.store.writing(), pytest.raises(UnavailableError, match="locked"):
        write_node(hurried, "late")

    write_node(hurried, "late")

    with town.store.reading() as connection:
        assert reading.watermarks(connection) == {"late": 1}
    hurried.close()


def write_node(store: Store, name: str) -> None:
    with store.writing() as connection:
        connection.exec_driver_sql("INSERT INTO nodes VALUES (?, 1)", (name,))


def test_a_file_that_is_no_database_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is a letter, and not a short one either " * 100)
    store = open_store(f"sqlite:///{tmp_path}/text.db")

    with pytest.raises(UnavailableError, match="file is not a database"):
        upgrade(store)


def test_a_fault_of_ours_is_not_taken_for_a_database_that_is_away(town: Town) -> None:
    with pytest.raises(sqlalchemy.exc.SQLAlchemyError), town.store.reading() as connection:
        connection.exec_driver_sql("SELECT ?", (object(),))
