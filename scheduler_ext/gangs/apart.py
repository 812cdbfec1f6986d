"""Members of a gang that must be apart from each other, as kube-scheduler will demand of each when it binds
them: by required anti-affinity, host ports, or spread over the values of a label. Pure.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from scheduler_ext.gangs.domains import label_value
from scheduler_ext.model.pod import Pod
from scheduler_ext.snapshot.node_info import NodeInfo
from scheduler_ext.snapshot.snapshot import Snapshot
from timekeeper.core.kube.node_constraints import HOSTNAME, Toleration

EVERY_TAINT = (Toleration("", "", "", exists=True),)


class Apart:
    """Where the members of one plan are. ``there``: the nodes of those that run, each as often as it has
    one."""

    def __init__(self, snapshot: Snapshot, there: Iterable[str]) -> None:
        self._snapshot, self._there = snapshot, list(there)
        self._counts: dict[str, Counter[str | None]] = {}  # by label
        self._least: dict[tuple[str, object], int] = {}  # of the values that a pod accepts now
        self._values: dict[tuple[str, object], frozenset[str | None]] = {}  # of the nodes that a pod accepts
        self._where: dict[str, dict[str, str | None]] = {}  # by label: the values of nodes

    def copy(self) -> "Apart":
        """Another plan that begins with the same members."""
        other = Apart(self._snapshot, self._there)
        other._values, other._where = self._values, self._where
        return other

    def may_take(self, pod: Pod, node: str) -> bool:
        """Whether the node may have this pod beside the members so far."""
        return all(self._may(pod, node, label, most) for label, most in pod.apart)

    def add(self, node: str) -> None:
        """One member more is there."""
        self._there.append(node)
        self._least.clear()
        for label, counts in self._counts.items():
            counts[self._value(node, label)] += 1

    def _may(self, pod: Pod, node: str, label: str, most: int) -> bool:
        value, counts = self._value(node, label), self._counted(label)
        if not most:
            return value is None or not counts[value]
        return value is not None and counts[value] - self._fewest(pod, label) < most

    def _counted(self, label: str) -> Counter[str | None]:
        if label not in self._counts:
            self._counts[label] = Counter(self._value(node, label) for node in self._there)
        return self._counts[label]

    def _fewest(self, pod: Pod, label: str) -> int:
        key = label, pod.node_constraints
        if key not in self._least:
            counts = self._counted(label)
            self._least[key] = min((counts[value] for value in self._values_for(pod, label)), default=0)
        return self._least[key]

    def _values_for(self, pod: Pod, label: str) -> frozenset[str | None]:
        """Taints keep no node from being counted (kube-scheduler's ``nodeTaintsPolicy``)."""
        key = label, pod.node_constraints
        if key not in self._values:
            accepts = replace(pod.node_constraints, tolerations=EVERY_TAINT)
            found = (
                _value_of(node, label)
                for node in self._snapshot.nodes.values()
                if (there := node.node_object) is not None and accepts.admit(node.name, there.node_labels)
            )
            self._values[key] = frozenset(each for each in found if each is not None)
        return self._values[key]

    def _value(self, node: str, label: str) -> str | None:
        known = self._where.setdefault(label, {})
        if node not in known:
            known[node] = _value_of(self._snapshot.node(node), label)
        return known[node]


def _value_of(node: NodeInfo, label: str) -> str | None:
    return node.name if label == HOSTNAME else label_value(node, label)
