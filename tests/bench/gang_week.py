"""Gangs beside single pods: waiting time by size, and how much of the GPUs pods have, in a week of arrivals.

Nodes are drawn from the published ones, pods with their lifetimes from the published list; gangs of 2 to 64
pods with a whole GPU each ask for a part of the load. At each load the same jobs arrive under every policy:
``without gangs`` the members start one by one; ``FIFO`` nothing passes the first job that waits; ``plain
backfill`` whatever fits starts, and no card is drained; ``Bursar`` is what is served.

Each week is a case. What is done stands in the file of ``--json``, and is not done again: a run may be ended
at any time, also by ``--minutes``, and gone on with.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from scheduler_ext.scoring.typical_pods import typical_pods_of
from tests.bench.gang_lives import POLICIES, SIZES, GangWeek, Simulation, jobs_of
from tests.bench.lifetimes import cluster, could, published
from tests.bench.served import typical_of

Json = dict[str, Any]

LOADS = (80, 120)
WANTED = 0.97  # at the first load, of what pods have without gangs


class Case(NamedTuple):
    """One week to simulate. ``gangs`` and ``declare``: per cent of the load, and of the jobs."""

    load: int
    seed: int
    nodes: int
    gangs: int
    declare: int
    policy: str

    @property
    def key(self) -> str:
        """Its name in the file."""
        return " ".join(map(str, self))


def simulated(case: Case) -> GangWeek:
    """The week of the case."""
    nodes = cluster(case.nodes, case.seed)
    lives = [life for life in published() if life.pod.num_gpu and any(could(life, node) for node in nodes)]
    jobs = jobs_of(nodes, lives, case.load, case.gangs, case.declare, case.seed)
    mix = typical_pods_of(Counter(typical_of(life.pod) for life in lives))
    return Simulation(nodes, mix, case.policy).run(jobs)


def row_of(week: GangWeek) -> Json:
    """The figures of a week; waiting times in minutes, the median and the 95th of 100."""
    waits = {size: sorted(each) for size, each in week.waits_s.items() if each}
    shown = {
        size: [round(each[len(each) // 2] / 60, 1), round(each[len(each) * 95 // 100] / 60, 1), len(each)]
        for size, each in waits.items()
    }
    return {**asdict(week), "waits_s": None, "wait_min": shown}


def table(done: dict[str, Json], cases: Sequence[Case]) -> str:
    """For people."""
    titles = ["used %", "to without", "drained %", *SIZES, "waiting"]
    lines = [f"{'load %, seed, policy':28}" + "".join(f"{title:>14}" for title in titles)]
    for case in cases:
        row = done.get(case.key)
        if row is None:
            continue
        beside = done.get(case._replace(policy=POLICIES[0]).key)
        part = f"{row['used'] / beside['used']:.3f}" if beside else "-"
        waits = [row["wait_min"].get(size) for size in SIZES]
        shown = [f"{each[0]:.1f} / {each[1]:.0f}" if each else "-" for each in waits]
        cells = [
            f"{row['used']:.2f}",
            part,
            f"{row['drained']:.2f}",
            *shown,
            str(sum(row["waiting"].values())),
        ]
        head = f"{case.load} {case.seed} {case.policy}"
        lines.append(f"{head:28}" + "".join(f"{cell:>14}" for cell in cells))
    lines.append("by size: minutes until the job runs, median / 95th of 100; waiting: jobs at the end")
    return "\n".join(lines)


def missed(done: dict[str, Json], cases: Sequence[Case]) -> list[str]:
    """The cases at the first load in which Bursar is below the target."""
    found = []
    for case in cases:
        beside = done.get(case._replace(policy=POLICIES[0]).key)
        row = done.get(case.key) if case.policy == POLICIES[-1] and case.load == LOADS[0] else None
        if row and beside and row["used"] < WANTED * beside["used"]:
            found.append(case.key)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """All cases that are not done, within the time; 1 if the target was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=40, help="of the cluster (%(default)s)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2], help="(%(default)s)")
    parser.add_argument("--loads", nargs="+", type=int, default=LOADS, help="per cent of the GPUs")
    parser.add_argument("--gangs", type=int, default=30, help="per cent of the load that is gangs")
    parser.add_argument(
        "--declare", type=int, default=50, help="per cent of the jobs that declare their time"
    )
    parser.add_argument("--policy", nargs="+", choices=POLICIES, default=POLICIES, metavar="P")
    parser.add_argument("--minutes", type=float, default=18, help="begin no case after so long (%(default)s)")
    parser.add_argument("--json", type=Path, help="what is done, and goes on to be")
    given = parser.parse_args(arguments)
    cases = [
        Case(load, seed, given.nodes, given.gangs, given.declare, policy)
        for load in given.loads
        for seed in given.seeds
        for policy in given.policy
    ]
    done: dict[str, Json] = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    began = time.monotonic()
    for case in cases:
        if case.key in done or time.monotonic() - began > 60 * given.minutes:
            continue
        done[case.key] = row_of(simulated(case))
        print(f"[{time.monotonic() - began:.0f} s] {case.key}: {done[case.key]}", file=sys.stderr)
        if given.json:
            given.json.write_text(json.dumps(done, indent=1) + "\n")
    print(table(done, cases))
    return 1 if missed(done, cases) else 0


if __name__ == "__main__":
    sys.exit(main())
