"""PodDisruptionBudgets: which of the pods chosen to leave would break a promise given to their owner.

Matched as the Eviction API does it (policy/v1): a budget without a selector matches nothing, one with an
empty selector every pod of its namespace. Counted as kube-scheduler does it when it compares nodes
(``filterPodsWithPDBViolation``): each victim uses up one of the disruptions that its budgets still allow.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from scheduler_ext.labels import Selector, by_key, read_selector
from scheduler_ext.pods import Pod
from timekeeper.core.request import Json, mapping


@dataclass(frozen=True, slots=True)
class Disruption:
    """One PodDisruptionBudget. ``allowed``: how many more of its pods may be disrupted now; ``under_way``:
    the names of pods whose eviction it has granted already."""

    namespace: str
    name: str
    selector: Selector | None
    allowed: int
    under_way: frozenset[str]

    def covers(self, pod: Pod) -> bool:
        """True where the pod's leaving counts against this budget."""
        if self.selector is None or pod.namespace != self.namespace or pod.name in self.under_way:
            return False
        return self.selector.matches(by_key(pod.labels))


@dataclass(frozen=True, slots=True)
class Disruptions:
    """Every budget at one moment, by namespace."""

    by_namespace: Mapping[str, tuple[Disruption, ...]]

    def over(self, pod: Pod) -> tuple[Disruption, ...]:
        """The budgets that cover the pod."""
        return tuple(each for each in self.by_namespace.get(pod.namespace, ()) if each.covers(pod))

    def violations(self, leaving: Iterable[Pod], before: Iterable[Pod] = ()) -> int:
        """How many of these pods would leave against a budget, if those of ``before`` have left first."""
        spent: dict[Disruption, int] = {}
        for pod in before:
            self._spend(pod, spent)
        return sum(self._spend(pod, spent) for pod in leaving)

    def _spend(self, pod: Pod, spent: dict[Disruption, int]) -> bool:
        violated = False
        for each in self.over(pod):
            spent[each] = spent.get(each, 0) + 1
            violated = violated or spent[each] > each.allowed
        return violated


NONE = Disruptions({})


def read_budget(raw: Json) -> Disruption:
    """The value of a PodDisruptionBudget's JSON. Never raises on what an API server can hold."""
    metadata, spec, status = (mapping(raw.get(key)) for key in ("metadata", "spec", "status"))
    allowed = status.get("disruptionsAllowed")
    return Disruption(
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        selector=read_selector(spec.get("selector")),
        allowed=allowed if isinstance(allowed, int) else 0,
        under_way=frozenset(map(str, mapping(status.get("disruptedPods")))),
    )
