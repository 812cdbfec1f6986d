"""When a pod holds its cards: the one definition that extender and ledger share.

A pod holds its cards from its binding until its phase is terminal and none of its GPU containers runs any
more: through restarts, back-off and a deletion that is only asked for. A pod object that vanishes before that
(a force delete) goes on holding them for its grace period, for so long the kubelet may go on running it.
"""

import datetime
from collections.abc import Mapping
from typing import Any

from timekeeper.core.request.request import mapping, sequence
from timekeeper.core.values import GPURequest

Json = Mapping[str, Any]

TERMINAL = ("Succeeded", "Failed")
_DEFAULT_GRACE_S = 30


def millis(timestamp: object) -> int | None:
    """Milliseconds since 1970 of a Kubernetes timestamp; None where it is absent, unreadable or the 1970 of a
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
    """The earliest start of a GPU container that the pod's status still tells."""
    starts = [millis(state.get("startedAt")) for state in _states(pod, request)]
    return min((start for start in starts if start is not None), default=None)


def released_ms(pod: Json, request: GPURequest) -> int | None:
    """When the pod let go of its cards, by the kubelet's own timestamps; None while it holds them.

    A terminal pod whose GPU containers never started let go when it was bound, and holds nothing: 0.
    """
    status = mapping(pod.get("status"))
    if status.get("phase") not in TERMINAL or any(_running(state) for state in _current(pod, request)):
        return None
    ends = [millis(state.get("finishedAt")) for state in _states(pod, request)]
    return max((end for end in ends if end is not None), default=0)


def grace_ms(pod: Json, most_ms: int) -> int:
    """How long the kubelet may go on running the pod after its object vanished, at most ``most_ms``."""
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
