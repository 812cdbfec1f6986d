"""Budgets and grants as sheets."""

from collections.abc import Iterable, Iterator
from typing import Any

from timekeeper.cli.output import Column, Sheet
from timekeeper.core import texts
from timekeeper.core.budgets.modes import EFFECTS
from timekeeper.core.budgets.policy import effect_of
from timekeeper.core.texts import floor, gpus, hours, moment, percent

_BUDGETS = (
    Column("namespace", "NAMESPACE"),
    Column("mode", "MODE"),
    Column("standing", "STANDING"),
    Column("granted", "GRANTED", True),
    Column("used", "USED", True),
    Column("reserved", "RESERVED", True),
    Column("remaining", "REMAINING", True),
    Column("percent", "USED %", True),
    Column("onExhausted", "ON EXHAUSTED"),
    Column("periodEnd", "PERIOD ENDS"),
    Column("exhaustedAt", "EXHAUSTED AT"),
    Column("group", "GROUP"),
)
_GRANTS = (
    Column("created", "CREATED"),
    Column("subject", "SUBJECT"),
    Column("gpuHours", "GPU-HOURS", True),
    Column("kind", "KIND"),
    Column("actor", "BY"),
    Column("reason", "REASON"),
)
_GROUP_GRANTS = (
    Column("subject", "SUBJECT"),
    Column("granted", "GRANTED", True),
    Column("passedOn", "PASSED ON", True),
    Column("left", "LEFT", True),
    Column("periodEnd", "PERIOD ENDS"),
)
_STYLES = {"OVER_BUDGET": "bold red", "IN_BUDGET": "green", "UNKNOWN": "yellow"}


def budgets(answers: Iterable[Any], answer: Any) -> Sheet:
    """A row for each budget, in GPU-hours; those of groups among them."""
    return Sheet(_BUDGETS, tuple(map(_budget, answers)), answer, _STYLES, "no namespace has a budget")


def protections(answers: Iterable[Any]) -> Iterator[str]:
    """A sentence for each budget that protects pods: what they use, and of which floor."""
    for raw in answers:
        protect = raw.get("protect")
        if protect is None:
            continue
        most = floor(protect["cardsMilli"], protect["amount"])
        yield (
            f"{raw['namespace']} protects pods up to {most}: those that it selects have used"
            f" {hours(protect['used'])} GPU-hours in this period; their rate is {gpus(protect['rateMilli'])}."
        )


def caps(answers: Iterable[Any]) -> Iterator[str]:
    """A sentence for each budget that limits what is held at a time."""
    for raw in answers:
        if said := texts.caps(raw.get("maxGPUsMilli"), raw.get("maxGPUsPerPodMilli")):
            yield f"{raw['namespace']} {said}."


def received(answers: Iterable[Any]) -> Iterator[str]:
    """A sentence for each namespace to which a group passes hours on: how they add to its own."""
    for raw in answers:
        its = raw.get("received")
        if its is not None and raw["granted"] is not None:
            said = texts.received(raw["granted"], its["amount"], its["eachPeriod"])
            yield f"{raw['namespace']} has {said}."


def split(answer: Any) -> Iterator[str]:
    """What a group passes on anew in each period."""
    every = answer.get("split", ())
    parts = [f"{each['namespace']} {hours(each['amount'])}" for each in every if not each.get("problem")]
    for each in every:
        if each.get("problem"):
            yield (
                f"The split of _group.{answer['group']} gives {each['namespace']} nothing of its"
                f" {hours(each['amount'])} GPU-hours: {each['problem']}."
            )
    if parts:
        yield (
            f"Anew in each period, by the split of _group.{answer['group']}, in GPU-hours:"
            f" {', '.join(parts)}. A part adds to the namespace's own gpuHours, and its use counts in both"
            " budgets."
        )


def modes(answers: Iterable[Any]) -> Iterator[str]:
    """A sentence for each mode among them that enforces nothing."""
    for mode in sorted({each.get("mode") or "enforce" for each in answers} - {"enforce"}):
        yield f"In mode {mode} {EFFECTS[mode]}."


def unknown(answers: Iterable[Any]) -> list[str]:
    """The namespaces among them that seem not to exist."""
    return [each["namespace"] for each in answers if texts.is_unknown(each)]


def _budget(raw: Any) -> dict[str, str]:
    used = raw["posted"] + raw["pending"]
    group = raw.get("group") or {}
    is_over = raw["standing"] == "OVER_BUDGET"
    return {
        "namespace": raw["namespace"],
        "mode": f"{raw['mode']} ({raw['modeFrom']})" if raw.get("mode") else "",
        "standing": raw["standing"],
        "granted": hours(raw["granted"]),
        "used": hours(used),
        "reserved": hours(raw["reserved"]),
        "remaining": hours(raw["remaining"]),
        "percent": percent(used, raw["granted"]),
        "onExhausted": _effect(raw) if raw["granted"] is not None or group else "",
        "periodEnd": moment(raw["period"]["to"]),
        "exhaustedAt": "exhausted" if is_over else moment(raw["exhaustedAt"]),
        "group": group.get("name", ""),
    }


def _effect(raw: Any) -> str:
    """What happens when it is exhausted, as the entry names it, and what it comes to."""
    named = str(raw["onExhausted"])
    comes_to = effect_of(named, raw.get("placement") != "off")
    return named if named == comes_to else f"{named}, as {comes_to}: placement is off"


def grants(listed: Iterable[Any], answer: Any) -> Sheet:
    """A row for each grant."""
    rows = tuple(
        {
            **{key: raw[key] for key in ("subject", "gpuHours", "kind", "actor", "reason")},
            "created": moment(raw["created"]),
        }
        for raw in listed
    )
    return Sheet(_GRANTS, rows, answer, empty="there are no grants")


def group_grants(answer: Any) -> Sheet:
    """A row for the group, and one for each account of a namespace that it has passed hours on to."""
    whole = {"subject": f"_group.{answer['group']}", "periodEnd": moment(answer["to"])}
    whole |= {name: hours(answer[name]) for name in ("granted", "passedOn", "left")}
    parts = (
        {
            "subject": raw["namespace"],
            "granted": "",
            "passedOn": hours(raw["amount"]),
            "left": "",
            "periodEnd": moment(raw["to"]),
        }
        for raw in answer["namespaces"]
    )
    return Sheet(_GROUP_GRANTS, (whole, *parts), answer)
