"""TLS contexts: version 1.2 or newer, on both sides."""

import ssl
from pathlib import Path

from timekeeper.edge.http_client import trusting


def server_context(
    certificate: Path, key: Path, client_ca: Path | None = None, *, required: bool = True
) -> ssl.SSLContext:
    """The context to serve with. With ``client_ca`` each client must show a certificate of it; where it is
    not ``required``, a client may also show none, and the request says which. HTTP/1.1 alone is offered: over
    HTTP/2 an API server sends all its reviews on one connection, and so to one worker. Raises OSError, also
    for a key with a passphrase."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key, password="")
    context.set_alpn_protocols(["http/1.1"])
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


def ca_text(path: Path) -> str:
    """The PEM text of a CA bundle. Raises OSError or ValueError where no certificate can be read from it."""
    text = path.read_text(encoding="ascii")
    trusting(text)
    return text
