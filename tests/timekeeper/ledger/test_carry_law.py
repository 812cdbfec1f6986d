"""The law of carry-over, held against an oracle that knows only what really ran and what was written when."""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.clock import Clock
from tests.support.profile import examples
from tests.timekeeper.worlds import DAY, HOUR, MINUTE, SECOND, T0, Town, budgets, gpu_pod, lease, node

pytestmark = pytest.mark.untraced


HOURS = 3_600_000_000


@dataclass
class Oracle:
    """The truth, in days of UTC: pods as (from, to, rate), budgets as (since, hours, share in thousandths)
    with None where there is none, and what was given by hand."""

    ran: list[tuple[int, int, int]] = field(default_factory=list)
    said: list[tuple[int, tuple[int, int] | None]] = field(default_factory=list)
    given: list[tuple[int, int]] = field(default_factory=list)

    def spent(self, day: int) -> int:
        start, end = day * DAY, (day + 1) * DAY
        return sum(rate * max(0, min(to, end) - max(since, start)) for since, to, rate in self.ran)

    def budget(self, at: int) -> tuple[int, int] | None:
        return [None, *(each for since, each in self.said if since <= at)][-1]

    def carried(self, day: int) -> int:
        """Into this day, of what the day before had left; nothing into the first."""
        if day <= self.said[0][0] // DAY:
            return 0
        last = self.budget(day * DAY - 1)
        if last is None:
            return 0
        hours, share = last
        by_hand = sum(amount for at, amount in self.given if at // DAY == day - 1)
        left = hours * HOURS + by_hand + self.carried(day - 1) - self.spent(day - 1)
        return share * left // 1000 if left > 0 else 0


class Story:
    """A town in which pods come and go, while the ledger hears of it late, in pieces, or not at all."""

    def __init__(self, folder: str) -> None:
        self.town = Town(Path(folder), Clock(T0))
        self.oracle = Oracle()
        self.open: dict[str, tuple[int, int]] = {}
        self.count = 0
        self.town.begin(("nodes", node(cards=8)), ("leases", lease(T0)))
        self.say((4, 500))

    def say(self, budget: tuple[int, int] | None) -> None:
        """The ConfigMap holds this budget, and the settler reads it."""
        self.town.clock.turn(SECOND)
        text = "" if budget is None else f"gpuHours: {budget[0]}\nperiod: day\ncarryOver: 0.{budget[1]:03}"
        entries = {"team_a": text} if budget else {}
        self.town.hear("configmaps", budgets(**entries))
        self.town.tick()
        self.oracle.said.append((self.town.clock(), budget))

    def start(self, percent: int) -> None:
        """A pod starts now."""
        self.count += 1
        self.open[f"p{self.count}"] = (self.town.clock(), 10 * percent)
        self._hear(f"p{self.count}", None)

    def end(self, ago_ms: int) -> None:
        """The oldest pod has ended a while ago, and that is proved now."""
        if self.open:
            name = next(iter(self.open))
            self._hear(name, max(self.open[name][0] + SECOND, self.town.clock() - ago_ms))

    def pass_by(self, ms: int) -> None:
        """Time passes, and the settler looks."""
        self.town.clock.turn(ms)
        self.town.tick()

    def heard(self, _: int) -> None:
        """The node says that what runs there runs."""
        self.town.node_heard()
        self.town.tick()

    def restart(self, ms: int) -> None:
        """The settler was away for so long."""
        self.town.clock.turn(ms)
        self.town.restart()
        self.town.tick()

    def give(self, minutes: int) -> None:
        """Somebody grants something extra."""
        if self.oracle.budget(self.town.clock()):
            self.count += 1
            key = {"Idempotency-Key": f"k{self.count}"}
            assert self.town.post("/budget/team-a/increase", {"minutes": minutes}, **key).status_code == 200
            self.oracle.given.append((self.town.clock(), minutes * HOURS // 60))

    def finish(self) -> None:
        """All is proved, and the last correction has had its minute."""
        self.town.clock.turn(SECOND)
        while self.open:
            self.end(0)
        for _ in range(2):
            self.pass_by(61 * SECOND)

    def _hear(self, name: str, end: int | None) -> None:
        start, rate = self.open[name]
        pod = gpu_pod(
            name, percent=rate // 10, bound_ms=start, created_ms=start, started_ms=start, ended_ms=end
        )
        self.town.hear("pods", pod)
        self.town.tick()
        if end is not None:
            self.oracle.ran.append((start, end, rate))
            del self.open[name]


STEPS = st.one_of(
    st.tuples(st.just("pass_by"), st.sampled_from([MINUTE, 7 * HOUR, 10 * HOUR, 14 * HOUR, DAY, 3 * DAY])),
    st.tuples(st.just("heard"), st.just(0)),
    st.tuples(st.just("start"), st.sampled_from([1, 33, 100])),
    st.tuples(st.just("end"), st.sampled_from([0, 5 * MINUTE, 20 * HOUR, 50 * HOUR])),
    st.tuples(st.just("say"), st.sampled_from([None, (4, 500), (4, 0), (9, 999), (0, 333)])),
    st.tuples(st.just("restart"), st.sampled_from([SECOND, 15 * HOUR, 4 * DAY])),
    st.tuples(st.just("give"), st.sampled_from([1, 90])),
)


@settings(max_examples=examples(12, soak=1_000), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEPS, min_size=3, max_size=25))
@example(  # a correction is put off for a minute, and before that the period ends
    steps=[
        ("restart", 15 * HOUR),
        ("pass_by", 10 * HOUR),
        ("start", 100),
        ("pass_by", 10 * HOUR),
        ("pass_by", 7 * HOUR),
        ("end", 5 * MINUTE),
        ("pass_by", DAY),
    ]
)
@example(steps=[("start", 1), ("restart", 4 * DAY), ("say", None)])  # proved while there is no budget
def test_what_is_carried_is_what_the_truth_leaves(steps: list[tuple[str, object]]) -> None:
    """Whatever order the ledger heard it in: in the end each day has what the day before really left."""
    with tempfile.TemporaryDirectory() as folder:
        story = Story(folder)
        try:
            for name, argument in steps:
                getattr(story, name)(argument)
            story.finish()
            story.say((4, 500))
            budget, day = story.town.budget(), story.town.clock() // DAY

            assert budget["carried"] == story.oracle.carried(day)
            assert budget["posted"] + budget["pending"] == story.oracle.spent(day)
        finally:
            story.town.close()
