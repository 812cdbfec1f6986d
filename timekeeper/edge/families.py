"""Both address families by one socket."""

import errno
import socket

BOTH = "::"  # with IPV6_V6ONLY off it takes IPv4 too
_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


def listening_family(host: str) -> tuple[socket.AddressFamily, str]:
    """The family and the host to bind where ``host`` is to be listened on: IPv4 alone in place of BOTH where
    the machine knows no IPv6."""
    if ":" not in host:
        return socket.AF_INET, host
    if host == BOTH:
        try:
            with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as trial:
                trial.bind((BOTH, 0))
        except OSError as error:
            if error.errno in _NO_IPV6:
                return socket.AF_INET, "0.0.0.0"  # noqa: S104
            raise
    return socket.AF_INET6, host


def families(host: str) -> tuple[str, ...]:
    """The names of the families that are listened on where ``host`` is bound by `listening_family`."""
    family, bound = listening_family(host)
    if family == socket.AF_INET:
        return ("IPv4",)
    return ("IPv4", "IPv6") if bound == BOTH else ("IPv6",)


def take_both(listener: socket.socket, host: str) -> None:
    """Before it is bound: whatever the machine's default is, BOTH takes both families."""
    if host == BOTH:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
