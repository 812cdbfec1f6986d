"""What the chart's pods need on the real node beside a kubelet: the images of `make images`, and the address
by which pods call the API server, which kube-proxy would serve."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from deploy.images import lock
from deploy.images.compiled import own_architecture
from deploy.images.downloads import Downloads
from deploy.images.make import Made, Making
from deploy.images.roles import ROLES
from deploy.local.cleanup import BRIDGE
from deploy.local.commands import SERVICE_RANGE_FIRST
from deploy.local.images import Image, archive, layer
from deploy.local.real_node import NodeHost
from deploy.local.tools import KUBERNETES_VERSION
from deploy.release import archives
from tests.kubelet import forward

PREFIX = "registry.example.com/bursar"


def load(machine: NodeHost, folder: Path) -> dict[str, Made]:
    """Give the node the images of the last commit, and kube-scheduler's; tell which are ours."""
    with archives.committed() as commit:
        wheel = archives.wheel(commit, folder)
        making = Making(lock.read(), (own_architecture(),), Downloads(print), commit, wheel, print)
        made = making.images(ROLES, folder)
    for role, each in made.items():
        machine.load(each.archive, f"{PREFIX}/{role}")
    root = folder / "scheduler.tar"
    layer(root, {"/usr/local/bin/kube-scheduler": machine.tools["kube-scheduler"]}, {}, ["/tmp"])
    named = f"registry.k8s.io/kube-scheduler:v{KUBERNETES_VERSION}"
    archive(folder / "scheduler.oci", root, [Image(named, (), {"PATH": "/usr/local/bin"})])
    machine.load(folder / "scheduler.oci")
    return made


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
