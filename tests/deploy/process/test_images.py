"""What packages put into an image, and that what is there is enough to start."""

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from deploy.images import oci, tree
from deploy.images.debian import contents
from deploy.images.lock import ImagesError
from deploy.images.roles import ROLES
from deploy.images.tree import Entry
from tests.packaging.checkout import copy

pytestmark = pytest.mark.make_all("images")

CAS = "usr/share/ca-certificates/mozilla"
needs_dpkg = pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="this machine has no dpkg-deb")


def package(folder: Path, name: str, files: dict[str, str]) -> Path:
    """A package of Debian."""
    (folder / name / "DEBIAN").mkdir(parents=True)
    told = {"Package": name, "Version": "1", "Architecture": "all", "Maintainer": "x", "Description": "x"}
    text = "".join(f"{key}: {value}\n" for key, value in told.items())
    (folder / name / "DEBIAN" / "control").write_text(text)
    for path, content in files.items():
        (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / name / path).write_text(content)
    made = folder / f"{name}.deb"
    command = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(folder / name), str(made)]
    subprocess.run(command, check=True, capture_output=True)
    return made


@needs_dpkg
def test_a_root_file_system_is_merged_has_one_bundle_of_authorities_and_leaves_documents_out(
    tmp_path: Path,
) -> None:
    files = [
        package(
            tmp_path,
            "libx",
            {"lib/x/libx.so.1": "x", "usr/share/doc/libx/copyright": "free", f"{CAS}/b.crt": "b\n"},
        ),
        package(tmp_path, "tool", {"bin/tool": "t", "usr/bin/tool": "t", "usr/share/man/man1/tool.1": "m"}),
        package(tmp_path, "authorities", {f"{CAS}/a.crt": "a\n"}),
    ]

    root = tree.base(files, "3.11")

    links = {name: each.target for name, each in root.items() if each.target is not None}
    held = {name: each.data for name, each in root.items() if each.data is not None}
    assert links == {
        "bin": "usr/bin",
        "sbin": "usr/sbin",
        "lib": "usr/lib",
        "lib64": "usr/lib64",
        "usr/bin/python": "python3.11",
        "usr/lib/ssl/cert.pem": "/etc/ssl/certs/ca-certificates.crt",
    }
    assert held.keys() == {
        "usr/lib/x/libx.so.1",
        "usr/share/doc/libx/copyright",
        "etc/ssl/certs/ca-certificates.crt",
        "etc/passwd",
        "etc/group",
        *(f"var/lib/dpkg/status.d/{name}" for name in ("libx", "tool", "authorities")),
    }
    assert held["etc/ssl/certs/ca-certificates.crt"] == b"a\nb\n"
    assert root["tmp"] == Entry(mode=0o1777)
    assert oci.layer(root) == oci.layer(tree.base(reversed(files), "3.11"))


@needs_dpkg
def test_a_file_that_is_no_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken").write_text("no package")

    with pytest.raises(ImagesError, match=r"/broken is no package of Debian \(.*\): delete it"):
        contents(tmp_path / "broken")


def test_wheels_lie_where_debians_python_looks_and_ours_has_its_commands(tmp_path: Path) -> None:
    wheel = tmp_path / "gpu_bursar-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("sidecar/run.py", "x = 1\n")
        archive.writestr("timekeeper/edge/log.py", "y = 1\n")
        archive.writestr("timekeeper/process/log.py", "z = 1\n")
        archive.writestr("other.libs/o.so.1", "o")
        archive.writestr("other/tests/big.py", "")
        archive.writestr("gpu_bursar-1.data/scripts/tool", "")
        archive.writestr("gpu_bursar-1.data/purelib/pure.py", "")
        archive.writestr(
            "gpu_bursar-1.dist-info/entry_points.txt", "[console_scripts]\nrun = sidecar.run:main\n"
        )

    place = "usr/local/lib/python3.11/dist-packages"
    whole = tree.code(wheel, "3.11", ())
    command = "#!/usr/bin/python3.11\nimport sys\nfrom sidecar.run import main\nsys.exit(main())\n"

    assert tree.code(wheel, "3.11", ("sidecar/", "timekeeper/edge/")) == {
        f"{place}/sidecar/run.py": Entry(b"x = 1\n"),
        f"{place}/timekeeper/edge/log.py": Entry(b"y = 1\n"),
    }
    assert whole["usr/local/bin/run"] == Entry(command.encode(), mode=0o755)
    assert whole.keys() == {
        f"{place}/sidecar/run.py",
        f"{place}/timekeeper/edge/log.py",
        f"{place}/timekeeper/process/log.py",
        f"{place}/other.libs/o.so.1",
        f"{place}/pure.py",
        f"{place}/gpu_bursar-1.dist-info/entry_points.txt",
        "usr/local/bin/run",
    }


def test_the_sidecar_starts_from_what_its_image_holds(tmp_path: Path) -> None:
    """Python, NVML's binding and its parts of our code: an interpreter without our environment sees nothing
    else. The agent starts from the same."""
    folder = tmp_path / "opt"
    copy(folder, ROLES["sidecar"].code)
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
