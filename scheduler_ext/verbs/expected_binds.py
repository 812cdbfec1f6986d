"""Where just-prioritized pods will probably be bound: a hint for the ranks of the next pods.

kube-scheduler continues with the next pod while the previous bind is in flight, so for some milliseconds
neither the watch nor an assumption shows it. Without the hint the next pod goes to the same best node, where
its bind finds the card taken, and the pod waits for its back-off: with 360 pods for the last 200 free cards
of 5,000 nodes 135 binds failed where each began four pods late, and with the hint none. It is only a hint:
filter asks it for the order in which it cuts its answer to ``--most-offered`` nodes, never for a fit, so none
is missed; bind ignores it, so it holds no card.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.pod import Pod
from scheduler_ext.scoring.policy import Policy
from scheduler_ext.snapshot.allocation import allocation_of
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.node_info import NodeInfo, with_allocation
from scheduler_ext.snapshot.snapshot import Snapshot

LASTS_S = 2.0  # kube-scheduler's timeout for an answer
MOST = 64  # expected binds at once
MAX_OF_A_NODE = 16  # only the first ones count: each may have to be fitted anew per node


@dataclass(frozen=True, slots=True)
class _ExpectedBind:
    pod: Pod
    policy: Policy
    node: str
    until_s: float


class _Filled(NamedTuple):
    """A node before the expected binds, and after each of them."""

    intents: tuple[_ExpectedBind, ...]
    nodes: tuple[NodeInfo, ...]


class ExpectedBinds:
    """The pods on their way; safe to use from any thread."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._by_uid: OrderedDict[str, _ExpectedBind] = OrderedDict()
        self._filled: dict[str, _Filled] = {}
        # the last answer, behind the nodes and the binds that it is of
        self._last: tuple[Map[NodeInfo] | None, dict[str, list[_ExpectedBind]], Map[NodeInfo]] = (
            None,
            {},
            Map(),
        )

    def note(self, pod: Pod, policy: Policy, node: str) -> None:
        """This node was ranked best for the pod."""
        with self._lock:
            self._by_uid.pop(pod.uid, None)
            self._by_uid[pod.uid] = _ExpectedBind(pod, policy, node, self._now_s() + LASTS_S)
            if len(self._by_uid) > MOST:
                self._by_uid.popitem(last=False)

    def drop(self, uid: str) -> None:
        """The pod's bind has ended."""
        with self._lock:
            self._by_uid.pop(uid, None)

    def over(self, snapshot: Snapshot, uid: str) -> Map[NodeInfo]:
        """The snapshot's nodes as they will be once the other expected pods are bound."""
        with self._lock:
            by_node = self._live(snapshot, uid)
            known, binds, answer = self._last
            if known is snapshot.nodes and binds == by_node:
                return answer
            self._filled = {name: at for name, at in self._filled.items() if name in by_node}
            nodes = snapshot.nodes
            for name, intents in by_node.items():
                node = snapshot.nodes.get(name)
                if node is not None:
                    nodes = nodes.set(name, self._fill(node, tuple(intents)))
            self._last = snapshot.nodes, by_node, nodes
            return nodes

    def _live(self, snapshot: Snapshot, uid: str) -> dict[str, list[_ExpectedBind]]:
        now_s = self._now_s()
        for at in [
            at for at, each in self._by_uid.items() if each.until_s <= now_s or _settled(at, snapshot)
        ]:
            del self._by_uid[at]
        by_node: dict[str, list[_ExpectedBind]] = {}
        for at, each in self._by_uid.items():
            if at != uid:
                by_node.setdefault(each.node, []).append(each)
        return {name: intents[:MAX_OF_A_NODE] for name, intents in by_node.items()}

    def _fill(self, node: NodeInfo, intents: tuple[_ExpectedBind, ...]) -> NodeInfo:
        nodes = [node, *self._known(node, intents)]
        for each in intents[len(nodes) - 1 :]:
            nodes.append(_with(nodes[-1], each))
        self._filled[node.name] = _Filled(intents, tuple(nodes))
        return nodes[-1]

    def _known(self, node: NodeInfo, intents: tuple[_ExpectedBind, ...]) -> tuple[NodeInfo, ...]:
        """The nodes after the first of these binds, if they were found before. Usually the node had one more
        expected bind then, and that bind was made since."""
        filled = self._filled.get(node.name)
        for at, each in enumerate(filled.nodes if filled is not None else ()):
            if filled is not None and _leaves_as_much(each, node):
                pairs = zip(filled.intents[at:], intents, strict=False)
                same = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], pairs))
                return filled.nodes[at + 1 : at + 1 + same]
        return ()


def _settled(uid: str, snapshot: Snapshot) -> bool:
    """The pod has cards by now, or is gone."""
    return uid in snapshot.allocated_on or uid not in snapshot.pods


def _with(node: NodeInfo, intent: _ExpectedBind) -> NodeInfo:
    request = intent.pod.request
    placement = None if request is None else fit(request, node, intent.policy)
    if placement is None or isinstance(placement, Refusal):
        return node
    return with_allocation(node, allocation_of(intent.pod, placement, "assumed"))


def _leaves_as_much(one: NodeInfo, other: NodeInfo) -> bool:
    """True if a pod's fit and its score are the same on both, whatever the states of the pods there, and
    whichever of equal tiles they have. Only a request for Xe links may differ, whose tiles must be those of a
    link; a hint may be wrong there."""
    return (
        one.node_object is other.node_object
        and one.free_by_card == other.free_by_card
        and (one.closed, one.unnamed, one.cpu_left) == (other.closed, other.unnamed, other.cpu_left)
    )
