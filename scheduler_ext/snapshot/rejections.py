"""Nodes whose kubelets refuse new pods for reasons of devices, as with a broken driver.

Each such pod fails within a second and leaves its cards free, so the fullest node would get every pod. After
a few of them other nodes come first for a while, each time for longer, until a pod starts there. Nothing is
refused. Pods of one namespace demote the node for that namespace alone, because they may be the cause. So do,
in a list of their own, pods that the node could not align (Topology Manager), of however many namespaces.

A rejection has the time of the pod's Binding: by the API server's clock, and the kubelet answers at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from scheduler_ext.model.pod import OF_ALIGNMENT, Pod

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
    """What is known of one node. ``unaligned``: rejections of `OF_ALIGNMENT`, which never demote it for
    `ALL`; ``demotions``: by namespace, or for `ALL`; never changed in place."""

    recent: tuple[Rejection, ...] = ()
    unaligned: tuple[Rejection, ...] = ()
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
        new = Rejection(pod.uid, pod.namespace, at_ms)
        if pod.rejected.startswith(OF_ALIGNMENT):
            return _not_aligned(known, new, pod.rejected)
        return _rejected(known, new, pod.rejected)
    has_started = pod.started_ms and not pod.terminal
    if not has_started or at_ms <= _newest_ms(known.recent):
        return known
    its = tuple(rejection for rejection in known.unaligned if rejection.namespace == pod.namespace)
    scopes = (ALL,) if at_ms <= _newest_ms(its) else (ALL, pod.namespace)
    demotions = {scope: demotion for scope, demotion in known.demotions.items() if scope not in scopes}
    recent = tuple(rejection for rejection in known.recent if rejection.namespace != pod.namespace)
    unaligned = known.unaligned
    if pod.namespace in scopes:
        unaligned = tuple(rejection for rejection in unaligned if rejection not in its)
    return NodeRejections(recent, unaligned, demotions)


def _rejected(known: NodeRejections, new: Rejection, why: str) -> NodeRejections:
    if any(rejection.uid == new.uid for rejection in known.recent):
        return known
    recent = _with(known.recent, new)
    scope = new.namespace if len({rejection.namespace for rejection in recent}) == 1 else ALL
    return _demoted(replace(known, recent=recent), scope, recent, why)


def _not_aligned(known: NodeRejections, new: Rejection, why: str) -> NodeRejections:
    if any(rejection.uid == new.uid for rejection in known.unaligned):
        return known
    unaligned = _with(known.unaligned, new)
    its = tuple(rejection for rejection in unaligned if rejection.namespace == new.namespace)
    return _demoted(replace(known, unaligned=unaligned), new.namespace, its, why)


def _with(rejections: tuple[Rejection, ...], new: Rejection) -> tuple[Rejection, ...]:
    newest_ms = _newest_ms((*rejections, new))
    return tuple(of for of in (*rejections, new) if newest_ms - of.at_ms < WINDOW_MS)[-MAX_RECENT:]


def _newest_ms(rejections: tuple[Rejection, ...]) -> int:
    return max((rejection.at_ms for rejection in rejections), default=0)


def _demoted(
    known: NodeRejections, scope: str, rejections: tuple[Rejection, ...], why: str
) -> NodeRejections:
    """For the scope, if these are enough."""
    before = known.demotions.get(scope)
    if (before is None and len(rejections) < FEW) or (before is not None and not before.is_over):
        return known
    times = before.times + 1 if before is not None else 1
    until_ms = _newest_ms(rejections) + min(MOST_MS, FIRST_MS << min(times - 1, 10))
    return replace(known, demotions={**known.demotions, scope: Demotion(until_ms, times, why)})


def at(known: NodeRejections, now_ms: int) -> NodeRejections:
    """Without what has passed by now."""
    recent, unaligned = (
        tuple(rejection for rejection in rejections if now_ms - rejection.at_ms < WINDOW_MS)
        for rejections in (known.recent, known.unaligned)
    )
    demotions = {
        scope: replace(demotion, is_over=demotion.until_ms <= now_ms)
        for scope, demotion in known.demotions.items()
        if now_ms < demotion.until_ms + MOST_MS
    }
    now = NodeRejections(recent, unaligned, demotions)
    return known if now == known else now
