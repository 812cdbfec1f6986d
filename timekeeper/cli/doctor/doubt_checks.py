"""What roles find wrong, and whether the ledger knows the cards of the nodes whose pods it
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
from timekeeper.cli.doctor.node_checks import agent_selector
from timekeeper.cli.doctor.taint_checks import needs_scheduler, setting_taint, tolerated
from timekeeper.core.accelerators import accelerator_of
from timekeeper.core.findings import CATALOGUE
from timekeeper.core.json_values import Json
from timekeeper.core.request.cards import UndecodableError
from timekeeper.core.request.inventory import charged_cards, node_facts
from timekeeper.core.request.node_parts import contradiction
from timekeeper.core.texts import age

_PAGE = "read docs/troubleshooting.md"  # of what a newer timekeeper finds
_OLD_MS = 120_000  # the extender posts four times as often
_CARDS_PAGE = "docs/meter.md#what-is-charged"


def findings(facts: Facts) -> Iterator[CheckResult]:
    """What the roles find wrong with themselves and with what they follow."""
    if isinstance(facts.readiness, NotReadable):
        return  # said by the check of the timekeeper
    if isinstance(facts.findings, NotReadable):
        yield unknown("charges", facts.findings)
        return
    mends = {
        "logs": logs_of(facts, "timekeeper"),
        "classes": applying(facts, "priority-classes.yaml"),
        "label": " ".join(f"{key}={value}" for key, value in agent_selector(facts).items()),
        "taint": "" if tolerated(facts) else f"{setting_taint(facts)}; ",
    }
    for found in facts.findings["findings"]:
        try:
            todo = CATALOGUE[found["code"]].todo.format_map(found["figures"] | mends)
        except KeyError:  # a newer role's
            todo = _PAGE
        yield CheckResult(found["level"], found["about"], found["sentence"], todo)
    yield from _left_out(facts)


def _left_out(facts: Facts) -> Iterator[CheckResult]:
    """What the lists do not have."""
    roles = {each["role"]: each for each in facts.findings.get("roles", ())}
    for role in roles.values():
        for code, number in role["more"].items():
            about = CATALOGUE[code].about if code in CATALOGUE else role["role"]
            yield CheckResult("warning", about, f"the same ({code}) holds {number} times more", _PAGE)
    if not needs_scheduler(facts) or facts.governs_nothing:
        return
    if "extender" not in roles:
        said = "the extender has posted no findings: it is older, does not lead, or is away"
        yield CheckResult("unknown", "nodes", said, logs_of(facts, "scheduler"))
    elif (age_ms := roles["extender"]["ageMs"]) > _OLD_MS:
        said = f"the extender's findings are {age(age_ms)} old"
        yield CheckResult("unknown", "nodes", said, logs_of(facts, "scheduler"))


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
