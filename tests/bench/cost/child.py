"""The process that runs operations with the product of the folder that it was started in.

``python -m tests.bench.cost.child count``: every operation's counts, as JSON. ``turns``: for each name on
stdin a line with the CPU time of a call, as a ratio to that of a reference loop. ``run NAME CALLS``: the
operation so many times, and ``prepare NAME CALLS``: only what comes before each call; for ``perf stat``.
"""

import gc
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.bench.cost.counters import counts, watch_sql
from tests.bench.cost.operations import OPERATIONS, ROUND, Prepare, built, stop_clocks

TURN_S = 0.02  # of CPU
MAX_CALLS = 50  # a turn
PACKAGES = ("webhook", "timekeeper", "scheduler_ext")


def count(folder: Path) -> None:
    """Prints the counts, or the fault, of each operation."""
    print(json.dumps({name: tried(partial(_counts, name, folder)) for name in OPERATIONS}))


def _counts(name: str, folder: Path) -> dict[str, float]:
    return counts(built(name, folder))


def turns(folder: Path) -> None:
    """Until stdin ends."""
    ready: dict[str, object] = {}
    for name in map(str.strip, sys.stdin):
        if name not in ready:
            ready[name] = tried(partial(_calibrated, name, folder))
        turn = ready[name]
        print(json.dumps(tried(turn) if callable(turn) else turn), flush=True)


def run(folder: Path, name: str, calls: int, is_idle: bool) -> None:
    """The operation so many times."""
    prepare = built(name, folder)
    for _ in range(calls):
        call = prepare()
        if not is_idle:
            call()


def _calibrated(name: str, folder: Path) -> Callable[[], dict[str, float]]:
    prepare = built(name, folder)
    calls = max(ROUND, min(MAX_CALLS, math.ceil(TURN_S * ROUND / _cpu_s(prepare, ROUND))))

    def turn() -> dict[str, float]:
        before = _reference_s()
        call_s = _cpu_s(prepare, calls) / calls
        return {"CPU": 2 * call_s / (before + _reference_s())}

    return turn


def _cpu_s(prepare: Prepare, calls: int) -> float:
    spent = 0.0
    for _ in range(calls):
        call = prepare()
        began = time.process_time()
        call()
        spent += time.process_time() - began
    return spent


def _reference_s() -> float:
    """The CPU time of a loop that never changes: what the machine is worth at this moment."""
    began = time.process_time()
    for number in range(40):
        text = json.dumps({f"key-{at}": [at, str(number)] for at in range(100)})
        sum(int(each[1]) + len(key) for key, each in json.loads(text).items())
    return time.process_time() - began


def tried(work: Callable[[], object]) -> object:
    """What the work returns; the fault of one that this tree does not have, as a sentence."""
    try:
        return work()
    except (Exception, SystemExit) as error:
        return {"fault": f"{type(error).__name__}: {error}".partition("\n")[0][:200]}


def main() -> None:
    """See above."""
    here = Path.cwd().resolve()
    stop_clocks()
    watch_sql()
    for package in PACKAGES:
        found = Path(__import__(package).__file__ or "").resolve()
        if here not in found.parents:
            raise SystemExit(f"{package} is {found}, and not below {here}")
    gc.disable()
    mode, *rest = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="bursar-cost-") as name:
        folder = Path(name)
        if mode == "count":
            count(folder)
        elif mode == "turns":
            turns(folder)
        else:
            run(folder, rest[0], int(rest[1]), is_idle=mode == "prepare")


if __name__ == "__main__":
    main()
