"""Reviews of budget ConfigMaps: a mistake in an entry is refused with its key, line and field.

`timekeeper.core.budgets.reader` parses the entries here and in the timekeeper. An entry that was wrong before
and is unchanged causes only a warning. A review sees one object, so only the timekeeper finds a key that is
in two ConfigMaps. Import this module only where a ConfigMap is reviewed: it loads PyYAML.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from timekeeper.core import names
from timekeeper.core.budgets.config_maps import entries_of as entries_of
from timekeeper.core.budgets.config_maps import is_read, unread_sentences
from timekeeper.core.budgets.mistakes import EntryError
from timekeeper.core.budgets.policy import DEFAULTS, MODE, SETTINGS, Budget, group_key, ineffective_fields
from timekeeper.core.budgets.reader import ended_fields, read_entry
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.violation import Violation, first_of
from timekeeper.core.wire import StandingWord
from webhook.admission.answers import refusal_text
from webhook.admission.warnings import LONGEST_BYTES, within_limits
from webhook.wire.object_review import ObjectReview
from webhook.wire.pod_review import AdmissionAnswer

NOT_JUDGED = AdmissionAnswer("passed")

# Parsing takes 12 us a character, and meanwhile the worker reviews no pod. The timekeeper judges the rest, as
# it judges everything while no webhook runs.
MAX_CHARACTERS = 64 * 1024
MAX_NAMED = 3  # keys in one warning
_LATER = "What a ConfigMap that is gone says counts for two minutes more."

WHOLE = 'team-a: "gpuHours: 120"'

_OF_SETTINGS = {"fairShare": "fairShare: on"}  # where it is another one
EXAMPLES: Mapping[str, str] = {
    "gpuHours": "gpuHours: 120",
    "period": "period: month",
    "carryOver": "carryOver: 0.25",
    "onExhausted": "onExhausted: deprioritize",
    "warnAt": "warnAt: 0.8",
    "group": "group: research",
    "policy": "policy: binpack",
    "maxGPUs": "maxGPUs: 8",
    "maxGPUsPerPod": "maxGPUsPerPod: 1.5",
    "maxWaiting": "maxWaiting: 20",
    "price": "price: 2.50",
    "currency": "currency: EUR",
    "clusterName": "clusterName: prod-eu",
    "rules": "rules: {grace-period: warn}",
    "exempt": "exempt: ['system:serviceaccount:team-a:builder']",
    "timeZone": "timeZone: Europe/Berlin",
    "mode": "mode: enforce",
    "placement": "placement: on",
    "wholeCards": "wholeCards: bursar",
    "gangs": "gangs: auto",
    "kueue": "kueue: hold",
    "schedulerName": "schedulerName: bursar-scheduler",
    "sidecar": "sidecar: on",
    "chargeBy": "chargeBy: dominant",
    "lookahead": "lookahead: 10m",
    "maxGracePeriod": "maxGracePeriod: 10m",
    "settleAfter": "settleAfter: 1h",
    "pdbGrace": "pdbGrace: 10m",
    "overuse": "overuse: observe",
    "overuseGrace": "overuseGrace: 10m",
    "evictGrace": "evictGrace: 10m",
    "evictRate": "evictRate: 6",
    "idle": "idle: reclaim",
    "reserve": "reserve: declared",
    "overtime": "overtime: warn",
    "hostShare": "hostShare: 2",
    "fairShare": "fairShare: {weight: 2, halfLife: 14d}",
    "protect": "protect: {labels: {tier: serving}, cards: 4}",
    "requireDuration": "requireDuration: true",
    "idleBelow": "idleBelow: 0.05",
    "idleAfter": "idleAfter: 1h",
    "idleGrace": "idleGrace: 15m",
    "unknownStanding": "unknownStanding: inBudget",
    "reservationNamespaces": "reservationNamespaces: [kai-resource-reservation]",
    "unknownAccelerators": "unknownAccelerators: meter",
    "weights": "weights: {H100: 2.5, A100: 1.0}",
    "unitCosts": "unitCosts: {gpu.intel.com/tiles: 0.5}",
    "split": "split: {team-a: 30, team-b: 20.5}",
    "leads": "leads: [Ada Lovelace, grace@example.com]",
    "devices": "devices: {example.com/npu: Example NPU}",
    "drivers": "drivers: {accelerator.example.com: {gpus: [kind = train], model: product}}",
    "priorityClasses": "priorityClasses: {inBudget: gpu-default-priority, overBudget: gpu-lower-priority}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewedEntries:
    """The parsed entries of one ConfigMap."""

    wrong: Mapping[str, EntryError]  # by key
    unbuilt: Mapping[str, tuple[str, ...]]  # sentence on what is not implemented -> keys of its entries
    unread: int  # entries beyond the limit on characters
    limited: tuple[str, ...]  # the keys of those with a limit
    keeping: Mapping[str, str]  # the keys of those with `priorityClasses: keep` -> class of pods in budget
    have_ended: tuple[str, ...]  # the keys of those with fields that have ended


def holds_budgets(group: str, kind: str, config_map: Json, name: str = "") -> bool:
    """True for a ConfigMap that Bursar reads; the caller checks the namespace."""
    is_named = name in names.BUDGET_CONFIG_MAPS
    return (group, kind) == ("", "ConfigMap") and (is_named or is_read(config_map))


def judge(
    review: ObjectReview,
    standing_of: Callable[[str], StandingWord],
    preempting: Callable[[str], Sequence[str]],
) -> AdmissionAnswer:
    """Refuses a write with wrong entries among the new and changed ones; warns about entries that were wrong
    before, about what is not implemented, and about entries that a write, a removed label or a deletion ends.
    It does not depend on the mode, because no pod is affected. ``standing_of``: a namespace's standing now;
    of "" that of a namespace without an entry; ``preempting``: see `Reviewer.preempting`."""
    is_deletion = review.operation == "DELETE"
    if review.operation not in ("CREATE", "UPDATE", "DELETE") or review.subresource:
        return NOT_JUDGED
    was_read = holds_budgets(review.group, review.kind, review.old, review.name)
    will_be_read = not is_deletion and holds_budgets(review.group, review.kind, review.object, review.name)
    before = entries_of(review.old) if was_read else {}
    if was_read and not will_be_read:
        ends = (*ended(before, {}, standing_of), *_enforces(before, {}))
        return AdmissionAnswer("valid", warnings=within_limits((*ends, _LATER) if ends else ()))
    if review.kind == "ConfigMap" and (unread := unread_sentences([review.object])):
        return AdmissionAnswer("valid", warnings=within_limits(unread.values()))
    if not will_be_read or review.is_going:
        return NOT_JUDGED
    now = entries_of(review.object)
    changed = {key: text for key, text in now.items() if before.get(key) != text}
    unchanged = {key: text for key, text in now.items() if key not in changed}
    fresh = entries(changed, there=unchanged)
    stale = entries(unchanged, MAX_CHARACTERS - sum(map(len, changed.values())))
    old_mistakes = misplaced(review.old) if was_read else ()
    violations = [
        *(violation(error) for wrong in fresh.wrong.values() for error in wrong.each()),
        *(violation(error) for error in _written_again(before, now, fresh.have_ended)),
        *(each for each in misplaced(review.object) if each not in old_mistakes),
    ]
    if violations:
        return AdmissionAnswer(
            "refused",
            refusal=refusal_text(violations),
            rules=tuple(dict.fromkeys((each.rule, "enforce") for each in violations)),
        )
    ends = (*ended(before, now, standing_of), *_enforces(before, now), *_first_limits(fresh, standing_of))
    more = (*_unchanged(stale), *_kept(fresh, preempting), *warnings(fresh))
    return AdmissionAnswer("valid", warnings=within_limits((*ends, *more)))


def _written_again(
    before: Mapping[str, str], now: Mapping[str, str], keys: Collection[str]
) -> Iterator[EntryError]:
    """The fields that have ended and that the write adds to these entries. Those that were there are warned
    of: an edit of other fields passes."""
    for key in keys:
        had = {error.field for error in ended_fields(key, before.get(key, ""))}
        yield from (error for error in ended_fields(key, now[key]) if error.field not in had)


def entries(
    data: Mapping[str, str], most_characters: int = MAX_CHARACTERS, there: Collection[str] = ()
) -> ReviewedEntries:
    """Parses the entries in order, up to ``most_characters``. ``there``: the keys of the ConfigMap's other
    entries."""
    wrong: dict[str, EntryError] = {}
    unbuilt: dict[str, list[str]] = {}
    limited: list[str] = []
    keeping: dict[str, str] = {}
    have_ended: list[str] = []
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
            limited += [key] if isinstance(value, Budget) and value.amount is not None else []
            keeping |= {key: value.in_budget_class} if value.keeps_classes else {}
            have_ended += [key] if value.ended else []
            for sentence in (*ineffective_fields(value), *of_group):
                unbuilt.setdefault(sentence, []).append(key)
    alike = {sentence: tuple(keys) for sentence, keys in unbuilt.items()}
    return ReviewedEntries(
        wrong=wrong,
        unbuilt=alike,
        unread=unread,
        limited=tuple(limited),
        keeping=keeping,
        have_ended=tuple(have_ended),
    )


def _of_group(budget: Budget, there: Collection[str]) -> Iterator[str]:
    if budget.group and group_key(budget.group) not in there:
        yield (
            f"Group {budget.group} is not defined in this ConfigMap. If no ConfigMap defines it, the group "
            "has no limit."
        )


def violation(error: EntryError) -> Violation:
    """The mistake of an entry as a violation."""
    place = f"data[{error.key}], line {error.line}" + (f", {error.field}" if error.field else "")
    if error.key == MODE:
        place = f"data[{error.field}]"
    field, is_nested, _ = error.field.partition(".")
    example = WHOLE if error.is_unknown and not is_nested else example_of(error.key, field)
    return Violation("budget-entry", place, "", error.problem, error.allowed, example)


def example_of(key: str, field: str) -> str:
    """How a field of this entry may read; a whole entry for one that no table has."""
    return (_OF_SETTINGS if key == SETTINGS else {}).get(field) or EXAMPLES.get(field, WHOLE)


def misplaced(config_map: Json) -> tuple[Violation, ...]:
    """A violation for each key in binaryData, which Bursar does not read."""
    problem = "budgets are not read from binaryData"
    return tuple(
        Violation("budget-entry", f"binaryData[{key}]", "", problem, "an entry in data", WHOLE)
        for key in mapping(config_map.get("binaryData"))
    )


def warnings(fresh: ReviewedEntries) -> Iterator[str]:
    """Warnings about what new and changed entries set and Bursar does not implement."""
    for sentence, keys in fresh.unbuilt.items():
        yield f"{_some(keys)}: {sentence}"
    if fresh.unread:
        yield f"{fresh.unread} entries were not reviewed: the entries are too long together."


def ended(
    before: Mapping[str, str], now: Mapping[str, str], standing_of: Callable[[str], StandingWord]
) -> Iterator[str]:
    """A warning to the author of a write that ends entries, or of a deletion; namespaces over budget are
    named first. ``standing_of``: see `judge`."""
    gone = sorted(before.keys() - now.keys())
    over = {key for key in gone if not key.startswith("_") and standing_of(key) == "OVER_BUDGET"}
    namespaces = [f"{key} (over budget)" for key in gone if key in over]
    namespaces += [key for key in gone if not key.startswith("_") and key not in over]
    if namespaces:
        lose = "loses its entry" if len(namespaces) == 1 else "lose their entry"
        then = _then(before, now, standing_of(""))
        yield _naming(namespaces, f"{{}} {lose}: {then}, unless another ConfigMap has it")
    if others := [key for key in gone if key.startswith("_")]:
        yield _naming(others, "No longer in force, unless another ConfigMap has it: {}.")


def _first_limits(fresh: ReviewedEntries, standing_of: Callable[[str], StandingWord]) -> Iterator[str]:
    """A warning to the author of a write that gives namespaces their first limit."""
    names = {key: "" if key == DEFAULTS else key for key in fresh.limited if not key.startswith("_group.")}
    if first := [key for key, name in names.items() if standing_of(name) == "UNLIMITED"]:
        yield (
            f"{_some(first)}: what was used since the running period began counts at once; the Event"
            " UsedBefore and kubectl bursar budget say how much."
        )


def _kept(fresh: ReviewedEntries, preempting: Callable[[str], Sequence[str]]) -> Iterator[str]:
    """A warning of each entry whose pods keep a class by which kube-scheduler preempts over budget, too."""
    for key, within in fresh.keeping.items():
        if names := preempting(within):
            why = f"over budget kube-scheduler preempts by {first_of(names, MAX_NAMED)}, too"
            yield f"{key}: priorityClasses: {why}; not by a class with preemptionPolicy: Never."


def _then(before: Mapping[str, str], now: Mapping[str, str], default: StandingWord) -> str:
    """What applies to a namespace without an entry. ``default``: the standing of one now."""
    if DEFAULTS not in now and (DEFAULTS in before or default == "UNLIMITED"):
        return "no limit applies"
    is_there = DEFAULTS in now or default != "UNKNOWN"
    return f"that of {DEFAULTS} applies{'' if is_there else ', else no limit'}"


def _naming(keys: Sequence[str], sentence: str) -> str:
    """The sentence with as many of the first keys as a warning holds, at most `MAX_NAMED`."""
    texts = [sentence.format(_some(keys, most)) for most in range(MAX_NAMED, 0, -1)]
    return next((text for text in texts if len(text.encode()) <= LONGEST_BYTES), texts[-1])


def _some(keys: Sequence[str], most: int = MAX_NAMED) -> str:
    return f"{', '.join(keys[:most])}{f' and {len(keys) - most} more' if keys[most:] else ''}"


def _enforces(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """A warning to the author of a write that ends `mode: observe`, also by leaving it out."""
    for key in sorted(before.keys() - {SETTINGS}):
        if _observes(key, before) and not _observes(key, now):
            yield (
                f"{key}: this write ends mode: observe. From now on pods that break a rule are "
                "refused, and new pods over budget are demoted. To go on observing, write mode: observe."
            )


def _observes(key: str, data: Mapping[str, str]) -> bool:
    """Whether an entry is valid and has `mode: observe`."""
    if key not in data or "observe" not in data[key]:
        return False
    value = read_entry(key, data[key])
    return not isinstance(value, EntryError) and value.mode == "observe"


def _unchanged(stale: ReviewedEntries) -> Iterator[str]:
    for error in stale.wrong.values():
        yield (
            "Wrong before and unchanged; the last valid entry stays in force: "
            + "; ".join(each.sentence() for each in error.each())
        )
