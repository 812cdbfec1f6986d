"""SQLite: one file, one writer at a time, readers beside it."""

import os
import shutil
import sqlite3
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, event, exc
from sqlalchemy.engine import URL, Engine

MOUNTS = Path("/proc/self/mountinfo")

_NAP_S = 0.001
_SPARE = 1 << 30  # bytes of the volume that temporary files leave free
_STEPS = 1_000_000  # of SQLite's machine between two looks at the volume
_OPEN = Path("/proc/self/fd")

# Network file systems. SQLite's locks and its shared memory do not work there, and the file is damaged sooner
# or later (sqlite.org/howtocorrupt.html, 2.1; sqlite.org/wal.html).
_NETWORK = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "afs", "lustre", "gfs2", "ocfs2", "gpfs"),
    *("beegfs", "pvfs2", "orangefs", "glusterfs", "fuse"),
}
# A local disk behind the overlay of a rootless container.
_LOCAL_FUSE = {"fuse.fuse-overlayfs"}


@dataclass(frozen=True, slots=True)
class Sqlite:
    """The connection settings. ``patience_ms``: how long a writer waits for another writer."""

    patience_ms: int

    def listen(self, engine: Engine, writes: str) -> None:
        """Set up every connection of the engine. Transactions with the execution option ``writes`` take the
        write lock."""
        folder = file_of(engine.url).absolute().parent

        def prepare(connection: Any, _record: object) -> None:
            self._prepare(connection)
            _sort_beside(connection, folder)

        event.listen(engine, "connect", prepare)
        event.listen(engine, "begin", lambda connection: self._begin(connection, writes))

    def _prepare(self, connection: Any) -> None:
        """WAL lets readers continue beside the one writer.

        ``synchronous=FULL`` flushes the log to disk at each commit: an acknowledged grant or heartbeat
        survives a power cut. NORMAL would save that flush and lose the last commits; heartbeats are committed
        in groups instead.
        """
        connection.isolation_level = None  # this module sends BEGIN itself
        connection.execute(f"PRAGMA busy_timeout = {self.patience_ms}")
        until = time.monotonic() + self.patience_ms / 1000
        while not _keeps_a_log(connection, last_try=time.monotonic() > until):
            time.sleep(_NAP_S)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")

    def _begin(self, connection: Connection, writes: str) -> None:
        """A writer takes the lock at once. If it first read and then wrote, its read could be outdated, and
        SQLite would refuse the write without waiting."""
        if not connection.get_execution_options().get(writes, False):
            connection.exec_driver_sql("BEGIN")
            return
        # SQLite's own wait sleeps up to 0.1 s at a time and misses the moments in which the lock is free.
        until = time.monotonic() + self.patience_ms / 1000
        # by the driver itself: SQLAlchemy's way is a sixth of what a heartbeat takes
        driver: Any = connection.connection.dbapi_connection
        driver.execute("PRAGMA busy_timeout = 0")
        while not _has_begun(connection, last_try=time.monotonic() > until):
            time.sleep(_NAP_S)
        driver.execute(f"PRAGMA busy_timeout = {self.patience_ms}")


def _sort_beside(connection: sqlite3.Connection, folder: Path) -> None:
    """What a large report sorts lies in files beside the database: `/tmp` is small memory as installed. A
    statement whose files would leave less than `_SPARE` of the volume ends as SQLITE_INTERRUPT."""
    place = str(folder).replace("'", "''")
    if connection.execute("PRAGMA temp_store_directory").fetchall() != [(str(folder),)]:
        with suppress(sqlite3.OperationalError):  # a folder that may not be written, as of a backup
            connection.execute(f"PRAGMA temp_store_directory = '{place}'")

    def is_full() -> bool:
        return shutil.disk_usage(folder).free < _SPARE and _has_temporary_files(folder)

    connection.set_progress_handler(is_full, _STEPS)


def _has_temporary_files(folder: Path) -> bool:
    """Whether this process has written some there. SQLite removes their names at once."""
    for descriptor in _OPEN.iterdir() if _OPEN.exists() else ():
        with suppress(OSError):
            name = os.readlink(descriptor)
            if name.startswith(f"{folder}/etilqs_") and descriptor.stat().st_size:
                return True
    return False


def _keeps_a_log(connection: sqlite3.Connection, last_try: bool) -> bool:
    """Try once to switch the file to WAL; False while another process is switching it: SQLite does not wait
    for that lock."""
    try:
        if not connection.execute("PRAGMA page_count").fetchone()[0]:  # a new file: later it has no effect
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError as error:
        if last_try or not _is_busy(error):
            raise
        return False
    return True


def _has_begun(connection: Connection, last_try: bool) -> bool:
    """Try once to take the write lock; False while another writer holds it."""
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    except exc.OperationalError as error:
        if last_try or not _is_busy(error.orig):
            raise
        return False
    return True


def _is_busy(error: object) -> bool:
    return str(getattr(error, "sqlite_errorname", "")).startswith("SQLITE_BUSY")


def file_of(url: URL) -> Path:
    """The file of the URL, also in SQLite's form ``file:/path?mode=ro``."""
    return Path((url.database or "").removeprefix("file:").partition("?")[0])


def beside(file: Path) -> tuple[Path, ...]:
    """The files that SQLite has beside a database in WAL mode: the log, and its index."""
    return tuple(file.with_name(file.name + ending) for ending in ("-wal", "-shm"))


def network_file_system(file: Path, mounts: str) -> str:
    """The type of the network file system that holds the file; empty for a local disk.

    ``mounts``: the text of /proc/self/mountinfo (proc_pid_mountinfo(5)).
    """
    path = os.path.realpath(file)
    place, kind = "", ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        if not after:
            continue
        point = before.split(" ")[4].encode().decode("unicode_escape")
        if len(point) >= len(place) and (path == point or path.startswith(point.rstrip("/") + "/")):
            place, kind = point, after.split(" ")[0]
    if kind == "9p" and place == "/":
        return ""  # the root of a sandbox such as gVisor's; its files are local
    return kind if _is_network(kind) else ""


def _is_network(kind: str) -> bool:
    return kind in _NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE)
