"""Which policy places a pod: its own, else its namespace's, else the cluster's."""

from collections.abc import Callable
from dataclasses import replace

from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import NamespaceStandings
from scheduler_ext.scoring.fragmentation import fragmentation
from scheduler_ext.scoring.fragmentation_model import FragmentationModel
from scheduler_ext.scoring.load import CardLoads, LoadByCard, LoadSource, load
from scheduler_ext.scoring.policy import BUILT, Policy
from scheduler_ext.scoring.typical_pods import BUILT_IN, TypicalPods, differ_milli, learn
from scheduler_ext.snapshot.snapshot import Snapshot

CHANGED_MILLI = 50  # so much of the mix must be another for all answers to be worked out anew

NO_FIGURES = "there are no measured figures of the cards"


def for_fits(policy: Policy) -> Policy:
    """By which to ask whether a pod fits, and no more: that is the same by every policy, but for searches
    that are given up. One that is made anew with each set of figures would have every node asked again for
    it; one that weighs many nodes at once answers both at the price of one."""
    per_node = policy.per_node
    return policy if per_node is None or per_node.batch is not None else replace(policy, per_node=None)


class Policies:
    """``default``: the cluster's. ``standings``: knows that of each namespace. ``measured``: what `load` goes
    by; while it has nothing, `load` acts as `fragmentation`, and ``say`` hears that once each time."""

    def __init__(
        self,
        default: str,
        standings: Callable[[], NamespaceStandings],
        measured: LoadSource,
        say: Callable[[str], None],
    ) -> None:
        self._default, self._standings, self._measured, self._say = default, standings, measured, say
        self._mix, self._fragmentation_model = BUILT_IN, FragmentationModel(BUILT_IN)
        self._figures: CardLoads | None = None
        self._said = False

    def __call__(self, pod: Pod) -> Policy:
        """The policy by which this pod is placed."""
        own = pod.request.policy if pod.request is not None else ""
        return self._by(own or self._of(pod.namespace), pod.cpu_milli)

    def for_cpu_only(self, namespace: str, cpu_milli: int) -> Policy:
        """The policy by which a pod that asks for so much CPU and for no GPU is kept from stranding GPUs."""
        return self._by(self._of(namespace), cpu_milli)

    def _of(self, namespace: str) -> str:
        return self._standings().of(namespace).policy or self._default

    def _by(self, word: str, cpu_milli: int) -> Policy:
        if word in BUILT:
            return BUILT[word]
        figures = self._measured() if word == "load" else None
        if figures is not None:
            self._said = False
            return load(self._kept(figures))
        if word == "load" and not self._said:
            self._said = True
            self._say(NO_FIGURES)
        return fragmentation(self._fragmentation_model, cpu_milli)

    @property
    def typical_pods(self) -> TypicalPods:
        """What `fragmentation` takes typical pods to be."""
        return self._mix

    @property
    def fragmentation_model(self) -> FragmentationModel:
        """By which `fragmentation` counts what is of use to these."""
        return self._fragmentation_model

    def learn(self, snapshot: Snapshot) -> bool:
        """Take the mix of the pods known now, if it is really another than so far; True where it was."""
        typical_pods = learn(snapshot)
        if differ_milli(typical_pods, self._mix) < CHANGED_MILLI:
            return False
        self._mix, self._fragmentation_model = typical_pods, FragmentationModel(typical_pods)
        return True

    def _kept(self, figures: LoadByCard) -> CardLoads:
        loads = self._figures
        if loads is None or loads.figures is not figures:
            loads = self._figures = CardLoads(figures)
        return loads
