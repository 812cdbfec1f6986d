"""The page on architecture names functions, files and layers that there are."""

import re
import tomllib

import pytest

from tests.docs.modules import ROLES, ROOT, exists

PAGE = (ROOT / "docs" / "architecture.md").read_text()
NAMED = re.findall(rf"`((?:{'|'.join(ROLES)})(?:\.\w+)+)`", PAGE)


@pytest.mark.parametrize("dotted", NAMED)
def test_a_named_function_or_module_exists(dotted: str) -> None:
    assert exists(dotted)


def test_each_of_the_four_flows_is_a_numbered_list_of_functions() -> None:
    flows = re.findall(r"^## Flow: .*?(?=^## )", PAGE, re.DOTALL | re.MULTILINE)

    assert len(flows) == 4
    for flow in flows:
        steps = re.findall(r"^(\d+)\. (\S+)", flow, re.MULTILINE)
        assert [number for number, _ in steps] == [str(1 + i) for i in range(len(steps))]
        assert all(re.fullmatch(r"`[\w.]+`:?", step) for _, step in steps)
        assert len(steps) >= 8


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
