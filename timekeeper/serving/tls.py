"""Certificates and bundles on disk: read once at the start, so that a bad one is told, and anew whenever they
change."""

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from timekeeper.settings import UnusableError

_CHAIN = "a certificate chain in PEM, the leaf first, beginning with -----BEGIN CERTIFICATE-----"
_KEY = (
    "the certificate's private key in PEM, without a passphrase, beginning with -----BEGIN PRIVATE KEY-----"
)
_BUNDLE = "CA certificates in PEM, each beginning with -----BEGIN CERTIFICATE-----"


def check_files(certificate: str, key: str, ca: str) -> None:
    """Raises UnusableError with the flag that names a file which cannot be served with; a missing ``ca`` is
    none."""
    _check_certificates("--tls-cert", certificate, _CHAIN)
    _read("--tls-key", key, _KEY)
    try:
        server_context(certificate, key)
    except (OSError, ssl.SSLError) as error:
        apart = "MISMATCH" in str(getattr(error, "reason", ""))
        what = (
            f"is not the key of the certificate in {certificate}"
            if apart
            else "holds no key that can be read"
        )
        raise UnusableError(f"--tls-key: {key} {what}; it must be {_KEY}") from error
    if Path(ca).exists():
        _check_certificates("--ca", ca, _BUNDLE)


def server_context(certificate: str | Path, key: str | Path) -> ssl.SSLContext:
    """The context to serve with. Raises OSError or SSLError; a key with a passphrase is never asked for
    one."""
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.load_cert_chain(certificate, key, password="")
    return made


def newest_context(certificate: Path, key: Path) -> Callable[[], ssl.SSLContext]:
    """A function that gives the server's TLS context, made anew when the files have changed: a rotated
    certificate is served from the next connection on.

    Where the new files do not fit together (they are replaced one after the other), the last good context
    stays.
    """
    kept: dict[str, Any] = {"stamp": None, "context": None}

    def context() -> ssl.SSLContext:
        stamp = (_stamp(certificate), _stamp(key))
        if stamp != kept["stamp"]:
            try:
                made = server_context(certificate, key)
            except (OSError, ssl.SSLError):
                if kept["context"] is None:
                    raise
            else:
                kept.update(stamp=stamp, context=made)
        current: ssl.SSLContext = kept["context"]
        return current

    return context


def newest_text(path: Path) -> Callable[[], str]:
    """A function that gives a file's text, read anew when it has changed; empty where there is no such
    file."""
    kept: dict[str, Any] = {"stamp": None, "text": ""}

    def text() -> str:
        stamp = _stamp(path)
        if stamp != kept["stamp"]:
            kept.update(stamp=stamp, text=path.read_text() if stamp else "")
        return str(kept["text"])

    return text


def _check_certificates(flag: str, path: str, allowed: str) -> None:
    pem = _read(flag, path, allowed)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise UnusableError(
            f"{flag}: {path} holds no certificate that can be read; it must be {allowed}"
        ) from error


def _read(flag: str, path: str, allowed: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UnusableError(
            f"{flag}: {path} cannot be read ({error.strerror}); it must be {allowed}"
        ) from error


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file is replaced or rewritten; None where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
