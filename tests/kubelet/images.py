"""The images that the pods of these tests run, made without a registry: the root file system is this
machine's own Python with its libraries, NVML's binding, what a sidecar imports of our code, and a fake NVML
library."""

import compileall
import os
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib.metadata import distribution
from pathlib import Path

from deploy.local.images import Image, archive, layer
from deploy.local.real_node import PAUSE
from tests.deploy import containerfile
from tests.deploy.reading import ROOT
from tests.nvml.build import DESCRIPTION, SOURCE, compile_library
from tests.packaging.checkout import OF_A_SIDECAR, copy
from timekeeper.core import __version__

SIDECAR = f"docker.io/bursar/sidecar:{__version__}"
# As images made for CUDA are: whoever runs one sees every card, unless told otherwise.
CUDA = "docker.io/example/cuda:1"
DESCRIBED_AT = "/etc/fake-nvml/cards"

# What of the standard library neither the sidecar nor a test's pod wants.
_LEFT_OUT = frozenset(
    ("test", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "pydoc_data", "site-packages")
)
_LOADED = re.compile(r"(/\S+) \(0x")


def write(folder: Path, cards: str) -> Path:
    """An archive of the sidecar's image, which is the agent's too, of a workload's, and of the sandboxes'.

    ``cards`` is what the fake NVML in them tells.
    """
    interpreter = Path(sys.executable).resolve()
    files = {
        **python(interpreter),
        **_sidecar(folder),
        **_fake_nvml(folder, cards),
        "/pause": _compiled(folder / "pause", "-static"),
        "/bin/sh": (shell := Path("/bin/sh").resolve()),
        **{str(file): file for file in linked([shell])},
        "/opt/bursar/first/python": ROOT / "deploy" / "first-process.sh",
    }
    root = folder / "layer.tar"
    links = dict.fromkeys(("/usr/local/bin/python", "/opt/bursar/bin/python3"), str(interpreter))
    layer(root, files, links, ["/tmp"])
    sidecar = containerfile.images()["sidecar"]
    # where this Python finds the package, and the fake NVML its description
    env = {**sidecar.environment, "PYTHONPATH": "/opt/bursar", DESCRIPTION: DESCRIBED_AT}
    images = [
        Image(SIDECAR, sidecar.entrypoint, env, sidecar.user),
        Image(CUDA, (), {**env, "NVIDIA_VISIBLE_DEVICES": "all"}),
        Image(PAUSE, ("/pause",)),
    ]
    archive(folder / "images.tar", root, images)
    return folder / "images.tar"


def python(interpreter: Path) -> dict[str, Path]:
    """The interpreter, its library and theirs, at the paths that they have here: so it finds them there."""
    library = Path(sysconfig.get_paths()["stdlib"]).resolve()
    own = [interpreter, *_standard_library(library)]
    programs = [interpreter, *(file for file in own if file.suffix == ".so")]
    return {str(file): file for file in own} | {str(file): file for file in linked(programs)}


def _standard_library(library: Path) -> Iterator[Path]:
    for folder, within, names in os.walk(library):
        within[:] = [name for name in within if name not in _LEFT_OUT and not name.startswith("config-")]
        yield from (
            Path(folder, name) for name in names if not name.endswith((".opt-1.pyc", ".opt-2.pyc", ".a"))
        )


def linked(programs: Sequence[Path]) -> Iterator[Path]:
    """The shared libraries that programs are linked with, at the paths where the loader looks for them."""
    told = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout
    yield from {Path(path) for path in _LOADED.findall(told)}


def _sidecar(folder: Path) -> dict[str, Path]:
    """Its parts of our code and what they need, compiled as in an image."""
    place = folder / "bursar"
    copy(place, OF_A_SIDECAR)
    (binding,) = (file for file in distribution("nvidia-ml-py").files or () if file.name == "pynvml.py")
    shutil.copy(str(binding.locate()), place)
    for name in ("hpack", "protobuf", "PyYAML"):
        for file in distribution(name).files or ():
            if file.suffix in (".py", ".so"):
                (place / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), place / file)
    compileall.compile_dir(place, quiet=1, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    files = (file for file in place.rglob("*") if file.is_file())
    return {f"/opt/bursar/{file.relative_to(place)}": file for file in files}


def _fake_nvml(folder: Path, cards: str) -> dict[str, Path]:
    """The library where the loader finds it, as NVIDIA's runtime would have mounted the real one."""
    library = folder / "libnvidia-ml.so.1"
    compile_library(SOURCE, library)
    described = folder / "cards"
    described.write_text(cards)
    return {"/usr/lib/libnvidia-ml.so.1": library, DESCRIBED_AT: described}


def _compiled(program: Path, *options: str) -> Path:
    source = Path(__file__).with_name(f"{program.name}.c")
    subprocess.run(["cc", "-Os", *options, "-o", program, source], check=True)
    return program
