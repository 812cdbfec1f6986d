"""No verdict of a test depends on speed: a wait for what must come lasts `LONGEST_S`, and no test asserts how
long something took. Here are forms of shorter limits and of such assertions, and the exceptions by name."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.packaging.checkout import ROOT, files

LEAST_S, LEAST_LEASE_S = 60, 15
MEASURE = ("bench", "day", "mutants")  # programs, and tests of them
RUNS_OUT = "it is to run out"
EXCEPTIONS = {
    ("tests/local/process/test_local_parts.py", "within_s=0.1"): RUNS_OUT,
    ("tests/node/cluster/test_podresources.py", "timeout_s=0.3"): RUNS_OUT,
    ("tests/node/process/test_podresources.py", "timeout_s=0.3"): RUNS_OUT,
    ("tests/scheduler_ext/unit/test_leading.py", "timeout=0.1"): RUNS_OUT,
    ("tests/scheduler_ext/unit/test_node_locks.py", "within_s=0.6"): RUNS_OUT,
    ("tests/story/cluster/test_outages.py", "--lease-duration=2s"): "who leads is in no verdict",
}
_NAMES, _WAITS = ("timeout", "timeout_s", "within_s"), ("join", "result", "settimeout", "wait")
_CONSTANT = re.compile(r"_?([A-Z]+_)*(WITHIN|TIMEOUT|AT_MOST|SOON)(_S)?")
_FLAG = re.compile(r"--(\S*timeout|lease-duration)[= ](\d+)(ms|s)\b")
_CLOCK = (
    r"\b(monotonic|perf_counter|process_time|thread_time|time)(_ns)?\(\)|(?<![.\w])(boot|now)_ms\(\)"
    r"|\bnow\((datetime\.)?UTC\)|\bget(loadavg|rusage)\b|\b(seconds_until|spent_s)\("
)
_NUMBERS = rf"(timeout\w*|within_s|duration)(: float)?( = |=| )\d|\b({'|'.join(_WAITS)})\(\d"
_WORTH_PARSING = re.compile(rf"{_NUMBERS}|{_CONSTANT.pattern} = \d|{_CLOCK}")


def limits(code: str) -> Iterator[str]:
    """Those that are too short, as the code has them."""
    for node in ast.walk(ast.parse(code)) if _WORTH_PARSING.search(code) else ():
        match node:
            case ast.keyword(name, ast.Constant(limit)) if name in _NAMES and _is_short(limit):
                yield f"{name}={limit!r}"
            case ast.arguments(args=args, defaults=defaults):
                for argument, default in zip(args[::-1], defaults[::-1], strict=False):
                    if argument.arg in _NAMES and _is_short(getattr(default, "value", None)):
                        yield f"{argument.arg}={ast.unparse(default)}"
            case ast.Call(ast.Attribute(attr=name), [ast.Constant(limit)]) if name in _WAITS:
                if _is_short(limit, 1):  # less is a pause between two looks
                    yield f"{name}({limit!r})"
            case ast.Assign([ast.Name(name)], ast.Constant(limit)) if _CONSTANT.fullmatch(name):
                if _is_short(limit):
                    yield f"{name} = {limit!r}"
            case ast.FunctionDef():
                yield from _measured(node)
            case ast.Constant(str(text)):
                for flag, number, unit in _FLAG.findall(text):
                    least_s = LEAST_LEASE_S if flag == "lease-duration" else LEAST_S
                    if int(number) < least_s * (1000 if unit == "ms" else 1):
                        yield f"--{flag}={number}{unit}"


def _measured(function: ast.FunctionDef) -> Iterator[str]:
    """Assertions that compare what a clock says, or what was computed from that."""
    clocks = _CLOCK
    for node in sorted(ast.walk(function), key=lambda node: getattr(node, "lineno", 0)):
        match node:
            case ast.Assign(names, value) if re.search(clocks, ast.unparse(value)):
                found = (part.id for name in names for part in ast.walk(name) if isinstance(part, ast.Name))
                clocks += "".join(rf"|\b{name}\b" for name in found)
            case ast.Assert(test) if re.search(clocks, said := ast.unparse(test)):
                if re.search(" [<>]=? ", said) and not re.search("LONGEST_S|within_s", said):
                    yield said


def _is_short(limit: object, least: float = 0.01) -> bool:
    return isinstance(limit, int | float) and least <= limit < LEAST_S


FORMS = ("get(url, timeout=5)", "thread.join(10)", "assert process.wait(30) == 0", "WITHIN_S = 30")
MORE_FORMS = ("def until(within_s=9): ...", "run('--timeout=30s')", "run('--lease-duration=2s')")
ASSERTIONS = (
    "def test(): assert time.monotonic() - begun > 3",
    "def test():\n    took = now_ms() - begun\n    assert all(took < 3 for _ in seen)",
)


@pytest.mark.parametrize("code", [*FORMS, *MORE_FORMS, *ASSERTIONS])
def test_a_limit_that_is_too_short_is_found(code: str) -> None:
    assert len([*limits(code)]) == 1
    assert [*limits("while not stop.wait(0.2): assert process.wait(LONGEST_S)")] == []


def test_no_limit_is_short_but_the_exceptions_and_each_of_them_is_needed() -> None:
    paths = [path for path in files() if path.parts[0] == "tests" and path.suffix == ".py"]
    programs = {path for path in paths if path.parts[1] in MEASURE and not path.name.startswith("test_")}
    tested = [path for path in paths if path not in programs and path.name != "test_limits.py"]
    found = {(str(path), limit) for path in tested for limit in limits((ROOT / path).read_text())}
    assert found == {*EXCEPTIONS}
