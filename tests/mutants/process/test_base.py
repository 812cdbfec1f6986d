"""What a run says of the functions that a change has touched, in a fresh clone and within its minutes."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TABLE = "tests/mutants/mutants.txt"
FILES = {
    "pytest.ini": "[pytest]\npythonpath = .\nmarkers = soak\n",
    ".gitignore": ".mutants\n__pycache__\n",
    "product/sizes.py": "def is_small(number):\n    return number < 5\n",
    "product/names.py": "def name():\n    return 'product'\n",
    "product/facade.py": "from product.sizes import is_small\n",
    "tests/core/unit/test_facade.py": """
from product.facade import is_small

def test_five_is_not_small():
    assert is_small(4)
    assert not is_small(5)
""",
    "tests/core/unit/test_names.py": """
from product.names import name

def test_a_name():
    assert name() == "product"
""",
}
RUN = """
import pathlib, sys
from tests.mutants import __main__ as main

main.ROOT = pathlib.Path.cwd()
main.PRODUCT, main.TESTED = ("product",), {"unit": ("core",)}
main.reference_s = lambda: 1.0
if sys.argv.pop(1):
    main._SHARES = ((0.0, 1.0),)
sys.exit(main.main())
"""
MIDDLING = "\ndef is_middling(number):\n    return number > 2 and is_small(number)\n"


class Project:
    """A checkout of a product of three files."""

    def __init__(self, root: Path) -> None:
        self._root = root
        for file, text in FILES.items():
            self.write(file, text)
        self._run("git", "init", "-q")
        self._run("git", "add", ".")
        self._run("git", "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "first")

    def write(self, file: str, text: str) -> None:
        """Change a file."""
        (self._root / file).parent.mkdir(parents=True, exist_ok=True)
        (self._root / file).write_text(text)

    def mutants(self, *words: str, unrecorded: str = "") -> tuple[int, str]:
        """Exit code and output of the command. ``unrecorded``: it has no time to record what tests pass."""
        done = self._run(sys.executable, "-c", RUN, unrecorded, *words)
        return done.returncode, done.stdout + done.stderr

    @property
    def recorded(self) -> set[str]:
        """The files of tests of which is known what they pass."""
        return {path.stem.removesuffix(".py") for path in (self._root / ".mutants/passes").glob("*.json")}

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PYTHONPATH": str(ROOT),
            "PATH": "/usr/bin:/bin",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        return subprocess.run(command, cwd=self._root, env=environment, capture_output=True, text=True)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """One where a function differs from its commit."""
    project = Project(tmp_path)
    project.write("product/sizes.py", "def is_small(number):\n    return not number >= 5\n")
    return project


def test_only_tests_that_import_what_has_changed_are_recorded(project: Project) -> None:
    code, output = project.mutants("--base", "HEAD")

    assert (code, project.recorded) == (0, {"tests.core.unit.test_facade"}), output
    assert "0 survive" in output


def test_a_new_function_is_judged_by_what_passes_it_now(project: Project) -> None:
    project.mutants("--base", "HEAD")
    project.write(
        "product/sizes.py",
        "def is_small(number):\n    return is_below(number, 5)\n\ndef is_below(a, b):\n    return a < b\n",
    )

    code, output = project.mutants("--base", "HEAD")

    assert code == 0, output
    assert "0 survive, 0 is passed by no test" in output


def test_a_survivor_fails_the_run_until_the_table_has_it(project: Project) -> None:
    project.write("product/sizes.py", FILES["product/sizes.py"] + MIDDLING)

    code, output = project.mutants("--base", "HEAD")

    assert code == 1, output
    assert "product/sizes.py:is_middling:operand:1: is passed by no test" in output


def test_what_the_minutes_do_not_reach_is_listed_and_fails_nothing(project: Project) -> None:
    code, output = project.mutants("--base", "HEAD", "--minutes", "0")

    assert code == 0, output
    assert "not reached in 0 minutes" in output
    assert "product/sizes.py:is_small" in output


def test_none_is_a_survivor_while_tests_that_could_notice_it_are_not_recorded(project: Project) -> None:
    code, output = project.mutants("--base", "HEAD", unrecorded="yes")

    assert (code, project.recorded) == (0, set()), output
    assert "not reached" in output


def test_a_row_of_a_function_that_is_gone_fails_the_run_until_it_is_removed(project: Project) -> None:
    project.write(TABLE, "product/sizes.py:is_large:not:1\t123456\tsurvives\n")

    code, output = project.mutants("--base", "HEAD", "--minutes", "0")

    assert code == 1
    assert "product/sizes.py:is_large:not:1" in output
    assert project.mutants("--prune")[0] == 0
    assert project.mutants("--base", "HEAD", "--minutes", "0")[0] == 0
