"""The lifetimes of certificates."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class CertificateLifetimes:
    """Lifetimes of the CA and of a server's certificate (leaf), and the overlap of two CAs.

    ``overlap``: a CA signs once its bundle has been everywhere for so long, and the former CA is dropped once
    all leaves are of the new one for so long. It must be longer than a kubelet takes to bring a changed
    Secret into a pod (minutes), and than a sidecar goes without an answer that names the bundle (50
    heartbeats).
    """

    ca: timedelta = timedelta(days=3650)
    leaf: timedelta = timedelta(days=365)
    overlap: timedelta = timedelta(days=7)
