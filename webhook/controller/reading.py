"""What PEM texts hold. Nothing here raises: whoever could write a Secret could write anything into it."""

import ipaddress
import re
from collections.abc import Iterable
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

# Certificates begin so long before they are made: peers whose clocks are behind, by a time zone even, take
# them at once.
BACKDATED = timedelta(days=1)

_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----")
_UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm)


def certificates(text: bytes) -> tuple[x509.Certificate, ...]:
    """The certificates in a PEM text that can be read, each once, in their order; what else is there is
    left out."""
    found = (_certificate(block) for block in _BLOCK.findall(text))
    return tuple(dict.fromkeys(each for each in found if each is not None))


def authorities(text: bytes, now: datetime) -> tuple[x509.Certificate, ...]:
    """The CAs in a PEM text whose time is not over."""
    return tuple(each for each in certificates(text) if _is_authority(each) and ends(each) > now)


def bundle(trusted: Iterable[x509.Certificate]) -> bytes:
    """The certificates as one PEM text, each once."""
    return b"".join(each.public_bytes(Encoding.PEM) for each in dict.fromkeys(trusted))


def is_bundle(text: bytes) -> bool:
    """True for PEM that holds at least one certificate and nothing that fails to parse: the API server takes
    any bytes as a caBundle and fails at the first call."""
    try:
        return bool(x509.load_pem_x509_certificates(text))
    except ValueError:
        return False


def belongs(key: bytes, certificate: x509.Certificate) -> bool:
    """Whether this is the certificate's private key, PEM."""
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    try:
        public = load_pem_private_key(key, None).public_key()
        return public.public_bytes(*form) == certificate.public_key().public_bytes(*form)
    except _UNREADABLE:
        return False


def issued(certificate: x509.Certificate) -> datetime:
    """When a certificate of ours was made."""
    return certificate.not_valid_before_utc + BACKDATED


def ends(certificate: x509.Certificate) -> datetime:
    """Until when it is good."""
    return certificate.not_valid_after_utc


def has_begun(certificate: x509.Certificate, now: datetime) -> bool:
    """Whether it is good already; one that is not was made by a clock far ahead."""
    return certificate.not_valid_before_utc <= now


def lasts(certificate: x509.Certificate, now: datetime) -> bool:
    """Whether at least a third of its life is left, counted from when it was made."""
    life, left = ends(certificate) - issued(certificate), ends(certificate) - now
    return has_begun(certificate, now) and 3 * left >= life


def names(certificate: x509.Certificate) -> frozenset[str]:
    """The DNS names and addresses that it is for."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, *_UNREADABLE):
        return frozenset()
    addresses = found.get_values_for_type(x509.IPAddress)
    return frozenset(found.get_values_for_type(x509.DNSName)) | frozenset(map(str, addresses))


def is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether the CA has signed it."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (*_UNREADABLE, InvalidSignature):
        return False
    return True


def address_of(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that the text is; None for a DNS name."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _certificate(block: bytes) -> x509.Certificate | None:
    try:
        return x509.load_pem_x509_certificate(block)
    except _UNREADABLE:
        return None


def _is_authority(certificate: x509.Certificate) -> bool:
    """A bundle with anything else in it has made webhooks unreachable in other systems."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, *_UNREADABLE):
        return False
