"""Which licences a dependency may have, and the page that lists them."""

import tomllib
from importlib.metadata import distributions

import pytest
from packaging.specifiers import SpecifierSet

from deploy import dependencies
from tests.packaging.checkout import ROOT


@pytest.mark.parametrize(
    ("metadata", "classifiers", "expression"),
    [
        ({"License-Expression": "MIT"}, [], "MIT"),
        ({"License-Expression": "MIT", "License": "BSD"}, [], "MIT"),
        ({"License": "Apache 2.0"}, [], "Apache-2.0"),
        ({"License": "a whole text of a licence, long"}, ["License :: OSI Approved :: MIT License"], "MIT"),
        ({}, ["License :: OSI Approved :: BSD License"], "BSD-3-Clause"),
        ({"License": "Ours"}, ["License :: Other"], "Ours; License :: Other"),
        ({}, [], "none"),
    ],
)
def test_a_licence_is_read_from_the_first_field_that_names_one(
    metadata: dict[str, str], classifiers: list[str], expression: str
) -> None:
    assert dependencies.licence(metadata, classifiers) == expression


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("MIT AND GPL-3.0-only", False),
        ("MIT OR GPL-3.0-only", True),
        ("MPL-2.0 AND (GPL-2.0-only OR Apache-2.0)", True),
        ("GPL-2.0-only WITH Classpath-exception-2.0", False),
        ("Ours; License :: Other", False),
        ("none", False),
    ],
)
def test_a_licence_is_allowed_where_we_may_choose_one_of_the_list(expression: str, allowed: bool) -> None:
    assert dependencies.is_allowed(expression) is allowed


def test_the_licence_of_every_dependency_is_allowed_and_on_the_page() -> None:
    licences = {name: package.licence for name, package in dependencies.dependencies().items()}

    assert {name: text for name, text in licences.items() if not dependencies.is_allowed(text)} == {}
    assert dependencies.PAGE.read_text() == dependencies.page(), (
        "write it anew: python -m deploy.dependencies"
    )


def test_the_wheel_is_built_by_the_setuptools_that_is_tested() -> None:
    (backend,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]

    assert backend in (ROOT / "constraints.txt").read_text().splitlines()


def test_what_is_pinned_installs_on_the_first_release_of_the_oldest_python_that_we_name() -> None:
    needs = {each.name: each.metadata["Requires-Python"] or "" for each in distributions()}

    assert {name: which for name, which in needs.items() if "3.11.0" not in SpecifierSet(which)} == {}
