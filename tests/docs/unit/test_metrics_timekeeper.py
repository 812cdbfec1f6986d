"""The page on metrics has the timekeeper's log events, and no others."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
WHOLE = (ROOT / "docs" / "metrics.md").read_text()
PAGE = WHOLE.partition("\n## Of the timekeeper\n")[2]
SHARED = WHOLE.partition("\n### Of every role\n")[2].partition("\n### ")[0]


def events_in(code: str) -> set[str]:
    """The constant first arguments of calls of `log` and `log_exception`."""
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call) and node.args]
    named = [
        call.args[0]
        for call in calls
        if getattr(call.func, "attr", getattr(call.func, "id", ""))
        in {"log", "log_exception", "_log", "Reason"}
    ]
    return {each.value for each in named if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def events_of(folder: str, without: str = "") -> set[str]:
    files = (file for file in (ROOT / folder).rglob("*.py") if not without or without not in file.parts)
    return set().union(*(events_in(file.read_text()) for file in files))


def explained_in(table: str) -> set[str]:
    rows = re.findall(r"^\| (`[a-z-]+`.*?) \|", table.partition("| event |")[2], re.MULTILINE)
    return {event for row in rows for event in re.findall(r"`([a-z-]+)`", row)}


def test_every_event_that_all_roles_write_is_explained() -> None:
    written = events_of("timekeeper/runtime") - {"error"}

    assert explained_in(SHARED) == written | {"server"}  # the library's lines


def test_every_event_in_the_timekeepers_log_is_explained() -> None:
    assert explained_in(PAGE) == events_of("timekeeper", without="runtime") - explained_in(SHARED)
