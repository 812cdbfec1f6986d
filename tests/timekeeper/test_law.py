"""The law: posted and pending together are what the evidence proves x rate, to the unit, whatever happens.

Random pods, watches that go deaf, kills, heartbeats lost, doubled, reordered and late, long silences, budgets
that change; after every tick the ledger is held against an oracle that imports nothing of ours.
"""

import copy
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from tests.timekeeper.clocks import at_ms
from tests.timekeeper.oracle import Oracle, Seen
from tests.timekeeper.worlds import HOUR, MINUTE, SECOND, Json, Town, budgets, gpu_pod, lease, node
from timekeeper.core.ledger import Interval
from timekeeper.store import reading

NODES = ("n1", "n2")
TEAMS = ("team-a", "team-b")
ENTRIES = (
    "gpuHours: 1\nperiod: hour",
    "gpuHours: 3\nperiod: day",
    "gpuHours: 100\nperiod: month",
    "gpuHours: unlimited",
)
spans = st.sampled_from((1, 250, SECOND, 7 * SECOND, 40 * SECOND, 11 * MINUTE, HOUR, 3 * HOUR))
ages = st.sampled_from((0, 0, 0, SECOND, HOUR))


class Ledger(RuleBasedStateMachine):
    """``true``: the arguments of `gpu_pod` for each pod as it really is, whether it was heard of or not."""

    there = Bundle("there")
    known = Bundle("known")

    @initialize(entry=st.sampled_from(ENTRIES))
    def begin(self, entry: str) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.town = Town(Path(self.folder.name))
        self.oracle = Oracle()
        self.true: dict[str, Json] = {}
        self.deaf = False
        self.slow = 0
        self.sent: dict[str, tuple[str, int, int]] = {}
        cards = (("nodes", node(name, cards=64)) for name in NODES)
        self.town.begin(*cards, ("configmaps", budgets(team_a=entry)))
        self.oracle.hears(self.town.clock())

    @rule(
        target=there,
        namespace=st.sampled_from(TEAMS),
        host=st.sampled_from(NODES),
        percent=st.integers(1, 100),
        grace_s=st.sampled_from((0, 30, 3600)),
        age=st.sampled_from((0, SECOND, HOUR)),
        starts=st.booleans(),
    )
    def bind(self, namespace: str, host: str, percent: int, grace_s: int, age: int, starts: bool) -> str:
        name = f"p{len(self.true)}"
        bound = self.town.clock() - age
        self.true[name] = {
            "namespace": namespace,
            "node": host,
            "percent": percent,
            "card": len(self.true) % 64,
            "grace_s": grace_s,
            "bound_ms": bound,
            "started_ms": bound + age // 2 if starts else None,
            "ended_ms": None,
        }
        self.tell(name)
        return name

    @rule(name=there, after=spans)
    def start(self, name: str, after: int) -> None:
        true = self.true[name]
        if true["started_ms"] is None:
            true["started_ms"] = min(self.town.clock(), true["bound_ms"] + after)
            self.tell(name)

    @rule(name=there, after=spans)
    def end(self, name: str, after: int) -> None:
        true = self.true[name]
        if true["started_ms"] is not None:
            true["ended_ms"] = min(self.town.clock(), true["started_ms"] + after)
            self.tell(name)

    @rule(name=there)
    def crash(self, name: str) -> None:
        """The container starts again, and the status tells of no earlier run."""
        true = self.true[name]
        if true["started_ms"] is not None and true["ended_ms"] is None:
            true["started_ms"] = self.town.clock()
            self.tell(name)

    @rule(name=consumes(there), target=known)
    def delete(self, name: str) -> str:
        if not self.deaf:
            self.learn(name)
            self.oracle.leaves(f"uid-{name}", self.town.clock(), 1000 * self.true[name]["grace_s"])
            self.oracle.hears(self.town.clock())
        self.town.hear("pods", self.raw(name), deleted=True, unheard=self.deaf)
        return name

    @rule(name=there | known, run=st.sampled_from("ab"), sequence=st.integers(0, 3), age=ages)
    def beat(self, name: str, run: str, sequence: int, age: int) -> None:
        answer = self.town.beat(self.raw(name), sequence, age, boot=run)
        if answer.status_code == 200:
            self.oracle.beats(f"uid-{name}", run, sequence, age, self.town.clock())
            self.sent[name] = (run, sequence, age)

    @rule(name=there | known, after=spans)
    def beat_again(self, name: str, after: int) -> None:
        """The answer was lost, so the same post comes again, however much later."""
        if name in self.sent:
            self.town.clock.turn(after)
            self.beat(name, *self.sent[name])

    @rule(host=st.sampled_from(NODES), behind=st.sampled_from((0, 0, SECOND, 50 * SECOND, HOUR)))
    def renew(self, host: str, behind: int) -> None:
        renewed = self.town.clock() - behind
        self.town.hear("leases", lease(renewed, host), unheard=self.deaf)
        if not self.deaf:
            self.oracle.leases[host] = renewed

    @rule(host=st.sampled_from(NODES), after=spans)
    def all_is_heard(self, host: str, after: int) -> None:
        """The node and the watch are alive a while later."""
        self.town.clock.turn(after)
        self.renew(host, 0)
        self.bookmark()

    @rule()
    def fall_silent(self) -> None:
        """For so long that what is known by then is posted."""
        self.town.clock.turn(HOUR + MINUTE)

    @rule()
    def bookmark(self) -> None:
        if not self.deaf:
            self.town.quiet()
            self.oracle.hears(self.town.clock())

    @rule(by=spans)
    def time_passes(self, by: int) -> None:
        self.town.clock.turn(by)

    @rule(entry=st.sampled_from(ENTRIES))
    def budget(self, entry: str) -> None:
        self.town.clock.turn(1)
        self.town.hear("configmaps", budgets(team_a=entry), unheard=self.deaf)

    @rule()
    def go_deaf(self) -> None:
        """The watches are cut: what happens now is found at the next list."""
        self.deaf = True

    @rule(killed=st.booleans())
    def list_anew(self, killed: bool) -> None:
        """A watch that expired, or a settler that was killed with all that it had not written yet."""
        if killed:
            self.town.start_anew()
            self.written.killed(self.oracle)
            self.oracle = self.written
        self.deaf = False
        self.town.list_all()
        listed = {raw["metadata"]["uid"] for raw in self.town.objects["pods"].values()}
        for uid, pod in self.oracle.pods.items():
            if uid not in listed and not pod.over and not pod.left:
                self.oracle.missing(uid)
        for raw in self.town.objects["leases"].values():
            self.oracle.leases[raw["metadata"]["name"]] = at_ms(raw["spec"]["renewTime"])
        self.oracle.hears(self.town.clock())
        for uid in sorted(listed):
            self.learn(uid.removeprefix("uid-"))

    @rule(ticks=st.integers(1, 6))
    def go_slow(self, ticks: int) -> None:
        """The settler does not come to its next ticks: much is heard that is not written yet."""
        self.slow = ticks

    @invariant()
    def tick_sometimes(self) -> None:
        if hasattr(self, "slow"):
            if self.slow:
                self.slow -= 1
            else:
                self.tick()

    def tick(self) -> None:
        """A tick, and what both then say."""
        now = self.town.clock()
        self.town.tick()
        self.oracle.tick()
        self.written = copy.deepcopy(self.oracle)
        self.check_totals()
        for namespace in TEAMS:
            assert self.town.charged(namespace) == self.oracle.charge(namespace, now, 0, now + HOUR)
            budget = self.town.budget(namespace)
            since, until = budget["period"]["from"], budget["period"]["to"] or now + HOUR
            owed = self.oracle.charge(namespace, now, since, until)
            assert budget["posted"] + budget["pending"] == owed
            said = self.town.settler.book.standings.get(namespace, "UNLIMITED")
            assert said == budget["standing"]
            if budget["granted"] is not None:
                assert budget["remaining"] == budget["granted"] - owed - budget["reserved"]

    def check_totals(self) -> None:
        """What the settler keeps of sums is what the sums are."""
        with self.town.store.reading() as connection:
            for key, total in self.town.settler.book.totals.items():
                namespace, start, end = key
                assert total == reading.posted_within(connection, namespace, Interval(start, end))

    def raw(self, name: str) -> Json:
        return gpu_pod(name, **self.true[name])

    def tell(self, name: str) -> None:
        """The pod is written to the API server, and heard of where nobody is deaf."""
        self.town.hear("pods", self.raw(name), unheard=self.deaf)
        if not self.deaf:
            self.learn(name)
            self.oracle.hears(self.town.clock())

    def learn(self, name: str) -> None:
        """The oracle is told what the settler is told."""
        true = self.true[name]
        seen = Seen(true["namespace"], true["node"], 10 * true["percent"], true["bound_ms"])
        self.oracle.pods.setdefault(f"uid-{name}", seen)
        self.oracle.status(f"uid-{name}", true["started_ms"], true["ended_ms"])

    def teardown(self) -> None:
        if hasattr(self, "town"):
            try:
                self.settle_all()
            finally:
                self.town.close()
                self.folder.cleanup()

    def settle_all(self) -> None:
        """At the end nothing is pending for ever: what ends is proved, the rest falls silent."""
        self.list_anew(killed=False)
        for uid in [raw["metadata"]["uid"] for raw in self.town.objects["pods"].values()]:
            true = self.true[uid.removeprefix("uid-")]
            true["started_ms"] = true["started_ms"] or self.town.clock()
            true["ended_ms"] = true["ended_ms"] or self.town.clock()
            self.tell(uid.removeprefix("uid-"))
        self.town.clock.turn(3 * HOUR)
        self.tick()
        for namespace in TEAMS:
            assert self.town.budget(namespace)["pending"] == 0
        assert self.town.settler.book.sessions == {}


TestLedger = Ledger.TestCase
TestLedger.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
