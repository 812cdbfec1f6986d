"""What the chart's pods need on the real node beside a kubelet: images of all roles, made without a registry,
and the address by which pods call the API server, which kube-proxy would serve."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from deploy.local.cleanup import BRIDGE
from deploy.local.commands import SERVICE_RANGE_FIRST
from deploy.local.images import Image, archive, layer
from deploy.local.real_node import NodeHost
from deploy.local.tools import KUBERNETES_VERSION
from tests.deploy.dockerfile import console_scripts, last
from tests.deploy.reading import ROOT
from tests.kubelet import forward
from tests.kubelet.images import linked, python
from timekeeper.core import __version__

ROLES = ("webhook", "timekeeper", "extender")
_PLACE = "/opt/bursar"
_EXTRAS = {"gpu-bursar": ("webhook", "timekeeper", "scheduler", "node"), "psycopg": ("binary",)}
_PACKAGES = ("webhook", "timekeeper", "scheduler_ext", "sidecar", "migrations")


def write(folder: Path, kube_scheduler: Path) -> Path:
    """An archive of the images of the roles, and of kube-scheduler's."""
    interpreter = Path(sys.executable).resolve()
    packages = dict(_packages())
    libraries = linked([file for file in packages.values() if file.suffix == ".so"])
    files = {
        **python(interpreter),
        **packages,
        **{str(file): file for file in libraries},
        **_scripts(folder),
        "/usr/local/bin/kube-scheduler": kube_scheduler,
    }
    root = folder / "roles.tar"
    layer(root, files, {"/usr/local/bin/python": str(interpreter)}, ["/tmp"])
    path = {"PATH": f"{_PLACE}/bin:/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": f"{_PLACE}/lib"}
    env = path | {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    ours = [
        Image(
            f"docker.io/bursar/{role}:{__version__}",
            tuple(last(role, "ENTRYPOINT").words()),
            env,
            last(role, "USER").text,
        )
        for role in ROLES
    ]
    scheduler = Image(f"registry.k8s.io/kube-scheduler:v{KUBERNETES_VERSION}", (), env)
    archive(folder / "roles.oci", root, [*ours, scheduler])
    return folder / "roles.oci"


def _packages() -> Iterator[tuple[str, Path]]:
    """Our packages as they are in the checkout, and the distributions that they require, with theirs."""
    for name in _PACKAGES:
        for folder, within, names in os.walk(ROOT / name, followlinks=True):
            within[:] = [each for each in within if each != "__pycache__"]
            for file in (Path(folder, each) for each in names):
                yield f"{_PLACE}/lib/{file.relative_to(ROOT)}", file
    for distribution in _required(set(), "gpu-bursar"):
        for part in distribution.files or ():
            located = Path(str(part.locate()))
            if ".." not in part.parts and located.is_file():
                yield f"{_PLACE}/lib/{part}", located


def _required(seen: set[str], name: str) -> Iterator[importlib.metadata.Distribution]:
    for requirement in importlib.metadata.requires(name) or ():
        asked = re.match(r"[\w.-]+", requirement)
        condition = requirement.partition(";")[2]
        extra = re.search(r'extra == "([\w-]+)"', condition)
        wanted = not extra or extra[1] in _EXTRAS.get(name, ())
        if asked and wanted and asked[0].lower() not in seen:
            seen.add(asked[0].lower())
            with suppress(importlib.metadata.PackageNotFoundError):  # of another system or Python
                yield importlib.metadata.distribution(asked[0])
                yield from _required(seen, asked[0])


def _scripts(folder: Path) -> dict[str, Path]:
    """The console scripts, as pip writes them."""
    made = folder / "bin"
    made.mkdir()
    for name, place in console_scripts().items():
        module, _, function = place.partition(":")
        (made / name).write_text(
            f"#!/usr/local/bin/python\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"
        )
        (made / name).chmod(0o755)
    return {f"{_PLACE}/bin/{file.name}": file for file in made.iterdir()}


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
