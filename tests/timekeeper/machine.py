"""Random histories of a ledger, as a hypothesis state machine: pods, nodes, watches that lose and repeat
updates, clocks that are set, a settler that dies between any two statements, a database that becomes
unreachable.

After every step the ledger is compared with the oracle and with the truth. With proof they are equal. Without
proof the charge ends at the last evidence and never exceeds the truth.
"""

from contextlib import suppress

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tests.timekeeper import truth
from tests.timekeeper.clocks import at_ms
from tests.timekeeper.lives import BUDGETS, CARDS, LABELS, LEASELESS, NODES, SETTINGS, TEAMS
from tests.timekeeper.oracle import Terms
from tests.timekeeper.oracle_accounts import Budget
from tests.timekeeper.restores import Restores
from tests.timekeeper.worlds import DAY, HOUR, MINUTE, SECOND, T0
from timekeeper.store.engine.engine import ConflictError

MAX_PODS = 5
BEGINNINGS = (
    T0,
    at_ms("2027-03-28T00:20:00+00:00"),  # Berlin's clocks go forward in 40 minutes
    at_ms("2027-10-31T00:30:00+00:00"),  # and back in half an hour
    at_ms("2026-11-30T22:59:59.900+00:00"),  # a month of Berlin's ends
    at_ms("2027-02-28T23:58:00+00:00"),
)
SPANS = (1, 250, SECOND, 7 * SECOND, 40 * SECOND, 70 * SECOND, 11 * MINUTE, HOUR, 3 * HOUR, 25 * HOUR)
SHORT = (0, 1, 999, 30 * SECOND, 20 * MINUTE)
SKEWS = (0, 0, 0, -1, -SECOND, -50 * SECOND, -HOUR, 20 * SECOND)
LEAPS = (-2 * HOUR, -61 * SECOND, -SECOND, SECOND, 90 * SECOND, HOUR)


class Machine(Restores):
    """The rules."""

    @initialize(
        began=st.sampled_from(BEGINNINGS),
        budget=st.sampled_from(BUDGETS),
        settings=st.sampled_from((SETTINGS[-3], SETTINGS[0], SETTINGS[5], SETTINGS[-2])),
    )
    def begins(
        self,
        began: int,
        budget: tuple[str | None, Budget | None],
        settings: tuple[str | None, Terms],
    ) -> None:
        """An empty cluster with two nodes, and a budget for team-a."""
        self.open(began)
        self.began = began
        self.budget_texts["team-a"], self.settings_text = budget, settings
        self.put_config()
        self.relist()
        self.nodes_are_heard()
        for team, node in zip(TEAMS, NODES, strict=True):
            self.binds(6, 30, team, node, 300, True, 0)

    def teardown(self) -> None:
        """Everything settles, and is checked once more."""
        try:
            if hasattr(self, "fuse") and not self.failed:
                self.settles()
        finally:
            self.stack.close()

    # -- what happens to pods

    @precondition(lambda self: len(self.living()) < MAX_PODS)
    @rule(
        shape=st.integers(0, truth.SHAPES - 1),
        percent=st.integers(1, 99),
        team=st.sampled_from(TEAMS),
        node=st.sampled_from(NODES),
        grace=st.sampled_from((0, 30, 300, 3600)),
        started=st.booleans(),
        ago=st.sampled_from(SHORT),
    )
    def binds(
        self,
        shape: int,
        percent: int,
        team: str,
        node: str,
        grace: int,
        started: bool,
        ago: int,
    ) -> None:
        """A pod is bound, perhaps with the name of a deleted one (as in a StatefulSet); perhaps some time
        ago, and running since. One pod in three is bound by another scheduler, which writes nothing down,
        whatever `placement` says."""
        if node in self.absent:
            return
        number, ago = next(self.numbers), min(ago, self.now - self.began)
        names = [pod.name for pod in self.pods if pod.namespace == team and not pod.there]
        living = {pod.name for pod in self.living()}
        name = next((name for name in names if name not in living), f"p{number}")
        parts = truth.parts(shape, percent, 2 * number % (CARDS - 1))
        is_ours = percent % 3 != 1
        scheduler = "bursar-scheduler" if is_ours else "default-scheduler"
        pod = truth.Pod(f"uid-{number}", name, team, node, parts, self.now - ago, grace, scheduler)
        pod.seen = self.spoke.get(node, 0)
        if node in self.ahead:
            pod.ahead = self.ahead[node]
            pod.began = pod.bound + pod.ahead
            self.odd.add(pod.uid)
        self.pods.append(pod)
        self.mistrust()
        if started:
            pod.starts(self.now - ago // 2)
        self.tell(pod)

    @precondition(lambda self: self.living())
    @rule(which=st.integers(0, 99), ago=st.sampled_from(SHORT))
    def starts(self, which: int, ago: int) -> None:
        """Its waiting containers start; the kubelet reports it a while later."""
        pod = self.pod(which)
        if pod.waiting and pod.end is None:
            pod.starts(max(pod.bound, pod.changed(), self.now - ago))
            self.tell(pod)

    @precondition(lambda self: self.living())
    @rule(which=st.integers(0, 99), starts_not=st.booleans())
    def crashes(self, which: int, starts_not: bool) -> None:
        """Its containers end and wait for a restart, or could not be started at all."""
        pod = self.pod(which)
        if pod.end is None and (pod.running or starts_not):
            pod.crashes(self.now) if pod.running else pod.fails_to_start(self.now)
            self.tell(pod)

    @precondition(lambda self: self.living())
    @rule(which=st.integers(0, 99), ago=st.sampled_from(SHORT))
    def ends(self, which: int, ago: int) -> None:
        """It completes, fails, or is evicted before it ever ran; the kubelet reports it a while later."""
        pod = self.pod(which)
        if pod.end is None:
            pod.ends(max(pod.bound, pod.changed(), pod.seen, self.now - ago))
            self.tell(pod)

    @precondition(lambda self: self.living())
    @rule(which=st.integers(0, 99))
    def is_evicted(self, which: int) -> None:
        """Its deletion is requested, and it may run for its grace period."""
        pod = self.pod(which)
        if pod.leaves is None:
            pod.leaves = self.now + 1000 * pod.grace_s
            self.tell(pod)

    @precondition(lambda self: self.living())
    @rule(which=st.integers(0, 99))
    def goes(self, which: int) -> None:
        """Its object is deleted, by force if it had not ended."""
        pod = self.pod(which)
        pod.gone = self.now
        self.tell(pod)

    # -- evidence

    @precondition(lambda self: self.living() and not self.away)
    @rule(
        which=st.integers(0, 99),
        run=st.sampled_from("ab"),
        step=st.sampled_from((-1, 0, 1, 1, 1, 5)),
        age=st.sampled_from((0, 0, 0, 1, 5 * SECOND, HOUR)),
        again=st.booleans(),
    )
    def beats_arrive(self, which: int, run: str, step: int, age: int, again: bool) -> None:
        """Its sidecar posts: the next heartbeats, spooled ones, a repeated or a late post."""
        pod = self.pod(which)
        if pod.end is not None:
            return
        pod.seen, self.is_fresh = self.now, False
        for _ in range(1 + again):
            sequence = max(0, self.runs.get((pod.uid, run), 0) + step)
            received = self.town.clock()
            answer = self.town.beat(pod.raw(), sequence, age, boot=run)
            while answer.status_code == 503:  # a machine that stood still for seconds: sidecars come again
                answer = self.town.beat(pod.raw(), sequence, age, boot=run)
            known = self.written.pods.get(pod.uid)
            assert answer.status_code == (200 if known else 404)
            if known and sequence > self.runs.get((pod.uid, run), -1):
                self.runs[pod.uid, run] = sequence
                at = min(received, max(known.bound, received - age))
                self.beats[pod.uid] = max(self.beats.get(pod.uid, 0), at)
            step = 0

    @rule(
        node=st.sampled_from(NODES),
        skew=st.sampled_from(SKEWS),
        span=st.sampled_from(SPANS[:6]),
        all_=st.booleans(),
    )
    def node_lives(self, node: str, skew: int, span: int, all_: bool) -> None:
        """The node renews its Lease a while later, perhaps with a wrong clock; the watch of pods is alive."""
        self.passes(span, tick=False)
        for name in NODES if all_ else (node,):
            if name not in self.silent:
                self.renews(name, skew if name == node else 0)
        self.watch_is_alive()
        self.tick()

    @rule(node=st.sampled_from(NODES))
    def falls_silent_or_comes_back(self, node: str) -> None:
        """A node is cut off while its pods run on, or comes back."""
        self.silent ^= {node}

    @rule(node=st.sampled_from(NODES))
    def its_lease_is_deleted(self, node: str) -> None:
        """The node is silent until it renews it; that it once had one is known for ever, once pods that lived
        by it are written."""
        gone = self.town.objects["leases"].get(f"/{node}/")
        if gone is not None and self.written.marks.get(node):
            self.town.hear("leases", gone, deleted=True, unheard=not self.connected)
            if self.connected:
                self.heard.leases.pop(node, None)
            self.tick()

    # -- time

    @rule(span=st.sampled_from(SPANS), is_heard=st.booleans())
    def time_passes(self, span: int, is_heard: bool) -> None:
        """Nothing happens; the nodes may or may not be alive."""
        self.passes(span, tick=False)
        if is_heard:
            self.nodes_are_heard()
        self.tick()

    @rule(off=st.sampled_from((-1, 0, 1)), step=st.sampled_from((HOUR, HOUR, DAY)))
    def a_period_ends(self, off: int, step: int) -> None:
        """The last moment of an hour or a day in UTC, or the first of the next."""
        self.passes(step - self.town.clock() % step + off)

    @rule(leap=st.sampled_from(LEAPS))
    def our_clock_is_set(self, leap: int) -> None:
        """Our clock is set forward or back; true time goes on. Where no Lease shows that a node's clock is
        right, an end counts no later than its receipt by ours."""
        self.odd |= {pod.uid for pod in self.living() if pod.node == LEASELESS}
        self.town.clock.turn(leap)
        self.is_fresh = False
        self.wrong += leap
        self.mistrust()
        self.tick()

    # -- budgets

    @rule(team=st.sampled_from(TEAMS), budget=st.sampled_from(BUDGETS))
    def a_budget_changes(self, team: str, budget: tuple[str | None, Budget | None]) -> None:
        """Another amount or period, or the budget is removed."""
        self.budget_texts[team] = budget
        self.put_config()
        self.tick()

    @rule(team=st.sampled_from(TEAMS), word=st.sampled_from(LABELS))
    def a_label_names_another_mode(self, team: str, word: str) -> None:
        """It counts where the entry names none, for sessions that open later."""
        self.put_label(team, word)
        self.tick()

    @rule(settings=st.sampled_from(SETTINGS))
    def settings_change(self, settings: tuple[str | None, Terms]) -> None:
        """Applies to sessions that open later."""
        self.settings_text = settings
        self.put_config()
        self.tick()

    # -- watches

    @rule()
    def watches_are_cut(self) -> None:
        """Updates arrive later from now on, or never."""
        self.connected = False

    @precondition(lambda self: not self.connected)
    @rule()
    def watches_go_on(self) -> None:
        """They continue where they were: all updates arrive late."""
        self.connected = True
        self.catches_up()
        self.list_others()
        self.tick()

    @rule()
    def relist(self) -> None:
        """The watches expired and begin with a list."""
        self.lists()
        self.tick()

    @precondition(lambda self: self.connected and self.delivered)
    @rule(which=st.integers(0, 99))
    def is_told_again(self, which: int) -> None:
        """The newest event of a pod arrives twice."""
        self.hears(*list(self.delivered.values())[which % len(self.delivered)])
        self.tick()

    @precondition(lambda self: self.living())
    @rule(span=st.sampled_from(SPANS[:6]), which=st.integers(0, 99), ends=st.booleans())
    def a_list_takes_long(self, span: int, which: int, ends: bool) -> None:
        """Its content is from the time of the request; later changes arrive after it."""
        self.connected = False
        asked, raws, told = self.town.clock(), list(self.town.objects["pods"].values()), len(self.log)
        self.passes(span)
        self.ends(which, 0) if ends else self.goes(which)
        self.connected = True
        self.list_pods(raws, asked)
        self.told = told
        self.list_others()
        self.catches_up()
        self.tick()

    # -- faults

    @rule(ticks=st.integers(1, 4))
    def the_settler_is_slow(self, ticks: int) -> None:
        """Many updates arrive before the next tick."""
        self.late = ticks

    @precondition(lambda self: not self.away)
    @rule()
    def the_settler_is_killed(self) -> None:
        """It dies between two ticks."""
        self.begin_anew(self.written)
        self.tick()

    @precondition(lambda self: self.asleep and not self.away)
    @rule()
    def one_that_was_thought_dead_wakes_up(self) -> None:
        """A former settler continues; all its writes are rejected."""
        assert self.asleep is not None
        with suppress(ConflictError):
            self.asleep.tick()

    @precondition(lambda self: not self.away)
    @rule(at=st.integers(1, 60), killed=st.booleans())
    def something_breaks_in_a_tick(self, at: int, killed: bool) -> None:
        """The settler dies at this point of its next tick, or loses its database there."""
        self.late = 0
        self.fuse.light(at, killed)
        self.tick()

    @rule()
    def the_database_goes_or_comes_back(self) -> None:
        """It is unreachable for a while."""
        if self.away:
            self.away = self.fuse.away = False
            self.tick()
        else:
            self.away = True
            self.fuse.leave()
            self.late = 0
            assert self.town.get("/v1/usage").status_code == 503
            assert self.town.tick() is False

    @invariant()
    def the_ledger_says_what_the_evidence_proves(self) -> None:
        """Runs after every step."""
        self.look()
