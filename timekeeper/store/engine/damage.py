"""Damage of an SQLite ledger: what a check of the whole file finds, and what its log (WAL) has lost.

PostgreSQL checks its own pages; its errors arrive as any other. Formats: sqlite.org/fileformat2.html.
"""

import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from timekeeper.store.engine.engine import Store
from timekeeper.store.engine.sqlite import beside, file_of

_HEADER, _LOG_HEADER, _FRAME_HEADER = 100, 32, 24
_LOG_MAGIC = 0x377F0682  # its lowest bit: checksums are of big-endian words
_LEGACY = 1  # the file's write version outside WAL mode


def damage_of(store: Store) -> str:
    """What is wrong with the database's file, in a sentence; "" if nothing is, or on PostgreSQL. It reads the
    whole file and changes nothing."""
    file = file_of(store.engine.url)
    if store.is_shared or not file.exists() or not file.stat().st_size:
        return ""
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:
        is_short = getattr(error, "sqlite_errorname", "").startswith("SQLITE_IOERR_SHORT")
        return _damaged(error) if is_short else ""  # locked, or away: no damage
    except sqlite3.DatabaseError as error:
        return _damaged(error)
    return "" if found == "ok" else _damaged(found)


def damage_at_start(store: Store) -> str:
    """As `damage_of`, and what is wrong with the log beside the file. To be called before anything else opens
    the database: SQLite leaves out what it cannot read of the log, and says nothing."""
    file = file_of(store.engine.url)
    if store.is_shared or not file.exists():
        return ""
    log = beside(file)[0]
    content = log.read_bytes() if log.exists() else b""
    if content and _is_legacy(file):
        return (
            f"{log} is the log of another file: this one was restored from a backup; move the files -wal and"
            " -shm away"
        )
    lost = _lost(content)
    return _damaged(f"its log {log} {lost}") if lost else damage_of(store)


def _damaged(why: object) -> str:
    return (
        f"it is damaged: {' '.join(str(why).split())}; stop the timekeeper and restore a backup, without the"
        " files -wal and -shm of the damaged one"
    )


def _is_legacy(file: Path) -> bool:
    """Whether the file has been written outside WAL mode last, as `backup` leaves it."""
    with file.open("rb") as opened:
        header = opened.read(_HEADER)
    return len(header) == _HEADER and header[18] == _LEGACY


def _lost(log: bytes) -> str:
    """What SQLite would leave out of the log, in words; "" if that is nothing that was committed.

    A power cut can leave the last transaction in pieces. Each earlier one was flushed before the next began,
    so a frame that cannot be read before two commits of the same run of the log is damage.
    """
    if not log:
        return ""
    if len(log) < _LOG_HEADER or struct.unpack_from(">I", log)[0] & ~1 != _LOG_MAGIC:
        return "does not begin like one"
    order = ">" if struct.unpack_from(">I", log)[0] & 1 else "<"
    sums = _checksum(order, log[:24], (0, 0))
    if sums != struct.unpack_from(">II", log, 24):
        return "does not begin like one"
    size, salts = struct.unpack_from(">I", log, 8)[0], log[16:24]
    broken, commits = 0, 0
    for number, frame in enumerate(_frames(log, size), start=1):
        is_ours = frame[8:16] == salts
        if not broken:
            sums = _checksum(order, frame[_FRAME_HEADER:], _checksum(order, frame[:8], sums))
            broken = 0 if is_ours and sums == struct.unpack_from(">II", frame, 16) else number
        elif is_ours and struct.unpack_from(">I", frame, 4)[0]:
            commits += 1
    return f"cannot be read from frame {broken} on, and has later transactions" if commits > 1 else ""


def _frames(log: bytes, page: int) -> Iterator[bytes]:
    length = _FRAME_HEADER + page
    for start in range(_LOG_HEADER, len(log) - length + 1, length):
        yield log[start : start + length]


def _checksum(order: str, data: bytes, sums: tuple[int, int]) -> tuple[int, int]:
    """Section 4.2 of the format."""
    one, two = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for first, second in zip(words[::2], words[1::2], strict=True):
        one = (one + first + two) & 0xFFFFFFFF
        two = (two + second + one) & 0xFFFFFFFF
    return one, two
