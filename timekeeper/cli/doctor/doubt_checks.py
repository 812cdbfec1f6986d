"""What roles find wrong."""

from collections.abc import Iterator

from timekeeper.cli.doctor.accelerator_checks import editing_settings
from timekeeper.cli.doctor.facts import (
    CheckResult,
    Facts,
    NotReadable,
    applying,
    logs_of,
    unknown,
)
from timekeeper.cli.doctor.node_checks import agent_selector
from timekeeper.cli.doctor.taint_checks import needs_scheduler
from timekeeper.core.findings import CATALOGUE
from timekeeper.core.texts import age

_PAGE = "read docs/troubleshooting.md"  # of what a newer timekeeper finds
_OLD_MS = 120_000  # the extender posts four times as often


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
        "settings": editing_settings(facts),
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
