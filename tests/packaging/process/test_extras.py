"""Each extra of the distribution has all packages that its role imports, and the command alone needs few."""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.dependencies import declared, installed
from tests.packaging.checkout import ROOT

# Extra -> packages of ours whose modules it must be enough for, and those that another extra is for.
ROLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "": (("timekeeper.core", "timekeeper.cli", "webhook.dryrun"), ()),
    "webhook": (("timekeeper.core", "webhook"), ("webhook.audit",)),
    "timekeeper": (("timekeeper",), ("timekeeper.runtime.kubeconfig",)),
    "scheduler": (("timekeeper.core", "scheduler_ext"), ()),
    "node": (("sidecar",), ()),
    "sidecar": (("sidecar",), ("sidecar.node",)),
    "kubeconfig": (("timekeeper.runtime.kubeconfig", "webhook.audit"), ()),
}

_IMPORT_ALL = """
import importlib, json, sys

told = json.load(sys.stdin)

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in told["hidden"]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
for name in told["modules"]:
    importlib.import_module(name)
"""


def hidden(extra: str) -> list[str]:
    """The modules of all packages that are installed here and not with this extra."""
    wanted = installed([*declared()[""], *declared()[extra]])
    names = importlib.metadata.packages_distributions()
    allowed = {name.lower().replace("_", "-") for name in wanted}
    return [
        module
        for module, owners in names.items()
        if not {each.lower().replace("_", "-") for each in owners} & (allowed | {"gpu-bursar", "setuptools"})
    ]


def modules(extra: str) -> list[str]:
    """The modules that the extra must be enough for."""
    within, without = ROLES[extra]
    paths = [file.relative_to(ROOT) for each in within for file in sources(ROOT / each.replace(".", "/"))]
    names = {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths}
    return sorted(
        name
        for name in names
        if not name.startswith(without or "\0") and not name.startswith("timekeeper.migrations.")
    )


def sources(place: Path) -> list[Path]:
    """A module's file, or all of a package's."""
    return sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]


@pytest.mark.parametrize("extra", ROLES, ids=lambda extra: extra or "alone")
def test_with_an_extra_alone_all_that_its_role_imports_is_there(extra: str, tmp_path: Path) -> None:
    told = {"hidden": hidden(extra), "modules": modules(extra)}

    done = subprocess.run(
        [sys.executable, "-c", _IMPORT_ALL],
        input=json.dumps(told),
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )

    assert {"flask", "numpy", "kubernetes"} & set(told["hidden"])
    assert len(told["modules"]) > 3
    assert done.returncode == 0, done.stderr


def test_every_extra_of_a_role_is_tried() -> None:
    assert set(ROLES) == set(declared())
