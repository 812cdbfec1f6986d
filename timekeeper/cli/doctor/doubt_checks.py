"""What the timekeeper finds wrong, and whether the ledger knows the cards of the nodes whose pods it
charges."""

from collections.abc import Iterator

from timekeeper.cli.doctor.facts import (
    CheckResult,
    Facts,
    NotReadable,
    applying,
    items,
    logs_of,
    unknown,
)
from timekeeper.core.accelerators import accelerator_of
from timekeeper.core.findings import CATALOGUE
from timekeeper.core.json_values import Json
from timekeeper.core.request.cards import UndecodableError
from timekeeper.core.request.inventory import charged_cards, node_facts
from timekeeper.core.request.node_parts import contradiction

_PAGE = "read docs/troubleshooting.md"  # of what a newer timekeeper finds
_CARDS_PAGE = "docs/meter.md#what-is-charged"


def findings(facts: Facts) -> Iterator[CheckResult]:
    """What the timekeeper finds wrong with itself, its charges and the use of cards."""
    if isinstance(facts.readiness, NotReadable):
        return  # said by the check of the timekeeper
    if isinstance(facts.findings, NotReadable):
        yield unknown("charges", facts.findings)
        return
    mends = {"logs": logs_of(facts, "timekeeper"), "classes": applying(facts, "priority-classes.yaml")}
    for found in facts.findings["findings"]:
        todo = CATALOGUE[found["code"]].todo.format(**mends) if found["code"] in CATALOGUE else _PAGE
        yield CheckResult(found["level"], found["about"], found["sentence"], todo)


def described_cards(facts: Facts) -> Iterator[CheckResult]:
    """Each node with GPUs describes its cards, in one way."""
    if isinstance(facts.nodes, NotReadable):
        yield unknown("cards", facts.nodes)
        return
    with_gpus = [each for each in items(facts.nodes) if node_facts(each).capacity]
    faults = {str(each["metadata"]["name"]): _fault(each) for each in with_gpus}
    for name, fault in faults.items():
        if fault:
            sentence = f"node {name}: {fault}, so its pods are charged with a doubt"
            command = f"kubectl describe node {name}, and read {_CARDS_PAGE}"
            yield CheckResult("warning", "cards", sentence, command)
    if with_gpus and not any(faults.values()):
        yield CheckResult("ok", "cards", f"{len(with_gpus)} nodes with GPUs describe their cards")


def _fault(node: Json) -> str:
    try:
        cards = charged_cards(node)
    except UndecodableError as error:
        return f"its description cannot be read ({error})"
    facts = node_facts(node)
    is_of_devices = all(map(accelerator_of, facts.capacity))
    if not cards and not is_of_devices:
        return "nothing describes its cards"
    return contradiction(facts, cards)
