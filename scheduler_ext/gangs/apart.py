"""Which nodes the rules about other pods leave to members of a gang: host ports, required affinity and
anti-affinity, and spread, as kube-scheduler will ask them of each when it binds it. Pure.

All pods count that are on a node or have cards of one: members as others, with GPUs and without.
"""

import copy
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from scheduler_ext.gangs.domains import called, label_value
from scheduler_ext.model.labels import Packed, selects
from scheduler_ext.model.pod import NonGPUPod, Pod
from scheduler_ext.snapshot.snapshot import Snapshot
from timekeeper.core.kube.node_constraints import HOSTNAME, NO_CONSTRAINTS, Toleration
from timekeeper.core.kube.pod_rules import HostPort, PodRules, Spread, Term, conflict

EVERY_TAINT = (Toleration("", "", "", exists=True),)
MAX_REASONS = 2  # in a sentence

Reason = tuple[str, str]  # a key of `_TEXTS`, and the port or label
_TEXTS = {
    "port": "host port {} is in use",
    "apart": "a pod is near that their anti-affinity over {} selects",
    "others": "a pod is near whose anti-affinity over {} selects them",
    "near": "no pod is near that their affinity over {} requires",
    "spread": "their spread over {} allows no more",
}

Values = Mapping[str, str | None]  # of a label, by node
Counts = dict[str | None, int]  # pods by value of a label
_Asked = tuple[Term, ...]  # pods that all of these select


@dataclass(slots=True)
class _Spread:
    """``nodes``: the values of those that count; ``counts``: pods by value; ``fewest``: of any value, None:
    to be looked for."""

    rule: Spread
    nodes: Values
    counts: Counts
    fewest: int | None = None

    def exceeds(self, value: str | None, is_selected: bool) -> bool:
        """Whether one more pod would be too many."""
        if self.fewest is None:
            is_few = len(self.counts) < self.rule.least_values
            self.fewest = 0 if is_few else min(self.counts.values(), default=0)
        return self.counts.get(value, 0) + is_selected - self.fewest > self.rule.skew

    def add(self, node: str, count: int = 1) -> None:
        """This number of pods more is there."""
        if (value := self.nodes.get(node)) is not None:
            self.counts[value] += count
            self.fewest = None


class Apart:
    """Where pods are, for a plan for ``pods``, which are of one namespace."""

    def __init__(self, pods: Sequence[Pod], snapshot: Snapshot) -> None:
        self._snapshot, self._mine = snapshot, {pod.uid for pod in pods}
        self._values: dict[str, Values] = {}  # by label
        self._namespace = pods[0].namespace if pods else ""
        self._looks = {(pod.rules, pod.labels, pod.node_constraints): pod for pod in pods}.values()
        rules = {pod.rules for pod in self._looks}
        self._has_ports = any(of_pod.ports for of_pod in rules)
        self.ports: dict[str, tuple[HostPort, ...]] = {}  # in use, by node
        terms = {term for of_pod in rules for term in of_pod.apart}
        # the pods whose anti-affinity selects one of the plan
        self.owners: dict[Term, Counts] = {term: {} for term in terms if self._selects_any(term)}
        near = (of_pod.near for of_pod in rules if of_pod.near)
        asked: set[_Asked] = {*((term,) for term in terms), *near}
        self.asked = {group: {term.label: Counts() for term in group} for group in asked}
        concern: dict[int, bool] = {}  # by the identity of rules, which pods of one template share
        for pod in snapshot.keeping_off.values():
            if (is_concerned := concern.get(id(pod.rules))) is None:
                is_concerned = concern[id(pod.rules)] = self._concerns(pod.rules)
            if is_concerned and (node := self._node_of(pod)) is not None:
                self._keep_off(pod, node)
        spread = {rule.term: Counter[str]() for of_pod in rules for rule in of_pod.spread}
        if asked or spread:
            self._count(spread)
        spreading = {(pod.rules.spread, pod.node_constraints): pod for pod in self._looks if pod.rules.spread}
        self.spreads = {key: self._spreads_of(pod, spread) for key, pod in spreading.items()}
        # whether any rule is about a pod of the plan
        self.has_rules = bool(self.owners or self._has_ports or asked or spread)

    def copy(self) -> "Apart":
        """Another plan that begins with the same pods."""
        other = copy.copy(self)
        other.ports = dict(self.ports)
        other.owners = {term: dict(counts) for term, counts in self.owners.items()}
        other.asked = {
            group: {label: dict(counts) for label, counts in by_label.items()}
            for group, by_label in self.asked.items()
        }
        other.spreads = {
            key: tuple([replace(spread, counts=dict(spread.counts)) for spread in spreads])
            for key, spreads in self.spreads.items()
        }
        return other

    @property
    def together(self) -> str:
        """The label of which all pods of the plan must have one value, for each requires another of them to
        be near, and no pod that would do has a node; "" without one."""
        near = {pod.rules.near for pod in self._looks}
        group = near.pop() if len(near) == 1 else ()
        is_free = group and not any(self.asked[group].values())
        return group[0].label if is_free and all(self.is_of(group, pod) for pod in self._looks) else ""

    def kind(self, pod: Pod) -> object:
        """Equal for pods that all rules treat alike, where their own are equal."""
        of_spreads = (spread.rule.term for spreads in self.spreads.values() for spread in spreads)
        terms = {*self.owners, *of_spreads, *chain.from_iterable(self.asked)}
        return frozenset(term for term in terms if self.selects(term, pod))

    def is_alone(self, pod: Pod) -> bool:
        """Whether no node takes two such pods."""
        of_nodes = (term for term in pod.rules.apart if term.label == HOSTNAME)
        return bool(pod.rules.ports) or any(self.selects(term, pod) for term in of_nodes)

    def add(self, pod: Pod, node: str) -> None:
        """The member is there."""
        self._keep_off(pod, node)
        self._select([group for group in self.asked if self.is_of(group, pod)], node)
        for spread in chain.from_iterable(self.spreads.values()):
            if self.selects(spread.rule.term, pod):
                spread.add(node)

    def values(self, label: str) -> Values:
        """Of all nodes."""
        if label not in self._values:
            nodes = self._snapshot.nodes.values()
            self._values[label] = {node.name: label_value(node, label) for node in nodes}
        return self._values[label]

    def selects(self, term: Term, pod: Pod) -> bool:
        """Whether the pod is one of the term's."""
        return self._is_in(term, pod.namespace) and selects(term.selector, pod.labels)

    def is_of(self, group: _Asked, pod: Pod) -> bool:
        """Whether all of these select the pod."""
        return all(self.selects(term, pod) for term in group)

    def _is_in(self, term: Term, namespace: str) -> bool:
        if namespace in term.namespaces or term.of_namespaces is None:
            return namespace in term.namespaces
        return selects(term.of_namespaces, self._snapshot.namespaces.get(namespace) or "")

    def _selects_any(self, term: Term) -> bool:
        is_in = self._is_in(term, self._namespace)
        return is_in and any(selects(term.selector, pod.labels) for pod in self._looks)

    def _concerns(self, rules: PodRules) -> bool:
        """Whether pods with these may keep one of the plan off."""
        more = [term for term in rules.apart if term in self.owners or self._selects_any(term)]
        for term in more:
            self.owners.setdefault(term, {})
        return bool(more) or (self._has_ports and bool(rules.ports))

    def _node_of(self, pod: Pod | NonGPUPod) -> str | None:
        """Where kube-scheduler counts the pod, or will: one with GPUs where it has cards."""
        if isinstance(pod, NonGPUPod):
            return pod.node
        if pod.terminal or pod.uid in self._mine or self._snapshot.allocation(pod.uid) is None:
            return None
        return self._snapshot.allocated_on.get(pod.uid)

    def _keep_off(self, pod: Pod | NonGPUPod, node: str) -> None:
        if self._has_ports and pod.rules.ports:
            self.ports[node] = (*self.ports.get(node, ()), *pod.rules.ports)
        for term in pod.rules.apart:
            if term in self.owners:
                _count(self.owners[term], self.values(term.label).get(node))

    def _select(self, selecting: Iterable[_Asked], node: str) -> None:
        for group in selecting:
            for label, counts in self.asked[group].items():
                _count(counts, self.values(label).get(node))

    def _count(self, spread: Mapping[Term, Counter[str]]) -> None:
        """Counts all pods that are there. ``spread``: by node, those of each term that are not being
        deleted."""
        terms = {*spread, *chain.from_iterable(self.asked)}
        of: dict[str, list[Term]] = {}  # those about a namespace
        found: dict[tuple[str, Packed], frozenset[Term]] = {}  # those that select pods with these labels
        pods: Iterable[Pod | NonGPUPod] = chain(
            self._snapshot.pods.values(), self._snapshot.non_gpu_pods.values()
        )
        for pod in pods:
            if (here := of.get(pod.namespace)) is None:
                here = of[pod.namespace] = [term for term in terms if self._is_in(term, pod.namespace)]
            if not here:
                continue
            if (selecting := found.get((pod.namespace, pod.labels))) is None:
                selecting = frozenset([term for term in here if selects(term.selector, pod.labels)])
                found[pod.namespace, pod.labels] = selecting  # of most the same empty one
            if not selecting or (node := self._node_of(pod)) is None:
                continue
            self._select([group for group in self.asked if selecting.issuperset(group)], node)
            for term in selecting.intersection(spread) if not pod.leaves_ms else ():
                spread[term][node] += 1

    def _spreads_of(self, pod: Pod, living: Mapping[Term, Counter[str]]) -> tuple[_Spread, ...]:
        """A node counts that has all of the labels, and that the pod may use as far as a policy asks that
        (``nodeInclusionPolicies`` of kube-scheduler)."""
        labels = {spread.term.label for spread in pod.rules.spread}
        nodes = [
            (node.name, node.node_object.node_labels)
            for node in self._snapshot.nodes.values()
            if node.node_object is not None
            and None not in (self.values(label)[node.name] for label in labels)
        ]
        found = []
        for rule in pod.rules.spread:
            accepts = pod.node_constraints if rule.by_affinity else NO_CONSTRAINTS
            tolerations = pod.node_constraints.tolerations if rule.by_taints else EVERY_TAINT
            accepts = replace(accepts, tolerations=tolerations)
            values = self.values(rule.term.label)
            counted = {name: values[name] for name, there in nodes if accepts.admit(name, there)}
            spread = _Spread(rule, counted, dict.fromkeys(counted.values(), 0))
            for node, count in living[rule.term].items():
                spread.add(node, count)
            found.append(spread)
        return tuple(found)


class Checks:
    """What is asked of nodes for pods like this one, beside those that are there by now."""

    def __init__(self, of: Apart, pod: Pod) -> None:
        self._ports, self._in_use = pod.rules.ports, of.ports
        self._none: list[tuple[Reason, Values, Counts]] = [  # there is none of these near
            (("apart", term.label), of.values(term.label), of.asked[(term,)][term.label])
            for term in pod.rules.apart
        ]
        self._none += [
            (("others", term.label), of.values(term.label), counts)
            for term, counts in of.owners.items()
            if of.selects(term, pod)
        ]
        near = of.asked[pod.rules.near] if pod.rules.near else {}
        self._near = [(("near", label), of.values(label), counts) for label, counts in near.items()]
        self._is_first = of.is_of(pod.rules.near, pod)  # where there is none, it may be the first
        spreads = of.spreads.get((pod.rules.spread, pod.node_constraints), ())
        terms = [spread.rule.term for spread in spreads]
        self._spreads = [
            (("spread", term.label), of.values(term.label), spread, of.selects(term, pod))
            for term, spread in zip(terms, spreads, strict=True)
        ]
        of_spreads = [(reason, values) for reason, values, _, _ in self._spreads]
        # the labels that its node must have
        self._needed = [*((reason, values) for reason, values, _ in self._near), *of_spreads]

    def keeps_off(self, node: str) -> Reason | None:
        """Why the node takes no such pod, whatever comes; None: no rule says so."""
        used = self._in_use.get(node, ()) if self._ports else ()
        for port in self._ports if used else ():
            if any(conflict(port, other) for other in used):
                return "port", f"{port[2]}/{port[1]}"
        for reason, values, counts in self._none:
            if (value := values.get(node)) is not None and counts.get(value):
                return reason
        for reason, values in self._needed:
            if values.get(node) is None:
                return reason
        return None

    def refusal(self, node: str) -> Reason | None:
        """Why the node takes no such pod now; None: it does."""
        if (reason := self.keeps_off(node)) is not None:
            return reason
        if not (self._is_first and not any(any(counts.values()) for _, _, counts in self._near)):
            for reason, values, counts in self._near:
                if not counts.get(values[node]):
                    return reason
        for reason, values, spread, is_selected in self._spreads:
            if spread.exceeds(values[node], is_selected):
                return reason
        return None

    def sentence(self, reasons: Mapping[Reason, int]) -> str:
        """Of these reasons, each with its number of nodes, the most frequent, for people."""
        ranked = sorted(reasons, key=lambda reason: (-reasons[reason], reason))[:MAX_REASONS]
        return f"on the nodes with cards for more of them {', or '.join(map(self._text, ranked))}"

    def _text(self, reason: Reason) -> str:
        text = _TEXTS[reason[0]].format(reason[1])
        for other, _, spread, _ in self._spreads:
            if other == reason and spread.counts:
                fewest = min(spread.counts, key=lambda value: (spread.counts[value], value or ""))
                text += f", for {called(reason[1], fewest or '')} has {spread.counts[fewest]} pods of it"
        return text


def _count(counts: Counts, value: str | None) -> None:
    """One more with this value; a node without the label counts for none."""
    if value is not None:
        counts[value] = counts.get(value, 0) + 1
