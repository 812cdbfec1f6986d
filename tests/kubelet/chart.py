"""What the chart's pods need on the real node beside a kubelet: the images of `make images` in a registry,
and the address by which pods call the API server, which kube-proxy would serve."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from deploy.images import lock, push
from deploy.images.__main__ import values
from deploy.images.compiled import own_architecture
from deploy.images.downloads import Downloads
from deploy.images.make import Making
from deploy.images.roles import ROLES
from deploy.local.cleanup import BRIDGE
from deploy.local.commands import SERVICE_RANGE_FIRST
from deploy.local.images import Image, archive, layer
from deploy.local.real_node import NodeHost
from deploy.local.tools import KUBERNETES_VERSION
from deploy.release import archives
from tests.deploy.registries import registry
from tests.kubelet import forward


@contextmanager
def pushed(folder: Path) -> Iterator[Path]:
    """Values of the chart that name the images of the last commit in a registry that has them."""
    with archives.committed() as commit:
        wheel = archives.wheel(commit, folder)
        making = Making(lock.read(), (own_architecture(),), Downloads(print), commit, wheel, print)
        made = making.images(ROLES, folder)
    with registry(folder) as port:
        prefix = f"127.0.0.1:{port}/bursar"
        push.push(prefix, wheel.name.split("-")[1], made, print)
        (folder / "values.yaml").write_text(values(made, prefix))
        yield folder / "values.yaml"


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
