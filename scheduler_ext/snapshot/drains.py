"""A drain: cards that are kept empty for a gang that waits, as pods leave them. Pure.

On each of its nodes an allocation of the state `drained` takes these cards, beside the pods that still hold
some of them. So nothing else is placed there. A pod that declares to end before the drain's expected start
may use them meanwhile: it does not delay the gang (EASY backfill, Lifka 1995, as in Slurm).
"""

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from scheduler_ext.model.pod import Pod
from scheduler_ext.snapshot.allocation import Allocation, without_request
from scheduler_ext.snapshot.node_info import NodeInfo, without_pods
from timekeeper.core.object_names import timestamp

DRAINED = "drained/"  # before the node's name: the UID of the allocation
LATE_MS = 10_000  # a pod that passes ends so long before the expected start, for the kubelet starts it later


@dataclass(frozen=True, slots=True)
class Drain:
    """The drain of one gang. ``starts_ms``: when the gang fits if pods end as they declare, 0: not known;
    ``until_ms``: when it ends at the latest; ``cards``: nodes, with the UUIDs of the cards that are kept
    there; ``comes``: of a gang for which nodes come, whether this one is such, None: none comes."""

    namespace: str
    key: str
    name: str
    starts_ms: int
    until_ms: int
    cards: tuple[tuple[str, tuple[str, ...]], ...]
    comes: Callable[[NodeInfo], bool] | None = None

    def is_of(self, pod: Pod) -> bool:
        """Whether its cards are kept for the pod's gang."""
        return pod.gang is not None and (pod.namespace, pod.gang.key) == (self.namespace, self.key)

    @property
    def text(self) -> str:
        """How long its cards are kept, for people."""
        about = f"until about {timestamp(self.starts_ms)}, " if self.starts_ms else ""
        return f"{about}at most until {timestamp(self.until_ms)}"


def drained(drain: Drain, node: str, cards: tuple[str, ...]) -> Allocation:
    """These cards of the node, kept empty."""
    empty = without_request(f"{DRAINED}{node}", f"{drain.namespace}/{drain.name}", "drained")
    return replace(empty, since_ms=drain.starts_ms, kept=cards)


def may_pass(pod: Pod, starts_ms: int, now_ms: int) -> bool:
    """Whether a pod that started now would end, as it declares, before the drain's expected start."""
    return 0 < pod.declared_ms <= starts_ms - LATE_MS - now_ms


def beside_drain(pod: Pod, node: NodeInfo, now_ms: int) -> NodeInfo:
    """The node as this pod finds it: without what is kept for a gang if the pod may pass; else the same
    object."""
    if not pod.declared_ms or pod.gang is not None:
        return node
    kept = node.allocations.get(f"{DRAINED}{node.name}")
    return node if kept is None or not may_pass(pod, kept.since_ms, now_ms) else without_drain(node)


def without_drain(node: NodeInfo) -> NodeInfo:
    """The node with nothing kept for a gang."""
    return without_pods(node, (f"{DRAINED}{node.name}",))
