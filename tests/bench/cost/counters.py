"""What is counted of an operation, with what exists: figures that do not depend on other processes.

- ``bytecodes``: instructions of Python that were run (`sys.settrace` with opcodes, which from Python 3.12 on
  CPython takes from `sys.monitoring`).
- ``C calls``: calls from Python of functions written in C.
- ``peak KiB``: the most memory at one time beyond what was there before (`tracemalloc`).
- ``SQL steps``: instructions of SQLite's virtual machine, where the call uses a database: a query without its
  index takes many.
- ``instructions``: of the processor, in user mode, where ``perf stat`` counts any.
"""

import re
import sqlite3
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from sqlalchemy import Engine, event

from tests.bench.cost.operations import ROUND, Prepare

EVENT = "instructions:u"


def counts(prepare: Prepare) -> dict[str, float]:
    """Of one call, the mean of a round."""
    found = {
        "bytecodes": _mean(prepare, bytecodes),
        "C calls": _mean(prepare, c_calls),
        "peak KiB": _mean(prepare, _peak_kib),
    }
    sql_steps = _mean(prepare, _sql_steps)
    return found | ({"SQL steps": sql_steps} if sql_steps else {})


def _mean(prepare: Prepare, count: Callable[[Callable[[], object]], float]) -> float:
    return round(sum(count(prepare()) for _ in range(ROUND)) / ROUND, 1)


def bytecodes(call: Callable[[], object]) -> float:
    counted = 0

    def in_frame(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal counted
        counted += event == "opcode"
        return in_frame

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return in_frame

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        call()
    finally:
        sys.settrace(before)
    return counted


def c_calls(call: Callable[[], object]) -> float:
    counted = 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal counted
        counted += event == "c_call"

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return counted


def _peak_kib(call: Callable[[], object]) -> float:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        call()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (peak - before) / 1024


_connections: list[sqlite3.Connection] = []


def watch_sql() -> None:
    """From now on open connections to SQLite are known, so that their steps can be counted."""
    event.listen(Engine, "connect", lambda connection, _: _connections.append(connection))
    event.listen(Engine, "close", lambda connection, _: _connections.remove(connection))


def _sql_steps(call: Callable[[], object]) -> float:
    counted = 0

    def step() -> None:
        nonlocal counted
        counted += 1

    for connection in _connections:
        connection.set_progress_handler(step, 1)
    try:
        call()
    finally:
        for connection in _connections:
            connection.set_progress_handler(None, 1)
    return counted


def perf_fault(perf: str = "perf") -> str:
    """Why ``perf stat`` counts no instructions on this machine; empty where it does."""
    try:
        done = subprocess.run(
            [perf, "stat", "-x", ",", "-e", EVENT, "--", "true"], capture_output=True, text=True
        )
    except OSError as error:
        return f"{perf} cannot be run: {error.strerror}"
    if counted(done.stderr) is not None:
        return ""
    said = done.stderr.strip().partition("\n")[0].partition(",")[0]
    return said or f"{perf} ended with {done.returncode}"


def instructions(command: Sequence[str], tree: Path, env: dict[str, str], perf: str = "perf") -> int:
    """Of the command in this folder. Raises RuntimeError."""
    whole = [perf, "stat", "-x", ",", "-e", EVENT, "-o", "/dev/fd/1", "--", *command]
    done = subprocess.run(whole, cwd=tree, env=env, capture_output=True, text=True)
    found = counted(done.stdout)
    if done.returncode or found is None:
        raise RuntimeError(done.stderr.strip()[-300:] or done.stdout.strip()[-300:])
    return found


def counted(text: str) -> int | None:
    """The number in what ``perf stat -x ,`` prints; None where it counted nothing."""
    found = re.search(r"^(\d+),", text, re.MULTILINE)
    return int(found[1]) if found else None
