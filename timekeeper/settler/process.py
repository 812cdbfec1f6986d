"""The settler as a process: its watches, its loop, and its shutdown. One that runs alone publishes its CA
for its callers, in a ConfigMap of its own namespace."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from queue import Queue, SimpleQueue
from threading import Event, Thread

from timekeeper import metrics
from timekeeper.core.claims.allocation import read_claim
from timekeeper.core.decisions import Decision, DecisionRun
from timekeeper.core.json_values import mapping, sequence
from timekeeper.core.names import DOMAIN
from timekeeper.edge.events import EventRecorder
from timekeeper.edge.lease import CALL_S, LeaseElection, LeaseName
from timekeeper.edge.list_watch import pages
from timekeeper.edge.memory_outbox import OutboxEvents
from timekeeper.edge.outbox import NotDelivered
from timekeeper.edge.reflector import ExpiredError, ObjectsListed, UnreachableError
from timekeeper.edge.source_health import SourceHealth
from timekeeper.log import LogEvent, log
from timekeeper.runtime.api_server import (
    ANSWER_S,
    APPLY,
    Answered,
    Api,
    event_sender,
    follow_version,
    lease_caller,
)
from timekeeper.runtime.connect import connect
from timekeeper.runtime.end_signals import event_of_end_signals
from timekeeper.runtime.recording.decision_posts import DecisionOutbox
from timekeeper.settings import TimekeeperSettings, UnusableError
from timekeeper.settler.budget_entries import BudgetNotice
from timekeeper.settler.claim_notices import ClaimNotice, keep_recording
from timekeeper.settler.cluster.cluster_state import WatchUpdate
from timekeeper.settler.cluster.watches import ALL_CLAIMS, sources, start_watching
from timekeeper.settler.epoch_threads import EpochThreads, start_thread
from timekeeper.settler.new_pods import NewPods
from timekeeper.settler.pod_notices import PodNotice, state_after
from timekeeper.settler.settler import Settler, run
from timekeeper.store import decisions, fencing, would
from timekeeper.store.decisions import SOURCE, last_standings
from timekeeper.store.engine.engine import ConflictError, Store, UnavailableError, open_store
from timekeeper.store.engine.former import refuse_former
from timekeeper.store.fencing import EpochOverError, WentBackError

CA_CONFIG_MAP = "bursar-ca"
_AGAIN_S = 15.0
_SOON_S = 2.0
_SYSTEM = "/api/v1/namespaces?fieldSelector=metadata.name%3Dkube-system"
LEASE = "bursar-timekeeper-settler"


def publish(api: Api, namespace: str, file: Path, stop: Event) -> None:
    """Write the CA that is in the file; again and again until the API server has it, or until ``stop``."""
    published = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": CA_CONFIG_MAP, "labels": {"app.kubernetes.io/part-of": "bursar"}},
        "data": {"ca.crt": file.read_text()},
    }
    path = f"/api/v1/namespaces/{namespace}/configmaps/{CA_CONFIG_MAP}?fieldManager=bursar&force=true"
    while True:
        answer = api.call("PATCH", path, published, content_type=APPLY, timeout_s=ANSWER_S)
        if isinstance(answer, Answered) and answer.status < 300:
            return
        log(
            "ca-not-published", level="warning", config_map=f"{namespace}/{CA_CONFIG_MAP}", answer=str(answer)
        )
        if stop.wait(_AGAIN_S):
            return


class SettlerElection(LeaseElection):
    """One timekeeper's part in the election of the settler. ``me`` names it; ``now_s`` is a monotonic clock
    in seconds. ``lost``: this process held the Lease, and another holds it now."""

    def __init__(
        self, api: Api, namespace: str, me: str, duration_ms: int, now_s: Callable[[], float]
    ) -> None:
        duration_s = max(1, duration_ms // 1000)
        super().__init__(lease_caller(api), LeaseName(namespace, LEASE), me, duration_s, now_s, log)
        self._me = me
        self.lost = False

    def wait(self, stop: Event) -> bool:
        """Follow until this process holds the Lease: True; False where ``stop`` came first."""
        metrics.LEADS.set(0)
        log("settler-follows", holder=self._me)
        while not self.look():
            if stop.wait(self.every_s):
                return False
        return True

    def keep(self, stop: Event) -> None:
        """Renew the Lease from a thread of its own until ``stop``. Where another process holds it, set
        ``stop``."""

        def renew() -> None:
            while not stop.wait(self.every_s):
                if self.look() is False:
                    self.lost = True
                    stop.set()

        Thread(target=renew, name="lease", daemon=True).start()


INTERVAL_S = 0.5
_TOGETHER = 500
_EVENTS = OutboxEvents[LogEvent](
    "decisions-not-written", "decisions-written", "decision-refused", "decisions-dropped"
)


def decision_recorder(store: Store) -> DecisionOutbox:
    """Writes the settler's own decisions, twice a second. What was decided in an epoch that is over is
    written too."""

    def write(runs: Sequence[DecisionRun]) -> NotDelivered | None:
        try:
            with store.writing() as connection:
                decisions.record(connection, SOURCE, runs)
        except (UnavailableError, ConflictError) as error:
            return NotDelivered(str(error), False)
        return None

    def count(result: str, number: int) -> None:
        if result == "sent":
            metrics.DECISIONS.labels(SOURCE).inc(number)
        elif result == "dropped":
            metrics.DECISIONS_DROPPED.inc(number)

    return DecisionOutbox(write, _EVENTS, log, together=_TOGETHER, count=count, every_s=INTERVAL_S)


# Updates waiting to be applied. A full queue blocks the watches, and the API server buffers.
_MAX_QUEUED = 10_000
_ENDING_S = 2.0
_MAX_EVENTS_PER_OBJECT = 200  # in five minutes: one ConfigMap may hold as many broken entries

REPORTER = f"{DOMAIN}/timekeeper"


def claim_ledger(settings: TimekeeperSettings, store: Store, api: Api) -> None:
    """Raises UnusableError where it is another cluster's; UnreachableError or ExpiredError where this cluster
    does not say which it is."""
    found = [mapping(raw.get("metadata")).get("uid") for raw in sequence(api.page(_SYSTEM).get("items"))]
    if not found:
        raise UnreachableError("there is no namespace kube-system yet")
    with store.writing() as connection:
        owner = fencing.claim(connection, str(found[0]), settings.adopt)
    if owner != found[0]:
        command = "meter" if settings.only_meter else settings.command
        raise UnusableError(
            f"--database: {store.shown}: it is the ledger of another cluster, whose namespace kube-system has"
            f" the UID {owner}, and two must not share one; if this cluster takes its place:"
            f" `bursar-timekeeper {command} --adopt={owner}` (docs/databases.md#of-one-cluster)"
        )


def _await_claim(settings: TimekeeperSettings, store: Store, api: Api, stop: Event) -> bool:
    """False where ``stop`` came first. Until then nothing is begun, so no other cluster's settler ends."""
    said = ""
    while True:
        try:
            claim_ledger(settings, store, api)
            return True
        except (UnreachableError, ExpiredError) as error:
            if str(error) != said:
                _failed("namespaces", said := str(error))
        if stop.wait(_SOON_S):
            return False


def settle(settings: TimekeeperSettings, me: str) -> int:
    """Run until SIGTERM; returns the exit code. ``me`` is the name of the Lease's holder. Raises
    UnusableError with a sentence if the settings cannot be used."""
    stop = event_of_end_signals()
    store = open_store(settings.database, connections=settings.database_connections, name="bursar-settler")
    try:
        refuse_former(store)
        metrics.DATABASE.labels(store.engine.dialect.name).set(1)
        api = connect(settings.kubeconfig)
        _reset_figures()
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
        _reset_figures()
        store.close()


def _reset_figures() -> None:
    """Figures of one epoch: a process that does not settle has none of them."""
    metrics.OVERUSE_HELD_BACK.set(0)
    metrics.BUDGET_EVICTION_NOTICES.set(0)
    metrics.IDLE_PODS.set(0)
    metrics.OVERTIME_PODS.set(0)
    metrics.KEPT_DEVICES.set(0)


def _settle(settings: TimekeeperSettings, store: Store, api: Api, me: str, stop: Event) -> int:
    """Settle for one epoch, from its beginning to its end; returns the exit code."""
    now_ms = _clock_of(api)
    events = EventRecorder[str](event_sender(api), REPORTER, me, now_ms, log, _MAX_EVENTS_PER_OBJECT)
    start_thread("events", events.run, stop)
    recorder = decision_recorder(store)
    recording = start_thread("decisions", recorder.run, stop)
    unmade: SimpleQueue[Decision] = SimpleQueue()
    start_thread("claims", partial(keep_recording, unmade, api.call, recorder.record), stop)
    try:
        if not _await_claim(settings, store, api, stop):
            return 0
        settler = Settler(
            store,
            now_ms,
            log_notice if settings.is_local else partial(report, events, settings.namespace),
            me,
            notify_pod=_say_nothing if settings.only_meter else partial(report_on_pod, events),
            record=recorder.record,
            only_meter=settings.only_meter,
            notify_claim=_say_nothing if settings.only_meter else partial(report_on_claim, events),
            record_unmade=unmade.put,
        )
    except UnavailableError as error:
        log("ledger-unreadable", level="error", error=error)
        return 1
    with fencing.writing(store, settler.epoch) as connection:
        since_ms = would.begin(connection, now_ms(), settings.only_meter)
        last = last_standings(connection, settler.ledger.history.current_keys())
    known = settler.cluster.pods.claim_requests
    known.read_version(api.version())
    start_thread("version", partial(follow_version, api.version, known.read_version), stop)
    settler.ledger.budget_states.update({name: state_after(reason) for name, reason in last.items()})
    metrics.LEADS.set(1)
    metrics.TERM.set(settler.epoch.number)
    updates: Queue[WatchUpdate] = Queue(_MAX_QUEUED)
    new_pods = NewPods(since_ms, lambda name: settler.view.cluster.metered.meters(name))

    def is_known(uid: str) -> bool:
        return settler.view.is_known(uid)

    for source in sources(settings.namespace, settings.only_meter, is_known, new_pods.offer):
        settler.health.append(SourceHealth(source.name, log, now_ms))
        start_watching(source, api, updates, now_ms, stop, _failed, settler.health[-1])
    if settings.only_meter and not settings.is_local:
        start_thread("ca", partial(publish, api, settings.namespace, Path(settings.ca)), stop)
    threads = EpochThreads(store, api, settler, events, recorder.record, now_ms, new_pods)
    readers = (recording, *threads.start(settings, stop))
    log("settler-started", sessions=len(settler.ledger.sessions), term=settler.epoch.number, holder=me)
    try:
        at_end = partial(last_look, settler, updates, api, now_ms)
        return _run(settler, updates, stop, store.is_shared, at_end)
    finally:
        # These must not read the database after it is closed. A call in flight may outlast this wait.
        stop.set()
        for thread in readers:
            thread.join(_ENDING_S)


def last_look(settler: Settler, updates: Queue[WatchUpdate], api: Api, now_ms: Callable[[], int]) -> None:
    """Take in what the watches have brought, list all claims once more, and write that: the next settler
    knows of no end before its own start but by the last look. Where the API server does not answer, the last
    look is that of the watch."""
    if not settler.cluster.claims.is_followed:
        return
    for _ in range(updates.qsize()):
        settler.apply(updates.get())
    at_ms = now_ms()
    try:
        claims = tuple(read_claim(raw) for items, _ in pages(api, ALL_CLAIMS) for raw in items)
        settler.apply(WatchUpdate("resourceclaims", at_ms, ObjectsListed(claims)))
    except (UnreachableError, ExpiredError) as error:
        _failed("resourceclaims", str(error))
    settler.tick()


def _run(
    settler: Settler, updates: Queue[WatchUpdate], stop: Event, is_shared: bool, at_end: Callable[[], None]
) -> int:
    """Settle until ``stop``, or until another settler writes; returns the exit code. ``is_shared``: several
    timekeepers may use the database; ``at_end``: called after ``stop``."""
    try:
        run(settler, updates, stop)
        at_end()
    except EpochOverError as error:
        allowed = "" if is_shared else "; two timekeepers must not share a file, so stop one of them"
        log("settler-ends", level="warning", reason=f"another settler has started{allowed}", error=error)
        return 1
    except WentBackError as error:
        log("settler-ends", level="error", reason="the database has lost what was written", error=error)
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
    return 0


def _clock_of(api: Api) -> Callable[[], int]:
    """The API server's time, as far as it is known; a machine's clock that differs is shown and logged."""
    api.call("GET", "/version", timeout_s=CALL_S)  # the first look at it
    if fault := api.clock.sentence():
        log("clock-differs", level="warning", error=fault)

    def now_ms() -> int:
        metrics.CLOCK_OFFSET.set(api.clock.offset_ms() / 1000)
        return api.clock.now_ms()

    return now_ms


def log_notice(notice: BudgetNotice) -> None:
    """Log the notice alone."""
    log(
        "budgets",
        level="warning",
        config_map=notice.config_map.name,
        reason=notice.reason,
        message=notice.message,
    )


def _say_nothing(_notice: PodNotice | ClaimNotice) -> None:
    """A ledger alone writes nothing outside of its own namespace."""


def report(events: EventRecorder[str], namespace: str, notice: BudgetNotice) -> None:
    """Log the notice, and post it as an Event on its ConfigMap."""
    config_map = notice.config_map
    log_notice(notice)
    events.post_on_config_map(
        namespace, config_map.name, config_map.uid, notice.reason, notice.message, "Warning"
    )


def report_on_pod(events: EventRecorder[str], notice: PodNotice) -> None:
    """Post the notice as an Event on its pod."""
    pod = notice.pod
    events.post(pod.namespace, pod.name, pod.uid, notice.reason, notice.message, notice.type)


def report_on_claim(events: EventRecorder[str], notice: ClaimNotice) -> None:
    """Post the notice as an Event on its claim, or on a pod that uses one."""
    events.post_on(notice.regarding, notice.reason, notice.message, notice.type)


def _failed(source: str, sentence: str) -> None:
    metrics.WATCH_FAILURES.labels(source).inc()
    log("watch-failed", level="warning", source=source, error=sentence)
