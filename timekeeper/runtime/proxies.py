"""The way to servers outside of the cluster, through the proxy that the environment names: `HTTPS_PROXY`, and
`NO_PROXY` as Go's programs read it (golang.org/x/net/http/httpproxy). Never the way to the API server or to a
role of ours.
"""

import os
import socket
import ssl
from base64 import b64encode
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import unquote

from timekeeper.edge.http_client import Server, connecting, secured, server_of, tcp, tunnel

_NO_URL = "HTTPS_PROXY is no http:// URL of a proxy"  # its own text may hold a password


def connecting_out(
    context: Callable[[], ssl.SSLContext], environment: Mapping[str, str] = os.environ
) -> Callable[[Server, float], socket.socket]:
    """As `connecting`; a server with TLS is reached by CONNECT where a proxy is named for it."""
    direct = connecting(context)

    def connect(server: Server, within_s: float) -> socket.socket:
        named = environment.get("HTTPS_PROXY") or environment.get("https_proxy") or ""
        spared = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
        if not (server.is_tls and named) or goes_direct(server, spared):
            return direct(server, within_s)
        proxy, headers = _proxy(named)
        raw = tcp(proxy, within_s)
        try:
            tunnel(raw, server, headers, within_s)
        except BaseException:
            raw.close()
            raise
        return secured(raw, context(), server.host)

    return connect


def goes_direct(server: Server, spared: str) -> bool:
    """Whether no proxy is used for the server: it is this machine, or ``spared`` names it, by commas: hosts
    with their subdomains, `.suffix` for these alone, addresses, networks, each with a port or not, or `*`."""
    host = server.host.lower().rstrip(".")
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(
        _names(entry.strip().lower(), host, server.port) for entry in spared.split(",") if entry.strip()
    )


def _names(entry: str, host: str, port: int) -> bool:
    if entry == "*":
        return True
    address = _address(host)
    if "/" in entry:
        try:
            return address is not None and address in ip_network(entry, strict=False)
        except ValueError:
            return False
    name, colon, number = entry.rpartition(":")
    if colon and number.isdecimal() and _address(entry) is None:
        entry = name
        if int(number) != port:
            return False
    if (same := _address(entry)) is not None:
        return address == same
    suffix = entry.removeprefix("*")
    return host.endswith(suffix if suffix.startswith(".") else f".{suffix}") or host == suffix


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text.strip("[]"))
    except ValueError:
        return None


def _proxy(url: str) -> tuple[Server, dict[str, str]]:
    """The proxy and what it is shown. Raises ValueError."""
    scheme, _, rest = url.partition("://") if "://" in url else ("http", "", url)
    login, at, authority = rest.partition("/")[0].rpartition("@")
    try:
        if scheme.lower() != "http":
            raise ValueError
        proxy = server_of(f"http://{authority}")
    except ValueError:
        raise ValueError(_NO_URL) from None
    pair = b64encode(unquote(login).encode()).decode()
    return proxy, {"Proxy-Authorization": f"Basic {pair}"} if at else {}
