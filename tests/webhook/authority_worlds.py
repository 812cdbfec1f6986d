"""The certificate process on a cluster of values, with a clock turned by hand: what it would store, and when
somebody could be refused."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509

from timekeeper.edge.lease import Lease
from webhook.controller.cluster import AGENTS_CA, CertificateStore, CertificateStoreError
from webhook.controller.plan import CA_SECRET, CertificatePair, leaves
from webhook.controller.reading import certificates, is_issued_by
from webhook.lifetimes import CertificateLifetimes
from webhook.settings.certificates import CertificateSettings

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
WANTED = leaves("bursar-system", ("127.0.0.1", "localhost"))
INSTANTLY = timedelta()


def settings(lifetimes: CertificateLifetimes, **changed: Any) -> CertificateSettings:
    """The process's settings with these lives."""
    made = CertificateSettings(extra_names=("127.0.0.1", "localhost"), lifetimes=lifetimes)
    return replace(made, **changed)


class Kept(CertificateStore):
    """A cluster that remembers. ``writes_left``: so many writes succeed, then none does until it is set
    again; None: all do. ``closed``: configurations that may not be written. ``written``: what was, in its
    order."""

    def __init__(self) -> None:
        self.now = NOW
        self.writes_left: int | None = None
        self.closed: set[str] = set()
        self.written: list[str] = []
        self.secrets: dict[str, tuple[CertificatePair, int]] = {}
        self.ca_bundles: dict[str, bytes] = {"mutating": b"", "validating": b"", "bursar-node": b""}
        self.held: Lease | None = None
        self.served: dict[str, list[tuple[datetime, CertificatePair]]] = {}
        self.trusted: dict[str, list[tuple[datetime, bytes]]] = {}
        self._count = 0

    def secret(self, name: str) -> tuple[CertificatePair | None, str]:
        pair, version = self.secrets.get(name, (None, 0))
        return pair, str(version or "")

    def store(self, name: str, pair: CertificatePair, version: str) -> bool:
        self._write(name)
        if self.secret(name)[1] != version:
            return False
        self._count += 1
        self.secrets[name] = pair, self._count
        if name != CA_SECRET:
            self.served.setdefault(name, []).append((self.now, pair))
            self.trusted.setdefault(name, []).append((self.now, pair.bundle))
        return True

    def bundles(self, kind: str, name: str) -> dict[str, bytes]:
        return {"one": self.ca_bundles[kind.partition("webhook")[0]]}

    def trust(self, kind: str, name: str, bundle: bytes) -> bool:
        which = kind.partition("webhook")[0]
        if self.ca_bundles[which] == bundle:
            return False
        self._write(which)
        self.ca_bundles[which] = bundle
        self.trusted.setdefault(which, []).append((self.now, bundle))
        return True

    def trust_api_service(self, name: str, bundle: bytes) -> bool:
        return False  # there is none

    def hand_out(self, namespace: str, bundle: bytes, name: str = AGENTS_CA) -> bool:
        if self.ca_bundles[namespace] == bundle:
            return False
        self._write(namespace)
        self.ca_bundles[namespace] = bundle
        self.trusted.setdefault(namespace, []).append((self.now, bundle))
        return True

    def _write(self, what: str) -> None:
        if self.writes_left == 0 or what in self.closed:
            raise CertificateStoreError("the API server is away, or refuses")
        self.written.append(what)
        if self.writes_left is not None:
            self.writes_left -= 1

    def authority(self) -> CertificatePair:
        """What the CA's Secret holds."""
        return self.secrets[CA_SECRET][0]

    def issuer(self, secret: str) -> x509.Certificate:
        """The CA that has signed a leaf."""
        return issuer(self.secrets[secret][0], certificates(self.authority().bundle))


def issuer(leaf: CertificatePair, among: tuple[x509.Certificate, ...]) -> x509.Certificate:
    """The one CA that has signed a leaf."""
    (found,) = (ca for ca in among if is_issued_by(certificates(leaf.certificate)[0], ca))
    return found


@dataclass(frozen=True, slots=True)
class Refusal:
    """Somebody who trusts a bundle meets a leaf that it does not let through."""

    server: str
    client: str
    at: datetime
    why: str


@dataclass(frozen=True, slots=True)
class Late:
    """How long a server may serve a leaf that has been replaced, and a client trust by a bundle that has."""

    server: timedelta = INSTANTLY
    client: timedelta = INSTANTLY
    since: datetime = field(default=NOW)


def refusals(cluster: Kept, late: Late) -> Iterator[Refusal]:
    """Every meeting of a client and a server, each as late as may be, that fails."""
    for server, leaves_served in cluster.served.items():
        for begins, ends, leaf in _spans(leaves_served, late.server, cluster.now):
            certificate = certificates(leaf.certificate)[0]
            for client, bundles in cluster.trusted.items():
                for from_, to, bundle in _spans(bundles, late.client, cluster.now):
                    first, last = max(begins, from_, late.since), min(ends, to)
                    why = _refused(certificate, certificates(bundle), last) if first < last else ""
                    if why:
                        yield Refusal(server, client, last, why)


def _spans(versions: list[tuple[datetime, Any]], late: timedelta, now: datetime) -> Iterator[Any]:
    """Each version with the times from which on and until which somebody may have it."""
    ends = [*(at + late for at, _ in versions[1:]), now]
    return ((begins, min(end, now), value) for (begins, value), end in zip(versions, ends, strict=True))


def _refused(leaf: x509.Certificate, trusted: tuple[x509.Certificate, ...], at: datetime) -> str:
    signers = [ca for ca in trusted if is_issued_by(leaf, ca)]
    if not signers:
        return "the bundle lacks the leaf's CA"
    if leaf.not_valid_after_utc < at:
        return "the leaf has run out"
    return "" if any(ca.not_valid_after_utc >= at for ca in signers) else "the CA has run out"


def write_garbage(cluster: Kept, secret: str) -> None:
    """Someone has written something else into a Secret."""
    pair, version = cluster.secrets[secret]
    cluster.secrets[secret] = replace(pair, certificate=b"garbage"), version + 1_000_000


def folder_of(path: Path) -> list[str]:
    """The files below a folder."""
    return sorted(str(each.relative_to(path)) for each in path.glob("*/*"))
