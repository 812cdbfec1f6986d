"""Members of a gang that must be apart from each other, as kube-scheduler will demand of each when it binds
them: by required anti-affinity, host ports, or spread over the values of a label. Pure.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from scheduler_ext.gangs.domains import label_value
from scheduler_ext.model.labels import Packed, by_key
from scheduler_ext.model.pod import Pod
from scheduler_ext.snapshot.node_info import NodeInfo
from scheduler_ext.snapshot.snapshot import Snapshot
from timekeeper.core.kube.node_constraints import HOSTNAME, NO_CONSTRAINTS, ApartRule, Toleration
from timekeeper.core.kube.selectors import Selector

EVERY_TAINT = (Toleration("", "", "", exists=True),)


class Apart:
    """Where the members of one plan are. ``there``: those that run."""

    def __init__(self, snapshot: Snapshot, there: Iterable[Pod]) -> None:
        self._snapshot, self._there = snapshot, [(pod, pod.node) for pod in there]
        self._counts: dict[ApartRule, Counter[str | None]] = {}  # members that the rule is about, by value
        self._owners: dict[ApartRule, Counter[str | None]] = {}  # those that have it, and suffer none
        self._least: dict[tuple[ApartRule, object], int] = {}  # of the values that a pod accepts now
        self._values: dict[tuple[str, object], frozenset[str | None]] = {}  # of the nodes that a pod accepts
        self._where: dict[str, dict[str, str | None]] = {}  # by label: the values of nodes
        for pod, node in self._there:
            self._own(pod, node)

    def copy(self) -> "Apart":
        """Another plan that begins with the same members."""
        other = Apart(self._snapshot, ())
        other._there, other._values, other._where = list(self._there), self._values, self._where
        other._owners = {rule: Counter(counts) for rule, counts in self._owners.items()}
        return other

    def may_take(self, pod: Pod, node: str) -> bool:
        """Whether the node may have this pod beside the members so far, by its rules and by theirs."""
        for rule, owners in self._owners.items():
            value = self._value(node, rule.label)
            if value is not None and owners[value] and _is_about(rule, pod):
                return False
        return all(self._may(pod, node, rule) for rule in pod.apart)

    def add(self, pod: Pod, node: str) -> None:
        """One member more is there."""
        self._there.append((pod, node))
        self._least.clear()
        self._own(pod, node)
        for rule, counts in self._counts.items():
            if _is_about(rule, pod):
                counts[self._value(node, rule.label)] += 1

    def _own(self, pod: Pod, node: str) -> None:
        for rule in pod.apart:
            if not rule.skew:
                self._owners.setdefault(rule, Counter())[self._value(node, rule.label)] += 1

    def _may(self, pod: Pod, node: str, rule: ApartRule) -> bool:
        value, counts = self._value(node, rule.label), self._counted(rule)
        if not rule.skew:
            return value is None or not counts[value]
        more = counts[value] + _is_about(rule, pod) - self._fewest(pod, rule)
        return value is not None and more <= rule.skew

    def _counted(self, rule: ApartRule) -> Counter[str | None]:
        if rule not in self._counts:
            found = (node for pod, node in self._there if _is_about(rule, pod))
            self._counts[rule] = Counter(self._value(node, rule.label) for node in found)
        return self._counts[rule]

    def _fewest(self, pod: Pod, rule: ApartRule) -> int:
        key = rule, pod.node_constraints
        if key not in self._least:
            counts, values = self._counted(rule), self._values_for(pod, rule)
            is_few = len(values) < rule.least_values
            self._least[key] = 0 if is_few else min((counts[value] for value in values), default=0)
        return self._least[key]

    def _values_for(self, pod: Pod, rule: ApartRule) -> frozenset[str | None]:
        """Of the nodes that count for the rule (``nodeInclusionPolicies`` of kube-scheduler)."""
        accepts = pod.node_constraints if rule.by_affinity else NO_CONSTRAINTS
        tolerations = pod.node_constraints.tolerations if rule.by_taints else EVERY_TAINT
        key = rule.label, replace(accepts, tolerations=tolerations)
        if key not in self._values:
            found = (
                _value_of(node, rule.label)
                for node in self._snapshot.nodes.values()
                if (there := node.node_object) is not None and key[1].admit(node.name, there.node_labels)
            )
            self._values[key] = frozenset(each for each in found if each is not None)
        return self._values[key]

    def _value(self, node: str, label: str) -> str | None:
        known = self._where.setdefault(label, {})
        if node not in known:
            known[node] = _value_of(self._snapshot.node(node), label)
        return known[node]


def _is_about(rule: ApartRule, pod: Pod) -> bool:
    if rule.selector is None:
        return rule in pod.apart
    return _matches(rule.selector, pod.labels)


@lru_cache(maxsize=4096)
def _matches(selector: Selector, labels: Packed) -> bool:
    return selector.matches(by_key(labels))


def _value_of(node: NodeInfo, label: str) -> str | None:
    return node.name if label == HOSTNAME else label_value(node, label)
