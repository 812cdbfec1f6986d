"""The law: posted and pending together are what the evidence proves x rate, to the unit, whatever happens.

Random histories of pods, watches that go deaf, settlers that are killed, heartbeats lost, doubled, reordered
and late, long silences, budgets that change; after every tick the ledger is held against an oracle that
imports nothing of ours.
"""

import copy
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

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
SPANS = (1, 250, SECOND, 7 * SECOND, 40 * SECOND, 11 * MINUTE, HOUR, 3 * HOUR)
MOST_PODS = 4


class Life:
    """A town and its oracle, to which the same things happen. ``true``: the arguments of `gpu_pod` for each
    pod as it really is, whether it was heard of or not; ``late``: how many ticks the settler does not come
    to."""

    def __init__(self, folder: Path, entry: str) -> None:
        self.town = Town(folder)
        self.oracle = Oracle()
        self.written = Oracle()
        self.true: dict[str, Json] = {}
        self.sent: dict[str, tuple[str, int, int]] = {}
        self.deaf = False
        self.late = 0
        cards = (("nodes", node(name, cards=64)) for name in NODES)
        self.town.begin(*cards, ("configmaps", budgets(team_a=entry)))
        self.oracle.hears(self.town.clock())
        self.tick()

    def happens(self, act: str, which: int, span: int, more: int) -> None:
        """One thing: ``which`` pod or node, for how long or how long ago, and what else the act needs."""
        getattr(self, act)(which, span, more)
        if self.late:
            self.late -= 1
        else:
            self.tick()

    def bind(self, which: int, span: int, more: int) -> None:
        """A pod is bound, perhaps a while ago and running since."""
        if sum(self.is_there(name) for name in self.true) >= MOST_PODS:
            return
        bound = self.town.clock() - span
        name = f"p{len(self.true)}"
        self.true[name] = {
            "namespace": TEAMS[more % 2],
            "node": NODES[which % 2],
            "percent": 1 + more,
            "card": len(self.true) % 64,
            "grace_s": (0, 30, 3600)[more % 3],
            "bound_ms": bound,
            "started_ms": bound + span // 2 if more % 5 else None,
            "ended_ms": None,
        }
        self.tell(name)

    def start(self, which: int, span: int, more: int) -> None:
        """Its container starts; the kubelet tells of it ``span`` after its binding."""
        name = self.pod(which)
        if name and self.is_there(name) and self.true[name]["started_ms"] is None:
            self.true[name]["started_ms"] = min(self.town.clock(), self.true[name]["bound_ms"] + span)
            self.tell(name)

    def crash(self, which: int, span: int, more: int) -> None:
        """Its container starts again, and the status tells of no earlier run."""
        name = self.pod(which)
        if name and self.runs(name):
            self.true[name]["started_ms"] = self.town.clock()
            self.tell(name)

    def end(self, which: int, span: int, more: int) -> None:
        """Its container ends, ``span`` after its start, and the kubelet tells of it now."""
        name = self.pod(which)
        if name and self.runs(name):
            self.true[name]["ended_ms"] = min(self.town.clock(), self.true[name]["started_ms"] + span)
            self.tell(name)

    def delete(self, which: int, span: int, more: int) -> None:
        """Its object goes, with or without terminal statuses."""
        name = self.pod(which)
        if name and self.is_there(name):
            if not self.deaf:
                self.learn(name)
                self.oracle.leaves(f"uid-{name}", self.town.clock(), 1000 * self.true[name]["grace_s"])
                self.oracle.hears(self.town.clock())
            self.town.hear("pods", self.raw(name), deleted=True, unheard=self.deaf)

    def beat(self, which: int, span: int, more: int) -> None:
        """Its sidecar posts, now and then an old beat."""
        name = self.pod(which)
        if name:
            self.post(name, "ab"[more % 2], more % 5, 0 if more % 3 else span)

    def beat_again(self, which: int, span: int, more: int) -> None:
        """The answer was lost, so the same post comes again, however much later."""
        name = self.pod(which)
        if name in self.sent:
            self.town.clock.turn(span)
            self.post(name, *self.sent[name])

    def post(self, name: str, run: str, sequence: int, age: int) -> None:
        answer = self.town.beat(self.raw(name), sequence, age, boot=run)
        if answer.status_code == 200:
            self.oracle.beats(f"uid-{name}", run, sequence, age, self.town.clock())
            self.sent[name] = (run, sequence, age)

    def node_lives(self, which: int, span: int, more: int) -> None:
        """A while later the node renews its Lease, perhaps by a slow clock, and the watch of pods is
        alive."""
        self.town.clock.turn(span)
        renewed = self.town.clock() - (0, 0, SECOND, 50 * SECOND, HOUR)[more % 5]
        self.town.hear("leases", lease(renewed, NODES[which % 2]), unheard=self.deaf)
        if not self.deaf:
            self.oracle.leases[NODES[which % 2]] = renewed
            if more % 4:
                self.town.quiet()
                self.oracle.hears(self.town.clock())

    def time_passes(self, which: int, span: int, more: int) -> None:
        """Nothing is heard."""
        self.town.clock.turn(span)

    def budget(self, which: int, span: int, more: int) -> None:
        """team-a's budget is another."""
        self.town.clock.turn(1)
        self.town.hear("configmaps", budgets(team_a=ENTRIES[more % 4]), unheard=self.deaf)

    def go_deaf(self, which: int, span: int, more: int) -> None:
        """The watches are cut: what happens now is found at the next list."""
        self.deaf = True

    def go_slow(self, which: int, span: int, more: int) -> None:
        """Much is heard before the next tick."""
        self.late = 1 + which

    def list_anew(self, which: int, span: int, more: int) -> None:
        """A watch that expired; or a settler that was killed, with all that it had not written yet."""
        if more % 2:
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

    def tick(self) -> None:
        """A tick, and what both then say."""
        now = self.town.clock()
        assert self.town.tick()
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
            for (namespace, start, end), total in self.town.settler.book.totals.items():
                assert total == reading.posted_within(connection, namespace, Interval(start, end))

    def settle_all(self) -> None:
        """At the end nothing is pending for ever: what is there is proved, the rest has fallen silent."""
        self.list_anew(0, 0, 0)
        for name in [name for name in self.true if self.is_there(name)]:
            true = self.true[name]
            true["started_ms"] = true["started_ms"] or self.town.clock()
            true["ended_ms"] = true["ended_ms"] or self.town.clock()
            self.tell(name)
        self.town.clock.turn(3 * HOUR)
        self.tick()
        assert [self.town.budget(namespace)["pending"] for namespace in TEAMS] == [0, 0]
        assert self.town.settler.book.sessions == {}

    def pod(self, which: int) -> str:
        """One of the newest pods, there or gone; empty where there never was any."""
        newest = list(self.true)[-MOST_PODS:]
        return newest[which % len(newest)] if newest else ""

    def is_there(self, name: str) -> bool:
        return any(raw["metadata"]["name"] == name for raw in self.town.objects["pods"].values())

    def runs(self, name: str) -> bool:
        true = self.true[name]
        return self.is_there(name) and true["started_ms"] is not None and true["ended_ms"] is None

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


OFTEN = ("bind", "node_lives", "beat", "beat_again", "time_passes", "end")
SELDOM = ("start", "crash", "delete", "budget", "go_deaf", "go_slow", "list_anew")
histories = st.lists(
    st.tuples(
        st.sampled_from(OFTEN + OFTEN + SELDOM), st.integers(0, 3), st.sampled_from(SPANS), st.integers(0, 99)
    ),
    min_size=15,
    max_size=45,
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(ENTRIES), histories)
def test_the_ledger_says_what_the_evidence_proves(
    entry: str, history: list[tuple[str, int, int, int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        life = Life(Path(folder), entry)
        try:
            for act in history:
                life.happens(*act)
            life.settle_all()
        finally:
            life.town.close()
