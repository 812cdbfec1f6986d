"""What a namespace may still spend, in words."""

from collections.abc import Mapping
from typing import Any

from timekeeper.core.budgets.policy import GROUP
from timekeeper.core.texts import apart, hours, moment


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
