"""The budget ConfigMaps, reviewed when they are written: a mistake is refused with its key, line and field.

What is wrong is the core's to say, as the timekeeper reads them. An entry that was wrong before and is
unchanged blocks nothing and is told as a warning. One object is all that a review sees: a key that stands in
another ConfigMap too is found by the timekeeper alone. Pure; imported where a budget is reviewed, for it
brings PyYAML.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from timekeeper.core import names
from timekeeper.core.budgets.policy import Budget, ineffective_fields
from timekeeper.core.budgets.reader import EntryError, group_key, read_entry
from timekeeper.core.request.request import Json, mapping
from timekeeper.core.violation import Violation
from webhook.admission.pods import first_told
from webhook.admission.warnings import fitting
from webhook.wire.object_review import ObjectReview
from webhook.wire.pod_review import Answer

NOT_JUDGED = Answer("passed")

# An entry takes 12 us a character to read, in a worker that meanwhile reviews no pod. What is left over is
# for the timekeeper to judge, as everything is while no webhook answers.
MOST_CHARACTERS = 64 * 1024
MOST_NAMED = 3  # keys in one warning

WHOLE = 'team-a: "gpuHours: 120"'

EXAMPLES: Mapping[str, str] = {
    "gpuHours": "gpuHours: 120",
    "period": "period: month",
    "carryOver": "carryOver: 0.25",
    "onExhausted": "onExhausted: deprioritize",
    "warnAt": "warnAt: 0.8",
    "group": "group: research",
    "policy": "policy: binpack",
    "maxGPUs": "maxGPUs: 8",
    "price": "price: 2.50",
    "currency": "currency: EUR",
    "rules": "rules: {grace-period: warn}",
    "exempt": "exempt: ['system:serviceaccount:team-a:builder']",
    "timeZone": "timeZone: Europe/Berlin",
    "mode": "mode: enforce",
    "schedulerName": "schedulerName: bursar-scheduler",
    "sidecar": "sidecar: on",
    "chargeBy": "chargeBy: dominant",
    "chargeFrom": "chargeFrom: running",
    "lookahead": "lookahead: 10m",
    "startGrace": "startGrace: 10m",
    "maxGracePeriod": "maxGracePeriod: 10m",
    "settleAfter": "settleAfter: 1h",
    "pdbGrace": "pdbGrace: 10m",
    "overuse": "overuse: observe",
    "overuseGrace": "overuseGrace: 10m",
    "unknownStanding": "unknownStanding: inBudget",
    "weights": "weights: {H100: 2.5, A100: 1.0}",
    "priorityClasses": "priorityClasses: {inBudget: gpu-default-priority, overBudget: gpu-lower-priority}",
}


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of one ConfigMap as far as they were read: what is wrong, by key; what is asked and not
    built yet, by sentence with its keys; how many were left unread."""

    wrong: Mapping[str, EntryError]
    unbuilt: Mapping[str, tuple[str, ...]]
    unread: int


def holds_budgets(group: str, kind: str, config_map: Json, name: str = "") -> bool:
    """True for the ConfigMap ``bursar-budgets`` and those with the label. The namespace is the caller's to
    look at."""
    metadata = mapping(config_map.get("metadata"))
    labelled = mapping(metadata.get("labels")).get(names.BUDGETS_LABEL) == "true"
    return (group, kind) == ("", "ConfigMap") and (names.BUDGETS in (name, metadata.get("name")) or labelled)


def judge(review: ObjectReview) -> Answer:
    """Refuses a write whose new or changed entries are wrong; warns of those that were wrong before, and of
    what is asked and not built yet. Whatever the mode is, for no pod is touched by it."""
    if review.operation not in ("CREATE", "UPDATE") or review.subresource or review.is_going:
        return NOT_JUDGED
    if not holds_budgets(review.group, review.kind, review.object, review.name):
        return NOT_JUDGED
    was_read = holds_budgets(review.group, review.kind, review.old, review.name)
    before = texts(review.old) if was_read else {}
    now = texts(review.object)
    changed = {key: text for key, text in now.items() if before.get(key) != text}
    unchanged = {key: text for key, text in now.items() if key not in changed}
    fresh = entries(changed, there=unchanged)
    stale = entries(unchanged, MOST_CHARACTERS - sum(map(len, changed.values())))
    old_mistakes = misplaced(review.old) if was_read else ()
    violations = [
        *map(violation, fresh.wrong.values()),
        *(each for each in misplaced(review.object) if each not in old_mistakes),
    ]
    if violations:
        return Answer(
            "refused",
            refusal=first_told(violations),
            rules=tuple(dict.fromkeys((each.rule, "enforce") for each in violations)),
        )
    return Answer("valid", warnings=fitting((*_unchanged(stale), *warnings(fresh))))


def entries(
    data: Mapping[str, str], most_characters: int = MOST_CHARACTERS, there: Collection[str] = ()
) -> Entries:
    """Reads the entries in their order until ``most_characters`` are read. ``there``: the keys that stand
    beside them unread."""
    wrong: dict[str, EntryError] = {}
    unbuilt: dict[str, list[str]] = {}
    keys = {*data, *there}
    left = most_characters
    unread = 0
    for key, text in data.items():
        left -= len(text)
        if left < 0:
            unread += 1
            continue
        value = read_entry(key, text)
        if isinstance(value, EntryError):
            wrong[key] = value
        else:
            of_group = _of_group(value, keys) if isinstance(value, Budget) else ()
            for sentence in (*ineffective_fields(value, key), *of_group):
                unbuilt.setdefault(sentence, []).append(key)
    return Entries(wrong, {sentence: tuple(keys) for sentence, keys in unbuilt.items()}, unread)


def _of_group(budget: Budget, there: Collection[str]) -> Iterator[str]:
    if budget.group and group_key(budget.group) not in there:
        yield f"group: {group_key(budget.group)} is not here; where it is nowhere, the group has no limit"


def texts(config_map: Json) -> dict[str, str]:
    """The entries of a ConfigMap; what is no text is passed over, for the API server takes none."""
    data = mapping(config_map.get("data"))
    return {str(key): text for key, text in data.items() if isinstance(text, str)}


def violation(error: EntryError) -> Violation:
    """An entry's mistake in the shape that every refusal has."""
    place = f"data[{error.key}], line {error.line}" + (f", {error.field}" if error.field else "")
    example = EXAMPLES.get(error.field.partition(".")[0], WHOLE)
    return Violation("budget-entry", place, "", error.problem, error.allowed, example)


def misplaced(config_map: Json) -> tuple[Violation, ...]:
    """The keys that nobody will read."""
    problem = "budgets are not read from binaryData"
    return tuple(
        Violation("budget-entry", f"binaryData[{key}]", "", problem, "an entry in data", WHOLE)
        for key in mapping(config_map.get("binaryData"))
    )


def warnings(fresh: Entries) -> Iterator[str]:
    """What is asked in new or changed entries and not done yet."""
    for sentence, keys in fresh.unbuilt.items():
        more = f" and {len(keys) - MOST_NAMED} more" if len(keys) > MOST_NAMED else ""
        yield f"{', '.join(keys[:MOST_NAMED])}{more}: {sentence}"
    if fresh.unread:
        yield f"{fresh.unread} entries were not reviewed here, for they are too long together"


def _unchanged(stale: Entries) -> Iterator[str]:
    for error in stale.wrong.values():
        yield f"wrong before and unchanged, so the last good entry stays in force: {error.sentence()}"


def budget_writes() -> str:
    """CEL: true for the ConfigMaps that hold budgets, as `holds_budgets` has it."""
    label = f"'{names.BUDGETS_LABEL}'"
    return f"""\
request.name == '{names.BUDGETS}'
|| (has(object.metadata.labels) && {label} in object.metadata.labels
  && object.metadata.labels[{label}] == 'true')
"""
