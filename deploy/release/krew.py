"""What krew installs: an archive with `kubectl bursar` as one file, and the manifest that names it."""

import hashlib
import io
import tarfile
from pathlib import Path

import yaml

from deploy.release.archives import Commit, add, zipped

_DESCRIPTION = """\
Shows what budgets of GPU time were granted and used, what each pod cost and why it waits, a map of the
cards, and what is wrong with the installation and the command that mends it. It reads the cluster as your
kubeconfig may. The cluster must have Bursar.
"""


def archive(cli: Path, commit: Commit, version: str, folder: Path) -> Path:
    """The archive: the command and the licence."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        add(tar, "LICENSE", (commit.checkout / "LICENSE").read_bytes(), commit.epoch_s)
        add(tar, cli.name, cli.read_bytes(), commit.epoch_s, 0o755)
    made = folder / f"kubectl-bursar-{version}.tar.gz"
    made.write_bytes(zipped(plain.getvalue(), commit.epoch_s))
    return made


def manifest(packed: Path, cli: Path, version: str, downloads: str, folder: Path) -> Path:
    """The manifest. `downloads`: the address of the folder where the archive is published; "": nowhere, and
    then krew is given the archive as a file."""
    plugin = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "bursar"},
        "spec": {
            "version": f"v{version}",
            "shortDescription": "Budgets of GPU time and their use",
            "description": _DESCRIPTION,
            "caveats": "It needs Python 3.11 or newer as python3.\n",
            "platforms": [
                {
                    "selector": {"matchLabels": {"os": "linux"}},
                    "uri": f"{downloads.rstrip('/')}/{packed.name}" if downloads else packed.name,
                    "sha256": hashlib.sha256(packed.read_bytes()).hexdigest(),
                    "files": [
                        {"from": cli.name, "to": "kubectl-bursar"},
                        {"from": "LICENSE", "to": "."},
                    ],
                    "bin": "kubectl-bursar",
                }
            ],
        },
    }
    made = folder / "bursar.yaml"
    made.write_text(yaml.safe_dump(plugin, sort_keys=False))
    return made
