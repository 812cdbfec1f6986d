"""Files that someone else renews while we run: certificates, a CA bundle."""

import os
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, TypeVar

from timekeeper.runtime.log import Log

T = TypeVar("T")

_LOOK_EVERY_MS = 1_000


class Reloaded(Generic[T]):
    """A value made from files, made anew when they change; at most one look a second.

    A Secret that is mounted changes all its files at once; files written one after another may not fit
    together for a moment. What cannot be loaded leaves the former value, and is logged once.
    """

    def __init__(
        self, paths: tuple[Path, ...], load: Callable[[], T], now_ms: Callable[[], int], log: Log
    ) -> None:
        self._paths, self._load, self._now_ms, self._log = paths, load, now_ms, log
        self._value: T | None = None
        self._loaded: object = None
        self._failed: object = None
        self._look_at_ms: int | None = None

    def __call__(self) -> T | None:
        """The value; None while the files have never been good."""
        now_ms = self._now_ms()
        if self._look_at_ms is None or now_ms >= self._look_at_ms:
            self._look_at_ms = now_ms + _LOOK_EVERY_MS
            self._look()
        return self._value

    def _look(self) -> None:
        present = _signature(self._paths)
        if present == self._loaded:
            return
        try:
            self._value, self._loaded = self._load(), present
        except (OSError, ValueError) as error:
            if present != self._failed:
                self._log(
                    "not-loaded", level="error", files=" ".join(map(str, self._paths)), error=str(error)
                )
            self._failed = present
        else:
            self._log("loaded", files=" ".join(map(str, self._paths)))


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS for serving. HTTP/1.1 alone is offered: over HTTP/2 an API server sends all its reviews on one
    connection, and so to one worker."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["http/1.1"])
    return context


def expiry(certificate: Path) -> datetime:
    """When the first certificate of a PEM file runs out. Raises ValueError where there is none.

    Read from the DER itself (RFC 5280, 4.1): the standard library does not tell it of one's own certificate,
    and the library that would is larger than all else that a worker loads.
    """
    text = certificate.read_text(encoding="ascii")
    begins, ends = text.find("-----BEGIN CERTIFICATE-----"), text.find("-----END CERTIFICATE-----")
    if not 0 <= begins < ends:
        raise ValueError("no certificate")
    der = ssl.PEM_cert_to_DER_cert(text[begins : ends + len("-----END CERTIFICATE-----")])
    signed = _members(_members(der)[0][1])[0][1]
    fields = [value for tag, value in _members(signed) if tag != _VERSION]
    tag, told = _members(fields[3])[1]  # after serial, algorithm and issuer: not before, not after
    year = "%y" if tag == _UTC_TIME else "%Y"
    return datetime.strptime(told.decode("ascii"), f"{year}%m%d%H%M%SZ").replace(tzinfo=UTC)


_VERSION, _UTC_TIME = 0xA0, 0x17


def _members(der: bytes) -> list[tuple[int, bytes]]:
    """Tag and content of each DER value, one after another."""
    found, at = [], 0
    while at + 1 < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:
            octets = length & 0x7F
            length, at = int.from_bytes(der[at : at + octets]), at + octets
        found.append((tag, der[at : at + length]))
        at += length
    return found


def ca_text(path: Path) -> str:
    """The PEM text of a CA bundle. Raises ValueError where no certificate can be read from it."""
    text = path.read_text(encoding="ascii")
    client_context(text)
    return text


def client_context(ca: str) -> ssl.SSLContext:
    """TLS for asking a server whose certificate is signed by one of these CAs. Raises ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=ca)
    return context


def _signature(paths: tuple[Path, ...]) -> object:
    """What differs when a file has been replaced or rewritten; an absent one differs from any that is
    there."""
    found: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            status = os.stat(path)
            found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        except OSError:
            found.append(None)
    return found
