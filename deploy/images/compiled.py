"""Python's files compiled by the image's own Python, so that a pod starts fast where it may not write."""

import os
import subprocess
import tempfile
from pathlib import Path

from deploy.images.lock import ImagesError
from deploy.images.tree import Entry, Tree

# The machine that makes the images, and the loader of its programs.
_LOADERS = {
    "x86_64": ("amd64", "lib64/ld-linux-x86-64.so.2", "usr/lib/x86_64-linux-gnu"),
    "aarch64": ("arm64", "lib/ld-linux-aarch64.so.1", "usr/lib/aarch64-linux-gnu"),
}
# Reads names of files and writes their code beside them. The mode says that no source is compared with it.
_PROGRAM = """
import py_compile, sys
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
for line in sys.stdin:
    name = line.rstrip("\\n")
    try:
        py_compile.compile(sys.argv[1] + name, name + "c", "/" + name, doraise=True, invalidation_mode=mode)
    except py_compile.PyCompileError:
        pass
"""


def own_architecture() -> str:
    """This machine's, of which images have the Python that compiles. Raises ImagesError."""
    machine = os.uname().machine
    if machine not in _LOADERS:
        raise ImagesError(f"images are made on {' or '.join(_LOADERS)}, and this machine is {machine}")
    return _LOADERS[machine][0]


class Compiler:
    """A Python of an image of this machine's architecture, in a folder that goes at the end. What is the same
    on both architectures is compiled once."""

    def __init__(self, root: Tree, python: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._python = python
        self._known: dict[tuple[str, bytes], bytes] = {}
        place = Path(self._folder.name)
        for name, each in root.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            if each.target is not None:
                (place / name).symlink_to(each.target.lstrip("/") if "/" not in name else each.target)
            elif each.data is not None:
                (place / name).write_bytes(each.data)
                (place / name).chmod(each.mode)

    def __enter__(self) -> "Compiler":
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def compiled(self, tree: Tree) -> Tree:
        """The tree with the code of its modules. A file that is no Python stays without."""
        sources = {
            name: each.data for name, each in sorted(tree.items()) if name.endswith(".py") and each.data
        }
        missing = {name: data for name, data in sources.items() if (name, data) not in self._known}
        if missing:
            self._compile(missing)
        code = {
            self._cached(name): Entry(self._known[name, data])
            for name, data in sources.items()
            if self._known[name, data]
        }
        return {**tree, **code}

    def _compile(self, sources: dict[str, bytes]) -> None:
        _, loader, libraries = _LOADERS[os.uname().machine]
        root = Path(self._folder.name)
        with tempfile.TemporaryDirectory() as temporary:
            for name, data in sources.items():
                (Path(temporary) / name).parent.mkdir(parents=True, exist_ok=True)
                (Path(temporary) / name).write_bytes(data)
            program = [loader, "--library-path", libraries, f"usr/bin/python{self._python}"]
            places = [each if each.startswith("--") else str(root / each) for each in program]
            done = subprocess.run(
                [*places, "-B", "-S", "-s", "-c", _PROGRAM, ""],
                input="".join(f"{name}\n" for name in sources),
                cwd=temporary,
                env={"PYTHONHOME": str(root / "usr"), "PYTHONHASHSEED": "0"},
                capture_output=True,
                text=True,
            )
            if done.returncode:
                raise ImagesError(f"the image's Python does not run here: {done.stderr.strip()[-300:]}")
            for name, data in sources.items():
                made = Path(temporary) / f"{name}c"
                self._known[name, data] = made.read_bytes() if made.is_file() else b""

    def _cached(self, name: str) -> str:
        folder, _, module = name.rpartition("/")
        return f"{folder}/__pycache__/{module[:-3]}.cpython-{self._python.replace('.', '')}.pyc"
