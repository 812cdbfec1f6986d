"""A copy of a running SQLite ledger, made by SQLite's online backup."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from timekeeper.settings import UnusableError
from timekeeper.store.engine.engine import Store, UnavailableError


def back_up(store: Store, target: Path) -> None:
    """Copy the ledger, as of one moment, into a new file. The file is complete once it has its name.

    In WAL mode writers and readers do not wait. Raises UnusableError if the database is not SQLite, or if the
    file exists or cannot be written; UnavailableError if the ledger cannot be read.
    """
    if store.engine.dialect.name != "sqlite":
        raise UnusableError(
            "--database: backup copies SQLite files; PostgreSQL has pg_dump, and `export` is for both"
        )
    if target.exists():
        raise UnusableError(f"FILE: {target} exists already; a backup never overwrites a file")
    unfinished = target.with_name(target.name + ".unfinished")
    try:
        with closing(store.engine.raw_connection()) as source, closing(sqlite3.connect(unfinished)) as copy:
            _copy(source.driver_connection, copy)
        _flush(unfinished)
        unfinished.rename(target)
        _flush(target.parent)
    except sqlite3.Error as error:
        raise UnavailableError(str(error)) from error
    except OSError as error:
        raise UnusableError(f"FILE: {target} cannot be written: {error.strerror}") from error
    finally:
        unfinished.unlink(missing_ok=True)


def _copy(source: object, copy: sqlite3.Connection) -> None:
    """All pages in one step: one moment, and no restart when another process writes meanwhile."""
    if not isinstance(source, sqlite3.Connection):
        raise AssertionError("SQLite's driver is the standard library's")
    source.backup(copy, pages=-1)
    copy.execute("PRAGMA journal_mode = DELETE")  # one file, not three
    (said,) = copy.execute("PRAGMA quick_check(1)").fetchone()
    if said != "ok":
        raise UnavailableError(f"the copy is damaged, and so is the ledger: {said}")


def _flush(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
