"""How the work of one call grows with the cluster: its processor time at several sizes, and the exponent.

``python -m tests.bench.exponents [--json FILE]``. The operations are those of `tests.bench.cost`, without
sockets and threads. The extender's nodes have two bound pods each. The ledger has 2,000 live pods at every
size, and 1,000 namespaces where nodes are counted; at a tick each node was heard and a pod has ended. Each
size has a process of its own, in which no clock goes on; ``ms``: the median of a call. The exponent is the
slope of the line through the logarithms: 0 costs the same at every size, 1 grows as the cluster does.
``[{operation, by, ms, exponent}]``.
"""

import gc
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from tests.bench.command import arguments, write
from tests.bench.cost.operations import (
    LedgerWorld,
    Prepare,
    answer_of,
    bind,
    filter_over,
    standings_read,
    stop_clocks,
    tick,
)

Json = dict[str, Any]
Build = Callable[[Path], Prepare]

SIZES: Mapping[str, Sequence[int]] = {
    "nodes": (500, 2_000, 5_000, 20_000),
    "namespaces": (1_000, 3_000, 10_000),
}
PODS, FEW = 2_000, 1_000
WARM = CALLS = 8  # each with another shape of pod
PAGES = {"standings": "/v1/standings", "budgets": "/v1/budgets", "usage": "/v1/usage?group=namespace"}


def operations(by: str, size: int) -> dict[str, Build]:
    """Of one size."""
    nodes, namespaces = (size, FEW) if by == "nodes" else (0, size)
    world = cache(partial(LedgerWorld, pods=PODS, namespaces=namespaces, nodes=nodes))
    ledger: dict[str, Build] = {"tick": lambda folder: tick(folder, world)}
    ledger |= {name: answer_of(path, world) for name, path in PAGES.items()}
    if by == "nodes":
        return {"filter": filter_over(size), "bind": lambda folder: bind(folder, size)} | ledger
    return {"extender reads standings": standings_read("scheduler_ext.model.standing_table", size)} | ledger


def timed(by: str, size: int) -> dict[str, float]:
    """Milliseconds of processor time of a call of each operation, in this process."""
    stop_clocks()
    gc.disable()
    found = {}
    with tempfile.TemporaryDirectory(prefix="bursar-exponents-") as folder:
        for name, build in operations(by, size).items():
            prepare = build(Path(folder))
            for _ in range(WARM):
                prepare()()
            gc.collect()
            gc.freeze()
            found[name] = statistics.median(_ms(prepare()) for _ in range(CALLS))
    return found


def _ms(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return 1_000 * (time.process_time() - began)


def exponent(sizes: Sequence[int], figures: Sequence[float]) -> float:
    """The slope of the line through the logarithms, by least squares."""
    return statistics.linear_regression(list(map(math.log, sizes)), list(map(math.log, figures))).slope


def measured(by: str) -> list[Json]:
    """Every operation at every size."""
    found = []
    for size in SIZES[by]:
        code = (
            f"import json; from tests.bench.exponents import timed; print(json.dumps(timed({by!r}, {size})))"
        )
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if done.returncode:
            raise SystemExit(f"{size} {by} cannot be measured: run timed({by!r}, {size})")
        found.append(json.loads(done.stdout))
    return [
        {
            "operation": name,
            "by": by,
            "ms": {str(size): round(at[name], 2) for size, at in zip(SIZES[by], found, strict=True)},
            "exponent": round(exponent(SIZES[by], [at[name] for at in found]), 2),
        }
        for name in found[0]
    ]


def main() -> None:
    """Measure, print, and write what was asked for."""
    given = arguments(__doc__)
    found = [row for by in SIZES for row in measured(by)]
    for row in found:
        print(json.dumps(row))
    write(given.json, found)


if __name__ == "__main__":
    main()
