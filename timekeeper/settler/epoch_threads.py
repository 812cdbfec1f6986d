"""The threads beside the settler, for one epoch: evictions, releases, objects, retention."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Event, Thread

from timekeeper import metrics
from timekeeper.accounts.balance import Statement
from timekeeper.accounts.budget_history import History
from timekeeper.core.decisions import Record
from timekeeper.edge.events import EventRecorder
from timekeeper.runtime.api_server import Api
from timekeeper.runtime.prometheus import SMALL_BYTES, PrometheusClient
from timekeeper.runtime.prometheus_settings import PrometheusSettings
from timekeeper.settings import TimekeeperSettings
from timekeeper.settler.budget_objects import BudgetObjects
from timekeeper.settler.cards.writer import FreeWriter
from timekeeper.settler.evictions.budget_round import BudgetRound
from timekeeper.settler.evictions.calls import EvictorContext
from timekeeper.settler.evictions.claim_excess import ExcessRound
from timekeeper.settler.evictions.claim_reclaim import ReclaimRound
from timekeeper.settler.evictions.evictor import Step, keep_evicting
from timekeeper.settler.evictions.rounds import (
    GangRound,
    IdleRound,
    OvertimeRound,
    OveruseRound,
    remove_finalizers,
)
from timekeeper.settler.grace_policies import GracePolicies
from timekeeper.settler.mode_parameters import ModeParameters
from timekeeper.settler.months import MonthCloser
from timekeeper.settler.new_pods import NewPods
from timekeeper.settler.queue_holder import QueueHolder
from timekeeper.settler.releaser import CALLS_AT_ONCE, Releaser, keep_releasing, patch_with
from timekeeper.settler.settler import Settler
from timekeeper.settler.spent_parameters import SpentParameters, apply_with
from timekeeper.settler.use_reader import UseReader
from timekeeper.settler.would import WouldJudge
from timekeeper.store.engine.engine import Store, UnavailableError
from timekeeper.store.fencing import FencedStore
from timekeeper.store.retention import forget_old, roll_up_daily

_SPACE_INTERVAL_S = 60.0

Work = Callable[[Event], object]


def start_thread(name: str, work: Work, stop: Event) -> Thread:
    """Start a thread that works until ``stop``. It is a daemon: the process does not wait for it."""
    thread = Thread(target=work, args=(stop,), name=name, daemon=True)
    thread.start()
    return thread


@dataclass(frozen=True, slots=True)
class EpochThreads:
    """What the threads of one epoch work with. ``now_ms``: the API server's clock; ``record``: keeps a
    decision; ``new_pods``: those to be judged."""

    store: Store
    api: Api
    settler: Settler
    events: EventRecorder[str]
    record: Record
    now_ms: Callable[[], int]
    new_pods: NewPods

    def start(self, settings: TimekeeperSettings, stop: Event) -> tuple[Thread, ...]:
        """Start all that the settings ask for; returns those that must not read the database once it is
        closed."""
        start_thread("space", self._measure_space, stop)
        retained = settings.retain_decisions_ms, settings.retain_use_ms, settings.retain_cards_ms
        if any(retained):
            fenced = FencedStore(self.store, self.settler.epoch)
            start_thread("forget", partial(forget_old, fenced, self.now_ms, *retained), stop)
        if settings.retain_ms:
            start_thread("retain", partial(self._roll_up, settings.retain_ms), stop)
        start_thread("free", FreeWriter(self.store, self.settler, self.now_ms).keep, stop)
        start_thread("months", self._month_closer().keep, stop)
        reading = self._start_reading(settings.prometheus, stop) if settings.prometheus.is_given else ()
        judge = WouldJudge(self.new_pods, self.store, self.settler, self.now_ms)
        reading = (*reading, start_thread("would", judge.keep, stop))
        queues = QueueHolder(self.api, self.store, self.settler, self.events, self.record, self.now_ms)
        self.settler.queues_not_held = lambda: queues.findings
        start_thread("watch-queues", queues.follow, stop)
        reading = (*reading, start_thread("queues", queues.keep, stop))
        governing = () if settings.only_meter else self._start_governing(settings, stop)
        return (*reading, *governing)

    def _start_reading(self, prometheus: PrometheusSettings, stop: Event) -> tuple[Thread, ...]:
        client = PrometheusClient(prometheus, self.api, SMALL_BYTES)
        reader = UseReader(client, self.store, self.settler, self.record, self.now_ms)
        return (start_thread("use", reader.keep, stop),)

    def _start_governing(self, settings: TimekeeperSettings, stop: Event) -> tuple[Thread, ...]:
        """What changes pods, or needs objects that an installed webhook has beside it."""
        start_thread("budget-objects", self._budget_objects().keep, stop)
        settler, namespace = self.settler, settings.namespace
        modes = ModeParameters(
            *(self.api, namespace, self._history, lambda: settler.view.cluster.card_host),
            *(self.now_ms, time.monotonic),
        )
        start_thread("modes", modes.keep, stop)
        spent = SpentParameters(
            apply_with(self.api, namespace),
            self._statements,
            self._history,
            lambda: settler.view.cluster.classes.gpu_drivers(),
            self.now_ms,
            time.monotonic,
        )
        start_thread("spent", spent.keep, stop)
        start_thread("grace-policies", GracePolicies(self.api, self._longest_grace_ms).keep, stop)
        releaser = self._releaser()
        return (
            start_thread("evict", partial(keep_evicting, self._eviction_steps()), stop),
            start_thread("release", partial(keep_releasing, releaser.step), stop),
        )

    def _eviction_steps(self) -> tuple[Step, ...]:
        context = EvictorContext(
            self.store,
            self.settler.epoch,
            self.api,
            self.events,
            lambda: self.settler.view,
            self.now_ms,
            record=self.record,
            vetoes=self.settler.vetoes,
        )
        first = OveruseRound, BudgetRound, IdleRound, OvertimeRound, GangRound
        rounds = (kind(context).run for kind in (*first, ExcessRound, ReclaimRound))
        return *rounds, partial(remove_finalizers, context)

    def _releaser(self) -> Releaser:
        settler = self.settler
        return Releaser(
            self.store,
            settler.epoch,
            patch_with(self.api),
            self.events.post,
            lambda: settler.view.held,
            record=self.record,
            reserved=settler.reserve,
            at_once=CALLS_AT_ONCE,
        )

    def _measure_space(self, stop: Event) -> None:
        """Once a minute, so that no scrape reads the database."""
        pause_s = 0.0
        while not stop.wait(pause_s):
            with suppress(UnavailableError, OSError):
                size, free = self.store.space()
                metrics.DATABASE_BYTES.labels(self.store.engine.dialect.name).set(size)
                if free is not None:
                    metrics.DATABASE_FREE_BYTES.labels(self.store.engine.dialect.name).set(free)
            pause_s = _SPACE_INTERVAL_S

    def _roll_up(self, retain_ms: int, stop: Event) -> None:
        roll_up_daily(FencedStore(self.store, self.settler.epoch), self.now_ms, retain_ms, stop)

    def _month_closer(self) -> MonthCloser:
        fenced = FencedStore(self.store, self.settler.epoch)
        closer = MonthCloser(self.store, fenced, self._history, self.now_ms)
        self.settler.late_months = lambda: closer.late
        return closer

    def _budget_objects(self) -> BudgetObjects:
        def exists(namespace: str) -> bool:
            return namespace in self.settler.view.cluster.existing_namespaces

        return BudgetObjects(self.api, self._statements, exists, time.monotonic, self.now_ms)

    def _statements(self) -> Mapping[str, Statement] | None:
        """The accounts as written last; None before the first decision."""
        return self.settler.view.accounts

    def _history(self) -> History | None:
        """The budgets in force; None before the first decision."""
        view = self.settler.view
        return None if view.statements is None else view.history

    def _longest_grace_ms(self) -> int | None:
        """`maxGracePeriod` now, in milliseconds; None before the first decision."""
        history = self._history()
        return None if history is None else history.settings(self.now_ms()).max_grace_period_ms
