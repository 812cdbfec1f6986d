"""How well `fragmentation` packs where CPU is scarce, beside FGD.

``python -m tests.bench.scarce [--seeds N] [--every K] [--json FILE]``. A seed shuffles each K-th node of the
trace, and draws who arrives from its default list, with repeats, until as much is asked for as there are
GPUs. The pods ask for so many per cent of the CPU: in ``nodes`` because these have less of it, in ``pods``
because more of them ask for no GPU. Of each list: the mean GPU allocation in per cent at the end, how much
more the policy allocates than FGD with the same seed, and the standard error of that. ``[{list, percent,
policy, fgd, more, error}]``; the exit code is 1 where it allocates less by more than two standard errors.
"""

import os
import random
import statistics
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

from tests.bench.command import arguments, write
from tests.bench.experiment import WHOLE_MILLI, Experiment, PodRow, read_nodes, read_pods, run
from tests.bench.placement import DATA
from tests.bench.references import REFERENCES
from tests.bench.served import Served

Json = dict[str, Any]

PERCENT = (90, 110, 140, 170, 200)
POLICY, BEST = "fragmentation", "FGD"


class Scarce(NamedTuple):
    """A list of one kind, with one seed, for each so manieth node."""

    kind: str  # nodes or pods
    percent: int
    seed: int
    every: int

    def experiment(self) -> Experiment:
        """The same each time."""
        rng = random.Random(repr(self))
        nodes = list(read_nodes(DATA / "openb_node_list_gpu_node.csv.xz")[:: self.every])
        listed = list(read_pods(DATA / "openb_pod_list_default.csv.xz"))
        gpus = sum(pod.asked_milli for pod in listed) / WHOLE_MILLI
        there = sum(node.cpu_milli for node in nodes) / sum(node.gpus for node in nodes)
        wanted = there * self.percent / 100  # for a GPU
        if self.kind == "nodes":
            part = _cpu(listed) / gpus / wanted
            nodes = [node._replace(cpu_milli=round(node.cpu_milli * part)) for node in nodes]
        else:
            asking, others = (
                [pod for pod in listed if bool(pod.num_gpu) == is_gpu] for is_gpu in (True, False)
            )
            count = len(others) * (wanted * gpus - _cpu(asking)) / _cpu(others)
            listed = asking + rng.choices(others, k=round(count))
        rng.shuffle(nodes)
        arrivals, left = [], WHOLE_MILLI * sum(node.gpus for node in nodes)
        while left > 0:
            arrivals.append(rng.choice(listed))
            left -= arrivals[-1].asked_milli
        return Experiment(tuple(nodes), tuple(listed), tuple(arrivals))


def _cpu(pods: Iterable[PodRow]) -> int:
    return sum(pod.cpu_milli for pod in pods)


def allocations(scarce: Scarce) -> tuple[float, float]:
    """Per cent of all GPUs in the end: under the policy, and under FGD."""
    experiment = scarce.experiment()
    outcomes = (run(experiment, placing(experiment).place) for placing in (_served, REFERENCES[BEST]))
    policy, best = (outcome.allocation["130"] or 0.0 for outcome in outcomes)
    return policy, best


def _served(experiment: Experiment) -> Served:
    return Served(experiment, POLICY)


def compared(kind: str, percent: int, found: list[tuple[float, float]]) -> Json:
    """A list's allocations over the seeds."""
    more = [policy - best for policy, best in found]
    policy, best = (round(statistics.fmean(figures), 2) for figures in zip(*found, strict=True))
    error = statistics.stdev(more) / len(more) ** 0.5
    row = {"list": kind, "percent": percent, "policy": policy, "fgd": best}
    return row | {"more": round(statistics.fmean(more), 2), "error": round(error, 2)}


def main() -> int:
    """Measure, print, and write what was asked for."""
    given = arguments(__doc__, seeds=(10, "of each list"), every=(8, "of the nodes: each so manieth"))
    lists = [(kind, percent) for kind in ("nodes", "pods") for percent in PERCENT]
    rows = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for kind, percent in lists:
            drawn = [Scarce(kind, percent, seed, given.every) for seed in range(given.seeds)]
            rows.append(compared(kind, percent, list(pool.map(allocations, drawn))))
            print(rows[-1], flush=True)
    write(given.json, rows)
    return 1 if any(row["more"] < -2 * row["error"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
