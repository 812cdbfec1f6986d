"""Accelerators that no dialect reads: which nodes advertise them, which pods hold them, what `_settings` does
with their pods, and what to do."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from timekeeper.cli.doctor.facts import (
    CheckResult,
    Facts,
    Level,
    NotReadable,
    items,
    read_entries,
    unknown,
)
from timekeeper.core.accelerators import UnknownAccelerators, accelerator_of, accelerators_in
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.findings import some_of
from timekeeper.core.json_values import mapping
from timekeeper.core.object_names import TERMINAL
from timekeeper.core.request.devices import described, device_containers, is_governed
from timekeeper.core.request.inventory import advertised
from timekeeper.core.request.request import containers

_SUBJECT = "accelerators"
_PAGE = "docs/dialects.md#accelerators-of-other-vendors"
_EFFECT: Mapping[UnknownAccelerators, str] = {
    "refuse": "pods that request it are refused",
    "meter": "pods that request it are charged for whole devices",
    "pass": "pods that request it are admitted and not charged",
}


def accelerators(facts: Facts) -> Iterator[CheckResult]:
    """One result for each resource that nodes advertise and no dialect reads."""
    if isinstance(facts.nodes, NotReadable) or isinstance(facts.budgets, NotReadable):
        return  # said by the checks of taints and budgets
    parsed = parsed_entries(facts)
    models = parsed.settings.device_models
    there: dict[str, list[str]] = {}
    for node in items(facts.nodes):
        resources, name = advertised(node), str(node["metadata"]["name"])
        for resource in accelerators_in(resources, models):
            there.setdefault(resource, []).append(name)
    if there and isinstance(facts.device_pods, NotReadable):
        yield unknown(_SUBJECT, facts.device_pods)
    for resource, nodes in sorted(there.items()):
        yield _result(facts, resource, nodes, parsed)
    yield from _unseen(facts, there.keys() & models)


def _unseen(facts: Facts, named: Collection[str]) -> Iterator[CheckResult]:
    """The accelerators that only the settings name and the webhooks' match conditions leave out."""
    webhooks = () if isinstance(facts.mutating, NotReadable) else items(facts.mutating)
    ours = [configuration for configuration in webhooks if configuration["metadata"]["name"] == "zz-bursar"]
    for resource in sorted(named) if ours else ():
        if f"'{resource}'" not in str(ours) and accelerator_of(resource) is None:
            sentence = (
                f"the webhooks do not see pods that request {resource}: where the mode is enforce they are"
                " admitted and not charged"
            )
            command = f"helm upgrade with {resource} in the chart's value accelerators ({_PAGE})"
            yield CheckResult("warning", _SUBJECT, sentence, command)


@dataclass(frozen=True, slots=True)
class Settled:
    """What the valid entries say; invalid ones are the timekeeper's to report."""

    settings: BudgetSettings
    modes: Mapping[str, str]  # of namespaces

    def meters(self, namespace: str) -> bool:
        """Whether the ledger charges the namespace's pods by their specs."""
        return (self.modes.get(namespace) or self.settings.mode) != "enforce"


def parsed_entries(facts: Facts) -> Settled:
    """The entries of all ConfigMaps."""
    found = read_entries(facts.budgets)
    modes = {name: budget.mode for name, budget in found.budgets.items() if budget.mode}
    return Settled(found.in_force, modes)


def _result(facts: Facts, resource: str, nodes: list[str], parsed: Settled) -> CheckResult:
    setting, mode = parsed.settings.unknown_accelerators, parsed.settings.mode
    word, effect = f"unknownAccelerators: {setting}", _EFFECT[setting]
    if mode != "enforce":
        word, effect = f"mode: {mode}", _EFFECT["meter"]
    charged, free = _holders(facts, resource, parsed)
    held = [f"charged: {some_of(charged)}"] if charged else []
    held += [f"not charged: {some_of(free)}"] if free else []
    is_charged = setting == "meter" or mode != "enforce"
    level: Level = "ok" if is_charged and not free else "warning"
    sentence = (
        f"no dialect reads {described(resource)}, on {some_of(nodes)}; with {word}"
        f" {effect}{''.join(f'; pods that hold some, {each}' for each in held)}"
    )
    return CheckResult(level, _SUBJECT, sentence, _what_to_do(facts, is_charged, free))


def _holders(facts: Facts, resource: str, parsed: Settled) -> tuple[list[str], list[str]]:
    """The pods that hold some, as ``namespace/name``: those that are charged, and the others."""
    charged: list[str] = []
    free: list[str] = []
    for pod in () if isinstance(facts.device_pods, NotReadable) else items(facts.device_pods):
        if mapping(pod.get("status")).get("phase") in TERMINAL:
            continue
        if any(resource in asking.resources for asking in device_containers(containers(pod), (resource,))):
            metadata = mapping(pod.get("metadata"))
            namespace = str(metadata.get("namespace", ""))
            is_charged = parsed.meters(namespace) or is_governed(mapping(metadata.get("labels")))
            (charged if is_charged else free).append(f"{namespace}/{metadata.get('name', '')}")
    return charged, free


def _what_to_do(facts: Facts, is_charged: bool, free: list[str]) -> str:
    if is_charged:
        return f"create these pods again, which charges them ({_PAGE})" if free else ""
    return f"{editing_settings(facts)}: _settings, unknownAccelerators: meter charges new pods ({_PAGE})"


def editing_settings(facts: Facts) -> str:
    """The command that opens `_settings`."""
    return f"kubectl edit configmap bursar-settings -n {facts.system_namespace}"
