"""PodDisruptionBudgets: which evictions would violate them.

Matched like the Eviction API (policy/v1): a budget without a selector matches nothing, one with an empty
selector every pod of its namespace. Counted like kube-scheduler when it compares nodes
(``filterPodsWithPDBViolation``): each victim uses up one of the disruptions that its budgets still allow.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from scheduler_ext.model.labels import by_key
from scheduler_ext.model.pod import Pod
from timekeeper.core.json_values import Json, is_small, mapping
from timekeeper.core.kube.selectors import Selector, read_selector

_MOST_BYTES = 4 * 1024  # of a selector that is read, as JSON; the Eviction API knows of all
MAX_KNOWN = 65_536  # pods whose budgets are remembered


@dataclass(frozen=True, slots=True)
class PDB:
    """One PodDisruptionBudget."""

    namespace: str
    name: str
    selector: Selector | None
    allowed: int  # disruptions that it still allows
    under_way: frozenset[str]  # names of pods whose eviction it has granted

    def covers(self, pod: Pod, labels: Mapping[str, str]) -> bool:
        """True if evicting the pod, which has these labels, counts against this budget."""
        if self.selector is None or pod.namespace != self.namespace or pod.name in self.under_way:
            return False
        return self.selector.matches(labels)


@dataclass(frozen=True, slots=True)
class PDBs:
    """All budgets. The budgets of a pod are computed once: a search asks for the same few pods many times,
    and a namespace may have any number of budgets."""

    by_namespace: Mapping[str, tuple[PDB, ...]]
    _known: dict[str, tuple[Pod, tuple[PDB, ...]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def over(self, pod: Pod) -> tuple[PDB, ...]:
        """The budgets that cover the pod; none for one that is being deleted, which is disrupted already."""
        theirs = self.by_namespace.get(pod.namespace)
        if not theirs or pod.deleting:
            return ()
        known = self._known.get(pod.uid)
        if known is not None and known[0] is pod:
            return known[1]
        labels = by_key(pod.labels)
        covering = tuple(each for each in theirs if each.covers(pod, labels))
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[pod.uid] = pod, covering
        return covering

    def violations(self, leaving: Iterable[Pod], before: Iterable[Pod] = ()) -> int:
        """How many of the pods would violate a budget if evicted after those of ``before``."""
        spent: dict[str, int] = {}
        for pod in before:
            self._spend(pod, spent)
        return sum(self._spend(pod, spent) for pod in leaving)

    def _spend(self, pod: Pod, spent: dict[str, int]) -> bool:
        violated = False
        for each in self.over(pod):
            budget = f"{each.namespace}/{each.name}"
            spent[budget] = spent.get(budget, 0) + 1
            violated = violated or spent[budget] > each.allowed
        return violated


NONE = PDBs({})


def read_pdb(raw: Json) -> PDB:
    """From a PodDisruptionBudget's JSON. Never raises on what an API server can hold."""
    metadata, spec, status = (mapping(raw.get(key)) for key in ("metadata", "spec", "status"))
    allowed, selector = status.get("disruptionsAllowed"), spec.get("selector")
    return PDB(
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        selector=read_selector(selector) if is_small(selector, _MOST_BYTES) else None,
        allowed=allowed if isinstance(allowed, int) else 0,
        under_way=frozenset(map(str, mapping(status.get("disruptedPods")))),
    )
