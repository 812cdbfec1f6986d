"""Two PostgreSQL servers, the second a streaming standby of the first, and an address that moves."""

import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

from deploy.local.launcher import Launcher
from deploy.local.limits import LONGEST_S
from tests.postgresql import PostgreSQL
from tests.support.waiting import pause_s


class Address:
    """A port of this machine that leads to one server. Connections that are open stay where they are.
    ``hear``: is called with what clients send, before it is sent on."""

    def __init__(self, port: int, hear: Callable[[bytes], object] = bytes) -> None:
        self.leads_to, self._hear = port, hear
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._threads = [Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        """No new connection; those that are open have ended, as their servers have."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(LONGEST_S)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.leads_to))
                except OSError:
                    client.close()
                    continue
                pumps = [
                    Thread(target=_pump, args=ends, daemon=True)
                    for ends in ((client, server, self._hear), (server, client, bytes))
                ]
                self._threads += pumps
                for pump in pumps:
                    pump.start()


def _pump(source: socket.socket, target: socket.socket, hear: Callable[[bytes], object]) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            hear(data)
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
    source.close()


class Servers:
    """``url``: a database with this release's schema, by the address, which leads to the primary at first."""

    def __init__(self, folder: Path, launcher: Launcher) -> None:
        self.primary = PostgreSQL(folder / "primary", launcher)
        self.made = self.primary.create()
        self.standby = PostgreSQL(folder / "standby", launcher, self.primary)
        self.address = Address(self.primary.port)
        self.url = self.made.replace(f":{self.primary.port}/", f":{self.address.port}/")

    def end(self) -> None:
        """Both stop."""
        for server in (self.standby, self.primary):
            server.stop()
        self.address.close()

    def wait_for_each_other(self) -> None:
        """Synchronous from now on: a commit is there once the standby has it."""
        self.primary.as_admin("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.primary.as_admin("SELECT pg_reload_conf()")
        self.wait("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'", self.primary)

    def catch_up(self) -> None:
        """The standby has replayed all that the primary has written."""
        ((written,),) = self.primary.as_admin("SELECT pg_current_wal_insert_lsn()::text")
        self.wait(f"SELECT 1 WHERE pg_last_wal_replay_lsn() >= '{written}'", self.standby)

    def wait(self, query: str, server: PostgreSQL) -> None:
        """Until it has a row."""
        begun = time.monotonic()
        while not server.as_admin(query):
            assert time.monotonic() < begun + LONGEST_S, query
            time.sleep(pause_s(begun))

    def fail_over(self) -> None:
        """The standby takes over, and the address with it. The primary lives on where it is not stopped."""
        self.standby.promote()
        self.address.leads_to = self.standby.port


@contextmanager
def servers() -> Iterator[Servers]:
    """Both run; nothing of them outlives the block."""
    with (
        tempfile.TemporaryDirectory(prefix="bursar-failover-", dir="/dev/shm") as folder,
        Launcher() as launcher,
    ):
        made = Servers(Path(folder) / "servers", launcher)
        try:
            yield made
        finally:
            made.end()
