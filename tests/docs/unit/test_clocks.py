"""Every module that reads a clock is in `tests/docs/clocks.txt`, under what it reads it for.

Code that takes the time as an argument is in no list. A module that hands a clock to others reads it.
"""

import ast
import re

from tests.docs.modules import ROLES, ROOT

LISTED = re.findall(r"^  (\S+)$", (ROOT / "tests/docs/clocks.txt").read_text(), re.MULTILINE)

_OF_TIME = re.compile(r"(time|monotonic|perf_counter|process_time|thread_time|clock_gettime)(_ns)?")
_OF_DATETIME = ("now", "utcnow", "today")
_OURS = {"timekeeper.edge.clock": ("now_ms", "monotonic_ms"), "sidecar.run": ("boot_ms",)}


def reads_a_clock(code: str) -> bool:
    tree = ast.parse(code)
    ours = {
        name.asname or name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for name in node.names
        if name.name in _OURS.get(node.module or "", ()) or node.module in ("time", "datetime.datetime")
    }
    return any(_reads(node, ours) for node in ast.walk(tree))


def _reads(node: ast.AST, ours: set[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in ours
    if not isinstance(node, ast.Attribute):
        return False
    owner = ast.unparse(node.value).rpartition(".")[2]
    return (
        (owner == "time" and _OF_TIME.fullmatch(node.attr) is not None)
        or (owner in ("datetime", "date") and node.attr in _OF_DATETIME)
        or node.attr == "set_to_current_time"
    )


def test_the_list_of_clocks_has_each_module_that_reads_one_and_no_other() -> None:
    files = (file for role in ROLES for file in sorted((ROOT / role).rglob("*.py")))
    reading = [str(file.relative_to(ROOT)) for file in files if reads_a_clock(file.read_text())]

    assert sorted(LISTED) == sorted(reading)


def test_reads_of_a_clock_are_found_and_a_moment_as_an_argument_is_none() -> None:
    assert reads_a_clock("import time\nbegan = time.perf_counter_ns()")
    assert reads_a_clock("from time import monotonic\nbegan = monotonic()")
    assert reads_a_clock("from timekeeper.edge.clock import now_ms\nmake(now_ms)")
    assert reads_a_clock("import datetime\nat = datetime.datetime.now(datetime.UTC)")
    assert not reads_a_clock("def due(now_ms: int) -> bool:\n    return now_ms > 5")
    assert not reads_a_clock("import time\ntime.sleep(1)")
