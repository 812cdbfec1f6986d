"""How many more pods of a size would fit now, placed one after another by the policy.

It uses `fit`, like filter and bind, so it promises nothing they would refuse. It also respects
kube-scheduler's sums of CPU and of the requested resources; it ignores taints, affinities and other
resources. Nodes with equal cards are counted once, and counts are cached. Each call's work is bounded: nodes
left over are reported, and counted by the next call.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from scheduler_ext.fit.fit import fit, shape_for
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.pod import Pod
from scheduler_ext.scoring.policy import Policy
from scheduler_ext.snapshot.allocation import allocation_of
from scheduler_ext.snapshot.free import FreeShape
from scheduler_ext.snapshot.node_info import NodeInfo, with_allocation
from timekeeper.core.values import GPURequest

MAX_FITS = 100  # fits per call, each about 0.1 ms; a started node is finished
MAX_ON_A_NODE = 250  # a kubelet's default limit of pods
MAX_QUESTIONS = 32
MAX_SHAPES = 8_192


@dataclass(frozen=True, slots=True)
class Headroom:
    """This many more pods fit, on this many nodes. ``uncounted``: nodes that the call did not reach."""

    pods: int
    nodes: int
    uncounted: int


class Counting:
    """A bounded cache of counts, by request, policy and free capacity of a node's cards."""

    def __init__(self, policy: Callable[[Pod], Policy]) -> None:
        self._policy = policy
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[GPURequest, Policy], dict[FreeShape, int]] = OrderedDict()

    def count(self, pod: Pod, nodes: Iterable[NodeInfo], most_fits: int = MAX_FITS) -> Headroom:
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
        if len(counts) > MAX_SHAPES:
            counts = {}
        self._known[key] = counts
        if len(self._known) > MAX_QUESTIONS:
            self._known.popitem(last=False)
        return counts


class _Walk:
    """One call's work for one request."""

    def __init__(
        self, pod: Pod, request: GPURequest, policy: Policy, counts: dict[FreeShape, int], fits: int
    ) -> None:
        self.pod, self.request, self.policy = pod, request, policy
        self.counts, self.fits = counts, fits

    def on(self, node: NodeInfo) -> int | None:
        """How many more fit on the node; None if time ran out."""
        by_cards = self._by_cards(node)
        if not by_cards or node.node_object is None:
            return by_cards
        left = dict(node.left)
        limits = [left.get(resource, 0) // amount for resource, amount in self.pod.amounts if amount]
        if self.pod.cpu_milli:
            limits.append(node.cpu_left // self.pod.cpu_milli)
        return max(0, min([by_cards, *limits]))

    def _by_cards(self, node: NodeInfo) -> int | None:
        """Places pods on the node one after another until none fits, or until its state equals one that was
        counted before."""
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
            if len(path) == MAX_ON_A_NODE:
                self.counts[path[0]] = MAX_ON_A_NODE
                return MAX_ON_A_NODE
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
        return min(rest + len(path), MAX_ON_A_NODE)
