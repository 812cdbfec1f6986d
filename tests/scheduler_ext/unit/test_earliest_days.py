"""Simulated days: no pod and no gang starts before the moment that was named as its earliest, as long as pods
use the time that they declare. ``python -m tests.scheduler_ext.unit.test_earliest_days`` prints by how much
later they start.

Cards are given by Bursar's own search, to the waiting pods in any order: no order of any queue starts one
before its bound.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from statistics import quantiles

import pytest

from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.standing import UNHEARD
from scheduler_ext.reports.earliest import EarliestStarts
from scheduler_ext.snapshot.snapshot import Snapshot
from tests.scheduler_ext.reserving import NOW_MS, held, stamp
from tests.scheduler_ext.worlds import Json, asking, bound, node, on, read, rebuilt
from tests.worlds import card, container
from timekeeper.core.request.cards import encode_placement

MINUTE, DAY = 60_000, 24 * 60  # ms; minutes
STEP = 10  # minutes between two looks
_BOUND = re.compile(r"not before (\S+),")


@dataclass(kw_only=True)
class Work:
    """A pod, or a gang of some. ``lasts``: minutes; ``bounds``: what was named, at which minute."""

    name: str
    cards: int
    share: int
    members: int
    lasts: int
    declared: int  # minutes; 0: none
    came: int
    bounds: list[tuple[int, int]] = field(default_factory=list)
    unknown: int = 0  # looks at which no end was known
    started: int = -1
    held: tuple[str, str] = ("", "")  # node and card

    def raws(self) -> list[Json]:
        fields: Json = {"activeDeadlineSeconds": 60 * self.declared} if self.declared else {}
        marks = {"bursar.dev/gang": self.name, "bursar.dev/gang-size": str(self.members)}
        marks |= {"bursar.dev/held": "turn"}
        made = []
        for at in range(self.members):
            asks = (container(f"c{nth}", gpu_percent=str(self.share)) for nth in range(self.cards))
            own: Json = {"annotations": dict(marks)} if self.members > 1 else {}
            raw = asking(*asks, name=f"{self.name}-{at}", **fields, **own)
            made.append(held(raw, *self.held, since_ms=0, until_ms=NOW_MS * 2) if self.held[0] else raw)
        return made


@dataclass
class Day:
    """``uses_all``: pods run for as long as they declare; else most end earlier."""

    random: Random
    uses_all: bool
    nodes: list[Json] = field(default_factory=list)
    waiting: list[Work] = field(default_factory=list)
    running: list[tuple[Work, list[Json]]] = field(default_factory=list)
    over: list[Work] = field(default_factory=list)

    def live(self) -> list[Work]:
        self.nodes = [node(f"n{at}", *map(card, range(4))) for at in range(5)]
        for minute in range(0, DAY, STEP):
            self.running = [each for each in self.running if each[0].started + each[0].lasts > minute]
            if self.random.random() < 0.4:
                self.waiting.append(self._work(f"w{minute}", minute))
            self._place(minute)
            self._look(minute)
        return self.over

    def _work(self, name: str, minute: int) -> Work:
        rng = self.random
        declared = rng.choice((0, 60, 120, 180, 360)) if rng.random() < 0.9 else 0
        lasts = declared if declared and self.uses_all else rng.randrange(STEP, (declared or 240) + 1, STEP)
        cards, share, members = rng.choice(
            ((1, 100, 1), (2, 100, 1), (4, 100, 1), (1, 50, 1), (1, 25, 1), (1, 100, 4))
        )
        return Work(
            name=name,
            lasts=lasts,
            declared=declared,
            came=minute,
            cards=cards,
            share=share,
            members=members,
        )

    def _snapshot(self, minute: int, but: Work | None = None, more: Sequence[Json] = ()) -> Snapshot:
        """``but``: what does not wait any more; ``more``: pods that run."""
        there = [*more, *(raw for _, raws in self.running for raw in raws)]
        return rebuilt(
            self.nodes,
            there + [raw for work in self.waiting if work is not but for raw in work.raws()],
            at_ms(minute),
        )

    def _place(self, minute: int) -> None:
        before = self._snapshot(minute)
        for work in self.random.sample(self.waiting, len(self.waiting)):
            if placed := self._placed(work, minute, before):
                work.started = minute
                self.waiting.remove(work)
                self.over.append(work)
                self.running.append((work, placed))
                before = self._snapshot(minute)
        free = [work for work in self.waiting if (work.cards, work.share, work.members) == (1, 100, 1)]
        if free and not any(work.held[0] for work in self.waiting) and self.random.random() < 0.2:
            name = f"n{self.random.randrange(5)}"
            free[0].held = name, f"{name}-GPU-{self.random.randrange(4)}"

    def _placed(self, work: Work, minute: int, snapshot: Snapshot) -> list[Json]:
        """The pods with their cards; none if not all fit."""
        made: list[Json] = []
        names = [f"n{at}" for at in range(5)]
        if work.held[0]:
            there = self._snapshot(minute, work, []).nodes.get(work.held[0])
            assert there is not None
            cards = zip(there.cards, there.free_by_card, strict=True)
            if not any(it.uuid == work.held[1] and free is not None and free.untouched for it, free in cards):
                return []
            done = on({**work.raws()[0], "status": {}}, *work.held)
            done["status"]["startTime"] = stamp(at_ms(minute))
            return [done]
        for raw in work.raws():
            request = read(raw).request
            assert request is not None
            if made:
                snapshot = self._snapshot(minute, work, made)
            infos = {name: snapshot.nodes.get(name) for name in names}
            found = {name: fit(request, info) for name, info in infos.items() if info is not None}
            name = next((name for name, placement in found.items() if not isinstance(placement, Refusal)), "")
            placement = found.get(name)
            if placement is None or isinstance(placement, Refusal):
                return []
            done = bound({**raw, "status": {}}, name, encode_placement(placement))
            done["status"]["startTime"] = stamp(at_ms(minute))
            made.append(done)
        return made

    def _look(self, minute: int) -> None:
        snapshot, starts = self._snapshot(minute), EarliestStarts()
        for work in self.waiting:
            if work.held[0]:
                continue
            starts.begin(snapshot, UNHEARD, at_ms(minute))
            pod = read(work.raws()[0])
            said = starts.of(pod, [f"n{at}" for at in range(5)], work.members)
            if match := _BOUND.match(said):
                until_ms = int(datetime.fromisoformat(match[1]).timestamp() * 1000)
                work.bounds.append((minute, -(-(until_ms - NOW_MS) // MINUTE)))
            elif said:
                work.unknown += 1


def at_ms(minute: int) -> int:
    return NOW_MS + minute * MINUTE


@pytest.mark.parametrize("seed", range(2))
def test_nothing_starts_before_its_bound(seed: int) -> None:
    works = Day(Random(seed), uses_all=True).live()

    early = [
        (work.name, named, work.started) for work in works for _, named in work.bounds if named > work.started
    ]
    assert early == []
    assert sum(bool(work.bounds) for work in works) > 3


def table(seeds: int, uses_all: bool) -> str:
    """A line of the table: pods and gangs that waited, of how many a moment was named first, and by how much
    they started later."""
    works = [work for seed in range(seeds) for work in Day(Random(seed), uses_all).live()]
    waited = [work for work in works if work.bounds or work.unknown]
    named = [work for work in waited if work.bounds]
    later = [work.started - work.bounds[0][1] for work in named]
    last = [work.started - work.bounds[-1][1] for work in named]
    too_late = sum(minutes < 0 for minutes in later)
    cuts, ends = quantiles(later, n=10), quantiles(last, n=10)
    exact = Counter(minutes == 0 for minutes in later)[True]
    return (
        f"waited {len(waited)}, named {len(named)}, exact {exact}, named too late {too_late};"
        f" starts later than the first named by min: p10 {cuts[0]:.0f}, p50 {cuts[4]:.0f}, p90 {cuts[8]:.0f};"
        f" than the last: p10 {ends[0]:.0f}, p50 {ends[4]:.0f}, p90 {ends[8]:.0f}"
    )


if __name__ == "__main__":
    for uses_all in (True, False):
        print(uses_all, table(20, uses_all))
