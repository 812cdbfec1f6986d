"""Fair order, simulated: who gets the cards of a full cluster, by `timekeeper/core/ledger/fair_share.py`.

``python -m tests.bench.fair shares --json FILE [--seeds N] [--days N]``: drifting arrivals of four groups
with two namespaces each, and how far their use is from their weights. What FILE has is not made again.
``python -m tests.bench.fair venus``: how long the jobs of a public trace with tenants wait
(`venus/README.md`).

The ranks are the product's, anew every ten minutes; the rest are models. *Cards*: on nodes of eight. A pod
takes the fullest node that has enough. Of a gang all pods start together. *kube-scheduler* tries all waiting
pods whenever cards get free, and the extender keeps freed cards for the first of its order that fits
(`tests/scheduler_ext/cluster/test_simulated_order.py` compares both with the real ones). *maxWaiting*: of a
namespace so many pods wait for a node. Others are held, and one is released for each that got its node.
*Drain*: if a gang has waited for two minutes and is the first that does not fit, the emptiest nodes are kept
for it.
"""

import argparse
import csv
import heapq
import json
import lzma
import math
import random
import statistics
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from timekeeper.core.ledger.fair_share import Share, carried, decayed, ranks

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
GRID_MS, LOOKAHEAD_MS, DRAIN_MS, CARDS = 10 * MINUTE, 10 * MINUTE, 2 * MINUTE, 8
Json = dict[str, Any]


@dataclass(slots=True)
class Job:
    """``pods``: 1, or of a gang; each asks ``cards`` of one node."""

    number: int
    account: str
    came_ms: int
    length_ms: int
    pods: int
    cards: int
    started_ms: int | None = None
    nodes: list[int] = field(default_factory=list)

    @property
    def rate(self) -> int:
        """In milli-GPU."""
        return 1_000 * self.pods * self.cards


@dataclass(frozen=True, slots=True)
class Tenants:
    """Weights of groups, and of the accounts of each."""

    groups: Mapping[str, int]
    accounts: Mapping[str, int]
    group_of: Mapping[str, str]


class Use:
    """The decayed use of one account: what ended is carried, what runs is computed anew."""

    def __init__(self, half_life_ms: int) -> None:
        self._half_life_ms, self._ended, self._at_ms = half_life_ms, 0.0, 0
        self.running: dict[int, tuple[int, int]] = {}  # job's number -> rate, since when

    def end(self, number: int, now_ms: int) -> None:
        rate, since_ms = self.running.pop(number)
        ended = carried(self._ended, self._at_ms, now_ms, self._half_life_ms)
        self._ended = ended + decayed(rate, since_ms, now_ms, now_ms, self._half_life_ms)
        self._at_ms = now_ms

    def at(self, now_ms: int) -> float:
        span = (
            decayed(rate, since, now_ms, now_ms, self._half_life_ms) for rate, since in self.running.values()
        )
        return carried(self._ended, self._at_ms, now_ms, self._half_life_ms) + math.fsum(span)


class Cluster:
    """One order's run over a list of jobs. ``most_waiting``: of each account; then what is released counts as
    used within `LOOKAHEAD_MS`, until it has its node. ``all_reserve``: the same of all that wait."""

    def __init__(
        self,
        order: str,
        tenants: Tenants,
        nodes: int,
        half_life_ms: int,
        most_waiting: int | None = None,
        all_reserve: bool = False,
        seen: Callable[["Cluster"], None] = lambda _: None,
    ) -> None:
        self.order, self.tenants, self.half_life_ms = order, tenants, half_life_ms
        self.most_waiting, self._seen = most_waiting, seen
        self._reserves = all_reserve or most_waiting is not None
        self.free = [CARDS] * nodes
        self.now_ms = 0
        self.use = {account: Use(half_life_ms) for account in tenants.accounts}
        self.waiting: dict[str, dict[tuple[int, int], deque[Job]]] = {
            account: defaultdict(deque) for account in tenants.accounts
        }
        self.held: dict[str, deque[Job]] = {account: deque() for account in tenants.accounts}
        self.reserved = dict.fromkeys(tenants.accounts, 0)
        self.rank = dict.fromkeys(tenants.accounts, 0)

    def uses(self) -> dict[str, float]:
        """Of each account, without what is reserved."""
        return {account: use.at(self.now_ms) for account, use in self.use.items()}

    def run(self, jobs: Sequence[Job], end_ms: int | None = None) -> None:
        """Until the end, or until all have ended."""
        coming, ends = deque(jobs), list[tuple[int, int, Job]]()
        grid_ms = 0
        while coming or ends:
            now_ms = min(grid_ms, coming[0].came_ms if coming else grid_ms, ends[0][0] if ends else grid_ms)
            if end_ms is not None and now_ms > end_ms:
                break
            self.now_ms = now_ms
            changed = False
            while ends and ends[0][0] <= now_ms:
                self._end(heapq.heappop(ends)[2])
                changed = True
            while coming and coming[0].came_ms <= now_ms:
                job = coming.popleft()
                self.held[job.account].append(job)
                self._release(job.account)
                changed = True
            if now_ms >= grid_ms:
                self._rank()
                self._seen(self)
                grid_ms += GRID_MS
                changed = True
            if changed:
                for job in self._started():
                    heapq.heappush(ends, (now_ms + job.length_ms, job.number, job))

    def _end(self, job: Job) -> None:
        self.use[job.account].end(job.number, self.now_ms)
        for node in job.nodes:
            self.free[node] += job.cards

    def _release(self, account: str) -> None:
        held, waiting = self.held[account], self.waiting[account]
        while held and (self.most_waiting is None or sum(map(len, waiting.values())) < self.most_waiting):
            job = held.popleft()
            self.reserved[account] += self._reserve(job)
            waiting[job.pods, job.cards].append(job)

    def _reserve(self, job: Job) -> int:
        return job.rate * LOOKAHEAD_MS if self._reserves else 0

    def _rank(self) -> None:
        tenants, uses = self.tenants, self.uses()
        of_groups: dict[str, float] = dict.fromkeys(tenants.groups, 0.0)
        shares = {}
        for account, weight in tenants.accounts.items():
            use = uses[account] + self.reserved[account]
            shares[account] = Share(weight, use)
            of_groups[tenants.group_of[account]] += use
        groups = {group: Share(weight, of_groups[group]) for group, weight in tenants.groups.items()}
        self.rank = {name: rank.rank for name, rank in ranks(shares, groups, tenants.group_of).items()}

    def _key(self, job: Job) -> tuple[int, int, int]:
        """`fair`: by rank; `fifo`; `shortest`: by length, which nobody knows in a cluster; `priority`: by the
        weight of the group. Then by age."""
        first = {
            "fair": self.rank[job.account],
            "fifo": 0,
            "shortest": job.length_ms,
            "priority": -self.tenants.groups[self.tenants.group_of[job.account]],
        }[self.order]
        return first, job.came_ms, job.number

    def _started(self) -> Iterator[Job]:
        """The jobs that start now. Of one account and shape the first alone is looked at: if it does not fit
        no other does."""
        heads = [
            (self._key(job), job)
            for shapes in self.waiting.values()
            for queue in shapes.values()
            if (job := self._first(queue)) is not None
        ]
        heapq.heapify(heads)
        kept: frozenset[int] | None = None  # nodes that are kept for a gang
        failed = set[tuple[int, int]]()
        while heads:
            _, job = heapq.heappop(heads)
            shape = job.pods, job.cards
            if shape in failed:
                continue
            nodes = self._place(job, kept or frozenset())
            if nodes is None:
                failed.add(shape)
                if kept is None and job.pods > 1 and self.now_ms - job.came_ms >= DRAIN_MS:
                    emptiest = sorted(range(len(self.free)), key=lambda node: (-self.free[node], node))
                    kept = frozenset(emptiest[: job.pods])
                continue
            self._start(job, nodes)
            yield job
            account = job.account
            self._release(account)
            for queue in self.waiting[account].values():
                following = self._first(queue)
                if following is not None and all(following is not other for _, other in heads):
                    heapq.heappush(heads, (self._key(following), following))

    def _first(self, queue: deque[Job]) -> Job | None:
        if not queue:
            return None
        return min(queue, key=self._key) if self.order == "shortest" else queue[0]

    def _place(self, job: Job, kept: frozenset[int]) -> list[int] | None:
        """The fullest nodes first; of a gang's pods each has a node of its own if it takes it whole."""
        free, nodes = list(self.free), list[int]()
        for _ in range(job.pods):
            there = [node for node, cards in enumerate(free) if cards >= job.cards and node not in kept]
            if not there:
                return None
            node = min(there, key=lambda node: (free[node], node))
            free[node] -= job.cards
            nodes.append(node)
        return nodes

    def _start(self, job: Job, nodes: list[int]) -> None:
        self.waiting[job.account][job.pods, job.cards].remove(job)
        self.reserved[job.account] -= self._reserve(job)
        job.started_ms, job.nodes = self.now_ms, nodes
        for node in nodes:
            self.free[node] -= job.cards
        self.use[job.account].running[job.number] = job.rate, self.now_ms


# shares: four groups with two namespaces each

GROUPS = {"a": 4, "b": 3, "c": 2, "d": 1}
INSIDE = {"1": 2, "2": 1}
FOUR = Tenants(
    GROUPS,
    {group + name: weight for group in GROUPS for name, weight in INSIDE.items()},
    {group + name: group for group in GROUPS for name in INSIDE},
)
NODES, HOURS, MOST_HOURS = 8, 2.0, 24.0  # how long a pod runs: the mean of a log-normal, and at most
MIXED = {1: 70, 2: 20, 4: 10}  # cards of a pod, and how many of a hundred
LONG_MS = DAY  # a half-life


def drifting(seed: int, days: float, cards_of: Mapping[int, int]) -> list[Job]:
    """Each namespace asks for its part of the cluster times a factor that drifts: a wave of three to nine
    days, and one of a day. On average the factor is 2.2, and of one group 0.9: it has nothing to run at
    times."""
    chance = random.Random(seed)
    of_one = sum(cards * many for cards, many in cards_of.items()) / sum(cards_of.values())
    meek, drawn = chance.choice(list(GROUPS)), list[tuple[float, str, float, int]]()
    for account, weight in FOUR.accounts.items():
        group = FOUR.group_of[account]
        part = GROUPS[group] / sum(GROUPS.values()) * weight / sum(INSIDE.values())
        mean = (0.9 if group == meek else 2.2) * part * NODES * CARDS / (of_one * HOURS)  # pods an hour
        period, phase, of_day = chance.uniform(3, 9) * 24, chance.random(), chance.random()
        at, most = 0.0, mean * 1.8
        while (at := at + chance.expovariate(most)) < days * 24:
            wave = 0.5 * math.sin(2 * math.pi * (at / period + phase))
            wave += 0.3 * math.sin(2 * math.pi * (at / 24 + of_day))
            if chance.random() * most < mean * (1 + wave):
                hours = min(MOST_HOURS, chance.lognormvariate(math.log(HOURS) - 0.5, 1.0))
                cards = chance.choices(list(cards_of), list(cards_of.values()))[0]
                drawn.append((at, account, hours, cards))
    return [
        Job(number, account, round(at * HOUR), round(hours * HOUR), 1, cards)
        for number, (at, account, hours, cards) in enumerate(sorted(drawn))
    ]


class Watch:
    """At each point of the grid, once the cluster has been full for a day: which accounts have a pod waiting,
    and how long one has been without any card while it had; five half-lives later also the uses."""

    def __init__(self) -> None:
        self.uses: list[dict[str, float]] = []
        self.asking: list[frozenset[str]] = []
        self._without_ms: dict[str, int] = defaultdict(int)
        self.longest_ms = 0

    def __call__(self, cluster: Cluster) -> None:
        if cluster.now_ms < DAY:
            return
        self.asking.append(
            frozenset(name for name, shapes in cluster.waiting.items() if any(shapes.values()))
        )
        for name, use in cluster.use.items():
            is_without = name in self.asking[-1] and not use.running
            self._without_ms[name] = self._without_ms[name] + GRID_MS if is_without else 0
            self.longest_ms = max(self.longest_ms, self._without_ms[name])
        if cluster.now_ms >= DAY + 5 * LONG_MS:
            self.uses.append(cluster.uses())

    def told(self, largest: int) -> Json:
        """Of the groups that asked throughout: how far each one's use was from its weight among them, as a
        part of its share. ``beyond``: what is left of that after one pod, the largest. ``without``: hours."""
        asked = [
            group
            for group in GROUPS
            if all(any(FOUR.group_of[name] == group for name in asking) for asking in self.asking)
        ]
        errors, beyond = [0.0], 0.0
        for uses in self.uses:
            of_group = {
                group: sum(use for name, use in uses.items() if FOUR.group_of[name] == group)
                for group in asked
            }
            for group, use in of_group.items():
                share = sum(of_group.values()) * GROUPS[group] / sum(GROUPS[name] for name in asked)
                errors.append(abs(use - share) / share)
                beyond = max(beyond, (abs(use - share) - largest) / share)
        return {
            "asked": len(asked),
            "mean": statistics.fmean(errors),
            "worst": max(errors),
            "beyond": beyond,
            "without": self.longest_ms / HOUR,
        }


RUNS = {  # order, maxWaiting, whether all that wait reserve, cards of pods
    "fair": ("fair", None, False, {1: 1}),
    "fair, maxWaiting 4": ("fair", 4, False, {1: 1}),
    "fair, all that wait reserve": ("fair", None, True, {1: 1}),
    "first come": ("fifo", None, False, {1: 1}),
    "priority": ("priority", None, False, {1: 1}),
    "fair, pods of 1, 2 and 4 cards": ("fair", None, False, MIXED),
    "fair, pods of 1, 2 and 4 cards, maxWaiting 4": ("fair", 4, False, MIXED),
}  # fmt: skip


def shares_of(name: str, seed: int, days: float) -> Json:
    """One order on the arrivals of one seed."""
    order, most_waiting, all_reserve, cards_of = RUNS[name]
    watch = Watch()
    cluster = Cluster(order, FOUR, NODES, LONG_MS, most_waiting, all_reserve, watch)
    cluster.run(drifting(seed, days, cards_of), round(days * DAY))
    return watch.told(round(max(cards_of) * 1_000 * MOST_HOURS * HOUR))


def shares(given: argparse.Namespace) -> None:
    """All orders on all seeds, and a table of them."""
    found: Json = json.loads(given.json.read_text()) if given.json.exists() else {}
    for name in RUNS:
        there: Json = found.setdefault(name, {})
        for seed in range(given.seeds):
            if str(seed) not in there:
                there[str(seed)] = shares_of(name, seed, given.days)
                given.json.write_text(json.dumps(found, indent=1) + "\n")
    print("| order | mean, % | worst, % | worst beyond one pod, % | without a card, h |")
    print("|---|---|---|---|---|")
    for name in RUNS:
        seeds = found[name].values()
        mean = statistics.fmean(seed["mean"] for seed in seeds)
        worst, beyond, without = (max(seed[key] for seed in seeds) for key in ("worst", "beyond", "without"))
        print(f"| {name} | {mean:.1%} | {worst:.0%} | {beyond:.1%} | {without:.1f} |".replace("%", ""))


# a public trace

VENUS = Path(__file__).parent / "venus" / "jobs.csv.xz"
VENUS_NODES = {"vcvGl": 20, "vcvlY": 2}
LEAST_MS = 10 * MINUTE  # a shorter job counts as so long, where times are compared


def venus() -> tuple[list[Job], Tenants]:
    """The jobs; a virtual cluster is a group whose weight is its nodes, a user of it a namespace."""
    with lzma.open(VENUS, "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    group_of = {f"{row['vc']}/{row['user']}": row["vc"] for row in rows}
    jobs = [
        Job(
            number,
            f"{row['vc']}/{row['user']}",
            int(row["submit_s"]) * SECOND,
            int(row["duration_s"]) * SECOND,
            int(row["nodes"]),
            int(row["gpus"]) // int(row["nodes"]),
        )
        for number, row in enumerate(sorted(rows, key=lambda row: int(row["submit_s"])))
    ]
    return jobs, Tenants(VENUS_NODES, dict.fromkeys(group_of, 1), group_of)


def waited(jobs: Sequence[Job]) -> dict[int, int]:
    """How long each has waited, by its number."""
    return {job.number: job.started_ms - job.came_ms for job in jobs if job.started_ms is not None}


def alone() -> dict[int, int]:
    """How long each waits if each virtual cluster has its own nodes, first come, first served."""
    waits: dict[int, int] = {}
    for group, nodes in VENUS_NODES.items():
        jobs, tenants = venus()
        mine = [job for job in jobs if tenants.group_of[job.account] == group]
        Cluster("fifo", tenants, nodes, 14 * DAY).run(mine)
        waits |= waited(mine)
    return waits


def trace(_: argparse.Namespace) -> None:
    """All orders on the trace, and a table of them."""
    by_itself = alone()
    print("| order | wait: mean, h | 99.9th, h | smaller tenant's mean, h | 99.9th, h | worst ratio |")
    print("|---|---|---|---|---|---|")
    for name, order in (
        ("fair", "fair"),
        ("first come", "fifo"),
        ("shortest first", "shortest"),
        ("priority", "priority"),
    ):
        jobs, tenants = venus()
        Cluster(order, tenants, sum(VENUS_NODES.values()), 14 * DAY).run(jobs)
        waits = waited(jobs)
        small = [waits[job.number] for job in jobs if tenants.group_of[job.account] == "vcvlY"]
        ratio = max(
            (waits[job.number] + max(job.length_ms, LEAST_MS))
            / (by_itself[job.number] + max(job.length_ms, LEAST_MS))
            for job in jobs
        )
        of_all, of_small = (
            f"{statistics.fmean(some) / HOUR:.1f} | {last(some) / HOUR:.1f}"
            for some in ([*waits.values()], small)
        )
        print(f"| {name} | {of_all} | {of_small} | {ratio:.0f} |")


def last(waits: Sequence[int]) -> int:
    """The 99.9th of a hundred."""
    return sorted(waits)[math.ceil(0.999 * len(waits)) - 1]


def main(arguments: Sequence[str] | None = None) -> int:
    """One of both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("shares", "venus"))
    parser.add_argument("--seeds", type=int, default=20, help="how many arrivals")
    parser.add_argument("--days", type=float, default=21, help="of each")
    parser.add_argument("--json", type=Path, metavar="FILE", help="figures of `shares`, which resume")
    given = parser.parse_args(arguments)
    if given.what == "shares" and given.json is None:
        parser.error("shares: --json is needed")
    {"shares": shares, "venus": trace}[given.what](given)
    return 0


if __name__ == "__main__":
    sys.exit(main())
