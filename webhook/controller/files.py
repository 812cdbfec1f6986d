"""The leaves as files, for machines without a kubelet that mounts Secrets."""

import os
import tempfile
from pathlib import Path

from webhook.controller.plan import CertificatePair


def write(folder: Path, pair: CertificatePair) -> bool:
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
