"""Which certificates are good and which must be made. Pure: what is stored and the time in, what is wanted
out."""

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

SERVERS = ("webhook", "timekeeper")
CA_SECRET = "bursar-ca"  # noqa: S105 a Secret's name


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate with its private key, and the bundle of CAs that its peers trust; all PEM.

    Of the CA itself the bundle begins with the certificate, and former CAs follow.
    """

    certificate: bytes
    key: bytes = field(repr=False)
    bundle: bytes


@dataclass(frozen=True, slots=True)
class Leaf:
    """A server's certificate that there must be: its Secret, and the names and addresses it is reached by."""

    server: str
    names: tuple[str, ...]

    @property
    def secret(self) -> str:
        """The name of its Secret."""
        return f"bursar-{self.server}-tls"


@dataclass(frozen=True, slots=True)
class Plan:
    """What must be made: the CA anew (``old_bundle`` is what goes on being trusted), and these leaves."""

    new_ca: bool
    old_bundle: bytes
    new_leaves: tuple[Leaf, ...]

    @property
    def nothing(self) -> bool:
        """True where all is good."""
        return not self.new_ca and not self.new_leaves


def leaves(namespace: str, extra_names: Iterable[str]) -> tuple[Leaf, ...]:
    """The leaves of all servers, by every name that a Service of theirs has."""
    return tuple(
        Leaf(server, (*_service_names(f"bursar-{server}", namespace), *extra_names)) for server in SERVERS
    )


def plan(ca: Pair | None, stored: Mapping[str, Pair], wanted: Iterable[Leaf], now: datetime) -> Plan:
    """What must be made of the CA and the leaves (by Secret) that are stored; unreadable ones count as
    absent.

    A certificate is made anew when less than a third of its life is left.
    """
    authority = _authority(ca, now)
    if ca is None or authority is None:
        return Plan(True, _still_valid(ca.bundle if ca else b"", now), tuple(wanted))
    broken = [leaf for leaf in wanted if not _serves(stored.get(leaf.secret), leaf, ca, authority, now)]
    return Plan(False, ca.bundle, tuple(broken))


def is_bundle(text: bytes) -> bool:
    """True for PEM that holds at least one certificate and nothing that fails to parse: the API server takes
    any bytes as a caBundle and fails at the first call."""
    try:
        return bool(x509.load_pem_x509_certificates(text))
    except ValueError:
        return False


def _service_names(service: str, namespace: str) -> tuple[str, ...]:
    qualified = f"{service}.{namespace}"
    return service, qualified, f"{qualified}.svc", f"{qualified}.svc.cluster.local"


def _authority(ca: Pair | None, now: datetime) -> x509.Certificate | None:
    """The CA's certificate where it may go on signing."""
    certificate = _readable(ca)
    if ca is None or certificate is None or not is_bundle(ca.bundle):
        return None
    return certificate if _lasts(certificate, now) else None


def _serves(pair: Pair | None, leaf: Leaf, ca: Pair, authority: x509.Certificate, now: datetime) -> bool:
    certificate = _readable(pair)
    if pair is None or certificate is None:
        return False
    return (
        _lasts(certificate, now)
        and pair.bundle == ca.bundle
        and _names(certificate) == frozenset(leaf.names)
        and _signed_by(certificate, authority)
    )


def _readable(pair: Pair | None) -> x509.Certificate | None:
    """The certificate where it parses and the key is its own."""
    if pair is None:
        return None
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        key = load_pem_private_key(pair.key, None)
    except (ValueError, TypeError):
        return None
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    matching = certificate.public_key().public_bytes(*form) == key.public_key().public_bytes(*form)
    return certificate if matching else None


def _lasts(certificate: x509.Certificate, now: datetime) -> bool:
    begun, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return begun <= now and (end - now) * 3 >= end - begun


def _names(certificate: x509.Certificate) -> frozenset[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    addresses = names.get_values_for_type(x509.IPAddress)
    return frozenset(names.get_values_for_type(x509.DNSName)) | frozenset(map(str, addresses))


def _signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _still_valid(bundle: bytes, now: datetime) -> bytes:
    """The CAs of a former bundle that peers may still have to trust."""
    try:
        former = x509.load_pem_x509_certificates(bundle)
    except ValueError:
        return b""
    return b"".join(each.public_bytes(Encoding.PEM) for each in former if each.not_valid_after_utc > now)


def address_of(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that the text is; None for a DNS name."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
