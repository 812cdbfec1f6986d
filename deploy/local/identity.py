"""Keys, certificates, tokens and kubeconfig files of one control plane."""

import ipaddress
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# Clocks differ: certificates are valid from an hour before now.
_SLACK = timedelta(hours=1)
_LIFE = timedelta(days=30)

# Kubernetes' own names for its API server, which clients in pods use.
CLUSTER_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


@dataclass(frozen=True, slots=True)
class LocalAuthority:
    """The certificate authority of a control plane."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        """Its certificate, PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def leaf(self, names: Iterable[str], *, client: bool = False) -> tuple[bytes, bytes]:
        """A certificate for these DNS names and addresses (as a client's: for the first as common name), and
        its key; both PEM.
        """
        names = list(names)
        key = ec.generate_private_key(ec.SECP256R1())
        usage = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
        certificate = (
            _builder(_name(names[0]), self.certificate.subject, key)
            .add_extension(
                x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False
            )
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
            )
            .sign(self.key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM), private_pem(key)


def new_authority(name: str) -> LocalAuthority:
    """A new self-signed authority that Python's strict verification accepts."""
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _builder(_name(name), _name(name), key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return LocalAuthority(certificate, key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SLACK)
        .not_valid_after(now + _LIFE)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A private key in the format that Kubernetes reads."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def new_private_key() -> bytes:
    """A new key for signing service account tokens, PEM."""
    return private_pem(ec.generate_private_key(ec.SECP256R1()))


@dataclass(frozen=True, slots=True)
class Tokens:
    """The bearer tokens of the admin and the control plane's processes, and of the kubelets of ``nodes`` by
    name."""

    admin: str
    scheduler: str
    controllers: str
    nodes: Mapping[str, str] = field(default_factory=dict)

    def as_csv(self) -> str:
        """The API server's `--token-auth-file`."""
        return (
            f'{self.admin},admin,admin,"system:masters"\n'
            f"{self.scheduler},system:kube-scheduler,scheduler\n"
            f"{self.controllers},system:kube-controller-manager,controllers\n"
            + "".join(
                f'{token},system:node:{name},{name},"system:nodes"\n' for name, token in self.nodes.items()
            )
        )


def new_tokens(nodes: Iterable[str] = ()) -> Tokens:
    """New random tokens."""
    admin, scheduler, controllers = (secrets.token_urlsafe(32) for _ in range(3))
    return Tokens(admin, scheduler, controllers, {name: secrets.token_urlsafe(32) for name in nodes})


def write_kubeconfig(path: Path, url: str, authority: Path, token: str) -> None:
    """Write a kubeconfig that only its owner may read, for `url` with a bearer token and the CA in the PEM
    file `authority`.
    """
    name = "bursar-local"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": url, "certificate-authority": str(authority)}}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    write_secret(path, yaml.safe_dump(content).encode())


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read."""
    path.touch(mode=0o600)
    path.write_bytes(content)
