"""How many more pods of a size would fit now, placed one after another as the policy places them.

Found by `fit`, which is what filter and bind ask, so nothing is promised that they would refuse; what
kube-scheduler itself counts of CPU and of the resources asked is respected too. Taints, affinities and other
resources are not looked at. Nodes whose cards are alike are counted once, and what is counted is remembered;
still the work of one call is bounded: what was left over is told, and counted in the next call.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from scheduler_ext.fit.fit import fit, shape_for
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.pod import Pod
from scheduler_ext.scoring.policy import Policy
from scheduler_ext.snapshot.free import FreeShape
from scheduler_ext.snapshot.node_info import NodeInfo, allocation_of, with_allocation
from timekeeper.core.values import GPURequest

MOST_FITS = 100  # of one call, each about 0.1 ms; a node that was begun is finished
MOST_ON_A_NODE = 250  # a kubelet takes 110 pods unless it is told otherwise
MOST_QUESTIONS = 32
MOST_SHAPES = 8_192


@dataclass(frozen=True, slots=True)
class Headroom:
    """So many more pods fit, on so many nodes. ``uncounted``: nodes that the call's work did not reach."""

    pods: int
    nodes: int
    uncounted: int


class Counting:
    """A bounded memory of counts, by request, policy and the rooms of a node's cards."""

    def __init__(self, policy: Callable[[Pod], Policy]) -> None:
        self._policy = policy
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[GPURequest, Policy], dict[FreeShape, int]] = OrderedDict()

    def count(self, pod: Pod, nodes: Iterable[NodeInfo], most_fits: int = MOST_FITS) -> Headroom:
        """How many more pods like this one fit on these nodes."""
        request = pod.request
        if request is None:
            return Headroom(0, 0, 0)
        with self._lock:
            policy = self._policy(pod)
            walk = _Walk(pod, request, policy, self._memory(request, policy), most_fits)
            counts = [walk.on(node) for node in nodes]
        known = [count for count in counts if count is not None]
        return Headroom(sum(known), sum(1 for count in known if count), len(counts) - len(known))

    def _memory(self, request: GPURequest, policy: Policy) -> dict[FreeShape, int]:
        key = (request, policy)
        counts = self._known.pop(key, {})
        if len(counts) > MOST_SHAPES:
            counts = {}
        self._known[key] = counts
        if len(self._known) > MOST_QUESTIONS:
            self._known.popitem(last=False)
        return counts


class _Walk:
    """One call's work on one request."""

    def __init__(
        self, pod: Pod, request: GPURequest, policy: Policy, counts: dict[FreeShape, int], fits: int
    ) -> None:
        self.pod, self.request, self.policy = pod, request, policy
        self.counts, self.fits = counts, fits

    def on(self, node: NodeInfo) -> int | None:
        """How many more fit on the node; None where there was no time to tell."""
        by_cards = self._by_cards(node)
        if not by_cards or node.node_object is None:
            return by_cards
        left = dict(node.left)
        limits = [left.get(resource, 0) // amount for resource, amount in self.pod.amounts if amount]
        if self.pod.cpu_milli:
            limits.append(node.cpu_left // self.pod.cpu_milli)
        return max(0, min([by_cards, *limits]))

    def _by_cards(self, node: NodeInfo) -> int | None:
        """Puts one pod after another on the node until none fits any more, or the node has become like one
        that was counted before."""
        path: list[FreeShape] = []
        rest = 0
        while True:
            shape = shape_for(self.request, node)
            if isinstance(shape, Refusal):
                break
            known = self.counts.get(shape)
            if known is not None:
                rest = known
                break
            if len(path) == MOST_ON_A_NODE:
                self.counts[path[0]] = MOST_ON_A_NODE
                return MOST_ON_A_NODE
            if self.fits <= 0 and not path:
                return None
            self.fits -= 1
            path.append(shape)
            placement = fit(self.request, node, self.policy)
            if isinstance(placement, Refusal):
                path.pop()
                self.counts[shape] = 0
                break
            allocation = replace(
                allocation_of(self.pod, placement, "assumed"), uid=f"{self.pod.uid}-{len(path)}"
            )
            node = with_allocation(node, allocation)
        for more, shape in enumerate(reversed(path), start=1):
            self.counts[shape] = rest + more
        return min(rest + len(path), MOST_ON_A_NODE)
