"""Pods that hold cards past the time that they declared."""

from dataclasses import dataclass

from timekeeper.accounts.pods import LedgerPod


@dataclass(frozen=True, slots=True)
class Overtime:
    """A pod past its declared time."""

    pod: LedgerPod
    until_ms: int  # when its declared time was over
    may_end_ms: int  # when its grace is over, too: all that it reserved


def overtime_of(pod: LedgerPod, now_ms: int) -> Overtime | None:
    """None for a pod that reserves no declared time, has not begun, is within its time, or is over or
    leaving."""
    bound_ms = pod.hold.bound_ms
    if not pod.declared_ms or not pod.node or bound_ms is None or pod.ended_ms is not None:
        return None
    if pod.hold.deletion_ms is not None or now_ms < bound_ms + pod.declared_ms:
        return None
    return Overtime(pod, bound_ms + pod.declared_ms, bound_ms + pod.length_ms)
