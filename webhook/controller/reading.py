"""Parses PEM texts. Nothing here raises, because a Secret can contain anything."""

import ipaddress
import re
from collections.abc import Iterable
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

# Certificates are valid from this long before their creation, so that peers whose clocks are behind, even by
# a time zone, accept them immediately.
BACKDATED = timedelta(days=1)

_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----")
_UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm)


def certificates(text: bytes) -> tuple[x509.Certificate, ...]:
    """The valid certificates in a PEM text, each once, in order; other content is ignored."""
    found = (_certificate(block) for block in _BLOCK.findall(text))
    return tuple(dict.fromkeys(each for each in found if each is not None))


def authorities(text: bytes, now: datetime) -> tuple[x509.Certificate, ...]:
    """The CAs in a PEM text that have not expired."""
    return tuple(each for each in certificates(text) if _is_authority(each) and ends(each) > now)


def bundle(trusted: Iterable[x509.Certificate]) -> bytes:
    """The certificates as one PEM text, each once."""
    return b"".join(each.public_bytes(Encoding.PEM) for each in dict.fromkeys(trusted))


def is_bundle(text: bytes) -> bool:
    """Whether the PEM text contains at least one certificate and nothing invalid: the API server accepts any
    bytes as a caBundle and fails at the first call."""
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
    """When a certificate of ours was created."""
    return certificate.not_valid_before_utc + BACKDATED


def ends(certificate: x509.Certificate) -> datetime:
    """When it expires."""
    return certificate.not_valid_after_utc


def has_begun(certificate: x509.Certificate, now: datetime) -> bool:
    """Whether it is valid already; otherwise it was created by a clock that is far ahead."""
    return certificate.not_valid_before_utc <= now


def lasts(certificate: x509.Certificate, now: datetime) -> bool:
    """Whether at least a third of its life is left, counted from its creation."""
    life, left = ends(certificate) - issued(certificate), ends(certificate) - now
    return has_begun(certificate, now) and 3 * left >= life


def names(certificate: x509.Certificate) -> frozenset[str]:
    """Its DNS names and addresses."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, *_UNREADABLE):
        return frozenset()
    addresses = found.get_values_for_type(x509.IPAddress)
    return frozenset(found.get_values_for_type(x509.DNSName)) | frozenset(map(str, addresses))


def is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether the CA signed it."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (*_UNREADABLE, InvalidSignature):
        return False
    return True


def address_of(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The text as an address; None for a DNS name."""
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
    """In other systems a bundle with other certificates made webhooks unreachable."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, *_UNREADABLE):
        return False
