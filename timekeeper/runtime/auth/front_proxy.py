"""Callers whose identity the API server states in headers, because it has authenticated them.

An API server that passes a request on shows its front-proxy certificate. Which CA signs it, which common
names it may have, and which headers carry the identity is in the ConfigMap
`extension-apiserver-authentication` of kube-system, which the API server writes.
"""

import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import orjson
from flask import request

from timekeeper.core.json_values import mapping
from timekeeper.edge.clock import monotonic_ms
from timekeeper.edge.log import log
from timekeeper.runtime.api_server import Api
from timekeeper.runtime.auth.gate import Caller, Count, Gate, reviews
from timekeeper.runtime.file_watch import FileWatch
from timekeeper.runtime.http.problem_details import Problem
from timekeeper.runtime.http.wsgi_gateway import REQUEST
from timekeeper.runtime.tls import server_context

Lines = Iterable[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class FrontProxy:
    """Which client's headers are believed, and which headers name the caller.

    The client shows a certificate of ``ca`` (PEM) whose common name is one of ``names``; empty: any name.
    ``user``, ``uid`` and ``group`` are names of headers in upper case, of which the first one present counts;
    ``extra``: prefixes of such names."""

    ca: str
    names: tuple[str, ...]
    user: tuple[str, ...]
    uid: tuple[str, ...]
    group: tuple[str, ...]
    extra: tuple[str, ...]

    def is_known(self, certificate: Any) -> bool:
        """True if a certificate of this CA has one of the names."""
        pairs = [pair for part in mapping(certificate).get("subject", ()) for pair in part]
        named = [value for name, value in pairs if name == "commonName"]
        return bool(certificate) and (not self.names or (len(named) == 1 and named[0] in self.names))

    def caller(self, lines: Lines) -> Caller:
        """The caller that the headers name. It is bound to no pod. Raises a Problem: 401."""
        sent = [(name.upper(), _text(value)) for name, value in lines]
        users = _values(sent, self.user)
        if len(users) != 1 or not users[0]:
            raise Problem(HTTPStatus.UNAUTHORIZED, "the API server named no user")
        extra: dict[str, list[str]] = {}
        for name, value in sent:
            for prefix in self.extra:
                if name.startswith(prefix):
                    extra.setdefault(unquote(name[len(prefix) :].lower()), []).append(value)
                    break
        return Caller(
            username=users[0],
            uid="".join(_values(sent, self.uid)[:1]),
            groups=tuple(_values(sent, self.group)),
            extra=tuple(sorted((name, tuple(values)) for name, values in extra.items())),
            pod=None,
        )


def read_front_proxy(data: Mapping[str, Any]) -> FrontProxy:
    """What the ConfigMap's data say. Raises ValueError with a sentence."""
    ca = str(data.get("requestheader-client-ca-file") or "")
    if not ca:
        raise ValueError("requestheader-client-ca-file is missing: the API server has no front-proxy CA")
    names = _list(data, "requestheader-allowed-names")
    if not names and _certificates(ca) & _certificates(str(data.get("client-ca-file") or "")):
        raise ValueError(
            "requestheader-allowed-names is empty, and requestheader-client-ca-file has a CA of"
            " client-ca-file: every user with a certificate could name another user"
        )
    return FrontProxy(
        ca,
        names,
        _headers(data, "requestheader-username-headers"),
        _headers(data, "requestheader-uid-headers"),
        _headers(data, "requestheader-group-headers"),
        _headers(data, "requestheader-extra-headers-prefix"),
    )


class FrontProxyGate(Gate):
    """The gate for requests that the API server passes on. It believes the headers of the present request, so
    only a server that admits no client but the front proxy may use it."""

    def __init__(self, api: Api, front_proxy: Callable[[], FrontProxy | None], count: Count) -> None:
        super().__init__(reviews(api), "", api.clock.now_ms, count=count)
        self._front_proxy = front_proxy

    def caller(self, authorization: str | None) -> Caller:
        """See `Gate`; the token, which the API server removes, is not read."""
        proxy, sent = self._front_proxy(), request.environ[REQUEST]
        if proxy is None or not sent.is_verified:
            raise Problem(HTTPStatus.UNAUTHORIZED, "the request does not come from the API server")
        return proxy.caller(sent.head.lines)


def front_proxy_tls(
    certificate: Path, key: Path, front_proxy: Callable[[], FrontProxy | None]
) -> Callable[[], ssl.SSLContext | None]:
    """A function that gives the context for the next connection, whose client must show a certificate of the
    front proxy's CA; None while no CA is known."""
    of_ca: dict[str, FileWatch[ssl.SSLContext]] = {}

    def context() -> ssl.SSLContext | None:
        proxy = front_proxy()
        if proxy is None:
            return None
        if proxy.ca not in of_ca:
            of_ca.clear()
            of_ca[proxy.ca] = FileWatch(
                (certificate, key), lambda: _context(certificate, key, proxy.ca), monotonic_ms, log, 0
            )
        return of_ca[proxy.ca]()

    return context


def _context(certificate: Path, key: Path, ca: str) -> ssl.SSLContext:
    context = server_context(certificate, key)
    context.load_verify_locations(cadata=ca)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _values(sent: Lines, names: tuple[str, ...]) -> list[str]:
    """The values of the first of these headers that is there."""
    for wanted in names:
        if found := [value for name, value in sent if name == wanted]:
            return found
    return []


def _text(value: str) -> str:
    """A header's bytes as UTF-8, which the parser has read as Latin-1. Raises a Problem."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError as error:
        raise Problem(HTTPStatus.UNAUTHORIZED, "the API server named the user in no valid UTF-8") from error


def _headers(data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    return tuple(name.upper() for name in _list(data, key))


def _list(data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """A JSON array of strings; empty where there is none. Raises ValueError."""
    found = orjson.loads(str(data.get(key) or "[]"))
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ValueError(f"{key} is no JSON array of strings")
    return tuple(found)


def _certificates(pem: str) -> set[str]:
    """The certificates of a bundle, without the text around them."""
    parts = pem.split("-----BEGIN CERTIFICATE-----")[1:]
    return {"".join(part.partition("-----END")[0].split()) for part in parts}
