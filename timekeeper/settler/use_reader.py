"""Reads from Prometheus how busy the cards of metered pods are. Runs in a thread of the settler, which waits
for nothing here; no charge goes by it, and no pod is touched for it."""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from threading import Event

import orjson

from timekeeper import metrics
from timekeeper.accounts.card_use.dcgm import QUERY, MeasuredPods, Pod, PodOnNode, measured_pods
from timekeeper.accounts.card_use.figures import MeasuredSession, UsageSample, UsageTotals, cards_of
from timekeeper.accounts.card_use.idleness import IdlePod
from timekeeper.accounts.card_use.prometheus_answers import PrometheusQueries, read_series
from timekeeper.accounts.pods import charged_pod, charged_pods
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.decisions import MESSAGE, WARNED, Decision, Record
from timekeeper.core.object_names import timestamp
from timekeeper.core.texts import per_mille
from timekeeper.log import log, log_exception
from timekeeper.settler.settler import Settler
from timekeeper.settler.state.tick_view import TickView
from timekeeper.store import node_usage
from timekeeper.store.engine.engine import ConflictError, Store, UnavailableError
from timekeeper.store.fencing import EpochOverError, FencedStore
from timekeeper.store.node_usage import MEASURED_EVERY_MS, NODE, Hour, PrometheusState

_NOTHING_HELD_S = 5.0  # the use of the first pod is known soon
_TOGETHER = 500  # figures in one transaction: the settler waits for no longer one


class UseReader:
    """Used by one thread for as long as the epoch lasts. A pod has one decision in an idle time."""

    def __init__(
        self,
        prometheus: PrometheusQueries,
        store: Store,
        settler: Settler,
        record: Record,
        now_ms: Callable[[], int],
    ) -> None:
        self._prometheus, self._store, self._settler = prometheus, store, settler
        self._record, self._now_ms = record, now_ms
        self._fenced = FencedStore(store, settler.epoch)
        self._told: set[str] = set()
        self._last_error: str | None = None
        self._heard_ms = 0

    def keep(self, stop: Event) -> None:
        """Read once a minute, or more often while no pod holds cards, until ``stop``, or until the epoch is
        over. No other error ends it."""
        pause_s = 0.0
        while not stop.wait(pause_s):
            pause_s = MEASURED_EVERY_MS / 1000
            try:
                if self._settler.view.statements is None:
                    pause_s = 1.0
                elif not self.step():
                    pause_s = _NOTHING_HELD_S
            except EpochOverError:
                break
            except (UnavailableError, ConflictError) as error:
                log("card-use-not-written", level="warning", error=error)
            except Exception as error:
                log_exception("card-use-not-written", error)
        self._prometheus.close()

    def step(self) -> int:
        """Read once, write what was read, and record the pods that have been idle for long. Returns how many
        pods hold cards. Raises UnavailableError, ConflictError, EpochOverError."""
        view = self._settler.view
        holders, sessions = self._holding(view)
        now_ms = self._now_ms()
        found, error = self._measured(holders, now_ms)
        self._heard_ms = now_ms if found is not None else self._heard_ms
        findings = (error,) if found is None else found.findings
        measured = 0 if found is None else len(found.pods)
        state = PrometheusState(now_ms, self._heard_ms, measured, findings)
        sample = None if found is None else UsageSample(0, found.pods, found.cards)
        settings = view.history.settings(now_ms)
        with self._fenced.writing() as connection:
            used = node_usage.record_measured(connection, state, sample, sessions, settings.idle_below_milli)
        for some in _portions(used):
            with self._fenced.writing() as connection:
                node_usage.add(connection, some, NODE)
        with self._store.reading() as connection:
            idle = node_usage.idle(connection, now_ms)
        if self._settler.only_meter:
            metrics.IDLE_PODS.set(len(idle))
        measured_here = {*sessions, *(holder.uid for holder in holders.values() if holder.by_claims)}
        self._tell(view, [pod for pod in idle if pod.uid in measured_here], settings, now_ms)
        return len(holders)

    def _holding(self, view: TickView) -> tuple[dict[Pod, PodOnNode], dict[str, MeasuredSession]]:
        """The pods that hold cards, and the sessions of those that are metered."""
        holders: dict[Pod, PodOnNode] = {}
        sessions: dict[str, MeasuredSession] = {}
        for pod in charged_pods(view.cluster.pods):
            uid = pod.uid
            session = view.session(uid) if pod.is_charged else None
            if session is None:
                continue
            cards = cards_of(session.devices, session.requested_milli).most
            holders[pod.namespace, pod.name] = PodOnNode(uid, pod.node, cards, pod.is_metered)
            if pod.is_metered:
                since_ms = session.bound_ms if session.started_ms is None else session.started_ms
                sessions[uid] = MeasuredSession(
                    uid, since_ms, session.ended_ms, session.devices, session.requested_milli
                )
        for uid in view.claim_users:
            user = view.cluster.user(uid)
            if user is not None:
                is_metered = view.history.is_metered(user.namespace, self._now_ms())
                by_claims = PodOnNode(uid, user.node, 0, False, by_claims=is_metered)
                holders.setdefault((user.namespace, user.name), by_claims)
        return holders, sessions

    def _measured(self, holders: Mapping[Pod, PodOnNode], now_ms: int) -> tuple[MeasuredPods | None, str]:
        """What it answers; or None, and why there is no usable answer."""
        found: MeasuredPods | None = None
        try:
            series = read_series(orjson.loads(self._prometheus.ask("/api/v1/query", query=QUERY)))
            found = measured_pods(series, holders, now_ms) if series else None
            error = "" if series else "Prometheus has no series DCGM_FI_DEV_GPU_UTIL of the last 2 minutes"
        except ValueError as failure:
            self._prometheus.close()
            error = str(failure)
        if error and error != self._last_error:
            log("card-use-failed", level="warning", error=error)
        elif error != self._last_error:
            log("card-use-read")
        self._last_error = error
        metrics.PROMETHEUS_READS.labels("failed" if error else "heard").inc()
        return found, error

    def _tell(self, view: TickView, idle: Iterable[IdlePod], settings: BudgetSettings, now_ms: int) -> None:
        after_ms, below = settings.idle_after_ms, per_mille(settings.idle_below_milli)
        due = {each.uid: each for each in idle if each.period.seen_ms - each.period.since_ms >= after_ms}
        for uid in sorted(due.keys() - self._told):
            each, pod = due[uid], charged_pod(view.cluster.pods, uid)
            since = timestamp(each.period.since_ms)
            text = (
                f"It has used less than {below} of what it holds since {since}. It is metered, so it is left"
                " alone"
            )
            where = {"owner": pod.owner if pod else "", "name": each.name, "uid": uid}
            self._record(
                Decision(
                    at_ms=now_ms,
                    kind=WARNED,
                    reason="PodIdle",
                    namespace=each.namespace,
                    figures={MESSAGE: text},
                    **where,
                )
            )
        self._told = set(due)


def _portions(used: Mapping[Hour, UsageTotals]) -> Iterable[dict[Hour, UsageTotals]]:
    left = iter(sorted(used.items(), key=lambda each: each[0]))
    while some := dict(islice(left, _TOGETHER)):
        yield some
