"""The certificate of a timekeeper that runs alone: a CA and a leaf that it makes for itself."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFE = timedelta(days=5 * 365)
RENEWED_BEFORE = timedelta(days=365)  # at a start
_BACKDATED = timedelta(days=1)
_SIGNS = x509.KeyUsage(False, False, False, False, False, True, True, False, False)


def ensure(
    certificate: Path, key: Path, ca: Path, names: tuple[str, ...], now: datetime | None = None
) -> bool:
    """Make the three files unless they are there for another year. True where they are new; raises OSError
    where they cannot be written."""
    now = now or datetime.now(UTC)
    if certificate.exists() and key.exists() and ca.exists() and _ends(certificate) - now > RENEWED_BEFORE:
        return False
    authority_key, own_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = _name(f"bursar-ca-{now:%Y%m%d%H%M%S}")
    root = (
        _builder(authority, authority, authority_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_SIGNS, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
    ).sign(authority_key, hashes.SHA256())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    leaf = (
        _builder(_name(names[0]), authority, own_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(each) for each in names]), critical=False)
        .add_extension(issuer, critical=False)
    ).sign(authority_key, hashes.SHA256())
    for file in (certificate, key, ca):
        file.parent.mkdir(parents=True, exist_ok=True)
    key.touch(mode=0o600)
    key.write_bytes(own_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    ca.write_bytes(root.public_bytes(Encoding.PEM))
    certificate.write_bytes(leaf.public_bytes(Encoding.PEM))
    return True


def _ends(certificate: Path) -> datetime:
    """When it expires; the beginning of time for a file that is no certificate."""
    try:
        return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    except ValueError:
        return datetime.fromtimestamp(0, UTC)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + LIFE)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
