"""The bill of materials, as docs/dependencies.md types it."""

import json
import re
import subprocess
import venv
from pathlib import Path

import pytest

from tests.docs.shell import commands
from tests.packaging.checkout import ROOT

pytestmark = pytest.mark.make_all("it asks a package index")


def test_the_bill_of_materials_has_each_package_of_an_image_with_its_hashes(tmp_path: Path) -> None:
    (typed,) = commands(ROOT / "docs" / "dependencies.md")
    pipx, run, option, distribution, program, *words = typed.split()
    locked = (ROOT / "deploy" / "requirements" / "timekeeper.txt").read_text()
    venv.create(tmp_path, with_pip=True)
    install = [
        str(tmp_path / "bin" / "pip"),
        "install",
        "--quiet",
        "--disable-pip-version-check",
        distribution,
    ]
    subprocess.run(install, check=True)

    made = subprocess.check_output([tmp_path / "bin" / program, *words], cwd=ROOT, text=True)

    assert (pipx, run, option) == ("pipx", "run", "--spec")
    listed = json.loads(made)["components"]
    assert [(part["name"], part["version"]) for part in listed] == re.findall(r"(?m)^(\S+)==(\S+)", locked)
    assert all(part["externalReferences"][0]["hashes"] for part in listed)
