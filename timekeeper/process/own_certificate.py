"""The certificate of a timekeeper that runs alone: a CA and a leaf that it makes for itself."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from timekeeper.runtime.certificates import issue_authority, issue_leaf, new_key, pem

LIFE = timedelta(days=5 * 365)
RENEWED_BEFORE = timedelta(days=365)  # at a start
_BACKDATED = timedelta(days=1)


def ensure(
    certificate: Path, key: Path, ca: Path, names: tuple[str, ...], now: datetime | None = None
) -> bool:
    """Make the three files unless they are there for another year. True where they are new; raises OSError
    where they cannot be written."""
    now = now or datetime.now(UTC)
    if certificate.exists() and key.exists() and ca.exists() and _ends(certificate) - now > RENEWED_BEFORE:
        return False
    authority_key, own_key, span = new_key(), new_key(), (now - _BACKDATED, now + LIFE)
    root = issue_authority(authority_key, now, span)
    leaf = issue_leaf(own_key, names[0], [x509.DNSName(each) for each in names], root, authority_key, span)
    for file in (certificate, key, ca):
        file.parent.mkdir(parents=True, exist_ok=True)
    key.touch(mode=0o600)
    key.write_bytes(pem(own_key))
    ca.write_bytes(pem(root))
    certificate.write_bytes(pem(leaf))
    return True


def _ends(certificate: Path) -> datetime:
    """When it expires; the beginning of time for a file that is no certificate."""
    try:
        return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    except ValueError:
        return datetime.fromtimestamp(0, UTC)
