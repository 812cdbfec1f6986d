"""Puts the extender together in the process that serves: the books, those who fill them, those who act."""

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from flask import Flask

from scheduler_ext.binding.binder import Binder
from scheduler_ext.binding.outcome import FOLLOWER
from scheduler_ext.cache import pdb_cache
from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.cache.informers import Kind, follow, kinds
from scheduler_ext.cache.pdb_cache import PDBCache
from scheduler_ext.clients.card_load_poller import Measuring
from scheduler_ext.clients.events import Events
from scheduler_ext.clients.standings_poller import Poller
from scheduler_ext.controllers.preemptor import Preemptor, PreemptorWiring
from scheduler_ext.controllers.requeuer import Requeuer
from scheduler_ext.leadership.election import Election, OwnLease, SchedulersLease, Unelected
from scheduler_ext.leadership.fencing import marker, toucher
from scheduler_ext.leadership.takeover import Leadership
from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import UNHEARD, NamespaceStandings
from scheduler_ext.preemption.cooldown import NOTHING_DONE, Cooldown
from scheduler_ext.preemption.plan import PreemptionLimits
from scheduler_ext.preemption.victims import PreemptionContext
from scheduler_ext.reports.closed_nodes import Closures
from scheduler_ext.reports.cluster_page import Clusters
from scheduler_ext.reports.headroom import Counting
from scheduler_ext.reports.metrics import Metrics, Sources
from scheduler_ext.reports.totals import Totals
from scheduler_ext.reports.waiting_page import WaitingPods
from scheduler_ext.scoring.load import LoadByCard, LoadSource
from scheduler_ext.scoring.selection import Policies
from scheduler_ext.serving.read_routes import Pages
from scheduler_ext.serving.routes import create_app, verb_calls
from scheduler_ext.settings import Settings
from scheduler_ext.snapshot.node_info import Allocation
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.verbs.last_decisions import LastDecisions
from scheduler_ext.verbs.verbs import INCOMPLETE, Verbs
from scheduler_ext.waiting.order import WaitingPod
from timekeeper.runtime.api_server import Api
from timekeeper.runtime.clock import monotonic_ms, now_ms
from timekeeper.runtime.lease_election import LeaseName
from timekeeper.runtime.log import Log, log, log_exception

V = TypeVar("V")

TICK_S = 0.2
LEARN_S = 60.0  # between two looks at what pods ask for


def _nothing_measured() -> LoadByCard | None:
    return None


class Extender:
    """The running extender. ``app`` answers; `start` begins to watch; `stop` asks the threads to end; ``die``
    ends the process at once; ``complete`` is called once the books are."""

    def __init__(
        self,
        settings: Settings,
        api: Api,
        say: Log = log,
        die: Callable[[int], object] = os._exit,
        complete: Callable[[], object] = lambda: None,
    ) -> None:
        self._settings, self._api, self._say, self._die = settings, api, say, die
        self._complete = complete
        self._stop = threading.Event()
        self._heard: dict[str, float] = {}
        self.pdbs = PDBCache()
        self.cooldown: Callable[[], Cooldown] = lambda: NOTHING_DONE
        self.cache = ClusterCache(now_ms, self._freed, settings.most_grace_ms)
        self.requeuer = Requeuer(api, self.cache, settings.scheduler_name, say, self.standings)
        self.events = Events(api, now_ms, say, socket.gethostname())
        self._closures = Closures(self.events, say)
        self._policies = Policies(
            settings.policy,
            self.standings,
            self._measured(),
            lambda why: say("policy", level="warning", asked="load", acts_as="fragmentation", why=why),
        )
        self.leadership = leadership(settings, api, self.cache, say, self._seed)
        self.binder = Binder(
            api,
            self.cache,
            self._policies,
            say,
            timeout_s=settings.bind_timeout_ms / 1000,
            most_grace_ms=settings.most_grace_ms,
            ended=self.requeuer.tried,
            turn=self.leadership,
            taken_back=self._taken_back,
        )
        self.preemptor = self._preempting()
        self.cooldown = lambda: self.preemptor.cooldown
        self._decisions = LastDecisions(now_ms)
        pages = self._pages()
        self._metrics = pages.metrics
        self._poller = self._polling(pages.metrics)
        verbs = self._verbs()
        self.calls = verb_calls(verbs, self._decisions, pages.metrics, say)
        self.app: Flask = create_app(self.calls, pages, lambda: "" if verbs.complete else INCOMPLETE)

    def _verbs(self) -> Verbs:
        return Verbs(
            self.cache,
            self._policies,
            self.requeuer,
            self.binder,
            self.context,
            self.leadership.wait_while_taking_over,
            self._settings.most_offered,
        )

    def start(self) -> None:
        """Begin to watch; the books are complete some time later."""
        most_grace_ms, (namespace, _) = self._settings.most_grace_ms, self._settings.election.pod
        pods, nodes = kinds(self.cache, most_grace_ms, self.leadership, namespace)
        pods = replace(pods, seen=self._observed(pods.seen))
        for name, work in {
            "pods": lambda: self._follow(pods),
            "nodes": lambda: self._follow(nodes),
            "leadership": lambda: self.leadership.run(self._stop),
            "waker": lambda: self.requeuer.run(self._stop),
            "settler": self._settle_uncertain,
            "ticker": self._tick,
            "learner": self._learn,
            "events": lambda: self.events.run(self._stop),
            "standings": self._poll,
            "usage": self._measure,
            "disruption": lambda: self._follow(pdb_cache.kind(self.pdbs)),
            "preemptor": lambda: self.preemptor.run(self._stop),
        }.items():
            threading.Thread(target=self._guarded, args=(name, work), name=name, daemon=True).start()

    def standings(self) -> NamespaceStandings:
        """What the timekeeper last said; of everybody UNKNOWN where it is not asked."""
        return self._poller.standings() if self._poller is not None else UNHEARD

    def context(self, snapshot: Snapshot) -> PreemptionContext:
        """What the choice of victims depends on, at this moment."""
        return PreemptionContext(snapshot.pods, self.standings(), now_ms(), self.pdbs.now(), self.cooldown())

    def _preempting(self) -> Preemptor:
        wanted = self._settings.preempting
        needs_standings = self._settings.timekeeper is not None
        wiring = PreemptorWiring(
            cache=self.cache,
            waiting_pods=self.requeuer.waiting,
            policy=self._policies,
            standings=self.standings,
            pdbs=self.pdbs.now,
            leads=self.leadership.leads,
            freed=self.requeuer.freed,
            tell=lambda pod, reason, said: self.events.post(pod.namespace, pod.name, pod.uid, reason, said),
            log=self._say,
            now_ms=now_ms,
            seconds=time.monotonic,
            breathe=time.sleep,
        )
        limits = PreemptionLimits(
            wanted.patience_ms,
            wanted.pdb_grace_ms,
            wanted.most,
            self._settings.scheduler_name,
            needs_standings,
        )
        return Preemptor(self._api, wiring, limits)

    def _measured(self) -> LoadSource:
        """How busy the cards are, where there is a timekeeper to be asked."""
        wanted, always = self._settings.timekeeper, self._settings.policy == "load"
        self._measuring: Measuring | None = None
        if wanted is None:
            return _nothing_measured

        def polled(outcome: str, age_s: float) -> None:
            self._metrics.measured(outcome, age_s)

        self._measuring = Measuring(wanted, monotonic_ms, self._say, polled, always)
        return self._measuring.figures

    def _measure(self) -> None:
        if self._measuring is not None:
            self._measuring.run(self._stop)

    def _polling(self, metrics: Metrics) -> Poller | None:
        wanted = self._settings.timekeeper
        return Poller(wanted, monotonic_ms, self._say, metrics.polled) if wanted is not None else None

    def _poll(self) -> None:
        if self._poller is not None:
            self._poller.run(self._stop)

    def stop(self) -> None:
        """The threads end when they next look; they are daemons, so nobody needs to wait for them. Where this
        replica led, it says that another may."""
        self._stop.set()
        self.leadership.end()

    def sends_away(self) -> bool:
        """True where callers should go to another replica: behind a Service, to the one that leads."""
        return self._settings.election.form == "lease" and not self.leadership.leads()

    def _freed(self, names: list[str]) -> None:
        if self.leadership.leads():
            self.requeuer.freed(names)

    def _follow(self, kind: Kind[V]) -> None:
        def heard() -> None:
            self._heard[kind.path] = time.monotonic()

        follow(self._api, kind, heard, self._say, self._stop)

    def _tick(self) -> None:
        while not self._stop.is_set() and not self.cache.complete:
            self._stop.wait(TICK_S / 10)
        self._ready()
        while not self._stop.wait(TICK_S):
            self.cache.expire()
            self._closures.look(self.cache.snapshot.nodes)

    def _observed(self, seen: Callable[[V], None]) -> Callable[[V], None]:
        """The same, and the waker hears of the pods that wait."""

        def noticed(value: V) -> None:
            seen(value)
            if isinstance(value, Pod):
                self.requeuer.seen(value, self._policies)

        return noticed

    def _seed(self) -> int:
        """Every pod that waits may have been refused before, by us or by another; how many there are."""
        snapshot = self.cache.snapshot
        waiting = [pod for pod in snapshot.pods.values() if not pod.node and pod.request is not None]
        self.requeuer.seed(WaitingPod(p, self._policies(p), None) for p in waiting if p.request is not None)
        return len(waiting)

    def _ready(self) -> None:
        snapshot, waiting = self.cache.snapshot, self._seed()
        self._policies.learn(snapshot)
        self._say("complete", nodes=len(snapshot.nodes), pods=len(snapshot.pods), waiting=waiting)
        self._complete()

    def _learn(self) -> None:
        while not self._stop.wait(LEARN_S):
            if self.cache.complete and self._policies.learn(self.cache.snapshot):
                self._say(
                    "learned",
                    shapes=len(self._policies.fragmentation_model.typical_pods.counts),
                    pods=self._policies.fragmentation_model.pods,
                )

    def _settle_uncertain(self) -> None:
        while not self._stop.wait(TICK_S):
            for uid in self.cache.uncertain():
                self.binder.settle(uid)

    def _taken_back(self, allocation: Allocation, node: str) -> None:
        namespace, _, name = allocation.full_name.partition("/")
        said = f"The binding to node {node} did not happen; the cards assumed for it there are free again."
        self.events.post(namespace, name, allocation.uid, "BindTakenBack", said, "Warning")

    def _guarded(self, name: str, work: Callable[[], None]) -> None:
        """A thread that dies would leave books that follow nothing, and look well: the process ends with it,
        and starts anew from the objects."""
        try:
            work()
        except BaseException as error:
            self._say("died", level="error", thread=name)
            log_exception("uncaught", error, thread=name)
            self._die(1)

    def _silent_s(self) -> dict[str, float]:
        now = time.monotonic()
        return {path.rpartition("/")[2]: now - heard for path, heard in self._heard.items()}

    def _pages(self) -> Pages:
        totals = Totals(lambda: self._policies.fragmentation_model)
        sources = Sources(
            snapshot=lambda: self.cache.snapshot,
            totals=totals,
            waiting=self._waiting_by_standing,
            silent_s=self._silent_s,
            refused=self._decisions.nodes_refused,
            events=self.events.results,
            preempted=lambda: self.preemptor.counts,
            leading=lambda: (self.leadership.leads(), self.leadership.takeovers),
        )
        return Pages(
            Clusters(
                sources.snapshot, totals, Counting(self._policies), lambda: len(self.requeuer.waiting())
            ),
            WaitingPods(sources.snapshot, self._decisions, self.standings),
            Metrics(sources),
            lambda: FOLLOWER.sentence if self.sends_away() else "",
        )

    def _waiting_by_standing(self) -> Counter[str]:
        standings = self.standings()
        return Counter(standings.of(each.pod.namespace).word for each in self.requeuer.waiting())


def leadership(
    settings: Settings, api: Api, cache: ClusterCache, say: Log, led: Callable[[], object]
) -> Leadership:
    """How this replica comes to lead, by its settings."""
    wanted = settings.election
    election: Election = Unelected()
    if wanted.form == "scheduler":
        election = SchedulersLease(api, LeaseName(*wanted.lease), wanted.identity)
    elif wanted.form == "lease":
        seconds = wanted.duration_ms // 1000
        election = OwnLease(api, LeaseName(*wanted.lease), wanted.identity, seconds, time.monotonic, say)
    mark = None if wanted.form == "none" else marker(api, *wanted.pod, say)
    return Leadership(election, cache, mark, toucher(api, cache, settings.most_grace_ms, say), say, led)
