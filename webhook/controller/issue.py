"""Creates keys and certificates: ECDSA P-256."""

from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from webhook.controller.plan import CertificatePair, Leaf
from webhook.controller.reading import BACKDATED, address_of
from webhook.policy import CertificateLifetimes

CA_LIFE, LEAF_LIFE = CertificateLifetimes().ca, CertificateLifetimes().leaf


def new_ca(old_bundle: bytes, now: datetime, life: timedelta = CA_LIFE) -> CertificatePair:
    """A new CA, with a bundle that still contains the former ones."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(f"bursar-ca-{now:%Y%m%d%H%M%S}")
    identity = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = (
        _builder(subject, subject, key.public_key(), now, now + life)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_SIGNS_CERTIFICATES, critical=True)
        .add_extension(identity, critical=False)
    )
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    return CertificatePair(certificate, _pem(key), certificate + old_bundle)


def new_leaf(ca: CertificatePair, leaf: Leaf, now: datetime, life: timedelta = LEAF_LIFE) -> CertificatePair:
    """A server's certificate, signed by the CA; it ends no later than the CA."""
    authority = x509.load_pem_x509_certificate(ca.certificate)
    signer = load_pem_private_key(ca.key, None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise TypeError("the CA's key is not of the kind that Bursar creates")
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    end = min(now + life, authority.not_valid_after_utc)
    builder = (
        _builder(_subject(leaf.names[0]), authority.subject, key.public_key(), now, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_name(name) for name in leaf.names]), critical=False)
        .add_extension(issuer, critical=False)
    )
    certificate = builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM)
    return CertificatePair(certificate, _pem(key), ca.bundle)


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


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(end)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _name(name: str) -> x509.GeneralName:
    address = address_of(name)
    return x509.DNSName(name) if address is None else x509.IPAddress(address)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
