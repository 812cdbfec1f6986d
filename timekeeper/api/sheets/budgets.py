"""Budgets, and what was granted to them."""

from collections.abc import Callable, Iterator
from typing import Any

from timekeeper.api.sheets.sheet import (
    AMOUNT,
    DECIMAL,
    GROUP,
    MODE,
    NAMESPACE,
    PERCENT,
    SENTENCE,
    STANDING,
    TEXT,
    TIME,
    USED,
    Json,
    Sheet,
)
from timekeeper.core import texts
from timekeeper.core.budgets.modes import EFFECTS
from timekeeper.core.budgets.policy import effect_of
from timekeeper.core.budgets.sentences import account_name, fair_sentence, left_sentence

_HOURS = "in GPU-hours"


def _used(raw: Json) -> int:
    return int(raw["posted"] + raw["pending"])


def _left(raw: Json) -> int | None:
    remaining: int | None = raw["deciding"]["remaining"]
    return remaining


def _left_of(raw: Json) -> str:
    """The group where it decides, else ""."""
    subject: str = raw["deciding"]["subject"]
    return "" if subject == raw["namespace"] else account_name(subject)


def _mode(raw: Json) -> str:
    return f"{raw['mode']} ({raw['modeFrom']})" if raw["mode"] else ""


def _effect(raw: Json) -> str:
    """What happens over budget, as the entry names it, and what it comes to."""
    if raw["granted"] is None and not raw["group"]:
        return ""
    named = str(raw["onExhausted"])
    comes_to = effect_of(named, raw["placement"] != "off")
    return named if named == comes_to else f"{named}, as {comes_to}: placement is off"


def _fair(field: str, *whole: int) -> Callable[[Json], Any]:
    """A field of the fair share, or its part of a whole; "" while there is none."""

    def value(raw: Json) -> Any:
        found = (raw.get("fairShare") or {}).get(field, "")
        return (found, *whole) if whole and found != "" else found

    return value


def _order(raw: Json) -> Iterator[str]:
    if raw.get("fairShare"):
        said = fair_sentence(raw["namespace"], raw["entry"] == raw["namespace"], raw["fairShare"])
        yield f"{said[:1].upper()}{said[1:]}."


def _notes(listed: list[Json]) -> Iterator[str]:
    """What the modes among them mean, and for each what it limits, protects and has received."""
    for mode in sorted({each["mode"] or "enforce" for each in listed} - {"enforce"}):
        yield f"In mode {mode} {EFFECTS[mode]}."
    for raw in listed:
        if said := texts.caps(raw["maxGPUsMilli"], raw["maxGPUsPerPodMilli"]):
            yield f"{raw['namespace']} {said}."
    for raw in listed:
        if (protect := raw["protect"]) is not None:
            most = texts.floor(protect["cardsMilli"], protect["amount"])
            yield (
                f"{raw['namespace']} protects pods up to {most}: those that it selects have used"
                f" {texts.hours(protect['used'])} GPU-hours in this period; their rate is"
                f" {texts.gpus(protect['rateMilli'])}."
            )
    for raw in listed:
        if (its := raw["received"]) is not None and raw["granted"] is not None:
            said = texts.received(raw["granted"], its["amount"], its["eachPeriod"])
            yield f"{raw['namespace']} has {said}."


def _as_of(answer: Json) -> Iterator[str]:
    if since_ms := answer.get("silentSince"):
        yield f"This is as of {texts.moment(since_ms)}: the settler has decided nothing since."


def _limit(raw: Json) -> str:
    """What its group leaves it."""
    return f"{raw['namespace']}: {left_sentence(raw)}."


def _known(answer: Json) -> list[Json]:
    """The one budget, unless the namespace seems not to exist."""
    return [] if texts.is_unknown(answer) else [answer]


def _all(answer: Json) -> list[Json]:
    return [*answer["groups"], *answer["budgets"]]


_COLUMNS = (
    NAMESPACE("namespace", "Namespace", "the namespace, or _group.NAME for a group of namespaces"),
    MODE("mode", "Mode", "enforce, observe or meter, and what it comes from", _mode, 1),
    STANDING("standing", "Standing", "whether it is in budget, with its group"),
    AMOUNT("granted", "Granted", f"of this period, with what was carried over, {_HOURS}"),
    USED("used", "Used", f"charges of this period, posted and pending, {_HOURS}", _used),
    AMOUNT("reserved", "Reserved", f"for the next minutes of the pods that run, {_HOURS}", priority=1),
    AMOUNT("remaining", "Own left", f"granted less used and reserved, {_HOURS}", priority=1),
    AMOUNT("left", "Left", f"to spend: its own, or less where its group has less left, {_HOURS}", _left),
    TEXT("leftOf", "Of", "the group that has less left", _left_of),
    PERCENT("percent", "Used %", "used of granted", lambda raw: (_used(raw), raw["granted"]), 1),
    TEXT("onExhausted", "On exhausted", "what happens once it is exhausted", _effect, 1),
    TIME("periodEnd", "Period ends", "when it is granted anew", lambda raw: raw["period"]["to"] or "", 1),
    TIME(
        "exhaustedAt",
        "Gone",
        "when it will be exhausted at the present rate, if within the period",
        lambda raw: "exhausted" if raw["standing"] == "OVER_BUDGET" else raw["exhaustedAt"] or "",
    ),
    GROUP("group", "Group", "its group of namespaces", lambda raw: (raw["group"] or {}).get("name", ""), 1),
    PERCENT("share", "Share", "its part of its siblings' weights", _fair("shareMilli", 1000), 1),
    AMOUNT("decayed", "Decayed", f"what is left of its use by its half-life, {_HOURS}", _fair("decayed"), 1),
    TEXT("rank", "Rank", "whose waiting pods go first, 1 before 2", _fair("rank"), 1),
)
BUDGETS = Sheet(
    columns=_COLUMNS,
    rows=_all,
    empty="no namespace has a budget",
    notes=lambda answer, _: (*_as_of(answer), *_notes(_all(answer))),
)
BUDGET = Sheet(
    columns=_COLUMNS,
    rows=_known,
    empty="it has no budget and uses nothing",
    notes=lambda answer, _: (
        *_as_of(answer),
        *map(_limit, filter(_left_of, _known(answer))),
        *_order(answer),
        *_notes(_known(answer)),
        *texts.request_notes(answer["request"]),
    ),
)
GRANTS = Sheet(
    columns=(
        TIME("created", "Created", "when it was granted"),
        NAMESPACE("subject", "Subject", "the namespace, or _group.NAME"),
        DECIMAL("gpuHours", "GPU-hours", "exactly; negative where they were taken back"),
        TEXT("kind", "Kind", "by the period, by a person, carried over, passed on, or a correction"),
        TEXT("actor", "By", "the user or role that granted it"),
        SENTENCE("reason", "Reason", "as the person wrote it"),
    ),
    rows=lambda answer: answer["grants"],
    empty="there are no grants",
    warnings=lambda answer, _: (f"{sentence}." for sentence in answer.get("warnings", ())),
)


def _accounts(answer: Json) -> Iterator[Json]:
    """The group, and each account of a namespace that it has passed hours on to."""
    yield {**answer, "subject": f"_group.{answer['group']}"}
    for raw in answer["namespaces"]:
        yield {**raw, "subject": raw["namespace"], "passedOn": raw["amount"], "granted": "", "left": ""}


def _split(answer: Json, _now_ms: int) -> Iterator[str]:
    """What the group passes on anew in each period."""
    parts = [
        f"{each['namespace']} {texts.hours(each['amount'])}"
        for each in answer["split"]
        if not each["problem"]
    ]
    for each in answer["split"]:
        if each["problem"]:
            yield (
                f"The split of _group.{answer['group']} gives {each['namespace']} nothing of its"
                f" {texts.hours(each['amount'])} GPU-hours: {each['problem']}."
            )
    if parts:
        yield (
            f"Anew in each period, by the split of _group.{answer['group']}, in GPU-hours:"
            f" {', '.join(parts)}. A part adds to the namespace's own gpuHours, and its use counts in both"
            " budgets."
        )


GROUP_GRANTS = Sheet(
    columns=(
        NAMESPACE("subject", "Subject", "the group, and below it the namespaces"),
        AMOUNT("granted", "Granted", f"to the group in its running period, {_HOURS}"),
        AMOUNT("passedOn", "Passed on", f"of it to namespaces, {_HOURS}"),
        AMOUNT("left", "Left", f"to pass on, {_HOURS}"),
        TIME("from", "Period begins", "of the account", priority=1),
        TIME("periodEnd", "Period ends", "of the account", lambda raw: raw["to"] or ""),
    ),
    rows=_accounts,
    notes=_split,
)
