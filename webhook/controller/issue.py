"""Creates the keys and certificates of a plan; and writes leaves as files, for machines without a kubelet
that mounts Secrets."""

import os
import tempfile
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from timekeeper.runtime.certificates import issue_authority, issue_leaf, new_key, pem
from webhook.controller.plan import CertificatePair, Leaf
from webhook.controller.reading import BACKDATED, address_of
from webhook.lifetimes import CertificateLifetimes

CA_LIFE, LEAF_LIFE = CertificateLifetimes().ca, CertificateLifetimes().leaf


def write_files(folder: Path, pair: CertificatePair) -> bool:
    """Writes tls.crt, tls.key (mode 0600) and ca.crt, each atomically; False where nothing changed."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {"ca.crt": pair.bundle, "tls.key": pair.key, "tls.crt": pair.certificate}
    replaced = [name for name, content in contents.items() if _replaced(folder / name, content)]
    return bool(replaced)


def _replaced(path: Path, content: bytes) -> bool:
    if path.exists() and path.read_bytes() == content:
        return False
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(handle, 0o600 if path.suffix == ".key" else 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return True


def new_ca(old_bundle: bytes, now: datetime, life: timedelta = CA_LIFE) -> CertificatePair:
    """A new CA, with a bundle that still contains the former ones."""
    key = new_key()
    certificate = pem(issue_authority(key, now, (now - BACKDATED, now + life)))
    return CertificatePair(certificate, pem(key), certificate + old_bundle)


def new_leaf(ca: CertificatePair, leaf: Leaf, now: datetime, life: timedelta = LEAF_LIFE) -> CertificatePair:
    """A server's certificate, signed by the CA; it ends no later than the CA."""
    authority = x509.load_pem_x509_certificate(ca.certificate)
    signer = load_pem_private_key(ca.key, None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise TypeError("the CA's key is not of the kind that Bursar creates")
    key, end = new_key(), min(now + life, authority.not_valid_after_utc)
    names = [_name(name) for name in leaf.names]
    issued = issue_leaf(key, leaf.names[0], names, authority, signer, (now - BACKDATED, end))
    return CertificatePair(pem(issued), pem(key), ca.bundle)


def _name(name: str) -> x509.GeneralName:
    address = address_of(name)
    return x509.DNSName(name) if address is None else x509.IPAddress(address)
