"""Which account contains a moment, by the kinds of periods and the time zones that were in force."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from timekeeper.core.ledger.metering import FOREVER_MS, Interval, period_at


@dataclass(frozen=True, slots=True)
class Account:
    """The span in which a namespace's grants and charges are balanced against each other."""

    kind: str
    zone: str
    span: Interval


@dataclass(frozen=True, slots=True)
class PeriodRule:
    """From ``start_ms`` on, periods are of this kind and time zone."""

    start_ms: int
    kind: str
    zone: str
    first_end_ms: int = 0  # end of the first period if the calendar does not determine it


def period_rules(changes: Iterable[PeriodRule]) -> tuple[PeriodRule, ...]:
    """Adjacent rules of the same kind and zone are one; the first applies from the beginning of time."""
    rules: list[PeriodRule] = []
    for change in changes:
        while len(rules) > 1 and rules[-1].start_ms > change.start_ms:
            rules.pop()  # this change of zone was replaced before it took effect
        last = rules[-1] if rules else None
        if last is None:
            rules.append(replace(change, start_ms=0))
        elif last.kind != change.kind:
            rules.append(change)
        elif last.zone != change.zone:
            rules.append(_in_another_zone(last, change))
    return tuple(rules)


def _in_another_zone(last: PeriodRule, change: PeriodRule) -> PeriodRule:
    """The rule that applies when the running period ends. If less than half a period is left until the new
    zone's next boundary, that rest belongs to the first new period: a few hours are not granted a month's
    budget."""
    start = account_in(last, FOREVER_MS, change.start_ms).span.end_ms
    first = period_at(change.kind, change.zone, start)
    if 2 * (first.end_ms - start) < first.length_ms:
        first = period_at(change.kind, change.zone, first.end_ms)
    return PeriodRule(start, change.kind, change.zone, first.end_ms)


def account_in(rule: PeriodRule, until_ms: int, at_ms: int) -> Account:
    """The account within a rule that applies until ``until_ms``."""
    if at_ms < rule.first_end_ms:
        span = Interval(rule.start_ms, min(rule.first_end_ms, until_ms))
    else:
        within = Interval(rule.start_ms, until_ms)
        span = period_at(rule.kind, rule.zone, at_ms).within(within)
    return Account(rule.kind, rule.zone, span)
