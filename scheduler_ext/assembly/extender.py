"""Wires the extender's parts together, inside the process that serves."""

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property

from flask import Flask

from scheduler_ext.assembly.polling import Polling
from scheduler_ext.assembly.reporting import Reporting
from scheduler_ext.assembly.watches import Watches
from scheduler_ext.background import Threads, Upkeep
from scheduler_ext.binding.binder import Binder
from scheduler_ext.binding.outcome import FOLLOWER
from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.cache.device_slices import DeviceSlices
from scheduler_ext.cache.pdb_cache import PDBCache
from scheduler_ext.cache.pod_groups import PodGroups
from scheduler_ext.clients.gang_calls import GangCalls
from scheduler_ext.controllers.deschedule_labels import DescheduleLabels
from scheduler_ext.controllers.preemptor import Preemptor, PreemptorWiring, limits_of
from scheduler_ext.controllers.requeuer import Requeuer
from scheduler_ext.fit.caps import CapChecks
from scheduler_ext.gangs.capacity import PlanInput
from scheduler_ext.gangs.displacer import DisplacerWiring, GangDisplacer
from scheduler_ext.gangs.drain_turns import DrainTurns
from scheduler_ext.gangs.drains import GangDrains
from scheduler_ext.gangs.memory import StartSettings
from scheduler_ext.gangs.sets import GangSets
from scheduler_ext.gangs.starts import GangStarts, StartWiring
from scheduler_ext.leadership.election import election_of
from scheduler_ext.leadership.fencing import marker, toucher
from scheduler_ext.leadership.takeover import Leadership
from scheduler_ext.log import EventReason, Log, log
from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import NamespaceStandings
from scheduler_ext.preemption.cooldown import Cooldown
from scheduler_ext.preemption.victims import PreemptionContext
from scheduler_ext.reports.closed_nodes import Closures
from scheduler_ext.reports.cluster_posts import MapSources
from scheduler_ext.reports.decision_reports import WaitingState
from scheduler_ext.reports.findings import findings
from scheduler_ext.reports.metrics import ExtenderMetrics, GangFigures, Sources
from scheduler_ext.reports.totals import Totals
from scheduler_ext.reports.waiting_pods import WaitingPods
from scheduler_ext.scoring.selection import Policies
from scheduler_ext.serving.read_port import ReadSources, create_app
from scheduler_ext.serving.routes import verb_calls
from scheduler_ext.settings import ExtenderSettings
from scheduler_ext.simulation.simulate import SimulationInput
from scheduler_ext.simulation.simulator import Simulator
from scheduler_ext.snapshot.gang_table import Gangs, GangState
from scheduler_ext.snapshot.nominated import NominatedPods
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.verbs.last_decisions import LastDecisions
from scheduler_ext.verbs.verbs import INCOMPLETE, Verbs
from scheduler_ext.waiting.order import ANYWHERE, queue_key
from timekeeper.core import names
from timekeeper.core.findings import counted, of_sources, published
from timekeeper.core.values import Placement
from timekeeper.edge.clock import monotonic_ms, now_ms
from timekeeper.edge.events import EventRecorder
from timekeeper.runtime.api_server import Api, event_sender
from timekeeper.runtime.http.service import PostCall

PLAN_S = 1.0  # the longest time of one plan for a gang
MAX_AHEAD = 64  # waiting pods that come before a gang, for which a plan leaves cards
DRAIN_S = 4.0  # the same of the choice of what is drained for one, by many plans
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
        now_ms: Callable[[], int] = now_ms,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._api, self._say = settings, api, say
        self._complete, self._now_s = complete, now_s
        self._threads = Threads(say, die)
        self.pdbs = PDBCache()
        self.cache = ClusterCache(
            now_ms,
            self._freed,
            settings.max_grace_period_ms,
            lambda pod: self.reporting.removed(pod),
            lambda uid, age_ms: self.reporting.left(uid, age_ms),
        )
        self.slices = DeviceSlices(self.cache, lambda: self.standings().drivers)
        self.events = EventRecorder[EventReason](
            event_sender(api), REPORTER, socket.gethostname(), now_ms, say
        )
        self._gangs, self._groups = Gangs(), PodGroups()
        self._nominated = NominatedPods()
        self.cooldown: Callable[[], Cooldown] = lambda: self.preemptor.cooldown
        self._decisions = LastDecisions(lambda uid: self.reporting.decisions.waits(uid))
        self.caps = CapChecks(self.standings)

    # What it answers with

    @cached_property
    def app(self) -> Flask:
        """The WSGI application, of the read routes."""
        return create_app(self.read_sources)

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
            self.polling.knows_standings,
            tried=lambda uid: self.gangs.tried(uid),
        )

    @cached_property
    def read_sources(self) -> ReadSources:
        """What the read routes answer with."""
        return ReadSources(self._metrics, self.incomplete, self._unready, self.simulator, self._wrong)

    def _unready(self) -> str:
        return (
            self.incomplete() or self.leadership.obstacle or (FOLLOWER.sentence if self.sends_away() else "")
        )

    def _wrong(self) -> Mapping[str, int]:
        """By code; of its sources on every replica."""
        return {**self.reporting.wrong(), **counted(published(of_sources(self._watches.sources())))}

    @cached_property
    def waiting_pods(self) -> WaitingPods:
        """The unbound pods of the live map."""
        return WaitingPods(
            self._snapshot, self._decisions, self.standings, lambda pod: self.gangs.lack(pod), now_ms
        )

    @cached_property
    def _metrics(self) -> ExtenderMetrics:
        return ExtenderMetrics(
            Sources(
                snapshot=self._snapshot,
                totals=self._totals,
                waiting=self._waiting_by_standing,
                silent_s=lambda: self._watches.silent_s(),
                refused=self._decisions.nodes_refused,
                events=self.events.results,
                bindings=self.reporting.bindings_reported,
                ends=self.reporting.ends_reported,
                decisions=self.reporting.decisions_reported,
                preempted=lambda: self.preemptor.counts,
                gangs=self._gang_figures,
                leading=lambda: (self.leadership.leads(), self.leadership.takeovers),
                fencing=lambda: (self.leadership.stuck, self.leadership.excluded),
                wrong=self._wrong,
            )
        )

    def _gang_figures(self) -> GangFigures:
        starts = self.gangs
        counts = {"plans": starts.plans, "failed_starts": starts.failures}
        return GangFigures(
            starts.waiting,
            starts.kept_milli,
            {**counts, "drains": starts.drains, "evictions": starts.evictions},
        )

    @cached_property
    def _totals(self) -> Totals:
        return Totals(lambda: self.policies.fragmentation_model)

    # What it acts with

    @cached_property
    def requeuer(self) -> Requeuer:
        """Retries waiting pods."""
        return Requeuer(
            self._api,
            self.cache,
            self._settings.scheduler_name,
            self._say,
            self.standings,
            self.caps,
            self._now_s,
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
            most_grace_ms=self._settings.max_grace_period_ms,
            ended=self.requeuer.tried,
            turn=self.leadership,
            taken_back=self.reporting.taken_back,
            standings=self.standings,
            caps=self.caps,
            bound=self._bound,
            now_s=self._now_s,
            mark_of=lambda pod: self.gangs.mark_of(pod),
        )

    @cached_property
    def preemptor(self) -> Preemptor:
        """Evicts for waiting pods."""
        wiring = PreemptorWiring(
            cache=self.cache,
            waiting_pods=self.requeuer.waiting,
            policy=self.policies,
            standings=self.standings,
            pdbs=self.pdbs.now,
            leads=self.leadership.leads,
            freed=self.requeuer.freed,
            tell=self.reporting.tell,
            log=self._say,
            now_ms=now_ms,
            seconds=self._now_s,
            breathe=time.sleep,
            evicted=self.reporting.decisions.evicted,
            is_capped=self._is_capped,
            gangs=self._gangs,
            displace=lambda *moment: self.displacer.step(*moment),
        )
        return Preemptor(self._api, wiring, limits_of(self._settings))

    @cached_property
    def displacer(self) -> GangDisplacer:
        """Has others leave for gangs, in the preemptor's thread."""

        def given(snapshot: Snapshot, gang: GangState) -> PlanInput:
            until_s = time.thread_time() + PLAN_S
            return replace(self.gangs.given(snapshot, gang), is_late=lambda: time.thread_time() > until_s)

        wiring = DisplacerWiring(
            due=self.gangs.due,
            state=self.gangs.state,
            given=given,
            failed=self.gangs.given_back,
            calls=GangCalls(self._api, now_ms),
            deadline_ms=self._settings.gangs.deadline_ms,
        )
        return GangDisplacer(self.preemptor, wiring, limits_of(self._settings))

    @cached_property
    def simulator(self) -> Simulator:
        """Simulates pods."""
        return Simulator(self._books, self._say)

    def _bound(self, pod: Pod, node: str, placement: Placement) -> None:
        self.gangs.bound(pod)
        self.reporting.bound(pod, node, placement)

    @cached_property
    def gangs(self) -> GangStarts:
        """Starts gangs."""
        wanted = self._settings.gangs
        drains = GangDrains(
            self.cache,
            lambda each: self._plan_input(each, DRAIN_S),
            DrainTurns(wanted.drain_after_ms, wanted.drain_for_ms),
            self._say,
        )
        calls = GangCalls(self._api, now_ms)
        sets = GangSets(calls)
        return GangStarts(
            StartWiring(
                cache=self.cache,
                gangs=self._gangs,
                group=self._groups.minimum,
                given=lambda snapshot, pod: replace(self._plan_input(snapshot), ahead=self._ahead(pod)),
                policies=self.policies,
                order=lambda pod: queue_key(pod, ANYWHERE, self.standings()),
                calls=calls,
                drains=drains,
                leads=self.leadership.leads,
                tell=lambda gang, pods, reason, text: self.reporting.tell_gang(
                    gang, pods, reason, text, sets.of(gang)
                ),
                steady_ms=monotonic_ms,
                now_ms=now_ms,
                log=self._say,
                started=lambda size, seconds: self._metrics.gang_started(size, seconds),
                settings=StartSettings(
                    deadline_ms=wanted.deadline_ms,
                    ready_for_ms=wanted.ready_for_ms,
                    autoscales=wanted.autoscale == "on",
                ),
            )
        )

    def _ahead(self, pod: Pod) -> tuple[Pod, ...]:
        """The first waiting pods that come before this one and start by themselves."""
        first = self.requeuer.first(MAX_AHEAD, queue_key(pod, ANYWHERE, self.standings()))
        return tuple(each for each in first if each.gang is None)

    def _plan_input(self, snapshot: Snapshot, seconds: float = PLAN_S) -> PlanInput:
        until_s = time.monotonic() + seconds
        nominated = self._nominated.among(snapshot.pods)
        return PlanInput(
            snapshot, self.standings(), self.policies, lambda: time.monotonic() > until_s, nominated
        )

    def _books(self) -> SimulationInput:
        standings = self.standings()
        return SimulationInput(
            snapshot=self.cache.snapshot,
            standings=standings,
            policies=self.policies.at(standings),
            now_ms=now_ms(),
            autoscales=self._settings.gangs.autoscale == "on",
        )

    @cached_property
    def leadership(self) -> Leadership:
        """Whether this replica may bind."""
        wanted = self._settings.election
        mark = None if wanted.form == "none" else marker(self._api, *wanted.pod, self._say)
        touch = toucher(self._api, self.cache, self._settings.max_grace_period_ms, self._say)
        election = election_of(self._api, wanted, self._say)
        name = self._settings.scheduler_name
        return Leadership(
            election,
            self.cache,
            mark,
            touch,
            self._say,
            lambda: self._upkeep.seed(),
            is_bound_here=lambda pod: self._settings.touch == "all" or pod.scheduler == name,
        )

    @cached_property
    def policies(self) -> Policies:
        """The placement policy of each pod."""
        return Policies(
            self._settings.policy,
            self.standings,
            self.polling.loads,
            lambda why: self._say("policy", level="warning", asked="load", acts_as="fragmentation", why=why),
        )

    @cached_property
    def _deschedule_labels(self) -> DescheduleLabels:
        return DescheduleLabels(self._api, self.cache, self.leadership.leads, self._say)

    @cached_property
    def _upkeep(self) -> Upkeep:
        closures = Closures(self.events, self._say)
        return Upkeep(
            self.cache,
            self.policies,
            self.requeuer,
            self.binder,
            closures,
            self.slices,
            self._say,
            self._complete,
        )

    # What it exchanges with the timekeeper, and learns of the cards

    @cached_property
    def polling(self) -> Polling:
        """Polls the standings and the use of the cards."""
        return Polling(
            self._settings,
            self._api,
            lambda: self._snapshot().cards(),
            lambda outcome: self._metrics.polled(outcome),
            lambda outcome: self._metrics.measured(outcome),
            self._say,
        )

    @cached_property
    def reporting(self) -> Reporting:
        """Posts Events, and reports to the timekeeper."""
        state = WaitingState(
            self._snapshot, self.requeuer.waiting, self._decisions.of, self.standings, self.caps
        )
        sources = MapSources(
            lambda: self._snapshot().nodes,
            self.waiting_pods,
            lambda: (*of_sources(self._watches.sources()), *findings(self._snapshot(), now_ms())),
            lambda: self.leadership.term_name,
            monotonic_ms,
        )
        return Reporting(self._settings.timekeeper, self.events, state, sources, self._say)

    def standings(self) -> NamespaceStandings:
        """The timekeeper's last standings; all UNKNOWN without a timekeeper."""
        return self.polling.standings()

    def context(self, snapshot: Snapshot) -> PreemptionContext:
        """What the choice of victims depends on, now."""
        pdbs, cooldown = self.pdbs.now(), self.cooldown()
        return PreemptionContext(
            snapshot.pods,
            self.standings(),
            now_ms(),
            pdbs,
            cooldown,
            is_capped=self._is_capped,
            gangs=self._gangs,
        )

    def _is_capped(self, pod: Pod, node: str) -> bool:
        return self.caps.is_capped(pod, node, self.cache.snapshot)

    # Start and end

    @cached_property
    def _watches(self) -> Watches:
        return Watches(
            self._settings,
            self._api,
            self.cache,
            self.pdbs,
            self.slices,
            self._groups,
            self.leadership,
            self._pod_seen,
            self._say,
        )

    def _pod_seen(self, pod: Pod) -> None:
        self.requeuer.seen(pod, self.policies)
        if self.leadership.leads():  # one replica records what all of them see
            self.reporting.decisions.seen(pod)
            if pod.preempted:
                self.reporting.decisions.preempted(pod)

    def start(self) -> None:
        """Start to watch; the cache is complete some time later."""
        work = {
            **self._watches.work(),
            **self.polling.work(),
            **self.reporting.work(),
            "leadership": self.leadership.run,
            "requeuer": self.requeuer.run,
            "preemptor": self.preemptor.run,
            "ticker": self._upkeep.tick,
            "settler": self._upkeep.settle,
            "learner": self._upkeep.learn,
            "deschedule": self._deschedule_labels.run,
            "gangs": self.gangs.run,
        }
        self.cache.await_published_gpus()
        # every part exists before the first thread runs
        _ = self.app, self.simulator, self.gangs, self.displacer
        self._threads.start(work)

    def stop(self) -> None:
        """Ask the threads to end. A leader also gives its Lease back, so that another may lead."""
        self._threads.stop()
        self.leadership.end()

    def sends_away(self) -> bool:
        """True if callers should go to another replica: behind a Service, to the leader."""
        return self._settings.election.form == "lease" and not self.leadership.leads()

    # What parts ask of each other

    def _snapshot(self) -> Snapshot:
        return self.cache.snapshot

    def _freed(self, names: list[str]) -> None:
        if self.leadership.leads():
            self.requeuer.freed(names)

    def _waiting_by_standing(self) -> Counter[str]:
        standings = self.standings()
        return Counter(standings.of(each.pod.namespace).status for each in self.requeuer.waiting())
