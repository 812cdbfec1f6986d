"""Wires the extender's parts together, inside the process that serves."""

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

from flask import Flask

from scheduler_ext.background import Threads, Upkeep, Work
from scheduler_ext.binding.binder import Binder
from scheduler_ext.binding.outcome import FOLLOWER
from scheduler_ext.cache import pdb_cache
from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.cache.informers import Kind, follow, kinds
from scheduler_ext.cache.pdb_cache import PDBCache
from scheduler_ext.cache.unhealthy_lists import UnhealthyLists
from scheduler_ext.clients import binding_reports
from scheduler_ext.clients.binding_reports import BindingReports
from scheduler_ext.clients.card_load_poller import Measuring
from scheduler_ext.clients.card_load_source import source_of
from scheduler_ext.clients.standings_poller import Poller
from scheduler_ext.clients.timekeeper import client
from scheduler_ext.controllers.deschedule_labels import DescheduleLabels
from scheduler_ext.controllers.preemptor import Preemptor, PreemptorWiring
from scheduler_ext.controllers.requeuer import Requeuer
from scheduler_ext.fit.caps import CapChecks
from scheduler_ext.leadership.election import Election, OwnLease, SchedulersLease, Unelected
from scheduler_ext.leadership.fencing import marker, toucher
from scheduler_ext.leadership.takeover import Leadership
from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import UNHEARD, NamespaceStandings
from scheduler_ext.preemption.cooldown import Cooldown
from scheduler_ext.preemption.plan import PreemptionLimits
from scheduler_ext.preemption.victims import PreemptionContext
from scheduler_ext.reports import cluster_posts
from scheduler_ext.reports.closed_nodes import Closures
from scheduler_ext.reports.cluster_page import Clusters
from scheduler_ext.reports.cluster_posts import ClusterPosts, MapSources
from scheduler_ext.reports.decision_reports import DecisionReports, WaitingState
from scheduler_ext.reports.headroom import Counting
from scheduler_ext.reports.metrics import ExtenderMetrics, Sources
from scheduler_ext.reports.totals import Totals
from scheduler_ext.reports.waiting_page import WaitingPods
from scheduler_ext.scoring.selection import Policies
from scheduler_ext.serving.read_routes import Pages
from scheduler_ext.serving.routes import create_app, verb_calls
from scheduler_ext.settings import ExtenderSettings
from scheduler_ext.simulation.bodies import Asked
from scheduler_ext.simulation.simulate import Books
from scheduler_ext.simulation.simulator import Simulator
from scheduler_ext.snapshot.node_info import Allocation
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.verbs.last_decisions import LastDecisions
from scheduler_ext.verbs.verbs import INCOMPLETE, Verbs
from timekeeper.core import names
from timekeeper.core.decisions import record_nothing
from timekeeper.core.values import Card, Placement
from timekeeper.runtime.api_server import Api
from timekeeper.runtime.clock import monotonic_ms, now_ms
from timekeeper.runtime.event_recorder import EventRecorder, EventType
from timekeeper.runtime.http.flask_routes import PostCall
from timekeeper.runtime.lease_election import LeaseName
from timekeeper.runtime.log import Log, log
from timekeeper.runtime.recording import decision_posts
from timekeeper.runtime.recording.decision_posts import DecisionPosts

V = TypeVar("V")

REPORTER = f"{names.DOMAIN}/extender"


class Extender:
    """The running extender. ``app`` and ``calls`` answer; `start` starts the watches; `stop` ends the
    threads. ``die`` ends the process at once; ``complete`` is called once the cache is complete.

    Each part is made at its first use, so the order of the properties does not matter. `start` uses all of
    them before the first thread runs.
    """

    def __init__(
        self,
        settings: ExtenderSettings,
        api: Api,
        say: Log = log,
        die: Callable[[int], object] = os._exit,
        complete: Callable[[], object] = lambda: None,
    ) -> None:
        self._settings, self._api, self._say = settings, api, say
        self._complete = complete
        self._threads = Threads(say, die)
        self._last_sign: dict[str, float] = {}  # watched path -> monotonic second of the last event
        self.pdbs = PDBCache()
        self.cache = ClusterCache(now_ms, self._freed, settings.most_grace_ms)
        self.events = EventRecorder(api, REPORTER, socket.gethostname(), now_ms, say)
        self.cooldown: Callable[[], Cooldown] = lambda: self.preemptor.cooldown
        self._decisions = LastDecisions(now_ms, lambda uid: self.decision_reports.waits(uid))
        self.caps = CapChecks(self.standings)

    # What it answers with

    @cached_property
    def app(self) -> Flask:
        """The WSGI application: the verbs and the read routes."""
        return create_app(self.calls, self.pages, self.incomplete)

    def incomplete(self) -> str:
        """Why the cluster is not known yet; "" if it is."""
        return "" if self._verbs.complete else INCOMPLETE

    @cached_property
    def calls(self) -> dict[str, PostCall]:
        """kube-scheduler's verbs, by path."""
        return verb_calls(self._verbs, self._decisions, self._metrics, self._say)

    @cached_property
    def _verbs(self) -> Verbs:
        return Verbs(
            self.cache,
            self.policies,
            self.requeuer,
            self.binder,
            self.context,
            self.leadership.wait_while_taking_over,
            self.standings,
            lambda pod, now_ms: self.preemptor.answered.note(pod, now_ms),
            self._settings.most_offered,
            self.caps,
            lambda: self._standings_poller is None or self._standings_poller.was_polled,
        )

    @cached_property
    def pages(self) -> Pages:
        """The sources of the read routes."""
        return Pages(
            Clusters(
                self._snapshot, self._totals, Counting(self.policies), lambda: len(self.requeuer.waiting())
            ),
            self._waiting_pods,
            self._metrics,
            lambda: self.leadership.obstacle or (FOLLOWER.sentence if self.sends_away() else ""),
        )

    @cached_property
    def _waiting_pods(self) -> WaitingPods:
        return WaitingPods(self._snapshot, self._decisions, self.standings)

    @cached_property
    def _metrics(self) -> ExtenderMetrics:
        return ExtenderMetrics(
            Sources(
                snapshot=self._snapshot,
                totals=self._totals,
                waiting=self._waiting_by_standing,
                silent_s=self._silent_s,
                refused=self._decisions.nodes_refused,
                events=self.events.results,
                bindings=self._bindings_reported,
                decisions=self._decisions_reported,
                preempted=lambda: self.preemptor.counts,
                leading=lambda: (self.leadership.leads(), self.leadership.takeovers),
                fencing=lambda: (self.leadership.stuck, self.leadership.excluded),
            )
        )

    @cached_property
    def _totals(self) -> Totals:
        return Totals(lambda: self.policies.fragmentation_model)

    # What it acts with

    @cached_property
    def requeuer(self) -> Requeuer:
        """Retries waiting pods."""
        return Requeuer(
            self._api, self.cache, self._settings.scheduler_name, self._say, self.standings, self.caps
        )

    @cached_property
    def binder(self) -> Binder:
        """Binds pods."""
        return Binder(
            self._api,
            self.cache,
            self.policies,
            self._say,
            timeout_s=self._settings.bind_timeout_ms / 1000,
            most_grace_ms=self._settings.most_grace_ms,
            ended=self.requeuer.tried,
            turn=self.leadership,
            taken_back=self._taken_back,
            standings=self.standings,
            caps=self.caps,
            bound=self._report_binding,
        )

    def _tell(self, pod: Pod, reason: str, text: str, event_type: EventType = "Normal", /) -> None:
        self.events.post(pod.namespace, pod.name, pod.uid, reason, text, event_type)

    @cached_property
    def preemptor(self) -> Preemptor:
        """Makes room for waiting pods."""
        wiring = PreemptorWiring(
            cache=self.cache,
            waiting_pods=self.requeuer.waiting,
            policy=self.policies,
            standings=self.standings,
            pdbs=self.pdbs.now,
            leads=self.leadership.leads,
            freed=self.requeuer.freed,
            tell=self._tell,
            log=self._say,
            now_ms=now_ms,
            seconds=time.monotonic,
            breathe=time.sleep,
            evicted=self.decision_reports.evicted,
            is_capped=self._is_capped,
        )
        return Preemptor(self._api, wiring, self._limits)

    @cached_property
    def _limits(self) -> PreemptionLimits:
        wanted = self._settings.preempting
        return PreemptionLimits(
            wanted.patience_ms,
            wanted.pdb_grace_ms,
            wanted.most,
            self._settings.scheduler_name,
            self._settings.timekeeper is not None,
        )

    @cached_property
    def simulator(self) -> Simulator:
        """Simulates pods."""
        port = self._settings.read_port
        timeout_ms = port.simulation_ms if port is not None else 0
        return Simulator(self._books, timeout_ms, self._say, self._metrics.simulated)

    def _books(self, asked: Asked) -> Books:
        standings = asked.over(self.standings())
        return Books(
            self.cache.snapshot,
            standings,
            self.pdbs.now(),
            self.cooldown(),
            self.policies.at(standings),
            self._limits,
            now_ms(),
        )

    @cached_property
    def leadership(self) -> Leadership:
        """Whether this replica may bind."""
        wanted = self._settings.election
        mark = None if wanted.form == "none" else marker(self._api, *wanted.pod, self._say)
        touch = toucher(self._api, self.cache, self._settings.most_grace_ms, self._say)
        return Leadership(self._election, self.cache, mark, touch, self._say, lambda: self._upkeep.seed())

    @cached_property
    def _election(self) -> Election:
        wanted = self._settings.election
        if wanted.form == "scheduler":
            return SchedulersLease(self._api, LeaseName(*wanted.lease), wanted.identity)
        if wanted.form == "lease":
            seconds = wanted.duration_ms // 1000
            lease = LeaseName(*wanted.lease)
            return OwnLease(self._api, lease, wanted.identity, seconds, time.monotonic, self._say)
        return Unelected()

    @cached_property
    def policies(self) -> Policies:
        """The placement policy of each pod."""
        return Policies(
            self._settings.policy,
            self.standings,
            self.card_loads.figures if self.card_loads is not None else lambda: None,
            lambda why: self._say("policy", level="warning", asked="load", acts_as="fragmentation", why=why),
        )

    @cached_property
    def _deschedule_labels(self) -> DescheduleLabels:
        return DescheduleLabels(self._api, self.cache, self.leadership.leads, self._say)

    @cached_property
    def _upkeep(self) -> Upkeep:
        closures = Closures(self.events, self._say)
        return Upkeep(
            self.cache, self.policies, self.requeuer, self.binder, closures, self._say, self._complete
        )

    # What it polls

    @cached_property
    def _standings_poller(self) -> Poller | None:
        wanted = self._settings.timekeeper
        return None if wanted is None else Poller(wanted, monotonic_ms, self._say, self._metrics.polled)

    @cached_property
    def binding_reports(self) -> BindingReports | None:
        """Reports bound pods to the timekeeper."""
        wanted = self._settings.timekeeper
        if wanted is None:
            return None
        return BindingReports(client(wanted, binding_reports.PATH), monotonic_ms, self._say)

    @cached_property
    def decision_posts(self) -> DecisionPosts | None:
        """Posts what was decided to the timekeeper."""
        wanted = self._settings.timekeeper
        if wanted is None:
            return None
        return DecisionPosts(client(wanted, decision_posts.PATH), "extender", monotonic_ms, self._say)

    @cached_property
    def decision_reports(self) -> DecisionReports:
        """Puts what was decided into records; without a timekeeper they are dropped."""
        posts = self.decision_posts
        record = record_nothing if posts is None else posts.record
        state = WaitingState(
            self._snapshot, self.requeuer.waiting, self._decisions.of, self.standings, self.caps
        )
        return DecisionReports(record, state, monotonic_ms)

    @cached_property
    def cluster_posts(self) -> ClusterPosts | None:
        """Posts the live map to the timekeeper."""
        wanted = self._settings.timekeeper
        if wanted is None:
            return None
        sources = MapSources(
            lambda: self._snapshot().nodes,
            self._waiting_pods.all,
            self.leadership.leads,
            now_ms,
            monotonic_ms,
        )
        return ClusterPosts(client(wanted, cluster_posts.PATH), sources, self._say)

    @cached_property
    def card_loads(self) -> Measuring | None:
        """The poller of the cards' measured use."""
        source = source_of(self._settings, self._api)
        if source is None:
            return None
        scale, always = self._settings.scale, self._settings.policy == "load"

        def polled(outcome: str, age_s: float) -> None:
            self._metrics.measured(outcome, age_s)

        return Measuring(*source, self._cards, scale, monotonic_ms, self._say, polled, always)

    def _cards(self) -> Iterator[tuple[str, Card]]:
        for name, node in self.cache.snapshot.nodes.items():
            for card in node.cards:
                yield name, card

    def standings(self) -> NamespaceStandings:
        """The timekeeper's last standings; all UNKNOWN without a timekeeper."""
        return self._standings_poller.standings() if self._standings_poller is not None else UNHEARD

    def context(self, snapshot: Snapshot) -> PreemptionContext:
        """What the choice of victims depends on, now."""
        pdbs, cooldown = self.pdbs.now(), self.cooldown()
        return PreemptionContext(
            snapshot.pods, self.standings(), now_ms(), pdbs, cooldown, is_capped=self._is_capped
        )

    def _is_capped(self, pod: Pod, node: str) -> bool:
        return self.caps.is_capped(pod, node, self.cache.snapshot)

    # Start and end

    def start(self) -> None:
        """Start to watch; the cache is complete some time later."""
        most_grace_ms, (namespace, _) = self._settings.most_grace_ms, self._settings.election.pod
        lockable, model_names = self._settings.lock_nodes, self._settings.model_names
        pods, nodes = kinds(self.cache, most_grace_ms, self.leadership, namespace, lockable, model_names)
        lists = UnhealthyLists(self.cache, self._say) if self._settings.unhealthy_lists else None
        work: dict[str, Work] = {
            "pods": self._followed(replace(pods, seen=self._observed(pods.seen))),
            "nodes": self._followed(nodes if lists is None else lists.of_nodes(nodes)),
            "disruption": self._followed(pdb_cache.kind(self.pdbs)),
            "leadership": self.leadership.run,
            "requeuer": self.requeuer.run,
            "preemptor": self.preemptor.run,
            "events": self.events.run,
            "ticker": self._upkeep.tick,
            "settler": self._upkeep.settle,
            "learner": self._upkeep.learn,
            "deschedule": self._deschedule_labels.run,
        }
        if lists is not None:
            work["unhealthy"] = self._followed(lists.kind(self._settings.unhealthy_lists))
        if self._standings_poller is not None:
            work["standings"] = self._standings_poller.run
        if self.card_loads is not None:
            work["usage"] = self.card_loads.run
        if self.binding_reports is not None:
            work["bindings"] = self.binding_reports.run
        if self.cluster_posts is not None:
            work["map"] = self.cluster_posts.run
        if self.decision_posts is not None:
            work["decisions"] = self.decision_posts.run
            work["reasons"] = self.decision_reports.run
        _ = self.app, self.simulator  # every part exists before the first thread runs
        self._threads.start(work)

    def stop(self) -> None:
        """Ask the threads to end. A leader also gives its Lease back, so that another may lead."""
        self._threads.stop()
        self.leadership.end()

    def sends_away(self) -> bool:
        """True if callers should go to another replica: behind a Service, to the leader."""
        return self._settings.election.form == "lease" and not self.leadership.leads()

    def _followed(self, kind: Kind[V]) -> Work:
        def heard() -> None:
            self._last_sign[kind.path] = time.monotonic()

        def work(stop: threading.Event) -> None:
            follow(self._api, kind, heard, self._say, stop)

        return work

    def _observed(self, seen: Callable[[V], None]) -> Callable[[V], None]:
        """The same handler, which also shows waiting pods to the requeuer."""

        def observed(value: V) -> None:
            seen(value)
            if isinstance(value, Pod):
                self.requeuer.seen(value, self.policies)
                self.decision_reports.seen(value)

        return observed

    # What parts ask of each other

    def _report_binding(self, pod: Pod, node: str, placement: Placement) -> None:
        self.decision_reports.placed(pod, node, placement)
        if self.binding_reports is not None:
            self.binding_reports.bound(pod, node, placement)

    def _bindings_reported(self) -> Mapping[str, int]:
        return {} if self.binding_reports is None else self.binding_reports.results

    def _decisions_reported(self) -> Mapping[str, int]:
        return {} if self.decision_posts is None else self.decision_posts.results()

    def _snapshot(self) -> Snapshot:
        return self.cache.snapshot

    def _freed(self, names: list[str]) -> None:
        if self.leadership.leads():
            self.requeuer.freed(names)

    def _taken_back(self, allocation: Allocation, node: str) -> None:
        namespace, _, name = allocation.full_name.partition("/")
        text = f"The binding to node {node} did not happen; the GPUs assumed for it there are free again."
        self.events.post(namespace, name, allocation.uid, "BindTakenBack", text, "Warning")
        self.decision_reports.undone(allocation, node)

    def _silent_s(self) -> dict[str, float]:
        now = time.monotonic()
        return {path.rpartition("/")[2]: now - sign for path, sign in self._last_sign.items()}

    def _waiting_by_standing(self) -> Counter[str]:
        standings = self.standings()
        return Counter(standings.of(each.pod.namespace).word for each in self.requeuer.waiting())
