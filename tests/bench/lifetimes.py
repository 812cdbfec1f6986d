"""How the policies do when pods end: GPU allocation, waiting time by size and preemptions in a week.

Nodes are drawn from the published ones, pods with their lifetimes from the published list. At each load the
same pods arrive under every policy; under ``drift`` the mix changes from day to day: three times as many
shares come at the end, and GPU pods request half as much CPU again.
"""

import argparse
import csv
import json
import lzma
import math
import os
import random
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench.experiment import Experiment, NodeRow, read_nodes, read_pods
from tests.bench.lives import LONGEST_S, SIZES, Life, Placer, Week, arrivals, by_day, live
from tests.bench.references import REFERENCES
from tests.bench.served import Served

Json = dict[str, Any]

DATA = Path(__file__).parent / "openb"
NAMES = ("fragmentation", "FGD", "BestFit", "Random")
LOADS = (60, 80, 95)
DRIFT_LOAD = 95
SHARES_AT_LAST, CPU_AT_LAST = 3, (3, 2)


class Case(NamedTuple):
    """One week to simulate."""

    name: str
    load: int
    drift: bool
    seed: int
    nodes: int


def published() -> list[Life]:
    """The published pods that ran, with their lifetimes, at most ``LONGEST_S``."""
    path = DATA / "openb_pod_list_default.csv.xz"
    with lzma.open(path, "rt", newline="") as file:
        times = [(row["creation_time"], row["deletion_time"]) for row in csv.DictReader(file)]
    lives = zip(read_pods(path), times, strict=True)
    return [
        Life(pod, min(max(1, int(end) - int(begin)), LONGEST_S))
        for pod, (begin, end) in lives
        if begin and end
    ]


def drifted(lives: Sequence[Life]) -> list[Life]:
    """The mix of the last day: more shares, and more CPU beside each GPU."""
    found = []
    for life in lives:
        pod = life.pod
        if pod.num_gpu:
            most_cpu = 64_000 if pod.num_gpu < 8 else 96_000
            more = min(pod.cpu_milli * CPU_AT_LAST[0] // CPU_AT_LAST[1], max(most_cpu, pod.cpu_milli))
            pod = pod._replace(cpu_milli=more)
        found += [Life(pod, life.lasts_s)] * (SHARES_AT_LAST if pod.kind == "share" else 1)
    return found


def cluster(count: int, seed: int) -> tuple[NodeRow, ...]:
    """As many of the published nodes with GPUs."""
    nodes = [node for node in read_nodes(DATA / "openb_node_list_gpu_node.csv.xz") if node.gpus]
    return tuple(random.Random(f"nodes {seed}").sample(nodes, count))


def simulated(case: Case) -> Week:
    """The week of the case."""
    nodes = cluster(case.nodes, case.seed)
    lives = [life for life in published() if any(could(life, node) for node in nodes)]
    mixes = by_day(lives, drifted(lives) if case.drift else lives, case.seed)
    coming = arrivals(nodes, mixes, case.load, case.seed)
    listed = tuple(arrival.life.pod for arrival in coming)
    return live(nodes, coming, placer(case.name, Experiment(nodes, listed, (), case.seed)))


def could(life: Life, node: NodeRow) -> bool:
    """Whether the node takes the pod when it is empty."""
    pod = life.pod
    is_large = node.cpu_milli >= pod.cpu_milli and node.memory_mib >= pod.memory_mib
    return is_large and node.gpus >= pod.num_gpu


def placer(name: str, experiment: Experiment) -> Placer:
    """The policy or reference. The references know the whole week's mix, Bursar learns it as it goes."""
    return REFERENCES[name](experiment) if name in REFERENCES else Served(experiment, name)


def told(cases: Sequence[Case], weeks: Sequence[Week]) -> list[Json]:
    """A row for each load and policy, over the seeds. Waiting times in minutes: the mean, and the 95th of
    100. ``beside_first``: how much more is allocated than under the first policy on the same clusters."""
    rows = []
    of_case = dict(zip(cases, weeks, strict=True))
    for load, drift, name in dict.fromkeys((case.load, case.drift, case.name) for case in cases):
        mine = [week for case, week in of_case.items() if case[:3] == (name, load, drift)]
        first = [week for case, week in of_case.items() if case[:3] == (cases[0].name, load, drift)]
        more = [week.allocation - other.allocation for week, other in zip(mine, first, strict=True)]
        waits = {size: sorted(wait for week in mine for wait in week.waits_s[size]) for size in SIZES}
        rows.append(
            {
                "load": load,
                "drift": drift,
                "policy": name,
                "allocation": round(statistics.fmean(week.allocation for week in mine), 2),
                "by_size": {
                    size: round(statistics.fmean(week.by_size[size] for week in mine), 2) for size in SIZES
                },
                "beside_first": _mean_and_error(more),
                "wait_min": {size: _minutes(each) for size, each in waits.items()},
                "preempted": round(statistics.fmean(week.preempted for week in mine), 1),
                "pods": round(statistics.fmean(week.left["arrived"] for week in mine)),
                "waiting_at_end": round(statistics.fmean(week.left["waiting"] for week in mine), 1),
            }
        )
    return rows


def _mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """The standard error is None for one value."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return round(statistics.fmean(values), 2), None if error is None else round(error, 2)


def _minutes(waits: Sequence[int]) -> list[float] | None:
    if not waits:
        return None
    return [round(statistics.fmean(waits) / 60, 1), round(waits[len(waits) * 95 // 100] / 60, 1)]


def table(rows: Sequence[Json]) -> str:
    """For people."""
    first = rows[0]["policy"]
    titles = ["allocated %", f"to {first}", "8 GPU %", *(f"{size} GPU" for size in SIZES)]
    titles += ["preempted", "waiting at end"]
    lines = [f"{'load %':10}{'policy':15}" + "".join(f"{title:>16}" for title in titles)]
    for row in rows:
        waits = [(each and f"{each[0]:.1f} / {each[1]:.0f}") or "-" for each in row["wait_min"].values()]
        mean, error = row["beside_first"]
        beside = f"{mean:+.2f}" if error is None else f"{mean:+.2f} +- {error:.2f}"
        cells = [f"{row['allocation']:.2f}", beside, f"{row['by_size']['8']:.2f}", *waits]
        cells += [f"{row['preempted']}", f"{row['waiting_at_end']}"]
        load = f"{row['load']}{' drift' if row['drift'] else ''}"
        lines.append(f"{load:10}{row['policy']:15}" + "".join(f"{cell:>16}" for cell in cells))
    lines.append(f"to {first}: how much more is allocated, with the standard error over the seeds")
    lines.append("8 GPU %: what pods of 8 GPUs have of all GPUs")
    lines.append("by size: minutes until a pod runs, mean / 95th of 100; means over the seeds")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """All loads under all policies."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=30, help="of the cluster (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="how many clusters and weeks (%(default)s)")
    parser.add_argument("--first-seed", type=int, default=1, help="the others follow (%(default)s)")
    parser.add_argument("--loads", nargs="+", type=int, default=LOADS, help="per cent of the GPUs")
    parser.add_argument("--policy", nargs="+", choices=(*REFERENCES, NAMES[0]), default=NAMES, metavar="P")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args(arguments)
    kinds = [*((load, False) for load in given.loads), (DRIFT_LOAD, True)]
    cases = [
        Case(name, load, drift, seed, given.nodes)
        for load, drift in kinds
        for name in given.policy
        for seed in range(given.first_seed, given.first_seed + given.seeds)
    ]
    weeks = []
    with ProcessPoolExecutor(given.jobs) as pool:
        for case, week in zip(cases, pool.map(simulated, cases), strict=True):
            weeks.append(week)
            (row,) = told([case], [week])
            print(f"[{len(weeks)}/{len(cases)}] {case}: {row}", file=sys.stderr)
    rows = told(cases, weeks)
    print(table(rows))
    if given.json:
        given.json.write_text(json.dumps({"nodes": given.nodes, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
