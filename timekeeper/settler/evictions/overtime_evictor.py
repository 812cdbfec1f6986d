"""Warns pods that hold cards past their declared time, and ends them if the budget says so. Runs in the
settler's thread for evictions.

The kubelet ends such a pod itself. What is left are pods whose kubelet does not, or is not heard. A pod has
its declared time and its grace from its binding; its eviction begins only after both. A PodDisruptionBudget
is respected for ``pdbGrace``; then the pod is deleted.
"""

from timekeeper import metrics
from timekeeper.accounts.card_use.evictions import EvictionHistory
from timekeeper.accounts.held.order import Overtime, overtime_of
from timekeeper.core.decisions import EVICTED, MESSAGE, WARNED, Decision
from timekeeper.core.kube.eviction import disruption
from timekeeper.runtime.log import log
from timekeeper.settler.evictions import calls
from timekeeper.settler.evictions.calls import EvictorContext
from timekeeper.settler.evictions.evictor import may_be_evicted
from timekeeper.store import fencing

LOOK_S = 5.0
TARGET = "BursarOvertime"
WARNING, EVICTION = "OvertimeWarning", "OvertimeEviction"


class OvertimeEvictor:
    """Used by one thread for as long as the epoch lasts. A warning is given once in an epoch; Events and
    decisions that repeat are counted, not added."""

    def __init__(self, context: EvictorContext) -> None:
        self._context = context
        self._history = EvictionHistory(context.steady())
        self._warned: set[str] = set()

    def run(self) -> float:
        """One step; returns the seconds until the next. Raises what `step` raises."""
        self.step()
        return LOOK_S

    def step(self) -> None:
        """Do what is due about each pod past its declared time.

        Raises EpochOverError if another settler has started, UnavailableError or ConflictError if the
        database cannot be read.
        """
        now_ms = self._context.clock()
        if self._context.view.statements() is None:
            return
        late = [each for pod in self._context.view.pods() if (each := overtime_of(pod, now_ms)) is not None]
        metrics.OVERTIME_PODS.set(len(late))
        self._warned &= {each.pod.uid for each in late}
        if not late:
            return
        with self._context.store.reading() as connection:
            fencing.confirm(connection, self._context.epoch)
        history = self._context.view.history()
        in_force_ms = max(now_ms, history.newest_ms())
        for each in late:
            ends = history.ends_overtime(each.pod.namespace, in_force_ms)
            if each.pod.uid not in self._warned:
                self._warned.add(each.pod.uid)
                self._tell(WARNING, WARNED, each, _warning(each, ends))
            if ends and each.may_end_ms <= now_ms:
                pdb_until_ms = each.may_end_ms + history.settings(in_force_ms).pdb_grace_ms
                self._end(each, deletes=now_ms >= pdb_until_ms)

    def _end(self, late: Overtime, deletes: bool) -> None:
        pod, at_ms = late.pod, self._context.steady()
        if not may_be_evicted(pod, pod.node) or self._history.is_paused(pod.uid, at_ms):
            return
        if self._history.is_limited(at_ms):
            return
        message = "The pod held its cards for longer than it had declared."
        target = disruption(True, TARGET, message, self._context.clock())
        result, error = calls.result_of(calls.evict(self._context.api, pod.namespace, pod.name, pod.uid))
        if result == "evicted":
            calls.write_condition(self._context.api, pod, target)
        elif result == "protected" and deletes:
            result, error = calls.delete(self._context.api, pod, target)
        self._history = self._history.after(pod.uid, pod.node, result, self._context.steady())
        metrics.OVERTIME_EVICTIONS.labels(result).inc()
        log(
            "overtime-eviction",
            result=result,
            namespace=pod.namespace,
            pod=pod.name,
            uid=pod.uid,
            node=pod.node,
            error=error or None,
        )
        if result == "evicted":
            self._tell(EVICTION, EVICTED, late, f"Evicted by Bursar: {_past(late)}.")

    def _tell(self, reason: str, kind: str, late: Overtime, text: str) -> None:
        pod = late.pod
        self._context.events.post(pod.namespace, pod.name, pod.uid, reason, text, "Warning")
        figures: dict[str, int | str] = {
            MESSAGE: text,
            "node": pod.node,
            "declaredMs": pod.declared_ms,
            "graceMs": pod.hold.grace_ms,
            "declaredUntilMs": late.until_ms,
        }
        where = {"owner": pod.owner, "name": pod.name, "uid": pod.uid}
        self._context.record(Decision(self._context.clock(), kind, reason, pod.namespace, figures, **where))


def _past(late: Overtime) -> str:
    return (
        f"the pod declared {late.pod.declared_ms // 1000} s (activeDeadlineSeconds), which were over at"
        f" {calls.timestamp(late.until_ms)}"
    )


def _warning(late: Overtime, is_ended: bool) -> str:
    text = _past(late)
    then = (
        f"it is evicted after {calls.timestamp(late.may_end_ms)}"
        if is_ended
        else "what it uses after its grace period is not reserved"
    )
    return f"{text[0].upper()}{text[1:]}; {then}."
