"""Mutants of a small project, and the tests that notice them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

PRODUCT = """
LIMIT = 5

def is_small(number):
    return number < LIMIT

def sign(number):
    if number < 0:
        return -1
    return 1

def countdown(number):
    while number > 0:
        number -= 1
    return number

def unused(number):
    return number + 1
"""
FIRST = """
from product.sizes import is_small, sign

def test_four_is_small():
    assert is_small(4)

def test_five_is_not_small():
    assert not is_small(5)

def test_a_sign():
    assert sign(-3) == -1
    assert sign(3) == 1
"""
SECOND = """
import pytest
from product import sizes

@pytest.fixture(scope="module")
def down():
    return sizes.countdown(3)

seen = []

def test_is_first(down):
    seen.append(down)

def test_follows():
    sizes.is_small(1)
    assert seen

def test_ends_at_nothing(down):
    assert down == 0

def test_six_is_not_small():
    assert not sizes.is_small(6)

def test_fails_always():
    assert not sizes.is_small(4)
"""
RUN = """
import json, pathlib, sys
import pytest
from tests.mutants import zygote
from tests.mutants.__main__ import judged
from tests.mutants.operators import mutants

root = pathlib.Path.cwd()
file = "product/sizes.py"
zygote._HANGS_S = 1

def record(zygote, worker):
    for file in ("tests/unit/test_first.py", "tests/unit/test_second.py"):
        zygote.record(file)

def judge(zygote, worker):
    rows = {}
    for mutant in mutants(file, (root / file).read_text()):
        row = judged(zygote, mutant, lambda test: True)
        rows[mutant.name.removeprefix(file + ":")] = [*row.killers, *(["unpassed"] if row.unpassed else [])]
    (root / "rows").write_text(json.dumps(rows))

sys.exit(pytest.main(["-q", "tests"], plugins=[zygote.Zygote(root, [file], [record, judge], 1)]))
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """By mutant of the project, who notices it."""
    root = tmp_path_factory.mktemp("project")
    files = {
        "product/sizes.py": PRODUCT,
        "tests/unit/test_first.py": FIRST,
        "tests/unit/test_second.py": SECOND,
    }
    for file, text in {**files, "pytest.ini": "[pytest]\npythonpath = .\n"}.items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(text)
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUN], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    errors = root / ".mutants" / "errors"
    assert (root / "rows").exists(), (
        done.stdout + done.stderr + (errors.read_text() if errors.exists() else "")
    )
    seen: dict[str, list[str]] = json.loads((root / "rows").read_text())
    return {name: [killer.rpartition("::")[2] for killer in killers] for name, killers in seen.items()}


def test_a_mutant_has_one_killer_of_each_file(rows: dict[str, list[str]]) -> None:
    assert rows["is_small:comparison:1"] == ["test_five_is_not_small", "test_six_is_not_small"]
    assert rows["sign:comparison:1"] == ["test_a_sign"]


def test_a_constant_is_changed_where_it_is_imported(rows: dict[str, list[str]]) -> None:
    assert rows["<constants>:LIMIT + 1:1"] == ["test_five_is_not_small"]


def test_a_survivor_is_told_from_what_no_test_passes(rows: dict[str, list[str]]) -> None:
    assert rows["sign:boundary:1"] == []
    assert rows["unused:plus:1"] == ["unpassed"]


def test_a_test_that_hangs_is_ended_and_has_noticed(rows: dict[str, list[str]]) -> None:
    assert rows["countdown:drop:1"] in (["test_is_first"], ["test_ends_at_nothing"])


@pytest.mark.parametrize("name", ["test_fails_always", "test_follows"])
def test_a_test_that_fails_without_a_mutant_notices_none(rows: dict[str, list[str]], name: str) -> None:
    assert name not in {killer for killers in rows.values() for killer in killers}
