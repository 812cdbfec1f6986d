"""Certificates of servers on loopback."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from webhook.controller.issue import new_ca, new_leaf, write_files
from webhook.controller.plan import CertificatePair, Leaf


class Tls:
    """A CA, and a folder with a leaf of it for loopback and other names: tls.crt, tls.key, ca.crt."""

    def __init__(
        self,
        folder: Path,
        ca: CertificatePair | None = None,
        names: tuple[str, ...] = (),
        loopback: tuple[str, ...] = ("localhost", "127.0.0.1"),
    ) -> None:
        self.folder, self._names = folder, (*loopback, *names)
        self.ca = ca or new_ca(b"", datetime.now(UTC))
        self.renew()

    def renew(self, life: timedelta = timedelta(days=30)) -> None:
        """Another leaf in place of the one that is there."""
        leaf = Leaf("webhook", self._names)
        write_files(self.folder, new_leaf(self.ca, leaf, datetime.now(UTC), life))

    def file(self, name: str) -> str:
        """The path of one of the files."""
        return str(self.folder / name)

    def client(self) -> ssl.SSLContext:
        """What a client trusts."""
        return ssl.create_default_context(cadata=self.ca.bundle.decode())

    def server(self) -> ssl.SSLContext:
        """What a server shows."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.file("tls.crt"), self.file("tls.key"))
        return context
