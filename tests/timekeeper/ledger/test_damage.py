"""A damaged file of a ledger is named at the start and while it is used, and nothing is made of it."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.timekeeper.past import live
from tests.timekeeper.worlds import Town
from timekeeper.__main__ import main
from timekeeper.api.ledger.outages import DamageWatch
from timekeeper.store.engine.damage import damage_at_start, damage_of
from timekeeper.store.engine.engine import Store, open_store

BOTH_DATABASES = "each database has files and errors of its own"

PAGE, LOG_HEADER, FRAME_HEADER = 4096, 32, 24


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The file of a ledger with its log, as a kill leaves them: 30 transactions are in the log alone."""
    (tmp_path / "killed").mkdir()
    town = Town(tmp_path)
    live(town)
    town.close()
    file = tmp_path / "ledger.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as writer:
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        for number in range(30):
            writer.execute("UPDATE terms SET since_ms = ?", (number,))
        for name in ("ledger.db", "ledger.db-wal"):
            shutil.copy(tmp_path / name, tmp_path / "killed" / name)
    return tmp_path / "killed" / "ledger.db"


def at_start(file: Path) -> str:
    store = open_store(f"sqlite:///{file}")
    try:
        return damage_at_start(store)
    finally:
        store.close()


def log_of(file: Path) -> Path:
    return file.with_name(file.name + "-wal")


def overwrite(file: Path, at: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(data)


def frame(number: int) -> int:
    """Where a frame's page begins in the log; the first is number 1."""
    return LOG_HEADER + (number - 1) * (FRAME_HEADER + PAGE) + FRAME_HEADER


def test_a_killed_ledger_is_whole(killed: Path) -> None:
    assert at_start(killed) == ""


def test_a_last_transaction_in_pieces_is_what_a_power_cut_leaves(killed: Path) -> None:
    overwrite(log_of(killed), frame(30) + 100, b"torn")

    assert at_start(killed) == ""


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda file: overwrite(log_of(file), frame(7) + 99, b"garbage"), "cannot be read from frame 7 on"),
        (lambda file: overwrite(log_of(file), 8, b"garbage"), "does not begin like one"),
        (lambda file: overwrite(file, 3 * PAGE, b"garbage" * 1000), ""),
        (lambda file: overwrite(file, 0, b"garbage" * 10), "file is not a database"),
        (lambda file: file.write_bytes(file.read_bytes()[: 20 * PAGE]), ""),
    ],
    ids=["garbage in the log", "the log's header", "garbage in the file", "the file's header", "truncated"],
)
def test_damage_is_named_and_the_start_refused(
    killed: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], None], why: str
) -> None:
    spoil(killed)
    before = killed.read_bytes(), log_of(killed).read_bytes()

    assert main(["migrate", "--database", f"sqlite:///{killed}"]) == 2

    said = capsys.readouterr().err
    assert f"--database: sqlite:///{killed}: it is damaged: " in said
    assert why in said
    assert "restore a backup" in said
    assert (killed.read_bytes(), log_of(killed).read_bytes()) == before


def test_a_restored_file_beside_the_log_of_the_former_one_is_refused(
    killed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backup = tmp_path / "backup.db"
    assert main(["backup", str(backup), "--database", f"sqlite:///{tmp_path}/ledger.db"]) == 0
    shutil.copy(backup, killed)

    assert main(["migrate", "--database", f"sqlite:///{killed}"]) == 2
    assert f"{killed}-wal is the log of another file: this one was restored" in capsys.readouterr().err

    log_of(killed).unlink()
    assert main(["migrate", "--database", f"sqlite:///{killed}"]) == 0


def test_damage_that_comes_later_makes_readyz_fail_with_its_sentence(tmp_path: Path) -> None:
    town = Town(tmp_path)
    live(town)
    store: Store = town.store
    watch = DamageWatch(lambda: damage_of(store))
    town.serve(lambda: watch.damage)
    watch.look()
    assert town.get("/readyz").status_code == 200

    with town.store.reading() as connection:
        connection.exec_driver_sql("SELECT 1")
    file = tmp_path / "ledger.db"
    with closing(sqlite3.connect(file)) as checkpoint:
        checkpoint.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    overwrite(file, 5 * PAGE, b"garbage" * 3000)
    watch.look()

    answer = town.get("/readyz")
    assert answer.status_code == 503
    assert answer.text.startswith("database: it is damaged: ")
    assert town.get("/livez").status_code == 200
    town.close()


def test_the_audit_finds_a_forged_and_a_missing_posting_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    town = Town(tmp_path)
    live(town)
    town.close()
    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as raw:
        for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            raw.execute(f'DROP TRIGGER "{name}"')
        raw.execute("DELETE FROM postings WHERE session_uid = 'uid-left'")
        raw.execute(
            "INSERT INTO postings (session_uid, sequence, namespace, from_ms, to_ms, rate_milli, amount,"
            " kind, reason, created_ms) SELECT session_uid, 9, namespace, from_ms + 60000, to_ms,"
            " rate_milli, amount - 60000 * rate_milli, kind, reason, created_ms FROM postings"
            " WHERE session_uid = 'uid-long' AND sequence = 0"
        )
    capsys.readouterr()

    assert main(["audit", "--database", f"sqlite:///{tmp_path}/ledger.db"]) == 1

    said = capsys.readouterr().out
    assert "session uid-left (team-b/left): posted (settled): stored nothing" in said
    assert "session uid-long (team-a/long): law: stored posting 9 of uid-long is number 4" in said
    assert "session uid-long (team-a/long): posted (settled): stored" in said
