"""Compiles the fake NVML for a test that starts a process of its own: the binding loads it by its name, which
the loader looks up in ``LD_LIBRARY_PATH`` as that was when the process started."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("libnvidia-ml.c")
DESCRIPTION = "BURSAR_FAKE_NVML"


def fake_nvml(tmp_path: Path, text: str) -> dict[str, str]:
    """The variables by which a new process finds the library, and in it the cards that ``text`` describes
    (the language is in the C source). Rewrite the file that ``BURSAR_FAKE_NVML`` names to change them
    later."""
    folder = tmp_path / "nvml"
    folder.mkdir()
    compile_library(SOURCE, folder / "libnvidia-ml.so.1")
    description = folder / "cards"
    describe(description, text)
    return {"LD_LIBRARY_PATH": str(folder), DESCRIPTION: str(description)}


def describe(description: Path, text: str) -> None:
    """Write the description as a whole, for the library may be reading it."""
    fresh = description.with_suffix(".new")
    fresh.write_text(text)
    os.replace(fresh, description)


def compile_library(source: Path, library: Path) -> None:
    """Build a shared library; without a compiler the test is skipped, which CI takes for a failure."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler on the PATH (Debian packages gcc and libc6-dev)")
    options = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{library.name}"]
    built = subprocess.run(
        [compiler, *options, "-o", str(library), str(source)], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
