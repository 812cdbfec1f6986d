"""Free ports of this machine."""

import os
import secrets
import socket
import sys
from collections import deque

_PORTS = range(20_000, 32_000)
_AT_ONCE = 64  # ports of one process that wait for their server

_claims: deque[int] = deque()  # file descriptors


def free_port() -> int:
    """A free port of loopback, which no other call on this machine returns before its server has had time to
    listen.

    It is below the range that the kernel uses for outgoing connections, so none of those takes it before its
    server does.
    """
    while True:
        port = secrets.choice(_PORTS)
        if is_free(port) and _claim(port):
            return port


def is_free(port: int) -> bool:
    """Whether no server listens there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _claim(port: int) -> bool:
    """Whether no other process has claimed it. A claim is a name in Linux's abstract namespace: it ends with
    its process, or once the process has claimed many others."""
    if sys.platform != "linux":
        return True
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0bursar-port-{port}")
    except OSError:
        claim.close()
        return False
    _claims.append(claim.detach())
    if len(_claims) > _AT_ONCE:
        os.close(_claims.popleft())
    return True
