"""Which policy places a pod: the pod's own, else its namespace's, else the cluster's."""

from collections.abc import Callable
from dataclasses import replace

from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import NamespaceStandings
from scheduler_ext.scoring.fragmentation import fragmentation
from scheduler_ext.scoring.fragmentation_model import FragmentationModel
from scheduler_ext.scoring.load import CardLoads, LoadByCard, LoadSource, load
from scheduler_ext.scoring.policy import BUILT, Policy
from scheduler_ext.scoring.typical_pods import BUILT_IN, differ_milli, learn
from scheduler_ext.snapshot.snapshot import Snapshot

MAX_KNOWN = 1_024  # policies `fragmentation`, one for each amount of CPU
CHANGED_MILLI = 50  # a smaller change of the typical pods is not worth recomputing all answers

NO_MEASUREMENTS = "no measurements of card load"


def for_fits(policy: Policy) -> Policy:
    """The policy for the question whether a pod fits, which has the same answer under every policy except for
    searches that are given up. A policy that changes with every measurement would invalidate all cached
    answers, so its per-node part is left out; a batch policy answers both questions for the price of one."""
    per_node = policy.per_node
    return policy if per_node is None or per_node.batch is not None else replace(policy, per_node=None)


class Policies:
    """``default``: the cluster's policy. ``measured``: the measurements for `load`; without any, `load` acts
    as `fragmentation`, and ``say`` is called once with the reason."""

    def __init__(
        self,
        default: str,
        standings: Callable[[], NamespaceStandings],
        measured: LoadSource,
        say: Callable[[str], None],
    ) -> None:
        self._default, self._standings, self._measured, self._say = default, standings, measured, say
        self.fragmentation_model = FragmentationModel(BUILT_IN)  # of the typical pods learned last
        self._figures: CardLoads | None = None
        self._said = False
        # by the pod's CPU: equal policies are one object, which is found by identity
        self._fragmentation: tuple[FragmentationModel, dict[int, Policy]] = (self.fragmentation_model, {})

    def __call__(self, pod: Pod) -> Policy:
        """The policy for this pod."""
        own = pod.request.policy if pod.request is not None else ""
        return self._by(own or self._of(pod.namespace), pod.cpu_milli)

    def for_cpu_only(self, namespace: str, cpu_milli: int) -> Policy:
        """The policy that keeps a pod without a GPU request from CPU that free GPUs need."""
        return self._by(self._of(namespace), cpu_milli)

    def _of(self, namespace: str) -> str:
        return self._standings().of(namespace).policy or self._default

    def _by(self, word: str, cpu_milli: int) -> Policy:
        if word in BUILT:
            return BUILT[word]
        figures = self._measured() if word == "load" else None
        if figures is not None:
            self._said = False
            return load(self._loads(figures))
        if word == "load" and not self._said:
            self._said = True
            self._say(NO_MEASUREMENTS)
        return self._fragmentation_for(cpu_milli)

    def _fragmentation_for(self, cpu_milli: int) -> Policy:
        model, known = self._fragmentation
        if model is not self.fragmentation_model or len(known) >= MAX_KNOWN:
            model, known = self._fragmentation = self.fragmentation_model, {}
        found = known.get(cpu_milli)
        if found is None:
            found = known[cpu_milli] = fragmentation(model, cpu_milli)
        return found

    def at(self, standings: NamespaceStandings) -> "Policies":
        """The policies of this moment, under these standings; nothing changes them."""
        figures = self._measured()
        fixed = Policies(self._default, lambda: standings, lambda: figures, lambda _why: None)
        fixed.fragmentation_model = self.fragmentation_model
        return fixed

    def learn(self, snapshot: Snapshot) -> bool:
        """Adopts the typical pods of the snapshot if they differ enough from the present ones. True if it
        did."""
        typical_pods = learn(snapshot)
        if differ_milli(typical_pods, self.fragmentation_model.typical_pods) < CHANGED_MILLI:
            return False
        self.fragmentation_model = FragmentationModel(typical_pods)
        return True

    def _loads(self, figures: LoadByCard) -> CardLoads:
        loads = self._figures
        if loads is None or loads.figures is not figures:
            loads = self._figures = CardLoads(figures)
        return loads
