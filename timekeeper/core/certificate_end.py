"""When a certificate runs out, read without the `cryptography` package and its memory."""

import base64
import re
from datetime import UTC, datetime

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.S)
_VERSION, _UTC_TIME = 0xA0, 0x17


def ends(text: str) -> list[datetime]:
    """When each certificate of a PEM text runs out, in its order. Raises ValueError where there is none, or
    one cannot be read.

    Read from the DER itself (RFC 5280, 4.1): the standard library does not tell it of one's own certificate,
    and the library that would is larger than all else that a worker loads.
    """
    found = [_end(base64.b64decode("".join(each.split()), validate=True)) for each in _PEM.findall(text)]
    if not found:
        raise ValueError("no certificate")
    return found


def _end(der: bytes) -> datetime:
    try:
        signed = _members(_members(der)[0][1])[0][1]
        fields = [value for tag, value in _members(signed) if tag != _VERSION]
        tag, told = _members(fields[3])[1]  # after serial, algorithm and issuer: not before, not after
    except IndexError as error:
        raise ValueError("not the fields of a certificate") from error
    year = "%y" if tag == _UTC_TIME else "%Y"
    return datetime.strptime(told.decode("ascii"), f"{year}%m%d%H%M%SZ").replace(tzinfo=UTC)


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
