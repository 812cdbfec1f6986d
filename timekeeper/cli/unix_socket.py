"""HTTP over a Unix socket."""

import socket
from pathlib import Path
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection


def socket_pool(path: Path) -> urllib3.PoolManager:
    """A pool whose connections all lead to the socket at ``path``, whatever their URLs say."""

    class Connection(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            made = socket.socket(socket.AF_UNIX)
            try:
                made.connect(str(path))
            except OSError as error:
                made.close()
                raise urllib3.exceptions.NewConnectionError(self, f"{path}: {error}") from error
            return made

    class Pool(urllib3.HTTPConnectionPool):
        ConnectionCls: Any = Connection

    manager = urllib3.PoolManager(retries=False)
    manager.pool_classes_by_scheme = {"http": Pool}
    return manager
