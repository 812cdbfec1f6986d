"""Nodes whose kubelets refuse new pods for reasons of devices, as with a broken driver.

Each such pod fails within a second and leaves its cards free, so the fullest node would get every pod. After
a few of them other nodes come first for a while, each time for longer, until a pod starts there. Nothing is
refused. Pods of one namespace demote the node for that namespace alone, because they may be the cause.

A rejection has the time of the pod's Binding: by the API server's clock, and the kubelet answers at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from scheduler_ext.model.pod import Pod

FEW = 3  # rejections in `WINDOW_MS` that demote a node; of one that was demoted before, the next one does
WINDOW_MS = 600_000
FIRST_MS, MOST_MS = 120_000, 3_600_000  # how long; twice as long each time, and forgotten after the longest
MAX_RECENT = 50
ALL = ""  # namespaces


class Rejection(NamedTuple):
    """Of one pod, by its node's kubelet."""

    uid: str
    namespace: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Demotion:
    """Other nodes come first until then. ``times``: how often in succession. ``why``: the kubelet's words.
    ``is_over``: it only counts for the length of the next one."""

    until_ms: int
    times: int
    why: str
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class NodeRejections:
    """What is known of one node. ``demotions``: by namespace, or for `ALL`; never changed in place."""

    recent: tuple[Rejection, ...] = ()
    demotions: Mapping[str, Demotion] = field(default_factory=dict)

    def comes_last(self, namespace: str) -> bool:
        """Whether other nodes come first for pods of this namespace."""
        return any(not self.demotions[scope].is_over for scope in (ALL, namespace) if scope in self.demotions)


NOTHING_REJECTED = NodeRejections()


def with_pod(known: NodeRejections, pod: Pod, now_ms: int) -> NodeRejections:
    """After this version of a pod of the node: its kubelet has refused it, or started it, or neither. A pod
    that ran before it was refused says nothing: its kubelet was restarted."""
    at_ms = pod.hold.bound_ms or pod.started_ms
    if pod.rejected and not pod.hold.witnessed_ms and now_ms - at_ms < WINDOW_MS:
        return _rejected(known, Rejection(pod.uid, pod.namespace, at_ms), pod.rejected)
    has_started = pod.started_ms and not pod.terminal
    if not has_started or at_ms <= max((rejection.at_ms for rejection in known.recent), default=0):
        return known
    demotions = {
        scope: demotion for scope, demotion in known.demotions.items() if scope not in (ALL, pod.namespace)
    }
    recent = tuple(rejection for rejection in known.recent if rejection.namespace != pod.namespace)
    return NodeRejections(recent, demotions)


def _rejected(known: NodeRejections, new: Rejection, why: str) -> NodeRejections:
    if any(rejection.uid == new.uid for rejection in known.recent):
        return known
    newest_ms = max(rejection.at_ms for rejection in (*known.recent, new))
    recent = [rejection for rejection in (*known.recent, new) if newest_ms - rejection.at_ms < WINDOW_MS][
        -MAX_RECENT:
    ]
    scope = new.namespace if len({rejection.namespace for rejection in recent}) == 1 else ALL
    before = known.demotions.get(scope)
    known = replace(known, recent=tuple(recent))
    if (before is None and len(recent) < FEW) or (before is not None and not before.is_over):
        return known
    times = before.times + 1 if before is not None else 1
    until_ms = newest_ms + min(MOST_MS, FIRST_MS << min(times - 1, 10))
    return replace(known, demotions={**known.demotions, scope: Demotion(until_ms, times, why)})


def at(known: NodeRejections, now_ms: int) -> NodeRejections:
    """Without what has passed by now."""
    recent = tuple(rejection for rejection in known.recent if now_ms - rejection.at_ms < WINDOW_MS)
    demotions = {
        scope: replace(demotion, is_over=demotion.until_ms <= now_ms)
        for scope, demotion in known.demotions.items()
        if now_ms < demotion.until_ms + MOST_MS
    }
    now = NodeRejections(recent, demotions)
    return known if now == known else now
