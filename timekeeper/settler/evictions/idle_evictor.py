"""Warns pods that use no card of theirs, and lets other pods take their cards or evicts them, if the budget
says so. Runs in the settler's thread for evictions.

What is to be done follows from the agents' reports and the pod's annotations. A PodDisruptionBudget is always
respected: no pod is deleted instead of evicted.
"""

from collections.abc import Callable, Iterable

from timekeeper import metrics
from timekeeper.accounts.card_use.evictions import EvictionHistory
from timekeeper.accounts.card_use.idleness import IdlePod, IdleStep, IdleTerms, next_step
from timekeeper.accounts.pods import LedgerPod
from timekeeper.core import names
from timekeeper.core.decisions import (
    EVICTED,
    MESSAGE,
    RECLAIMABLE,
    WARNED,
    Decision,
)
from timekeeper.core.kube.eviction import disruption
from timekeeper.runtime.api_server import Answered
from timekeeper.runtime.log import log
from timekeeper.settler.evictions import calls
from timekeeper.settler.evictions.calls import EvictorContext
from timekeeper.settler.evictions.evictor import may_be_evicted
from timekeeper.store import fencing, node_usage
from timekeeper.store.engine.engine import Connection

LOOK_S = 10.0
TARGET = "BursarIdle"
WRITTEN_MS = 30_000  # the watch shows what was written within this time

# step -> the Event's reason, and the kind of the decision
REASONS = {
    "warn": ("IdleWarning", WARNED),
    "reclaim": ("IdleReclaimable", RECLAIMABLE),
    "evict": ("IdleEviction", EVICTED),
}


class IdleEvictor:
    """Used by one thread for as long as the epoch lasts. ``read``: the pods that are idle now, from a
    connection."""

    def __init__(
        self,
        context: EvictorContext,
        read: Callable[[Connection, int], Iterable[IdlePod]] = node_usage.idle,
    ) -> None:
        self._context, self._read = context, read
        self._history = EvictionHistory(context.steady())
        self._written_ms: dict[str, int] = {}  # UID -> when its annotations were last written

    def run(self) -> float:
        """One step; returns the seconds until the next. Raises what `step` raises."""
        self.step()
        return LOOK_S

    def step(self) -> None:
        """Do what is due about each pod; at most one eviction.

        Raises EpochOverError if another settler has started, UnavailableError or ConflictError if the
        database cannot be read.
        """
        now_ms = self._context.clock()
        if self._context.view.statements() is None:
            return
        with self._context.store.reading() as connection:
            fencing.confirm(connection, self._context.epoch)
            found = {each.uid: each for each in self._read(connection, now_ms)}
        metrics.IDLE_PODS.set(len(found))
        history = self._context.view.history()
        in_force_ms = max(now_ms, history.newest_ms())
        for pod in self._context.view.pods():
            is_noted = pod.idle_until_ms is not None or pod.is_reclaimable
            if (pod.uid in found or is_noted) and not self._was_just_written(pod.uid):
                self._follow(pod, found.get(pod.uid), history.idle_terms(pod.namespace, in_force_ms), now_ms)

    def _follow(self, pod: LedgerPod, idle: IdlePod | None, terms: IdleTerms | None, now_ms: int) -> None:
        if not may_be_evicted(pod, pod.node) or pod.node == "":
            return
        period = idle.period if idle is not None and idle.node == pod.node else None
        step = next_step(terms, period, pod.idle_until_ms, pod.is_reclaimable, now_ms)
        if step == "spare":
            self._annotate(pod, {names.IDLE_UNTIL: None, names.RECLAIMABLE: None})
        elif terms is not None and idle is not None and step:
            self._act(step, pod, idle, terms, now_ms)

    def _act(self, step: IdleStep, pod: LedgerPod, idle: IdlePod, terms: IdleTerms, now_ms: int) -> None:
        until_ms = pod.idle_until_ms or 0
        if step == "warn":
            until_ms = -(-(now_ms + terms.grace_ms) // 1000) * 1000
            is_done = self._annotate(
                pod, {names.IDLE_UNTIL: calls.timestamp(until_ms), names.RECLAIMABLE: None}
            )
        elif step == "reclaim":
            is_done = self._annotate(pod, {names.RECLAIMABLE: "idle"})
        else:
            is_done = self._evict(pod)
        if is_done:
            self._tell(step, pod, idle, terms, _text(step, idle, terms, until_ms))

    def _evict(self, pod: LedgerPod) -> bool:
        """Whether the pod was evicted."""
        at_ms = self._context.steady()
        if self._history.is_limited(at_ms) or self._history.is_paused(pod.uid, at_ms):
            return False
        result, error = calls.result_of(calls.evict(self._context.api, pod.namespace, pod.name, pod.uid))
        self._history = self._history.after(pod.uid, pod.node, result, self._context.steady())
        metrics.IDLE_EVICTIONS.labels(result).inc()
        log(
            "idle-eviction",
            result=result,
            namespace=pod.namespace,
            pod=pod.name,
            uid=pod.uid,
            node=pod.node,
            error=error or None,
        )
        if result != "evicted":
            return False
        message = "The pod did not use its cards."
        condition = disruption(True, TARGET, message, self._context.clock())
        calls.write_condition(self._context.api, pod, condition)
        return True

    def _annotate(self, pod: LedgerPod, annotations: dict[str, str | None]) -> bool:
        reply = calls.annotate(self._context.api, pod, annotations)
        if isinstance(reply, Answered) and reply.status < 300:
            self._written_ms[pod.uid] = self._context.steady()
            return True
        log("notice-not-written", level="warning", namespace=pod.namespace, pod=pod.name, error=reply.message)
        return False

    def _was_just_written(self, uid: str) -> bool:
        at_ms = self._context.steady()
        self._written_ms = {key: each for key, each in self._written_ms.items() if at_ms - each < WRITTEN_MS}
        return uid in self._written_ms

    def _tell(self, step: IdleStep, pod: LedgerPod, idle: IdlePod, terms: IdleTerms, text: str) -> None:
        reason, kind = REASONS[step]
        self._context.events.post(pod.namespace, pod.name, pod.uid, reason, text, "Warning")
        figures: dict[str, int | str] = {
            MESSAGE: text,
            "node": pod.node,
            "sinceMs": idle.period.since_ms,
            "afterMs": terms.after_ms,
            "graceMs": terms.grace_ms,
        }
        self._context.record(
            Decision(
                self._context.clock(),
                kind,
                reason,
                pod.namespace,
                figures,
                owner=pod.owner,
                name=pod.name,
                uid=pod.uid,
            )
        )


def _text(step: IdleStep, idle: IdlePod, terms: IdleTerms, until_ms: int) -> str:
    since = calls.timestamp(idle.period.since_ms)
    unused = f"The pod has not used its cards since {since}."
    if step == "reclaim":
        return f"{unused} Waiting pods of namespaces in budget may take them from now on."
    if step == "evict":
        return f"Evicted by Bursar: {unused}"
    then = (
        "it is evicted" if terms.action == "evict" else "waiting pods of namespaces in budget may take them"
    )
    return f"{unused} If it does not until {calls.timestamp(until_ms)}, {then}."
