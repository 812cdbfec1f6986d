"""A cluster in memory, with a clock turned by hand, in which every part that decides is Bursar's own:
admission (`admitting`), the settler with its evictors and releaser (`settling`), what follows from agents'
reports (`agents`), the extender's search, scores, caps and preemptor (`placing`). The API server,
kube-scheduler's queue, kubelets, controllers and cards in use are models, and so is the database.

A run is a function of its seed: nodes, budgets, groups, caps, grants and reductions, workloads, declared
times, PodDisruptionBudgets, and faults: calls that fail or stay without an answer, settlers and extenders
that are killed, a database that is away, polls that fail until the standings are outdated, silent nodes.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

from scheduler_ext.model.node import read_node
from scheduler_ext.model.standing_table import decode as decode_for_extender
from tests.story.admitting import Admission
from tests.story.agents import report
from tests.story.balances import GROUP, Accounts, Promise
from tests.story.faults import Faults
from tests.story.people import Facts, Size, books_of, most_milli, new_facts, new_nodes, new_workloads
from tests.story.placing import SUB_STEP_MS, Binding, Extender
from tests.story.pods import Killed, PodServer, SimPod, Workload
from tests.story.settling import Database, Timekeeper
from tests.support.clock import Clock
from tests.timekeeper.oracle import Terms, rate
from tests.timekeeper.worlds import HOUR, MINUTE, READ, SECOND, T0
from timekeeper.accounts.grants import CORRECTION, MANUAL, Grant, GrantKind
from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.admission.table import StandingsTable
from timekeeper.core.ledger.reservation import Reservation
from timekeeper.core.request.cards import encode_placement
from timekeeper.core.values import Placement
from timekeeper.settler.cluster.known_nodes import NodeLease
from timekeeper.store.engine.engine import UnavailableError
from webhook.standings import decode as decode_for_webhook

STEP_MS = 10 * SECOND
GRACE_MS, PDB_GRACE_MS, LOOKAHEAD_MS = 2 * MINUTE, 3 * MINUTE, 5 * MINUTE
IDLE_AFTER_MS, IDLE_GRACE_MS = 3 * MINUTE, MINUTE
RATE = 12  # evictions a minute
SOON = ("releaser", "evictor")  # parts of the settler that act several times in a step
EVERY_STEP = (*SOON, "overtime", "idle")
WEIGHTED = Terms(weights=(("T4", Fraction(1, 2)),))


class Simulation:
    """``tell`` is called with "ticked" once the settler has written, "bound" once each waiting pod was tried,
    the name of a part of the settler after its step, "preempted" after each of the preemptor, and
    "stepped"."""

    def __init__(self, random: Random, size: Size, tell: Callable[[str], None] = lambda _what: None) -> None:
        self.random, self.size, self.tell = random, size, tell
        # an hour's period ends within the run
        self.start_ms = T0 + HOUR - random.randrange(5 * MINUTE, 25 * MINUTE, SECOND)
        self.clock = Clock(self.start_ms)
        raws, self.cards = new_nodes(random, size)
        # node -> memory of each card by UUID; and all sizes
        self.mib = {
            name: {uuid: int(each["memory_mib"]) for uuid, each in its.items()}
            for name, its in self.cards.items()
        }
        self.sizes = frozenset(each for its in self.mib.values() for each in its.values())
        self.workloads: list[Workload] = new_workloads(random, size)
        self.names = sorted({each.namespace for each in self.workloads})
        self.facts: dict[str, Facts] = {}  # by namespace and group, as in the ConfigMap
        self.in_force: dict[str, Facts] = {}  # as of the last tick
        self.known: dict[str, Facts] = {}  # as of the last poll
        self.accounts = Accounts()
        self.weighted = {  # the cards' sizes, and their weights
            (int(card["memory_mib"]), Fraction(1, 2) if card["model"] == "T4" else Fraction(1))
            for its in self.cards.values()
            for card in its.values()
        }
        self.faults, self.silent = Faults(), dict[str, int]()
        self.leases = dict.fromkeys(self.cards, self.start_ms)
        self.server = PodServer(self.clock, self._changed, random)
        self._heard: list[tuple[LedgerPod, bool]] = []  # versions of pods, and whether they were removed
        self._held: dict[str, tuple[SimPod, Reservation]] = {}  # free cards, as of the last tick
        self.made = self.refused = self.turns = 0
        self.released = 0  # pods by the last step of a part
        self.was_killed = False  # the settler, in its last act
        self.ticked_ms = self.start_ms  # the moment of the last tick that was written
        self.bindings: list[Binding] = []  # of this step
        self.admission = Admission()
        self.table: StandingsTable | None = None
        self.extender = Extender(
            self.server, self.clock, tuple(read_node(raw) for raw in raws), self.workloads
        )
        nodes: Any = tuple(READ["nodes"](raw) for raw in raws)
        self.timekeeper = Timekeeper(Database(), self.server, self.clock, nodes)
        for subject in (*self.names, *(GROUP + each for each in size.groups)):
            self.facts[subject] = new_facts(random, size, subject)
        self._write()
        self.extender.restart()
        self._tick()
        self._poll()

    def step(self) -> None:
        """One step of each part."""
        self.clock.at_ms = self.start_ms + (self.turns + 1) * STEP_MS
        self.turns += 1
        self._finish()
        self._happen()
        self._tick()
        self._poll()
        self._create()
        self.extender.schedule(self.size.firsts)
        self._note_bindings()
        self.tell("bound")
        self._report()
        for turn in range(self.size.sub_steps):
            self._act(EVERY_STEP if turn == 0 else SOON)
        self.tell("stepped")

    def _act(self, parts: Sequence[str]) -> None:
        """These parts of the settler, and the preemptor."""
        is_away = self.timekeeper.database.is_away
        if not is_away and self.random.random() < 0.01:
            self._restart()
        # the settler is killed after one of its calls
        self.server.kills = not is_away and self.random.random() < 0.01
        for part in parts:
            self.was_killed = False
            with suppress(UnavailableError):
                try:
                    getattr(self.timekeeper, part).step()
                except Killed:
                    self.was_killed, self.server.kills = True, False
                    self._restart()
            self._note_released()
            self.tell(part)
        self.server.kills = False
        self.extender.preempt(1)
        self.tell("preempted")

    def _changed(self, pod: SimPod) -> None:
        """The watches show it: the extender's at once, the settler's before its next tick."""
        self._heard.append((pod.for_ledger(), False))
        self.extender.cache.pod_updated(pod.for_extender())

    # kubelets and controllers

    def _finish(self) -> None:
        """Pods that were asked to leave end within their grace, and some end by themselves; an object is
        removed once its end was reported."""
        now_ms, random = self.clock(), self.random
        for pod in list(self.server.pods.values()):
            if pod.ended_ms is not None or (pod.is_leaving and not pod.node):
                self._remove(pod)
            elif pod.ends_ms is not None and pod.ends_ms <= now_ms:
                self._end(pod, pod.ends_ms)
                self._remove(pod)
            elif pod.runs and random.random() < self.size.ending:
                self._end(pod, now_ms - random.randrange(STEP_MS))

    def _end(self, pod: SimPod, at_ms: int) -> None:
        pod.ended_ms = max(at_ms, pod.bound_ms or 0)
        self.accounts.ends(pod.uid, pod.ended_ms)
        self._changed(pod)

    def _remove(self, pod: SimPod) -> None:
        self.server.remove(pod)
        self.accounts.promises.pop(pod.uid, None)
        pod.gone_ms = self.clock()
        self._heard.append((pod.for_ledger(), True))
        self.extender.cache.pod_deleted(pod.for_extender())

    def _create(self) -> None:
        """Controllers replace what is missing."""
        there = dict.fromkeys((each.name for each in self.workloads), 0)
        for pod in self.server.pods.values():
            there[pod.work.name] += pod.ended_ms is None
        for work in self.workloads:
            for _ in range(work.replicas - there[work.name]):
                template = self.admission.admit(work, self.table, self.clock())
                if template is None:
                    self.refused += 1
                    continue
                self.made += 1
                pod = SimPod(
                    f"uid-{self.made:06}",
                    f"p{self.made}",
                    work,
                    template,
                    self.clock(),
                    template.ledger.is_gated,
                )
                self.server.add(pod)
                self._changed(pod)

    # people and faults

    def _happen(self) -> None:
        random, now_ms, faults = self.random, self.clock(), self.faults
        if random.random() < self.size.changing:
            subject = random.choice([*self.facts])
            self.facts[subject] = new_facts(random, self.size, subject)
            self._write()
        if random.random() < 0.02 and now_ms >= faults.database_ms:
            self._grant(random.choice([*self.facts]))
        if random.random() < 0.01:
            self.extender.restart()
        for name in ("api_ms", "polls_ms", "database_ms"):
            if random.random() < 0.01 and not faults.last(now_ms):
                setattr(faults, name, now_ms + random.randint(1, 9) * STEP_MS)
        if random.random() < 0.02:
            self.silent[random.choice([*self.cards])] = now_ms + random.randint(1, 12) * STEP_MS
        self.server.loses = 30 if now_ms < faults.api_ms else 0
        for name in self.leases:
            if self.silent.get(name, 0) <= now_ms:
                self.leases[name] = now_ms
                self.timekeeper.hear("leases", NodeLease(name, now_ms))

    def _restart(self) -> None:
        """Another settler follows the killed one. It sees every pod whose end is not written: what a settler
        misses while none runs is the subject of other tests."""
        self._heard = []
        self.timekeeper.restart(self.leases)

    def _write(self) -> None:
        """The ConfigMaps as they are now."""
        entries = tuple((subject, each.text()) for subject, each in self.facts.items())
        settings = f"lookahead: 5m\nevictGrace: 2m\nevictRate: {self.size.rate}\npdbGrace: 3m"
        settings += "\nweights: {T4: 0.5}\nidleAfter: 3m\nidleGrace: 1m"
        of = self.timekeeper
        of.config = replace(of.config, data=entries)
        of.settings = replace(of.settings, data=(("_settings", settings),))
        of.hear("configmaps", of.config)
        of.hear("configmaps", of.settings)

    def _grant(self, subject: str) -> None:
        """A person grants something, or takes a part of it back."""
        now_ms, of = self.clock(), self.timekeeper
        if self.accounts.granted(subject, now_ms) is None or subject not in self.in_force:
            return
        amount = self.random.randint(-HOUR // 4, HOUR // 2) * 1_000 * self.size.scale
        kind: GrantKind = MANUAL if amount >= 0 else CORRECTION
        span = of.ledger.history.account(subject, now_ms).span
        key = f"by-hand/{len(of.database.grants)}"
        of.database.grants.append(Grant(subject, span, amount, kind, "", "someone", key, now_ms))
        self.accounts.grant(subject, amount, now_ms)

    # what flows between the parts

    def _hear(self) -> None:
        heard, self._heard = self._heard, []
        self.timekeeper.hear_pods(heard)

    def _tick(self) -> None:
        self._hear()
        is_written = self.clock() >= self.faults.database_ms
        self.timekeeper.database.is_away = not is_written
        for entry in self.timekeeper.tick(is_written):
            if entry.key in self.facts:
                its = self.facts[entry.key]
                self.in_force[entry.key] = its
                self.accounts.change(entry.key, *books_of(its), entry.from_ms)
        if is_written:
            self.ticked_ms = self.timekeeper.held_view.at_ms
            self._note_held()
            self.tell("ticked")

    def _poll(self) -> None:
        """Webhook and extender read the document, or its version, or nothing."""
        now_ms, document = self.clock(), self.timekeeper.database.published
        if now_ms < self.faults.polls_ms or document is None:
            return
        self.known = dict(self.in_force)
        if self.table is not None and self.table.etag == document.revision and self.extender.table:
            self.table = self.table.confirmed(now_ms)
            self.extender.table = self.extender.table.confirmed(now_ms)
            return
        body = document.body
        self.table = decode_for_webhook(body, document.revision, now_ms)
        self.table = replace(self.table, generated_ms=now_ms)
        self.extender.table = decode_for_extender(body, document.revision, now_ms)
        self.extender.table = replace(self.extender.table, generated_ms=now_ms)

    def _note_bindings(self) -> None:
        """What the oracles need of each new binding."""
        self.bindings, self.extender.bindings = self.extender.bindings, []
        for each in self.bindings:
            pod = each.pod
            assert pod.placement is not None
            pod.rate = self.rate_of(pod, pod.node, pod.placement, WEIGHTED)
            pod.held_milli = self.rate_of(pod, pod.node, pod.placement, Terms())
            self.accounts.binds(pod.uid, pod.namespace, pod.node, pod.rate, each.at_ms)
            if pod.work.declares_s and not pod.work.overstays:
                within_ms = 1000 * pod.work.declares_s + self.random.randint(0, 1000 * pod.work.grace_s)
                pod.ends_ms = each.at_ms + within_ms

    def _note_released(self) -> None:
        """Pods that were released to use the time that they declared."""
        for pod in self.server.released:
            if pod.length_ms and not self.in_force[pod.namespace].observes:
                rate = max(
                    int(weight * most_milli(pod.work.limits, frozenset([mib])))
                    for mib, weight in self.weighted
                )
                self.accounts.promises[pod.uid] = Promise(pod.namespace, rate, pod.length_ms)
        self.released = len(self.server.released)
        self.server.released.clear()

    def _report(self) -> None:
        """The agents of the nodes that are heard."""
        now_ms = self.clock()
        if now_ms >= self.faults.database_ms:
            pods = [
                each
                for each in self.server.pods.values()
                if each.work.idles and each.runs and self.silent.get(each.node, 0) <= now_ms
            ]
            report(self.timekeeper.database, pods, self.random, now_ms)

    def _note_held(self) -> None:
        """Which free cards are held for waiting pods, as the tick has seen it."""
        for uid, (pod, reserved) in list(self._held.items()):
            if pod.reserved == reserved and not pod.node and pod.gone_ms is None:
                continue
            ends = [pod.bound_ms, pod.let_go_ms, pod.deletion_ms]
            if pod.reserved is not None and pod.reserved != reserved:
                ends.append(pod.reserved.since_ms)
            self.accounts.lets_go(uid, min(each for each in ends if each is not None))
            del self._held[uid]
        for pod in self.server.pods.values():
            its = pod.reserved
            if its is None or its.free_ms is None or pod.node or pod.is_leaving:
                continue
            uid = f"{pod.uid}/{its.free_ms}"
            self._held[uid] = pod, its
            since = max(its.free_ms, its.since_ms, pod.created_ms)
            amount = self.rate_of(pod, its.node, its.placement, WEIGHTED)
            self.accounts.holds(uid, pod.namespace, amount, since, its.until_ms)

    def rate_of(self, pod: SimPod, node: str, placement: Placement, terms: Terms) -> int:
        """The oracle's rate of the pod on these cards."""
        raw = pod.template.raw
        annotations = {"bursar.dev/devices": encode_placement(placement)}
        return rate({**raw, "metadata": {"annotations": annotations}}, self.cards[node], terms)


assert SUB_STEP_MS * 6 < STEP_MS
