"""Issues certificates: ECDSA P-256, for a CA of its own and for servers."""

from collections.abc import Sequence
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Key = ec.EllipticCurvePrivateKey
Span = tuple[datetime, datetime]  # from when to when it is valid

_SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def new_key() -> Key:
    """A private key."""
    return ec.generate_private_key(ec.SECP256R1())


def issue_authority(key: Key, now: datetime, span: Span) -> x509.Certificate:
    """A CA's own certificate, named after its time."""
    subject = _subject(f"bursar-ca-{now:%Y%m%d%H%M%S}")
    identity = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = (
        _builder(subject, subject, key.public_key(), span)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_SIGNS_CERTIFICATES, critical=True)
        .add_extension(identity, critical=False)
    )
    return builder.sign(key, hashes.SHA256())


def issue_leaf(
    key: Key,
    subject: str,
    names: Sequence[x509.GeneralName],
    authority: x509.Certificate,
    signer: Key,
    span: Span,
) -> x509.Certificate:
    """A server's certificate for these names. ``signer``: the key of the CA ``authority``."""
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = (
        _builder(_subject(subject), authority.subject, key.public_key(), span)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(issuer, critical=False)
    )
    return builder.sign(signer, hashes.SHA256())


def pem(issued: x509.Certificate | Key) -> bytes:
    """A certificate, or a private key without a password, as PEM."""
    if isinstance(issued, x509.Certificate):
        return issued.public_bytes(Encoding.PEM)
    return issued.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, span: Span
) -> x509.CertificateBuilder:
    begin, end = span
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
