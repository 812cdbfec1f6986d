"""The page on architecture names functions, files and layers that there are."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
ROLES = ("webhook", "timekeeper", "scheduler_ext", "sidecar")
NAMED = re.findall(rf"`((?:{'|'.join(ROLES)})(?:\.\w+)+)`", PAGE)


@cache
def defined_in(file: Path) -> frozenset[str]:
    """Functions and classes of a module, and `Class.method`."""
    body = ast.parse(file.read_text()).body
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    names = {each.name for each in body if isinstance(each, functions | ast.ClassDef)}
    names |= {
        f"{each.name}.{inner.name}"
        for each in body
        if isinstance(each, ast.ClassDef)
        for inner in each.body
        if isinstance(inner, functions)
    }
    return frozenset(names)


def exists(dotted: str) -> bool:
    """True for a package, a module, or a function, class or method of one. Nothing is imported."""
    parts = dotted.split(".")
    if ROOT.joinpath(*parts, "__init__.py").is_file():
        return True
    for count in range(len(parts), 0, -1):
        file = ROOT.joinpath(*parts[:count]).with_suffix(".py")
        if file.is_file():
            return count == len(parts) or ".".join(parts[count:]) in defined_in(file)
    return False


@pytest.mark.parametrize("dotted", NAMED)
def test_a_named_function_or_module_exists(dotted: str) -> None:
    assert exists(dotted)


def test_each_of_the_three_flows_is_a_numbered_list_of_functions() -> None:
    flows = re.findall(r"^## Flow: .*?(?=^## )", PAGE, re.DOTALL | re.MULTILINE)

    assert len(flows) == 3
    for flow in flows:
        steps = re.findall(r"^(\d+)\. (\S+)", flow, re.MULTILINE)
        assert [number for number, _ in steps] == [str(1 + i) for i in range(len(steps))]
        assert all(re.fullmatch(r"`[\w.]+`:?", step) for _, step in steps)
        assert len(steps) > 8


def test_a_path_that_does_not_exist_is_found() -> None:
    assert exists("timekeeper.core.admission.mutation.govern.govern")
    assert not exists("timekeeper.core.admission.mutation.govern.gouvern")
    assert not exists("webhook.nothing.govern")


@pytest.mark.parametrize("role", ["webhook", "scheduler_ext", "timekeeper"])
def test_the_picture_of_the_layers_is_the_contract(role: str) -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = (
        each
        for each in config["tool"]["importlinter"]["contracts"]
        if each["type"] == "layers" and each.get("containers") == [role]
    )
    (picture,) = re.findall(rf"^`{role}/`\n\n```text\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)

    drawn = [re.split(r"  +", line)[0] for line in picture.splitlines()]

    assert drawn == [" | ".join(re.findall(r"\w+", line)) for line in contract["layers"]]


def test_every_file_in_the_tables_exists() -> None:
    files = re.findall(rf"`((?:{'|'.join(ROLES)}|migrations|deploy)/[\w/.]*)`", PAGE)

    assert [path for path in files if not (ROOT / path).exists()] == []
    assert len(files) > 20
