"""The taint that keeps pods without GPUs off GPU nodes;
where Bursar places no pods, and which fields have no effect there."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from timekeeper.cli.doctor.facts import (
    CheckResult,
    Facts,
    NotReadable,
    items,
    named,
    read_entries,
    unknown,
    upgrading,
)
from timekeeper.cli.doctor.node_checks import agent_selector, has_gpus
from timekeeper.core.admission.mutation.whole_cards import counted_by_kueue
from timekeeper.core.budgets.policy import (
    DEFAULTS,
    UNLIMITED,
    Budget,
    BudgetSettings,
    ineffective_fields,
    places,
    takes_whole_cards,
)
from timekeeper.core.budgets.reader import ParsedBudgets
from timekeeper.core.findings import some_of
from timekeeper.core.json_values import mapping, sequence
from timekeeper.core.names import CLUSTER_MODE
from timekeeper.core.object_names import KEEPS_OFF
from timekeeper.core.quantity import integral

_PAGE = "docs/budget-settings.md"

USUAL = "nvidia.com/gpu"
_FLAG = "--gpu-node-taint="


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
        where = "_settings" if found.settings and found.settings.placement == "off" else CLUSTER_MODE
        keys = [where, *(key for key in keys if found.budgets[key].placement == "off")]
    if keys:
        sentence = f"it is off by {', '.join(keys)}: pods keep their scheduler, and get no cards of Bursar"
        yield CheckResult("ok", "placement", sentence)
    for key, each in found.budgets.items():
        for sentence in set(ineffective_fields(each, settings.placement)) - set(_elsewhere(each)):
            yield CheckResult("warning", "placement", f"{key}: {sentence}", f"change the entry ({_PAGE})")


def gives_whole_cards(facts: Facts) -> Callable[[str], bool]:
    """Whether whole cards of NVIDIA's plugin are of Bursar's nodes in a namespace (`wholeCards: bursar`)."""
    found, settings = _read(facts)
    usual = found.budgets.get(DEFAULTS, UNLIMITED)
    return lambda namespace: takes_whole_cards(found.budgets.get(namespace, usual), settings)


def queued_cards(facts: Facts) -> Iterator[CheckResult]:
    """Workloads whose pods keep `nvidia.com/gpu` for Kueue, where no node advertises it."""
    if isinstance(facts.makers, NotReadable) or isinstance(facts.nodes, NotReadable):
        return  # said by other checks
    capacities = (mapping(mapping(node.get("status")).get("capacity")) for node in items(facts.nodes))
    if any(integral(capacity.get(USUAL)) for capacity in capacities):
        return
    gives, stuck = gives_whole_cards(facts), []
    for workload in items(facts.makers):
        name, namespace = workload["metadata"]["name"], str(workload["metadata"].get("namespace", ""))
        template = mapping(mapping(workload.get("spec")).get("template"))
        listed = sequence(mapping(template.get("spec")).get("containers"))
        limits = (mapping(mapping(mapping(container).get("resources")).get("limits")) for container in listed)
        is_queued = any(
            counted_by_kueue({"metadata": mapping(owner.get("metadata"))}) for owner in (workload, template)
        )
        if is_queued and any(USUAL in limit for limit in limits) and gives(namespace):
            stuck.append(f"{workload['kind']} {name} in {namespace}")
    if stuck:
        sentence = f"Kueue counts {USUAL}, so pods of {some_of(stuck)} keep it, and no node advertises it"
        yield CheckResult("warning", "placement", sentence, f"change the entries' wholeCards ({_PAGE})")


def _elsewhere(each: Budget) -> tuple[str, ...]:
    return ineffective_fields(replace(each, placement="on"))


def _read(facts: Facts) -> tuple[ParsedBudgets, BudgetSettings]:
    found = read_entries({} if isinstance(facts.budgets, NotReadable) else facts.budgets)
    return found, found.in_force


def taints(facts: Facts) -> Iterator[CheckResult]:
    """GPU nodes have the taint that GPU pods tolerate."""
    if isinstance(facts.nodes, NotReadable):
        yield unknown("taint of GPU nodes", facts.nodes)
        return
    if any(isinstance(each, NotReadable) for each in facts.workloads):
        return  # said by another check
    nodes = [each for each in items(facts.nodes) if has_gpus(each, agent_selector(facts))]
    if not nodes:
        return
    taint = _tolerated(facts)
    if taint:
        yield from _set(facts, taint, nodes)
    elif any(_has_taint(each, USUAL) for each in nodes):
        some = some_of([each["metadata"]["name"] for each in nodes if _has_taint(each, USUAL)])
        sentence = f"{some} has the taint {USUAL}, and GPU pods get no toleration of it"
        setting = upgrading(facts, f"gpuNodeTaint={USUAL}") or f"the flag {_FLAG}{USUAL} of the webhook"
        command = f"{setting}, then the taint (docs/placement.md)"
        yield CheckResult("warning", "taint of GPU nodes", sentence, command)


def _tolerated(facts: Facts) -> str:
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


def _has_taint(node: Any, key: str) -> bool:
    there = map(mapping, sequence(mapping(node.get("spec")).get("taints")))
    return any(each.get("key") == key and each.get("effect") in KEEPS_OFF for each in there)
