"""Bursar in the placement experiment: the very code that answers filter and prioritize, on values of its own.

kube-scheduler's part is here: CPU and memory of the node, the highest rank wins, and a node that is the only
one is not ranked. Nodes are named by their place in the experiment's order, for ties are broken by name.
"""

from collections import Counter
from dataclasses import replace

from msgspec import structs

from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.node import OURS, Node, read_node
from scheduler_ext.model.pod import Pod, read_pod
from scheduler_ext.scoring.fragmentation import FRAGMENTATION, fragmentation
from scheduler_ext.scoring.fragmentation_model import FragmentationModel
from scheduler_ext.scoring.policy import BUILT, Policy
from scheduler_ext.scoring.rank import ranked
from scheduler_ext.scoring.typical_pods import TypicalPod, typical_pods_of
from scheduler_ext.snapshot.allocation import allocation_of
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.node_info import NodeInfo, node_info_of, with_allocation
from scheduler_ext.verbs.fit_cache import FitCache, FitKey, fit_key
from tests.bench.experiment import WHOLE_MILLI, Experiment, NodeRow, PodRow
from tests.bench.references import Cards, Seat
from tests.scheduler_ext.worlds import with_cpu
from timekeeper.core.values import Ask, Card, ContainerAsk, GPURequest

POLICIES = ("fragmentation", "binpack", "spread", "random", "load")
ACTS_AS = {"load": "fragmentation"}  # while nothing is measured, and the trace measures nothing
CARD_MIB = 16 * WHOLE_MILLI  # so that a thousandth of a card is a whole number of MiB
CONTAINER = "main"


def facts_of(name: str, row: NodeRow) -> Node:
    """What the extender would have read of this node."""
    cards = tuple(Card(f"GPU-{name}-{at}", at, row.model, CARD_MIB) for at in range(row.gpus))
    bare = read_node({"metadata": {"name": name}, "status": {"allocatable": {"cpu": f"{row.cpu_milli}m"}}})
    return replace(bare, cards=cards, family=OURS)


def request_of(row: PodRow) -> GPURequest | None:
    """What the pod asks of cards, None where it asks for none."""
    if not row.num_gpu:
        return None
    ask = Ask(row.num_gpu, row.gpu_milli, 0)
    return GPURequest(dialect=OURS, asks=(ContainerAsk(CONTAINER, False, ask),), models=row.models)


def pod_of(row: PodRow, request: GPURequest) -> Pod:
    """What the extender would have read of this pod."""
    limits = {"bursar.dev/gpu-count": "1", "cpu": f"{row.cpu_milli}m"}
    container = {"name": CONTAINER, "resources": {"limits": limits, "requests": limits}}
    bare = read_pod({"metadata": {"name": "p", "namespace": "trace"}, "spec": {"containers": [container]}})
    if bare is None or bare.cpu_milli != row.cpu_milli:
        raise AssertionError("the extender reads something else of the pod")
    return structs.replace(bare, request=request, amounts=())


class Served:
    """The cluster under one of Bursar's policies."""

    def __init__(self, experiment: Experiment, word: str) -> None:
        shapes = (
            TypicalPod(row.cpu_milli, row.num_gpu, row.gpu_milli, models=row.models)
            for row in experiment.listed
        )
        self._word = ACTS_AS.get(word, word)
        self._fragmentation_model = FragmentationModel(typical_pods_of(Counter(shapes)))
        self._names = [f"n{at:06}" for at in range(len(experiment.nodes))]
        node_object = map(facts_of, self._names, experiment.nodes)
        self._nodes: Map[NodeInfo] = Map(
            {each.name: node_info_of(each.name, each, {}) for each in node_object}
        )
        self._at = {name: at for at, name in enumerate(self._names)}
        self._cpu_milli = [row.cpu_milli for row in experiment.nodes]
        self._memory_mib = [row.memory_mib for row in experiment.nodes]
        self._fit_cache = FitCache()
        self._asked: dict[PodRow, tuple[Pod | None, FitKey]] = {}
        self._arrived = 0

    def place(self, row: PodRow) -> Seat | None:
        """Where it found a place, None where it found none."""
        self._arrived += 1
        if row not in self._asked:
            self._asked[row] = self._question(row)
        pod, asked = self._asked[row]
        offered = self._offered(row)
        fits = self._fit_cache.partition(asked, self._nodes, offered).fits
        if not fits:
            return None
        name = fits[0] if len(fits) == 1 else self._best(asked, fits)
        return self._at[name], self._take(name, row, pod, asked.policy)

    def _offered(self, row: PodRow) -> list[str]:
        """The nodes on which kube-scheduler itself finds enough."""
        there = zip(self._names, self._cpu_milli, self._memory_mib, strict=True)
        return [name for name, cpu, memory in there if cpu >= row.cpu_milli and memory >= row.memory_mib]

    def left(self) -> list[tuple[int, tuple[int, ...]]]:
        """CPU and cards that are left of each node, in the experiment's order; the cards by what is left."""
        found = []
        for name in self._names:
            node = self._nodes.get(name)
            rooms = node.free_by_card if node is not None else ()
            cards = sorted(room.share_milli for room in rooms if room is not None)
            found.append((node.cpu_left if node is not None else 0, tuple(cards)))
        return found

    def _question(self, row: PodRow) -> tuple[Pod | None, FitKey]:
        request = request_of(row)
        policy = self._policy(row)
        if request is None:
            return None, FitKey(None, policy, ())
        pod = pod_of(row, request)
        return pod, fit_key(request, policy, pod.amounts)

    def _policy(self, row: PodRow) -> Policy:
        if self._word == FRAGMENTATION.name:
            return fragmentation(self._fragmentation_model, row.cpu_milli)
        return BUILT[self._word]

    def _best(self, asked: FitKey, names: list[str]) -> str:
        scores, by_name = self._fit_cache.scored(asked, self._nodes, names)
        ranks = ranked(asked.policy, f"uid-{self._arrived}", scores, by_name)
        return names[int(ranks.argmax())]

    def _take(self, name: str, row: PodRow, pod: Pod | None, policy: Policy) -> Cards:
        node = self._nodes.get(name)
        if node is None:
            raise AssertionError("a node was chosen that does not exist")
        self._cpu_milli[self._at[name]] -= row.cpu_milli
        self._memory_mib[self._at[name]] -= row.memory_mib
        if pod is None or pod.request is None:
            self._nodes = self._nodes.set(name, with_cpu(node, row.cpu_milli))
            return ()
        placement = fit(pod.request, node, policy)
        if isinstance(placement, Refusal):
            raise AssertionError("the pod does not fit where prioritize sent it")
        allocation = allocation_of(structs.replace(pod, uid=f"uid-{self._arrived}"), placement, "bound")
        self._nodes = self._nodes.set(name, with_allocation(node, allocation))
        return tuple(card.index for _, slices in placement.containers for card in slices)
