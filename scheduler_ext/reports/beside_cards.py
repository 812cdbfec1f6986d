"""Which resource beside cards keeps a waiting pod from a node that has the cards for it."""

from collections.abc import Iterator
from dataclasses import dataclass

from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.other_resources import PODS
from scheduler_ext.model.pod import Pod
from scheduler_ext.snapshot.host_room import CPU, host_lack
from scheduler_ext.snapshot.node_info import NodeInfo, without_pod
from scheduler_ext.snapshot.snapshot import Snapshot

MAX_LOOKS = 2_000  # at nodes, for all pods of one call
_WORDS = {CPU: "CPU", PODS: "room for another pod"}


@dataclass(frozen=True, slots=True)
class BesideCards:
    """A node that has the cards for a pod, and what the node lacks. Names alone: an amount would vary."""

    node: str
    lacks: str


class BesideCardsSearch:
    """Looks for one pod after another in one snapshot; pods alike are looked for once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._nodes = sorted(
            (node for node in snapshot.nodes.values() if node.cards and not node.closed),
            key=lambda node: node.name,
        )
        self._left = MAX_LOOKS
        self._known: dict[object, BesideCards | None] = {}

    def of(self, pod: Pod) -> BesideCards | None:
        """The first such node by name. None if there is none, or if the call has no looks left."""
        shape = pod.request, pod.cpu_milli, pod.others, pod.node_constraints
        if shape not in self._known:
            self._known[shape] = next(self._found(pod), None)
        return self._known[shape]

    def _found(self, pod: Pod) -> Iterator[BesideCards]:
        for node in self._nodes:
            if not self._left:
                return
            self._left -= 1
            lacks = host_lack(pod, node)
            if lacks and _has_cards(pod, without_pod(node, pod.uid)):
                words = sorted(_WORDS.get(resource, resource) for resource, _ in lacks)
                yield BesideCards(node.name, " and ".join(words))


def _has_cards(pod: Pod, node: NodeInfo) -> bool:
    if pod.request is None or node.node_object is None:
        return False
    admitted = pod.node_constraints.admit(node.name, node.node_object.node_labels)
    return admitted and not isinstance(fit(pod.request, node), Refusal)
