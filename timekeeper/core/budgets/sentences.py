"""What a namespace may still spend, in words."""

from collections.abc import Mapping
from typing import Any

from timekeeper.core.budgets.policy import GROUP
from timekeeper.core.texts import apart, hours, moment

_PLACES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_COUNTED = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_LENGTHS = {86_400_000: "day", 3_600_000: "hour", 60_000: "minute", 1_000: "second", 1: "millisecond"}


def fair_sentence(name: str, has_entry: bool, share: Mapping[str, Any]) -> str:
    """Where an account stands, by `fairShare` of the API's answer: one with an entry, or all others."""
    whose = account_name(name) if has_entry or name.startswith(GROUP) else "the rest, without an entry,"
    rank, of, life_ms = share["rank"], share["of"], share["halfLifeMs"]
    place = _PLACES[rank - 1] if rank <= len(_PLACES) else f"number {rank}"
    among = _COUNTED[of - 1] if of <= len(_COUNTED) else str(of)
    used = f"used {share['usedMilli'] / max(1, share['shareMilli']):.1f} times its share"
    said = used if share["decayed"] else "has used nothing of late"
    said = said if share["weightMilli"] else "has the weight 0"
    unit_ms = next(length_ms for length_ms in _LENGTHS if life_ms % length_ms == 0)
    life = f"{life_ms // unit_ms} {_LENGTHS[unit_ms]}{'' if life_ms == unit_ms else 's'}"
    return f"{place} of {among} to go: {whose} {said}, by a half-life of {life}"


def account_name(subject: str) -> str:
    """How a sentence names an account: a namespace by its name, a group as such."""
    return f"group {subject.removeprefix(GROUP)}" if subject.startswith(GROUP) else subject


def left_sentence(budget: Mapping[str, Any]) -> str:
    """What the API's budget or forecast says that a namespace may still spend, of whose account and until
    when; "" without a limit."""
    deciding, own = budget["deciding"], budget["remaining"]
    if deciding["remaining"] is None:
        return ""
    until = "" if deciding["to"] is None else f" until {moment(deciding['to'])}"
    if deciding["subject"] == budget["namespace"]:
        return f"{hours(deciding['remaining'])} GPU-hours are left{until}"
    left = deciding["remaining"]
    both = apart(left, left if own is None else own, first=hours)
    its = "of its own it has no limit" if own is None else f"{both[1]} of its own"
    group = account_name(deciding["subject"])
    return f"{both[0]} GPU-hours of {group} are left{until}; {its}"


def beyond_its_group(namespace: str, own: int | None, group: str, of_group: int | None) -> str:
    """The warning where a namespace has more left of its own than its group has; else "", as without a limit
    of either."""
    if own is None or of_group is None or own <= of_group:
        return ""
    mine, theirs = apart(own, of_group, first=hours)
    return (
        f"{namespace} now has {mine} GPU-hours left of its own, and its group {group} has {theirs}: it can"
        " use no more than its group has"
    )
