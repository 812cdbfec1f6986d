"""Certificates and bundles on disk: checked at the start, where a bad file is an error of its flag, then
loaded again when they change."""

import ssl
from functools import partial
from pathlib import Path

from timekeeper.edge.clock import monotonic_ms
from timekeeper.log import log
from timekeeper.runtime.file_watch import FileWatch
from timekeeper.runtime.oidc_settings import OidcSettings
from timekeeper.runtime.tls import server_context
from timekeeper.settings import UnusableError

_CHAIN = "a certificate chain in PEM, the leaf first, beginning with -----BEGIN CERTIFICATE-----"
_KEY = (
    "the certificate's private key in PEM, without a passphrase, beginning with -----BEGIN PRIVATE KEY-----"
)
_BUNDLE = "CA certificates in PEM, each beginning with -----BEGIN CERTIFICATE-----"


def check_files(certificate: str, key: str, ca: str) -> None:
    """Raises UnusableError, with the flag, for a file that is missing or invalid; ``ca`` may be missing."""
    _check_certificates("--tls-cert", certificate, _CHAIN)
    _read("--tls-key", key, _KEY)
    try:
        server_context(Path(certificate), Path(key))
    except (OSError, ssl.SSLError) as error:
        apart = "MISMATCH" in str(getattr(error, "reason", ""))
        what = f"is not the key of the certificate in {certificate}" if apart else "contains no readable key"
        raise UnusableError(f"--tls-key: {key} {what}; it must be {_KEY}") from error
    if Path(ca).exists():
        _check_certificates("--ca", ca, _BUNDLE)


def check_oidc_files(oidc: OidcSettings) -> None:
    """Raises UnusableError, with the flag, for a file of the provider that is missing or invalid."""
    if oidc.client_secret_file is not None:
        secret = _read("--oidc-client-secret-file", str(oidc.client_secret_file), "a file with the secret")
        if not secret.strip():
            raise UnusableError(f"--oidc-client-secret-file: {oidc.client_secret_file} is empty")
    if oidc.ca_file is not None:
        _check_certificates("--oidc-ca-file", str(oidc.ca_file), _BUNDLE)


def newest_context(certificate: Path, key: Path) -> FileWatch[ssl.SSLContext]:
    """The server's TLS context; a connection after a renewal gets the renewed certificate."""
    load = partial(server_context, certificate, key)
    return FileWatch((certificate, key), load, monotonic_ms, log, every_ms=0)


def _check_certificates(flag: str, path: str, allowed: str) -> None:
    pem = _read(flag, path, allowed)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise UnusableError(
            f"{flag}: {path} contains no readable certificate; it must be {allowed}"
        ) from error


def _read(flag: str, path: str, allowed: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UnusableError(
            f"{flag}: {path} cannot be read ({error.strerror}); it must be {allowed}"
        ) from error
