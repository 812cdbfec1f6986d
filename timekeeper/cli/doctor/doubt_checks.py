"""Which charges are not certain, what is not charged yet, and which pods use none of their cards;
and whether the ledger knows the cards of the nodes whose pods it charges."""

from collections.abc import Iterator

from timekeeper.cli.doctor.facts import CheckResult, Facts, NotReadable, items, logs_of, unknown
from timekeeper.core.accelerators import accelerator_of
from timekeeper.core.findings import (
    claim_sentences,
    claiming_sentence,
    doubt_sentences,
    idle_sentences,
    watch_sentences,
)
from timekeeper.core.json_values import Json
from timekeeper.core.request.cards import UndecodableError
from timekeeper.core.request.inventory import charged_cards, node_facts
from timekeeper.core.request.node_parts import contradiction

_PAGE = "read docs/meter.md#what-is-charged; GET /v1/doubts has all"
_CLAIMS = "read docs/claims.md; GET /v1/doubts has all"
_USE = "read docs/meter.md#use-and-idle-pods; GET /v1/idle has all"
_CARDS_PAGE = "docs/meter.md#what-is-charged"


def doubts(facts: Facts) -> Iterator[CheckResult]:
    """The rate of each running session is certain, and no pod holds devices that nothing charges."""
    if isinstance(facts.readiness, NotReadable):
        return  # said by the check of the timekeeper
    if isinstance(facts.doubts, NotReadable):
        yield unknown("charges", facts.doubts)
        return
    for sentence in watch_sentences(facts.doubts):
        yield CheckResult("error", "watches", sentence, logs_of(facts, "timekeeper"))
    for sentence in doubt_sentences(facts.doubts):
        yield CheckResult("warning", "charges", sentence, _PAGE)
    if not facts.doubts["sessions"]:
        yield CheckResult("ok", "charges", "the rate of each running session is certain")
    if claiming := claiming_sentence(facts.doubts):
        yield CheckResult("warning", "resource claims", claiming, _PAGE)
    for sentence in claim_sentences(facts.doubts):
        yield CheckResult("warning", "device claims", sentence, _CLAIMS)


def idle(facts: Facts) -> Iterator[CheckResult]:
    """No pod has used none of its cards for long, and what measures them does."""
    if isinstance(facts.readiness, NotReadable) or facts.idle is None:
        return
    if isinstance(facts.idle, NotReadable):
        yield unknown("use", facts.idle)
        return
    for sentence in idle_sentences(facts.idle):
        yield CheckResult("warning", "use", sentence, _USE)
    if facts.idle["prometheus"] and not facts.idle["prometheus"]["findings"]:
        measured = facts.idle["prometheus"]["measured"]
        yield CheckResult("ok", "use", f"Prometheus measures {measured} metered pods")


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
