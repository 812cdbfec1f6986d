"""tests/<role>/{unit,ledger,process,cluster}: the folder is the tier, and unit/ stays pure."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
TIERS = {"unit", "ledger", "process", "cluster"}
FILES = sorted(TESTS.rglob("test_*.py"))

# What starts a process, opens a connection or opens a database.
IMPURE = {
    *("asyncio", "http.client", "http.server", "multiprocessing", "psycopg", "requests", "socket"),
    *("socketserver", "sqlalchemy", "sqlite3", "subprocess", "urllib.request", "urllib3"),
}


def imported(module: ast.Module) -> set[str]:
    """The full names of all that a module imports."""
    found: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    return found


def marked_make_test(file: Path) -> str | None:
    """What the mark of a file on a cluster says: why it also belongs to `make test`."""
    (why,) = re.findall(r"pytest\.mark\.make_test\(\"(.*)\"\)", file.read_text()) or (None,)
    return why


def test_a_file_on_a_cluster_in_make_test_is_the_one_of_a_capability() -> None:
    rows = [re.split(r" ?\| ?", line)[1:-1] for line in (TESTS / "README.md").read_text().splitlines()]
    named = {cells[3].strip("`"): cells[0] for cells in rows if cells and "/cluster/" in cells[3]}
    marked = {str(file.relative_to(TESTS)): marked_make_test(file) for file in FILES}

    assert {file: why for file, why in marked.items() if why is not None} == named


def test_every_test_lies_in_a_tier() -> None:
    assert [str(file) for file in FILES if file.parent.name not in TIERS] == []


@pytest.mark.parametrize(
    "file",
    [file for file in FILES if file.parent.name == "unit"],
    ids=lambda file: str(file.relative_to(TESTS)),
)
def test_a_pure_test_imports_no_process_socket_or_database(file: Path) -> None:
    names = imported(ast.parse(file.read_text()))

    assert {name for name in names if name in IMPURE or name.partition(".")[0] in IMPURE} == set()
    assert {
        name for name in names if name.startswith("tests.") and ".unit" not in name and ".test_" in name
    } == set()
