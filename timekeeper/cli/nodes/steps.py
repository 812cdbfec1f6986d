"""The steps by which a node changes, from what the cluster says now. Pure.

Each step tells whether it is done, by this command or not. The others are done in this order.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from timekeeper.cli.doctor.node_checks import LABEL
from timekeeper.cli.nodes.facts import ALL_OPERANDS, OPERATORS, ObservedNode, is_ready
from timekeeper.core.names import NODE_CHANGE
from timekeeper.core.quantity import thousandths

FRACTIONS, WHOLE = "fractions", "whole"
_AGENT_IS_MISSING = (
    "no node agent is installed: deploy/manifests/node-agent.yaml, or Helm's nodeAgent.enabled"
)


@dataclass(frozen=True, slots=True)
class Step:
    """``command``: the arguments of the kubectl that does it; empty where it is awaited. ``pods``: those that
    must end first."""

    sentence: str
    is_done: bool
    command: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """``problems``: why the change cannot be made; nothing is done then. ``notes``: what the user should know
    of this cluster."""

    steps: tuple[Step, ...]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


Planner = Callable[[ObservedNode], Plan]


def to_fractions(facts: ObservedNode) -> Plan:
    """The plugin leaves the node, and Bursar's agent offers its cards."""
    labels = facts.agents_labels
    left, offered = facts.of_plugin(), facts.of_bursar("allocatable")
    is_off = facts.labels.get(OPERATORS) == "false" or facts.labels.get(ALL_OPERANDS) == "false"
    is_labelled = bool(labels) and labels.items() <= facts.labels.items()
    is_offered = bool(facts.ready_agent and facts.cards and _some(offered))
    is_there = not facts.plugin_pods and not left and is_labelled and is_offered
    steps = [
        _cordon(facts, FRACTIONS, is_there),
        _pods_end("pods with cards of the plugin end", () if is_there else facts.whole_card_pods),
    ]
    if facts.has_operator:
        sentence = "the GPU Operator takes its device plugin off the node"
        steps.append(Step(sentence, is_off, _label(facts, **{OPERATORS: "false"})))
    steps += [
        Step("the plugin's pod is gone", not facts.plugin_pods),
        Step(
            "the kubelet counts none of the plugin's devices any more (5 minutes after the plugin has gone)",
            not _some(left),
        ),
        Step(
            f"the plugin's resources, which the kubelet keeps with 0, leave the status: {_named(left)}",
            not left,
            _status(facts, dict.fromkeys({**left, **facts.of_plugin("allocatable")})),
        ),
        Step("the node gets the label of nodes with an agent", is_labelled, _label(facts, **labels)),
        Step("the agent is ready, and has written inventory and capacity", is_offered),
        _uncordon(facts),
    ]
    return Plan(tuple(steps), _problems_of_fractions(facts), _notes(facts))


def to_whole(facts: ObservedNode) -> Plan:
    """The Operator's plugin comes back, and Bursar's capacities go. The agent stays."""
    left, offered = facts.of_bursar(), facts.of_plugin("allocatable")
    is_on = facts.labels.get(OPERATORS) == "true"
    is_offered = bool(any(map(is_ready, facts.plugin_pods)) and _some(offered))
    is_there = is_on and is_offered and not left
    steps = [
        _cordon(facts, WHOLE, is_there),
        _pods_end("pods that Bursar has placed on its cards end", () if is_there else facts.share_pods),
        Step(
            "the GPU Operator puts its device plugin on the node", is_on, _label(facts, **{OPERATORS: "true"})
        ),
        Step("the plugin's pod is ready, and the kubelet counts its devices", is_offered),
        _capacities_go(facts, left),
        _uncordon(facts),
    ]
    problems = [*_lacks(facts), *_foreign(facts)]
    if facts.labels.get(ALL_OPERANDS) == "false":
        problems.append(
            f"the node's label {ALL_OPERANDS}=false keeps all of the GPU Operator off it: remove it first"
        )
    if not facts.has_operator:
        problems.append(
            "no DaemonSet follows the GPU Operator's label, so nothing would bring the plugin back: end"
            " the pods with shares, then install it for the node"
        )
    return Plan(tuple(steps), tuple(problems), ())


def outcome(facts: ObservedNode) -> tuple[str, ...]:
    """What the node offers now, in sentences."""
    offered = {**facts.of_plugin("allocatable"), **facts.of_bursar("allocatable")}
    listed = ", ".join(f"{name} {amount}" for name, amount in offered.items()) or "no GPU"
    healthy = sum(each.healthy for each in facts.cards)
    said = [f"Node {facts.name} offers {listed}."]
    if facts.ready_agent:
        said.append(
            f"Its agent {facts.ready_agent} is ready: {healthy} of {len(facts.cards)} cards are healthy."
        )
    if facts.closed:
        said.append(f"The agent has closed the node: {facts.closed} (docs/node-agent.md).")
    if facts.is_cordoned:
        said.append(f"It was cordoned before: kubectl uncordon {facts.name} lets pods in.")
    return tuple(said)


def try_it(goal: str) -> str:
    """What to try next."""
    if goal == FRACTIONS:
        return "Try it: kubectl apply -f deploy/samples/half-a-card.yaml"
    return "Try it: a pod with the limit nvidia.com/gpu: 1"


def _cordon(facts: ObservedNode, goal: str, is_there: bool) -> Step:
    body = {"metadata": {"annotations": {NODE_CHANGE: goal}}, "spec": {"unschedulable": True}}
    sentence = "the node is cordoned, so that no pod comes meanwhile"
    return Step(sentence, facts.is_cordoned or is_there, _patch(facts, body))


def _uncordon(facts: ObservedNode) -> Step:
    body = {"metadata": {"annotations": {NODE_CHANGE: None}}, "spec": {"unschedulable": None}}
    return Step("the node is uncordoned, if this command cordoned it", not facts.change, _patch(facts, body))


def _pods_end(sentence: str, pods: Sequence[str]) -> Step:
    return Step(sentence, not pods, pods=tuple(pods))


def _capacities_go(facts: ObservedNode, left: dict[str, str]) -> Step:
    if facts.has_agent:
        return Step("the agent takes Bursar's capacities off the node", not left)
    patch = _status(facts, dict.fromkeys({**left, **facts.of_bursar("allocatable")}))
    return Step("Bursar's capacities leave the node's status", not left, patch)


def _problems_of_fractions(facts: ObservedNode) -> tuple[str, ...]:
    problems = [*_lacks(facts), *_foreign(facts)]
    if not facts.agents_labels:
        problems.append(_AGENT_IS_MISSING)
    if facts.other_plugins:
        problems.append(
            f"the plugin's pod {facts.other_plugins[0]} does not follow the GPU Operator's label {OPERATORS}:"
            f" keep its DaemonSet off the node, such as by a required node affinity to {LABEL} with"
            " DoesNotExist, and label the node; then run this again"
        )
    offered = {name: text for name, text in facts.of_plugin("allocatable").items() if _is_above_zero(text)}
    if offered and not (facts.plugin_pods or facts.change):
        problems.append(
            f"no pod of a DaemonSet gives out {_named(offered)}, which the node offers: its image has the"
            " device plugin as a service (Bottlerocket, EKS Auto Mode), and nothing here can end that; take a"
            " node whose image has none, or, if the plugin's pod has just gone, run this again in a minute"
        )
    return tuple(problems)


def _lacks(facts: ObservedNode) -> list[str]:
    return [f"you may not {each}: an administrator of the cluster may" for each in facts.may_not]


def _foreign(facts: ObservedNode) -> list[str]:
    return [
        f"the node's plugin speaks the dialect {each}, and this command knows NVIDIA's device plugin alone"
        for each in facts.other_dialects
    ]


def _notes(facts: ObservedNode) -> tuple[str, ...]:
    if facts.has_operator:
        return ()
    return (
        "No DaemonSet follows the GPU Operator's label: driver and NVIDIA's container runtime must be on the"
        " node by other means.",
    )


def _is_above_zero(amount: str) -> bool:
    return (thousandths(amount) or 0) > 0


def _some(amounts: dict[str, str]) -> bool:
    return any(map(_is_above_zero, amounts.values()))


def _named(amounts: dict[str, str]) -> str:
    return ", ".join(amounts) or "none"


def _label(facts: ObservedNode, **labels: str) -> tuple[str, ...]:
    return ("label", "node", facts.name, *(f"{key}={value}" for key, value in labels.items()), "--overwrite")


def _patch(facts: ObservedNode, body: object, *more: str) -> tuple[str, ...]:
    return (
        "patch",
        "node",
        facts.name,
        *more,
        "--type",
        "merge",
        "-p",
        json.dumps(body, separators=(",", ":")),
    )


def _status(facts: ObservedNode, amounts: dict[str, None]) -> tuple[str, ...]:
    body = {"status": {"capacity": amounts, "allocatable": amounts}}
    return _patch(facts, body, "--subresource", "status")
