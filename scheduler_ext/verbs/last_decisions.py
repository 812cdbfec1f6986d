"""The last decision about each waiting pod, and why. For people; no verb reads it."""

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from scheduler_ext.fit.refusal import KINDS, Refusal

MAX_PODS = 5_000


@dataclass(frozen=True, slots=True)
class CountedRefusal:
    """A refusal, and the number of nodes that it is about."""

    refusal: Refusal
    nodes: int


_NEVER = ("no-cards", "unknown-node")


@dataclass(frozen=True, slots=True)
class LastDecision:
    """The last answer for a pod. ``offered``: the number of nodes in kube-scheduler's last call, after its
    own checks. ``reasons``: as `summed` orders them. ``bind_error``: the error of the last bind."""

    offered: int
    reasons: tuple[CountedRefusal, ...]
    bind_error: str = ""


class LastDecisions:
    """A bounded memory by pod UID; the pod with the oldest decision is dropped first. ``changed``: called
    with the UID of a pod that waits for other reasons than before."""

    def __init__(self, changed: Callable[[str], None] = lambda _uid: None) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._last: OrderedDict[str, LastDecision] = OrderedDict()
        self._refused = Counter[str](dict.fromkeys(KINDS, 0))

    def refused(self, uid: str, offered: int, whys: Iterable[Mapping[str, Refusal]]) -> None:
        """Every one of the offered nodes refused the pod; ``whys``: node -> reason."""
        reasons = summed(whys)
        with self._lock:
            for each in reasons:
                self._refused[each.refusal.kind] += each.nodes
            was = self._last.get(uid)
            self._keep(uid, LastDecision(offered, reasons, was.bind_error if was else ""))
        if was is None or _said(was.reasons) != _said(reasons):
            self._changed(uid)

    def bind_failed(self, uid: str, error: str) -> None:
        """A node was found for the pod, but the bind failed."""
        with self._lock:
            was = self._last.get(uid) or LastDecision(0, ())
            self._keep(uid, replace(was, bind_error=error))
        if was.bind_error != error:
            self._changed(uid)

    def bound(self, uid: str) -> None:
        """The pod no longer waits."""
        if self._last:
            with self._lock:
                self._last.pop(uid, None)

    def of(self, uid: str) -> LastDecision | None:
        """The last decision about the pod; None if it was never refused, or too long ago."""
        return self._last.get(uid)

    def nodes_refused(self) -> Mapping[str, int]:
        """How often a node refused a pod that fit nowhere, by kind of reason."""
        with self._lock:
            return dict(self._refused)

    def _keep(self, uid: str, decision: LastDecision) -> None:
        self._last[uid] = decision
        self._last.move_to_end(uid)
        if len(self._last) > MAX_PODS:
            self._last.popitem(last=False)


def _said(reasons: tuple[CountedRefusal, ...]) -> set[Refusal]:
    """The reasons, whatever the number of nodes."""
    return {each.refusal for each in reasons}


def summed(whys: Iterable[Mapping[str, Refusal]]) -> tuple[CountedRefusal, ...]:
    """The reasons, that of most nodes first; last those of nodes that nothing could make fit.

    Thousands of nodes share a few objects, so these are counted by identity: the hash of a refusal is that of
    its sentence.
    """
    counts: Counter[Refusal] = Counter()
    for nodes in whys:
        identities = list(map(id, nodes.values()))
        refusals = dict(zip(identities, nodes.values(), strict=True))
        for identity, number in Counter(identities).items():
            counts[refusals[identity]] += number
    ranked = sorted(counts.most_common(), key=lambda count: count[0].kind in _NEVER)
    return tuple(CountedRefusal(refusal, number) for refusal, number in ranked)
