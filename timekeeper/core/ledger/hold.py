"""When a pod holds its cards: the definition that extender and ledger share.

A pod holds its cards from its binding until its phase is terminal and none of its GPU containers runs any
more: through restarts, back-off and a requested deletion. If the pod object is deleted before that (a force
delete), the pod still holds its cards for its grace period, because the kubelet may run it for that long.
"""

import datetime
from collections.abc import Mapping

from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.values import GPURequest

TERMINAL = ("Succeeded", "Failed")
_DEFAULT_GRACE_S = 30


def millis(timestamp: object) -> int | None:
    """Milliseconds since 1970 of a Kubernetes timestamp. None if it is absent, unreadable, or the 1970 of a
    StartError."""
    if not isinstance(timestamp, str):
        return None
    try:
        at = datetime.datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    if at.tzinfo is None or at.year < 2000:
        return None
    delta = at - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return delta // datetime.timedelta(milliseconds=1)


def started_ms(pod: Json, request: GPURequest) -> int | None:
    """The earliest start of a GPU container in the pod's status."""
    starts = [millis(state.get("startedAt")) for state in _states(pod, request)]
    return min((start for start in starts if start is not None), default=None)


def released_ms(pod: Json, request: GPURequest) -> int | None:
    """When the pod released its cards, by the kubelet's timestamps; None while it holds them.

    0: the pod is terminal and its GPU containers never started, so it never held anything.
    """
    status = mapping(pod.get("status"))
    if status.get("phase") not in TERMINAL or any(_running(state) for state in _current(pod, request)):
        return None
    ends = [millis(state.get("finishedAt")) for state in _states(pod, request)]
    return max((end for end in ends if end is not None), default=0)


def grace_ms(pod: Json, most_ms: int) -> int:
    """How long the kubelet may run the pod after its object was deleted, at most ``most_ms``."""
    seconds = mapping(pod.get("spec")).get("terminationGracePeriodSeconds", _DEFAULT_GRACE_S)
    whole = seconds if isinstance(seconds, int) and seconds >= 0 else _DEFAULT_GRACE_S
    return min(whole * 1000, most_ms)


def _statuses(pod: Json, request: GPURequest) -> list[Json]:
    gpu = {each.container for each in request.asks}
    status = mapping(pod.get("status"))
    listed = sequence(status.get("initContainerStatuses")) + sequence(status.get("containerStatuses"))
    return [each for each in listed if isinstance(each, Mapping) and each.get("name") in gpu]


def _current(pod: Json, request: GPURequest) -> list[Json]:
    return [mapping(each.get("state")) for each in _statuses(pod, request)]


def _running(state: Json) -> bool:
    return "running" in state


def _states(pod: Json, request: GPURequest) -> list[Json]:
    """Every running or terminated state, present and last, of the GPU containers."""
    return [
        mapping(mapping(each.get(when)).get(kind))
        for each in _statuses(pod, request)
        for when in ("state", "lastState")
        for kind in ("running", "terminated")
    ]
