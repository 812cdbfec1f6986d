"""Whether the ledger knows the cards of the nodes whose pods it charges."""

from collections.abc import Iterator

from timekeeper.cli.doctor.facts import CheckResult, Facts, NotReadable, items, unknown
from timekeeper.core.accelerators import accelerator_of
from timekeeper.core.json_values import Json
from timekeeper.core.request.cards import UndecodableError
from timekeeper.core.request.inventory import charged_cards, node_facts
from timekeeper.core.request.node_parts import contradiction

_PAGE = "docs/meter.md#what-is-charged"


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
            command = f"kubectl describe node {name}, and read {_PAGE}"
            yield CheckResult("warning", "cards", sentence, command)
    if with_gpus and not any(faults.values()):
        yield CheckResult("ok", "cards", f"{len(with_gpus)} nodes with GPUs describe their cards")


def _fault(node: Json) -> str:
    try:
        cards = charged_cards(node)
    except UndecodableError as error:
        return f"its description cannot be read ({error})"
    is_of_devices = all(map(accelerator_of, node_facts(node).capacity))
    if not cards and not is_of_devices:
        return "nothing describes its cards"
    return contradiction(node, cards)
