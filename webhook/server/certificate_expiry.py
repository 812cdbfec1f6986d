"""When a certificate runs out, read without the `cryptography` package and its memory."""

import ssl
from datetime import UTC, datetime
from pathlib import Path


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
