"""The socket on which a server listens. It is opened before anything else is started, so that a port which is
in use is found early."""

import errno
import socket
import time

_BACKLOG = 2048
_PATIENCE_S = 3.0  # the workers of a server that was killed hold its socket for a moment longer
_LOOK_EACH_S = 0.05


class CannotListenError(Exception):
    """The address cannot be listened on; the text is a sentence for the operator."""


def listening_socket(host: str, port: int) -> socket.socket:
    """Raises CannotListenError; where the port is in use, after waiting for it."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return _listen(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= until:
                sentence = f"cannot listen on {host}:{port}: {error.strerror or error}"
                raise CannotListenError(sentence) from error
        time.sleep(_LOOK_EACH_S)


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
