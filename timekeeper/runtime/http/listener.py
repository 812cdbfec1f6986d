"""The socket on which a server listens. It is opened before anything else is started, so that a port which is
in use is found at once."""

import socket

_BACKLOG = 2048


class CannotListenError(Exception):
    """The address cannot be listened on; the text is a sentence for the operator."""


def listening_socket(host: str, port: int) -> socket.socket:
    """Raises CannotListenError."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise CannotListenError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return listener
