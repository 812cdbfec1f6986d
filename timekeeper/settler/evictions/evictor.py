"""Evicts a pod and says why; and the settler's thread for evictions, which lasts as long as its epoch."""

from collections import Counter
from collections.abc import Callable, Sequence
from threading import Event

from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.decisions import MESSAGE, Decision
from timekeeper.core.kube.eviction import EvictionResult, disruption
from timekeeper.edge.events import EventType
from timekeeper.log import log, log_exception
from timekeeper.settler.evictions import calls, disruptions, reasons
from timekeeper.settler.evictions.calls import EvictorContext
from timekeeper.settler.evictions.reasons import Reason, Said
from timekeeper.settler.vetoes import is_veto, noted
from timekeeper.store.engine.engine import ConflictError, UnavailableError
from timekeeper.store.fencing import EpochOverError

LEAVING: tuple[EvictionResult, ...] = ("evicted", "deleted", "unclear")
GONE: tuple[EvictionResult, ...] = ("evicted", "deleted", "gone")
AWAY_S = 30.0  # if the database is unreachable, or after an unexpected error

# one decision about pods that must leave; returns the seconds until the next one
Step = Callable[[], float]


def evict(context: EvictorContext, pod: LedgerPod, reason: Reason) -> EvictionResult:
    """Evict the pod, or delete it where the reason says so, and say so: metric, log line, and once it leaves
    an Event and a decision."""
    result, error = _attempted(context, pod, reason)
    _note(context, reason, pod, result, error)
    if result in ("evicted", "deleted"):
        tell(context, pod, reason.evicted)
    return result


def note_veto(context: EvictorContext, pod: LedgerPod, result: EvictionResult, error: str) -> None:
    """Remember and say on the pod that its eviction is refused, or that it is not."""
    if result in ("protected", "refused") and is_veto(error):
        context.vetoes[pod.uid] = noted(context.vetoes.get(pod.uid), error, context.clock())
        warn(context, pod, reasons.VETOED, f"The eviction of this pod is refused: {error}")
    else:
        context.vetoes.pop(pod.uid, None)


def _note(
    context: EvictorContext, reason: Reason, pod: LedgerPod, result: EvictionResult, error: str
) -> None:
    note_veto(context, pod, result, error)
    reason.attempts.labels(result).inc()
    log(
        reason.event,
        result=result,
        namespace=pod.namespace,
        pod=pod.name,
        uid=pod.uid,
        **reason.fields,
        error=error or None,
    )


def evict_together(
    context: EvictorContext, leaving: Sequence[tuple[LedgerPod, Reason]]
) -> tuple[tuple[LedgerPod, EvictionResult], ...]:
    """Evict pods that leave together: all of them, or none if one may not be evicted. Returns which were
    tried, with the results."""
    leaving = _naming_gangs(leaving)
    refusal = refused(context, leaving) if len(leaving) > 1 else None
    if refusal is not None:
        (pod, reason), result, error = refusal
        _note(context, reason, pod, result, error)
        return ((pod, result),)
    tried: list[tuple[LedgerPod, EvictionResult]] = []
    for pod, reason in leaving:
        result = evict(context, pod, reason)
        tried.append((pod, result))
        if result not in GONE and not any(each in LEAVING for _, each in tried):
            break
    return tuple(tried)


def _naming_gangs(leaving: Sequence[tuple[LedgerPod, Reason]]) -> list[tuple[LedgerPod, Reason]]:
    """The reason of a pod names its gang if other pods of the gang leave with it."""
    members = Counter(pod.gang.key for pod, _ in leaving if pod.gang is not None)
    return [
        (pod, reasons.of_gang(reason, pod.gang.name, members[pod.gang.key]))
        if pod.gang is not None and members[pod.gang.key] > 1
        else (pod, reason)
        for pod, reason in leaving
    ]


def refused(
    context: EvictorContext, leaving: Sequence[tuple[LedgerPod, Reason]]
) -> tuple[tuple[LedgerPod, Reason], EvictionResult, str] | None:
    """The first that may not be evicted, by trials without effect; None if all may. An eviction alone is
    allowed by a PodDisruptionBudget that does not allow all of them."""
    asking = [each for each in leaving if each[1].deletes != "always"]
    for each in asking:
        result, error = calls.result_of(calls.evict(context.api, each[0], dry_run=True))
        is_overruled = result == "protected" and each[1].deletes == "protected"
        if result not in GONE and not is_overruled:
            return each, "refused" if result == "unclear" else result, error
    asked = [each for each in asking if each[1].deletes == "never"]
    over = disruptions.over_budget(context.api, [pod for pod, _ in asked])
    if over is None:
        return None
    uid, result, error = over
    return next(each for each in asked if each[0].uid == uid), result, error


def tell(context: EvictorContext, pod: LedgerPod, said: Said, event_type: EventType = "Warning") -> None:
    """Post the Event and record the decision."""
    context.events.post(pod.namespace, pod.name, pod.uid, said.reason, said.text, event_type)
    where = {"owner": pod.owner, "name": pod.name, "uid": pod.uid, "budget": said.budget}
    figures = {MESSAGE: said.text, **said.figures}
    context.record(
        Decision(
            at_ms=context.clock(),
            kind=said.kind,
            reason=said.reason,
            namespace=pod.namespace,
            figures=figures,
            **where,
        )
    )


def warn(context: EvictorContext, pod: LedgerPod, reason: str, text: str) -> None:
    """Post an Event on the pod."""
    context.events.post(pod.namespace, pod.name, pod.uid, reason, text, "Warning")


def _attempted(context: EvictorContext, pod: LedgerPod, reason: Reason) -> tuple[EvictionResult, str]:
    """The result, and the API server's message unless it accepted."""
    api, target = context.api, reason.condition and disruption(True, *reason.condition, context.clock())
    grace_s = reason.shortened_grace_s(pod)
    if target and reason.deletes == "always":
        result, error = calls.delete(api, pod, target)
        return "deleted" if result == "evicted" else result, error
    result, error = calls.result_of(calls.evict(api, pod, grace_s=grace_s))
    if target and result == "evicted":
        calls.write_condition(api, pod, target)  # a pod that has gone already needs none
    elif target and result == "protected" and reason.deletes == "protected":
        return calls.delete(api, pod, target, grace_s)
    return result, error


def keep_evicting(steps: Sequence[Step], stop: Event) -> None:
    """Run the steps in turn, each after its own pause, until ``stop``, or until the epoch is over. No other
    error ends it: only the settler evicts."""
    left_s = [0.0] * len(steps)
    while not stop.wait(pause_s := min(left_s)):
        for place, step in enumerate(steps):
            left_s[place] -= pause_s
            if left_s[place] > 0:
                continue
            try:
                left_s[place] = step()
            except EpochOverError as error:
                log("evictor-ends", level="warning", reason="another settler has started", error=error)
                return
            except (UnavailableError, ConflictError) as error:
                log("eviction-check-failed", level="error", error=error)
                left_s[place] = AWAY_S
            except Exception as error:
                log_exception("eviction-check-failed", error)
                left_s[place] = AWAY_S
