"""What the images' builds copy is enough to build and to start."""

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

from tests.deploy.dockerfile import Stage, stages
from tests.deploy.reading import ROOT
from tests.deploy.unit.test_images import copied_from_the_checkout, made_by
from tests.packaging.checkout import packaged


def laid_out(stage: Stage, folder: Path) -> Path:
    """The files that a stage copies from the checkout, at their names there."""
    folder.mkdir()
    for source in copied_from_the_checkout(stage):
        if (ROOT / source).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / source, folder / source, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / source, folder)
    return folder


def test_what_the_build_copies_is_enough_to_build_the_whole_wheel(tmp_path: Path) -> None:
    source = laid_out(stages()["build"], tmp_path / "src")

    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*command, "-w", tmp_path / "wheels", source], check=True, capture_output=True, cwd=tmp_path
    )

    (wheel,) = (tmp_path / "wheels").glob("gpu_bursar-*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == packaged()


def test_the_sidecar_starts_from_what_its_image_holds(tmp_path: Path) -> None:
    """Python, NVML's binding and the package: an interpreter without our environment sees nothing else. The
    agent starts from the same."""
    (build,) = made_by("sidecar")
    folder = laid_out(build, tmp_path / "opt")
    (binding,) = (file for file in distribution("nvidia-ml-py").files or () if file.name == "pynvml.py")
    shutil.copy(str(binding.locate()), folder)

    done = subprocess.run(
        [
            sys.executable,
            "-S",
            "-c",
            "import pynvml, sidecar.run, sidecar.node.__main__, sidecar.__main__ as of_pods; "
            "of_pods.main(['--help'])",
        ],
        env={"PYTHONPATH": str(folder), "PATH": os.defpath},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    assert "--timekeeper-url" in done.stdout
