"""The settler as a process: its watches, its loop, and its shutdown."""

import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from queue import Queue
from threading import Event, Thread

from timekeeper import metrics
from timekeeper.accounts.balance import Statement
from timekeeper.core.names import DOMAIN
from timekeeper.runtime.api_server import Api
from timekeeper.runtime.connect import connect
from timekeeper.runtime.event_recorder import EventRecorder
from timekeeper.runtime.lease_election import CALL_S
from timekeeper.runtime.log import log
from timekeeper.settings import TimekeeperSettings
from timekeeper.settler.budget_entries import BudgetNotice
from timekeeper.settler.budget_objects import BudgetObjects
from timekeeper.settler.cluster.cluster_state import WatchUpdate
from timekeeper.settler.cluster.watches import sources, start_watching
from timekeeper.settler.decision_recorder import DecisionRecorder
from timekeeper.settler.election import SettlerElection
from timekeeper.settler.evictions.budget_evictor import BudgetEvictor
from timekeeper.settler.evictions.context import EvictorContext, view_of
from timekeeper.settler.evictions.evictor import Evictor, keep_evicting
from timekeeper.settler.evictions.idle_evictor import IdleEvictor
from timekeeper.settler.evictions.overtime_evictor import OvertimeEvictor
from timekeeper.settler.grace_policies import GracePolicies
from timekeeper.settler.notifier import Notifier
from timekeeper.settler.pod_notices import PodNotice, state_after
from timekeeper.settler.releases.releaser import Releaser, keep_releasing, patch_with
from timekeeper.settler.settler import Settler, run
from timekeeper.store.engine.engine import ConflictError, Store, UnavailableError, open_store
from timekeeper.store.queries.decisions import last_standings
from timekeeper.store.retention import forget_decisions, roll_up_daily
from timekeeper.store.writes.fencing import EpochOverError, FencedStore

# Updates waiting to be applied. A full queue blocks the watches, and the API server buffers.
_MOST_QUEUED = 10_000
_ENDING_S = 2.0
_MOST_EVENTS_PER_OBJECT = 200  # in five minutes: one ConfigMap may hold as many broken entries

REPORTER = f"{DOMAIN}/timekeeper"


def settle(settings: TimekeeperSettings) -> int:
    """Run until SIGTERM; returns the exit code. Raises UnusableError with a sentence if the settings cannot
    be used."""
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    store = open_store(settings.database, connections=settings.database_connections, name="bursar-settler")
    metrics.DATABASE.labels(store.engine.dialect.name).set(1)
    api = connect(settings.kubeconfig)
    metrics.OVERUSE_HELD_BACK.set(0)
    metrics.BUDGET_EVICTION_NOTICES.set(0)
    metrics.IDLE_PODS.set(0)
    metrics.OVERTIME_PODS.set(0)
    me = settings.holder or settings.new_holder()
    try:
        if not store.is_shared:
            return _settle(settings, store, api, me, stop)
        election = SettlerElection(api, settings.namespace, me, settings.lease_duration_ms, time.monotonic)
        if not election.wait(stop):
            return 0
        election.keep(stop)
        code = _settle(settings, store, api, me, stop)
        if election.lost:
            log("settler-ends", level="warning", reason="another replica holds the Lease")
            return 1
        election.give_back()
        return code
    finally:
        metrics.LEADS.set(0)
        metrics.HELD.set(0)
        metrics.OVERUSE_HELD_BACK.set(0)
        metrics.BUDGET_EVICTION_NOTICES.set(0)
        metrics.IDLE_PODS.set(0)
        metrics.OVERTIME_PODS.set(0)
        store.close()


def _settle(settings: TimekeeperSettings, store: Store, api: Api, me: str, stop: Event) -> int:
    """Settle for one term, from its beginning to its end; returns the exit code."""
    now_ms = _clock_of(api)
    events = EventRecorder(api, REPORTER, me, now_ms, log, _MOST_EVENTS_PER_OBJECT)
    Thread(target=events.run, args=(stop,), name="events", daemon=True).start()
    recorder = DecisionRecorder(store)
    recording = Thread(target=recorder.run, args=(stop,), name="decisions", daemon=True)
    recording.start()
    try:
        settler = Settler(
            store,
            now_ms,
            partial(report, events, settings.namespace),
            me,
            notify_pod=partial(report_on_pod, events),
            record=recorder.record,
        )
    except UnavailableError as error:
        log("ledger-unreadable", level="error", error=error)
        return 1
    with store.reading() as connection:
        last = last_standings(connection, settler.ledger.history.current_keys())
    settler.ledger.budget_states.update({name: state_after(reason) for name, reason in last.items()})
    metrics.LEADS.set(1)
    metrics.TERM.set(settler.term.number)
    updates: Queue[WatchUpdate] = Queue(_MOST_QUEUED)
    for source in sources(settings.namespace):
        start_watching(source, api, updates, now_ms, stop, _failed)
    if settings.retain_decisions_ms:
        limits = (FencedStore(store, settler.term), now_ms, settings.retain_decisions_ms, stop)
        Thread(target=forget_decisions, args=limits, name="forget", daemon=True).start()
    if settings.retain_ms:
        arguments = (FencedStore(store, settler.term), now_ms, settings.retain_ms, stop)
        Thread(target=roll_up_daily, args=arguments, name="retain", daemon=True).start()
    context = EvictorContext(
        store, settler.term, api, events, view_of(settler), now_ms, record=recorder.record
    )
    evictors = (Evictor(context), BudgetEvictor(context), IdleEvictor(context), OvertimeEvictor(context))
    steps = tuple(each.run for each in evictors)
    evicting = Thread(target=keep_evicting, args=(steps, stop), name="evict", daemon=True)
    evicting.start()
    releaser = Releaser(
        store,
        settler.term,
        patch_with(api),
        events.post,
        lambda: settler.held,
        record=recorder.record,
        reserved=settler.reserve,
    )
    releasing = Thread(target=keep_releasing, args=(releaser.step, stop), name="release", daemon=True)
    releasing.start()
    objects = BudgetObjects(
        api, partial(_statements, settler), settler.cluster.existing_namespaces.__contains__, time.monotonic
    )
    Thread(target=objects.keep, args=(stop,), name="budget-objects", daemon=True).start()
    _notify(settings, store, settler, now_ms, stop)
    policies = GracePolicies(api, lambda: _longest_grace_ms(settler, now_ms()))
    Thread(target=policies.keep, args=(stop,), name="grace-policies", daemon=True).start()
    log("settler-started", sessions=len(settler.ledger.sessions), term=settler.term.number, holder=me)
    try:
        run(settler, updates, stop)
    except EpochOverError as error:
        allowed = "" if store.is_shared else "; two timekeepers must not share a file, so stop one of them"
        log("settler-ends", level="warning", reason=f"another settler has started{allowed}", error=error)
        return 1
    except ConflictError as error:
        # Another settler wrote to this database: the only safe step is a restart from what it wrote.
        log(
            "settler-ends",
            level="warning",
            reason="another process wrote rows that only the settler may write",
            error=error,
        )
        return 1
    finally:
        # These must not read the database after it is closed. A call in flight may outlast this wait.
        stop.set()
        evicting.join(_ENDING_S)
        recording.join(_ENDING_S)
        releasing.join(_ENDING_S)
    return 0


def _notify(
    settings: TimekeeperSettings, store: Store, settler: Settler, now_ms: Callable[[], int], stop: Event
) -> None:
    """Start the thread that sends notifications, if there is a key to sign them with."""
    if settings.notification_key is None:
        return
    notifier = Notifier(
        store, settler.term, lambda: settler.ledger.history, settings.notification_key, now_ms
    )
    Thread(target=notifier.keep, args=(stop,), name="notify", daemon=True).start()


def _clock_of(api: Api) -> Callable[[], int]:
    """The API server's time, as far as it is known; a machine's clock that differs is shown and logged."""
    api.call("GET", "/version", timeout_s=CALL_S)  # the first look at it
    if fault := api.clock.sentence():
        log("clock-differs", level="warning", error=fault)

    def now_ms() -> int:
        metrics.CLOCK_OFFSET.set(api.clock.offset_ms() / 1000)
        return api.clock.now_ms()

    return now_ms


def _statements(settler: Settler) -> Mapping[str, Statement] | None:
    """The accounts of the last tick; None before the first decision."""
    cache = settler.ledger.statement_cache
    return None if cache is None or not settler.has_decided else cache.statements.namespaces


def _longest_grace_ms(settler: Settler, now_ms: int) -> int | None:
    """`maxGracePeriod` now, in milliseconds; None before the first decision."""
    if not settler.has_decided:
        return None
    return settler.ledger.history.settings(now_ms).max_grace_period_ms


def report(events: EventRecorder, namespace: str, notice: BudgetNotice) -> None:
    """Log the notice, and post it as an Event on its ConfigMap."""
    config_map = notice.config_map
    log("budgets", config_map=config_map.name, reason=notice.reason, message=notice.message)
    events.post_on_config_map(
        namespace, config_map.name, config_map.uid, notice.reason, notice.message, "Warning"
    )


def report_on_pod(events: EventRecorder, notice: PodNotice) -> None:
    """Post the notice as an Event on its pod."""
    pod = notice.pod
    events.post(pod.namespace, pod.name, pod.uid, notice.reason, notice.message, notice.type)


def _failed(source: str, sentence: str) -> None:
    metrics.WATCH_FAILURES.labels(source).inc()
    log("watch-failed", level="warning", source=source, error=sentence)
