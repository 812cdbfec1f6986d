"""Which certificates are valid and which must be created: stored Secrets and the time in, desired Secrets
out.

A CA is replaced in three steps. The stored Secrets show the current step, so any process can continue:

1. A new CA becomes the first in the bundle, which is written to all places that need it: the webhook
   configurations and each server's ``ca.crt``. The former CA still signs leaves; its key stays
   (``former_key``).
2. When the bundle has been everywhere for the overlap (``trusted_since``), the new CA signs leaves.
3. When every leaf has been of the new CA for the overlap, the former CA and its key are removed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from cryptography import x509

from webhook.controller import reading
from webhook.lifetimes import CertificateLifetimes

SERVERS = ("webhook", "timekeeper", "scheduler")  # as their Services are called
CA_SECRET = "bursar-ca"  # noqa: S105 a Secret's name


@dataclass(frozen=True, slots=True)
class CertificatePair:
    """A certificate with its private key, and the bundle of CAs that its peers trust; all PEM.

    Of the CA itself the bundle begins with the certificate, and former CAs follow; ``former_key``: of the one
    that signs until the new one may; ``trusted_since``: the bundle has been everywhere since then.
    """

    certificate: bytes
    key: bytes = field(repr=False)
    bundle: bytes
    former_key: bytes = field(default=b"", repr=False)
    trusted_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Leaf:
    """A server's desired certificate: its Secret, and the names and addresses of the server."""

    server: str
    names: tuple[str, ...]

    @property
    def secret(self) -> str:
        """The name of its Secret."""
        return f"bursar-{self.server}-tls"


@dataclass(frozen=True, slots=True)
class AuthorityPlan:
    """The desired content of the CA's Secret. ``new``: a CA must be created and put before ``bundle``."""

    new: bool
    bundle: bytes
    key: bytes = field(repr=False)
    former_key: bytes = field(repr=False)


def leaves(namespace: str, extra_names: Iterable[str]) -> tuple[Leaf, ...]:
    """The leaves of all servers, for every name of their Services."""
    return tuple(
        Leaf(server, (*_service_names(f"bursar-{server}", namespace), *extra_names)) for server in SERVERS
    )


def authority(
    ca: CertificatePair | None,
    stored: Mapping[str, CertificatePair],
    wanted: tuple[Leaf, ...],
    now: datetime,
    lifetimes: CertificateLifetimes,
) -> AuthorityPlan:
    """The desired content of the CA's Secret, from its content and that of the leaves (by Secret).

    A new CA is created where none can sign, and when less than a third of its life is left. A CA that signed
    a leaf in use stays trusted, also where its own Secret is lost.
    """
    present = [pair for leaf in wanted if (pair := stored.get(leaf.secret)) is not None]
    trusted = reading.authorities(ca.bundle, now) if ca else ()
    keys = (ca.key, ca.former_key) if ca else ()
    signs = bool(
        ca and trusted and reading.belongs(ca.key, trusted[0]) and reading.has_begun(trusted[0], now)
    )
    if ca is None or not signs or not reading.lasts(trusted[0], now):
        former = next((key for key in keys if _signer(trusted, key, now)), b"")
        return AuthorityPlan(True, reading.bundle((*trusted, *_in_use(present, now))), b"", former)
    if len(present) == len(wanted) and all(_settled(each, trusted[0], now, lifetimes) for each in present):
        return AuthorityPlan(False, reading.bundle(trusted[:1]), ca.key, b"")
    former = ca.former_key if _signer(trusted, ca.former_key, now) else b""
    return AuthorityPlan(False, reading.bundle((*trusted, *_in_use(present, now))), ca.key, former)


def signer(ca: CertificatePair, now: datetime, lifetimes: CertificateLifetimes) -> CertificatePair:
    """The CA that signs leaves: the newest one when it has been trusted everywhere for the overlap; until
    then the former one where its key exists."""
    former = _signer(reading.authorities(ca.bundle, now), ca.former_key, now)
    if former is None or _is_ripe(ca, now, lifetimes):
        return ca
    return CertificatePair(reading.bundle([former]), ca.former_key, ca.bundle)


def due(
    ca: CertificatePair,
    stored: Mapping[str, CertificatePair],
    wanted: Iterable[Leaf],
    now: datetime,
    lifetimes: CertificateLifetimes,
) -> tuple[Leaf, ...]:
    """The leaves that must be created: absent, invalid, for other names, with less than a third of their life
    left, of a CA that is not trusted, or of a former CA although the newest may sign."""
    trusted = reading.authorities(ca.bundle, now)
    by = trusted[:1] if _is_ripe(ca, now, lifetimes) else trusted
    return tuple(leaf for leaf in wanted if not _serves(stored.get(leaf.secret), leaf, by, now))


def trusting(ca: CertificatePair, stored: Mapping[str, CertificatePair]) -> dict[str, CertificatePair]:
    """The leaves with another bundle than the CA's, corrected."""
    return {
        name: replace(pair, bundle=ca.bundle) for name, pair in stored.items() if pair.bundle != ca.bundle
    }


def _service_names(service: str, namespace: str) -> tuple[str, ...]:
    qualified = f"{service}.{namespace}"
    return service, qualified, f"{qualified}.svc", f"{qualified}.svc.cluster.local"


def _is_ripe(ca: CertificatePair, now: datetime, lifetimes: CertificateLifetimes) -> bool:
    return ca.trusted_since is not None and ca.trusted_since + lifetimes.overlap <= now


def _signer(trusted: Iterable[x509.Certificate], key: bytes, now: datetime) -> x509.Certificate | None:
    """The trusted CA that can sign with this key now."""
    return next((ca for ca in trusted if reading.belongs(key, ca) and reading.has_begun(ca, now)), None)


def _in_use(present: Iterable[CertificatePair], now: datetime) -> list[x509.Certificate]:
    """The CAs of leaves that may be in use, from the leaves' own bundles."""
    found = []
    for pair in present:
        certificate = _readable(pair)
        if certificate is not None and reading.ends(certificate) > now:
            candidates = reading.authorities(pair.bundle, now)
            found += [each for each in candidates if reading.is_issued_by(certificate, each)]
    return found


def _settled(
    pair: CertificatePair, newest: x509.Certificate, now: datetime, lifetimes: CertificateLifetimes
) -> bool:
    """Whether every process has replaced a leaf of a former CA by this one."""
    certificate = _readable(pair)
    return (
        certificate is not None
        and reading.is_issued_by(certificate, newest)
        and reading.issued(certificate) + lifetimes.overlap <= now
    )


def _serves(pair: CertificatePair | None, leaf: Leaf, by: Iterable[x509.Certificate], now: datetime) -> bool:
    certificate = _readable(pair)
    return (
        certificate is not None
        and reading.lasts(certificate, now)
        and reading.names(certificate) == frozenset(leaf.names)
        and any(reading.is_issued_by(certificate, each) for each in by)
    )


def _readable(pair: CertificatePair | None) -> x509.Certificate | None:
    """The certificate where its whole text parses, as a server requires, and the key belongs to it."""
    if pair is None or not reading.is_bundle(pair.certificate):
        return None
    (first, *_) = reading.certificates(pair.certificate)
    return first if reading.belongs(pair.key, first) else None
