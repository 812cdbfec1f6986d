"""House rules that a machine can check: rooms are small and documented, a class name means one thing."""

import ast
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.packaging.checkout import ROOT

ROLES = ("webhook", "timekeeper", "scheduler_ext", "sidecar")
MAX_MODULES = 20  # a package with more is two rooms; the REST API has a module a resource


def packages() -> list[Path]:
    inits = (init for role in ROLES for init in (ROOT / role).rglob("__init__.py"))
    return sorted(init.parent for init in inits if "migrations" not in init.parts)


def named(package: Path) -> str:
    return str(package.relative_to(ROOT))


@pytest.mark.parametrize("package", packages(), ids=named)
def test_a_package_says_what_lives_there(package: Path) -> None:
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""

    assert len(docstring) > 80, f"{named(package)}/__init__.py needs a docstring"


@pytest.mark.parametrize("package", packages(), ids=named)
def test_a_package_is_small_enough_to_be_read_at_a_glance(package: Path) -> None:
    modules = [each for each in package.glob("*.py") if not each.name.startswith("__")]

    assert len(modules) <= MAX_MODULES


def test_a_class_name_means_one_thing_in_the_repository() -> None:
    found = defaultdict(list)
    for path in (
        path for role in ROLES for path in (ROOT / role).rglob("*.py") if "migrations" not in path.parts
    ):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(named(path))

    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def imports_of(path: Path, known: set[str]) -> set[str]:
    """Which of the known modules this one imports when it is loaded itself."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & known


def test_no_module_is_imported_by_one_that_it_imports() -> None:
    files = [path for role in ROLES for path in (ROOT / role).rglob("*.py") if path.name != "__init__.py"]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files}
    imports = {name: imports_of(path, set(modules)) for name, path in modules.items()}

    TopologicalSorter(imports).prepare()  # raises CycleError, with the circle
