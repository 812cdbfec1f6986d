"""Backup and restore: copies taken while a ledger is written, looked at and gone on with elsewhere."""

import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event, Thread
from threading import enumerate as enumerate_threads

import pytest

from tests.postgresql import EMPTY, fresh_postgresql, server
from tests.timekeeper.ledger.test_export import exported
from tests.timekeeper.past import differences, live
from tests.timekeeper.worlds import DAY, SECOND, Town, gpu_pod
from timekeeper.__main__ import main

BUSY = "busy"


@contextmanager
def busy(town: Town) -> Iterator[list[tuple[int, list[int]]]]:
    """Settler and sidecars write all the time; each moment's clock and balances are noted after its tick."""
    stop, seen = Event(), [(town.clock(), posted(town))]

    def go_on() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            pod = gpu_pod(f"busy-{number}", bound_ms=town.clock(), started_ms=town.clock(), card=number % 8)
            town.change("pods", pod)
            town.beat(pod, 1)
            town.clock.turn(SECOND)
            town.node_heard()
            began, now = town.clock() - SECOND, town.clock()
            name, card = f"busy-{number}", number % 8
            town.change("pods", gpu_pod(name, card=card, bound_ms=began, started_ms=began, ended_ms=now))
            seen.append((town.clock(), posted(town)))

    writing = Thread(target=go_on, name=BUSY)
    writing.start()
    try:
        yield seen
    finally:
        stop.set()
        writing.join()


def posted(town: Town) -> list[int]:
    return [town.budget(name)["posted"] for name in ("team-a", "team-b")]


def wait_for(seen: list[tuple[int, list[int]]], more: int) -> None:
    """Until so many more pods have been charged."""
    until, waiting = len(seen) + more, Event()
    while len(seen) < until:
        assert any(thread.name == BUSY for thread in enumerate_threads()), "nobody writes any more"
        waiting.wait(0.005)


def test_a_backup_taken_during_writes_is_the_ledger_of_one_moment(tmp_path: Path) -> None:
    town = Town(tmp_path)
    live(town)
    copies = [tmp_path / f"copy-{number}" / "ledger.db" for number in range(3)]

    with busy(town) as seen:
        for copy in copies:
            wait_for(seen, 3)
            copy.parent.mkdir()
            assert main(["backup", str(copy), "--database", town.url]) == 0
        wait_for(seen, 3)

    for copy in copies:
        assert [path.name for path in copy.parent.iterdir()] == ["ledger.db"]
        restored = Town(copy.parent, town.clock)
        assert differences(restored) == []
        assert posted(restored) in [balances for _, balances in seen]
        restored.close()
    town.close()


def test_a_restored_ledger_goes_on(tmp_path: Path) -> None:
    town = Town(tmp_path)
    live(town)
    (tmp_path / "copy").mkdir()
    main(["backup", f"{tmp_path}/copy/ledger.db", "--database", town.url])
    before = exported(town)
    restored = Town(tmp_path / "copy", town.clock)

    assert exported(restored) == before
    restored.objects = town.objects
    for each in (town, restored):
        each.clock.turn(0)
        each.resume()
        each.node_heard()
    town.clock.turn(DAY)
    for each in (town, restored):
        each.advance()
        assert differences(each) == []
    assert [town.charged(name) for name in ("team-a", "team-b")] == [
        restored.charged(name) for name in ("team-a", "team-b")
    ]
    restored.close()
    town.close()


def test_a_backup_writes_over_nothing_and_leaves_nothing_half_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    town = Town(tmp_path)
    copy = tmp_path / "copy.db"
    copy.write_text("something else")

    assert main(["backup", str(copy), "--database", town.url]) == 2
    assert "exists already; a backup never overwrites a file" in capsys.readouterr().err
    assert copy.read_text() == "something else"
    assert main(["backup", f"{tmp_path}/no/copy.db", "--database", town.url]) == 2
    assert main(["backup", str(tmp_path / "new.db"), "--database", f"sqlite:///{tmp_path}/none.db"]) == 2
    assert "there is no file" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir() if "unfinished" in path.name) == []
    town.close()


def test_a_ledger_that_is_damaged_is_not_taken_for_a_backup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    town = Town(tmp_path)
    live(town)
    town.close()
    file = tmp_path / "ledger.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'postings'").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    data = bytearray(file.read_bytes())
    data[(page - 1) * size : (page - 1) * size + 200] = b"\xff" * 200
    file.write_bytes(data)

    assert main(["backup", f"{tmp_path}/copy.db", "--database", town.url]) == 2
    assert "damaged" in capsys.readouterr().err
    assert not (tmp_path / "copy.db").exists()


@pytest.mark.make_all("PostgreSQL")
def test_postgresql_is_left_to_its_own_tools(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with fresh_postgresql() as url:
        assert main(["backup", f"{tmp_path}/copy", "--database", url]) == 2

    assert "PostgreSQL has pg_dump" in capsys.readouterr().err


@pytest.mark.make_all("PostgreSQL")
def test_a_dump_of_postgresql_taken_during_writes_is_the_ledger_of_one_moment(
    tmp_path: Path,
) -> None:
    with fresh_postgresql() as url, fresh_postgresql(EMPTY) as new_url:
        town = Town(url)
        live(town)
        with busy(town) as seen:
            wait_for(seen, 3)
            program("pg_dump", "--format=custom", f"--file={tmp_path}/dump", f"--dbname={libpq(url)}")
            wait_for(seen, 3)
        program("pg_restore", "--no-owner", f"--dbname={libpq(new_url)}", f"{tmp_path}/dump")

        restored = Town(new_url, town.clock)
        assert differences(restored) == []
        assert posted(restored) in [balances for _, balances in seen]
        restored.close()
        town.close()


def libpq(url: str) -> str:
    return url.replace("postgresql+psycopg://", "postgresql://")


def program(name: str, *arguments: str) -> None:
    """One of PostgreSQL's own programs, of the server's release."""
    path = server()._bin / name
    subprocess.run([str(path), *arguments], check=True, env={"LC_ALL": "C"}, capture_output=True)
