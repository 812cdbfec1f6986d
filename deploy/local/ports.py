"""Free ports of this machine."""

import secrets
import socket

_PORTS = range(20_000, 32_000)


def free_port() -> int:
    """A free port of loopback.

    It is below the range that the kernel uses for outgoing connections, so none of those takes it before its
    server does. It is random, so that two stacks that start together seldom choose the same.
    """
    while True:
        port = secrets.choice(_PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
