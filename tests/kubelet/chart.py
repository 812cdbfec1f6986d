"""What the chart's pods need on the real node beside a kubelet: the images of `make images`, and the address
by which pods call the API server, which kube-proxy would serve."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from deploy.local.cleanup import BRIDGE
from deploy.local.commands import SERVICE_RANGE_FIRST
from deploy.local.images import Image, archive, layer
from deploy.local.real_node import NodeHost
from deploy.local.tools import KUBERNETES_VERSION
from tests.deploy.reading import ROOT
from tests.kubelet import forward
from timekeeper.core import __version__

PREFIX = "example.com/bursar"
BASE = "localhost/base:1"
_AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"
_STORE = """\
[storage]
driver = "overlay"
graphroot = "{0}/graph"
runroot = "{0}/run"
"""


def hindrance() -> str | None:
    """Why this machine cannot build the images, in a few words; None if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "building images needs root on Linux"
    missing = [tool for tool in ("buildah", "mmdebstrap") if not shutil.which(tool)]
    return f"building images needs {' and '.join(missing)}, of Debian's packages" if missing else None


class Builder:
    """`make images` with buildah, a store of its own, and a base of Debian's packages without a registry."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "storage.conf").write_text(_STORE.format(folder))
        self._environment = {
            **os.environ,
            "BUILDAH_ISOLATION": "chroot",
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        }
        authorities = f"--customize-hook=copy-in {_AUTHORITIES} {Path(_AUTHORITIES).parent}"
        packages = ["--variant=minbase", "--include=python3-pip,ca-certificates", authorities]
        self._run("mmdebstrap", "--quiet", "--skip=output/dev", *packages, "bookworm", f"{folder}/base.tar")
        (folder / "Containerfile").write_text("FROM scratch\nADD base.tar /\n")
        self._run("buildah", "build", "--tag", BASE, str(folder))

    def build(self, *roles: str) -> None:
        """Build these roles' images of the last commit."""
        options = f"OPTIONS=--build-arg=BASE={BASE} --quiet"
        self._run("make", "images", f"ROLES={' '.join(roles)}", f"PREFIX={PREFIX}", options)

    def digest(self, role: str) -> str:
        """The digest of an image's manifest."""
        return self._run("buildah", "inspect", "--format={{.FromImageDigest}}", _name(role)).strip()

    def load(self, machine: NodeHost, *roles: str) -> None:
        """Give the node these roles' images."""
        for role in roles:
            file = self.folder / f"{role}.tar"
            self._run("buildah", "push", "--quiet", _name(role), f"docker-archive:{file}:{_name(role)}")
            machine.load(file)
            file.unlink()

    def _run(self, *command: str) -> str:
        done = subprocess.run(command, cwd=ROOT, env=self._environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout


def _name(role: str) -> str:
    return f"{PREFIX}/{role}:{__version__}"


def load_scheduler(machine: NodeHost, folder: Path) -> None:
    """Give the node the image of kube-scheduler."""
    root = folder / "scheduler.tar"
    layer(root, {"/usr/local/bin/kube-scheduler": machine.tools["kube-scheduler"]}, {}, ["/tmp"])
    named = f"registry.k8s.io/kube-scheduler:v{KUBERNETES_VERSION}"
    archive(folder / "scheduler.oci", root, [Image(named, (), {"PATH": "/usr/local/bin"})])
    machine.load(folder / "scheduler.oci")


@contextmanager
def service_address(machine: NodeHost, api: str) -> Iterator[None]:
    """The API server of this URL at the first address of the range of Services, for the pods of the node."""
    address = urlsplit(api)
    ip = shutil.which("ip") or "ip"
    subprocess.run([ip, "address", "add", f"{SERVICE_RANGE_FIRST}/32", "dev", BRIDGE], check=True)
    program = str(Path(forward.__file__))
    arguments = [program, SERVICE_RANGE_FIRST, "443", str(address.hostname), str(address.port)]
    machine.processes.start("service-address", Path(sys.executable), arguments)
    yield
    machine.processes.stop("service-address")
    subprocess.run([ip, "address", "del", f"{SERVICE_RANGE_FIRST}/32", "dev", BRIDGE], check=True)
