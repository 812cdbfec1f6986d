"""The taint that keeps pods without GPUs off GPU nodes, and the pods that stand in the way of free cards;
where Bursar places no pods, and which fields have no effect there."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from timekeeper.cli.doctor.facts import (
    MAX_NODES,
    CheckResult,
    Facts,
    NotReadable,
    items,
    named,
    some_of,
    unknown,
    upgrading,
)
from timekeeper.cli.doctor.node_checks import agent_selector, has_gpus
from timekeeper.core.budgets.policy import Budget, BudgetSettings, ineffective_fields, places
from timekeeper.core.budgets.reader import ParsedBudgets, read
from timekeeper.core.json_values import annotations_of, mapping, sequence
from timekeeper.core.kube.holders import fresh_holders
from timekeeper.core.names import BUDGET_CONFIG_MAPS, BUDGETS_LABEL, DEVICES, INVENTORY
from timekeeper.core.object_names import KEEPS_OFF, TERMINAL
from timekeeper.core.quantity import thousandths
from timekeeper.core.request.request import parse_stored

_PAGE = "docs/budget-settings.md"

USUAL = "nvidia.com/gpu"
_FLAG = "--gpu-node-taint="
_AT_HOME = ("DaemonSet", "Node")  # pods of these owners belong on their node


def needs_scheduler(facts: Facts) -> bool:
    """Whether some namespace's pods are placed by Bursar; also where the budgets cannot be read."""
    found, settings = _read(facts)
    return settings.placement == "on" or any(each.placement == "on" for each in found.budgets.values())


def placement(facts: Facts) -> Iterator[CheckResult]:
    """The entries with `placement: off`, and the fields that have no effect there. The check of the budgets
    says what cannot be read."""
    found, settings = _read(facts)
    keys = sorted(key for key, each in found.budgets.items() if not places(each, settings))
    if settings.placement == "off":
        keys = ["_settings", *(key for key in keys if found.budgets[key].placement == "off")]
    if keys:
        sentence = f"it is off by {', '.join(keys)}: pods keep their scheduler, and get no cards of Bursar"
        yield CheckResult("ok", "placement", sentence)
    for key, each in found.budgets.items():
        for sentence in set(ineffective_fields(each, settings.placement)) - set(_elsewhere(each)):
            yield CheckResult("warning", "placement", f"{key}: {sentence}", f"change the entry ({_PAGE})")


def _elsewhere(each: Budget) -> tuple[str, ...]:
    return ineffective_fields(replace(each, placement="on"))


def _read(facts: Facts) -> tuple[ParsedBudgets, BudgetSettings]:
    listed = [] if isinstance(facts.budgets, NotReadable) else items(facts.budgets)
    found = read(
        {
            str(each["metadata"]["name"]): mapping(each.get("data"))
            for each in listed
            if each["metadata"]["name"] in BUDGET_CONFIG_MAPS
            or mapping(each["metadata"].get("labels")).get(BUDGETS_LABEL) == "true"
        }
    )
    return found, found.settings or BudgetSettings()


@dataclass(frozen=True, slots=True)
class _Crowd:
    """The pods without GPUs on a GPU node, and how many free cards lack their part of its CPU or memory
    because of these pods."""

    node: str
    pods: int
    stranded: int


def taints(facts: Facts) -> Iterator[CheckResult]:
    """GPU nodes have the taint that GPU pods tolerate, and no other pods are there."""
    if isinstance(facts.nodes, NotReadable) or any(isinstance(each, NotReadable) for each in facts.workloads):
        return  # said by other checks
    nodes = [each for each in items(facts.nodes) if has_gpus(each, agent_selector(facts))]
    if not nodes:
        return
    taint = tolerated(facts)
    if taint:
        yield from _set(facts, taint, nodes)
    elif any(_has_taint(each, USUAL) for each in nodes):
        some = some_of([each["metadata"]["name"] for each in nodes if _has_taint(each, USUAL)])
        sentence = f"{some} has the taint {USUAL}, and GPU pods get no toleration of it"
        yield CheckResult("warning", "taint of GPU nodes", sentence, _setting(facts))
    if isinstance(facts.pods_there, NotReadable):
        yield unknown("pods without GPUs", facts.pods_there)
        return
    crowds = [crowd for each in nodes if (crowd := _crowd(each, items(facts.pods_there))).pods]
    stranding = [each for each in crowds if each.stranded]
    if stranding:
        there = some_of([each.node for each in stranding])
        pods, cards = sum(each.pods for each in stranding), sum(each.stranded for each in stranding)
        sentence = (
            f"on {there} {pods} pods without GPUs leave {cards} free GPUs without their part of CPU or memory"
            + (f" (of the first {MAX_NODES} GPU nodes)" if len(nodes) > MAX_NODES else "")
        )
        listing = f"kubectl get pods -A --field-selector=spec.nodeName={stranding[0].node}, and delete them"
        command = f"{listing} (docs/placement.md)" if taint else _setting(facts)
        yield CheckResult("warning", "pods without GPUs", sentence, command)


def tolerated(facts: Facts) -> str:
    """The key of the taint that the webhook lets GPU pods tolerate; "": none."""
    webhook = next((found for each in facts.workloads if (found := named(each, "bursar-webhook"))), None)
    pod = mapping(mapping(mapping(mapping(webhook).get("spec")).get("template")).get("spec"))
    flags = [
        str(flag).removeprefix(_FLAG)
        for container in map(mapping, sequence(pod.get("containers")))
        for flag in sequence(container.get("args"))
        if str(flag).startswith(_FLAG)
    ]
    return flags[-1] if flags else ""


def _set(facts: Facts, taint: str, nodes: Sequence[Any]) -> Iterator[CheckResult]:
    bare = sorted(str(each["metadata"]["name"]) for each in nodes if not _has_taint(each, taint))
    if bare:
        sentence = f"no taint {taint} on {some_of(bare)}: pods without GPUs can take their CPU and memory"
        command = f"kubectl taint nodes {bare[0]} {taint}=present:NoSchedule (docs/placement.md)"
        yield CheckResult("warning", "taint of GPU nodes", sentence, command)
    else:
        yield CheckResult("ok", "taint of GPU nodes", f"all have the taint {taint}")


def _setting(facts: Facts) -> str:
    helm = upgrading(facts, f"gpuNodeTaint={USUAL}")
    return f"{helm or f'the flag {_FLAG}{USUAL} of the webhook'}, then the taint (docs/placement.md)"


def _has_taint(node: Any, key: str) -> bool:
    there = map(mapping, sequence(mapping(node.get("spec")).get("taints")))
    return any(each.get("key") == key and each.get("effect") in KEEPS_OFF for each in there)


def _crowd(node: Any, pods: Sequence[Any]) -> _Crowd:
    name = str(node["metadata"]["name"])
    running = [
        each
        for each in pods
        if mapping(each.get("spec")).get("nodeName") == name
        and mapping(each.get("status")).get("phase") not in TERMINAL
    ]
    strangers = [each for each in running if not _has_gpus(each) and not _is_at_home(each)]
    cards = _cards(node)
    if not strangers or not cards:
        return _Crowd(name, len(strangers), 0)
    holders = fresh_holders(node)
    used = {uuid for each in running for uuid in _cards_of(each, holders.pods if holders else {})}
    free = len(cards - used)
    staying = [each for each in running if each not in strangers]
    without = min(free, _served(node, staying, len(cards)))
    return _Crowd(name, len(strangers), without - min(free, _served(node, running, len(cards))))


def _served(node: Any, pods: Sequence[Any], cards: int) -> int:
    """For how many cards their equal part of the node's CPU and memory is left."""
    there = mapping(mapping(node.get("status")).get("allocatable"))
    parts = []
    for resource in ("cpu", "memory"):
        whole = thousandths(there.get(resource)) or 0
        left = whole - sum(_requested(each, resource) for each in pods)
        if whole:
            parts.append(max(0, left * cards // whole))
    return min(parts, default=cards)


def _requested(pod: Any, resource: str) -> int:
    """What its ordinary containers request together, in thousandths."""
    listed = map(mapping, sequence(mapping(pod.get("spec")).get("containers")))
    amounts = (mapping(mapping(each.get("resources")).get("requests")).get(resource) for each in listed)
    return sum(thousandths(amount) or 0 for amount in amounts if amount is not None)


def _has_gpus(pod: Any) -> bool:
    parsed = parse_stored(pod)
    return parsed.request is not None or bool(parsed.violations)


def _is_at_home(pod: Any) -> bool:
    owners = map(mapping, sequence(mapping(pod.get("metadata")).get("ownerReferences")))
    return any(each.get("kind") in _AT_HOME for each in owners)


def _cards(node: Any) -> set[str]:
    listed = sequence(_decoded(node, INVENTORY).get("cards"))
    return {str(mapping(each).get("uuid")) for each in listed}


def _cards_of(pod: Any, held: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Those that the node's agent reports of it, or else of its placement."""
    placed = mapping(_decoded(pod, DEVICES).get("containers"))
    named = {str(mapping(each).get("uuid")) for slices in placed.values() for each in sequence(slices)}
    return set(held.get(str(pod["metadata"].get("uid")), ())) or named


def _decoded(raw: Any, annotation: str) -> Mapping[str, Any]:
    try:
        return mapping(json.loads(str(annotations_of(raw).get(annotation, "{}"))))
    except ValueError:
        return {}
