"""Whether a dotted name or a path that a text mentions exists. Nothing is imported."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROLES = ("webhook", "timekeeper", "scheduler_ext", "sidecar")
PACKAGES = (*ROLES, "deploy", "tests")  # "migrations" has files alone, which have paths


@cache
def defined_in(file: Path) -> frozenset[str]:
    """Functions, classes and constants of a module, and `Class.method`."""
    body = ast.parse(file.read_text()).body
    names = set(_bound(body))
    for part in body:
        if isinstance(part, ast.ClassDef):
            names |= {f"{part.name}.{inner}" for inner in _bound(part.body)}
    return frozenset(names)


def _bound(body: list[ast.stmt]) -> Iterator[str]:
    for part in body:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield part.name
        elif isinstance(part, ast.Assign):
            for target in part.targets:
                yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))
        elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            yield part.target.id


def exists(dotted: str) -> bool:
    """True for a package, a module, or a function, class, method or constant of one. A name may begin with
    any of our packages and modules, such as `store.fencing` and `wire.Standings`."""
    return any(is_there(f"{home}{dotted}") for home in _homes().get(dotted.partition(".")[0], ()))


@cache
def _homes() -> dict[str, list[str]]:
    """By the name of a package or module, what stands before it: "" or `timekeeper.core.`."""
    homes: dict[str, list[str]] = {package: [""] for package in PACKAGES}
    for file in (file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        *above, name = file.relative_to(ROOT).with_suffix("").parts
        if name == "__init__":
            *above, name = above
        homes.setdefault(name, []).append("".join(f"{part}." for part in above))
    return homes


def is_there(dotted: str) -> bool:
    """Whether it is a package, a module, or what one defines, by its whole name."""
    parts = dotted.split(".")
    if _is_package(ROOT.joinpath(*parts)):
        return True
    for count in range(len(parts), 0, -1):
        folder = ROOT.joinpath(*parts[:count])
        for file in (folder.with_suffix(".py"), folder / "__init__.py"):
            if file.is_file():
                return count == len(parts) or ".".join(parts[count:]) in defined_in(file)
    return False


def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").is_file()


def inner_packages() -> frozenset[str]:
    """The packages directly below the roles, such as `store`."""
    return frozenset(file.parent.name for role in ROLES for file in (ROOT / role).glob("*/__init__.py"))
