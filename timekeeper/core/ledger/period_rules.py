"""Which account contains a moment, by the kinds of periods and the time zones that were in force."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
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


def period_rules(changes: Iterable[PeriodRule], moved: Iterable[Interval] = ()) -> tuple[PeriodRule, ...]:
    """Adjacent rules of the same kind and zone are one; the first applies from the beginning of time.
    ``moved``: periods that began before time zone data gave them other bounds, in order."""
    known = [*changes]
    rules = [replace(change, start_ms=0) for change in known[:1]]
    both: list[PeriodRule | Interval] = [*known[1:], *moved] if rules else []
    for change in sorted(both, key=lambda change: change.start_ms):
        if isinstance(change, Interval):
            _keep(rules, change)
            continue
        before = len(rules)
        while len(rules) > 1 and rules[-1].start_ms > change.start_ms:
            rules.pop()  # this change of zone was replaced before it took effect
        last = rules[-1]
        if last.kind != change.kind:
            rules.append(change)
        elif last.zone != change.zone:
            rules.append(_in_another_zone(last, change))
        elif len(rules) < before and change.start_ms < last.first_end_ms:
            rules.append(_from(last.first_end_ms, last))
    return tuple(rules)


def _in_another_zone(last: PeriodRule, change: PeriodRule) -> PeriodRule:
    """The rule that applies when the running period ends."""
    return _from(account_in(last, FOREVER_MS, change.start_ms).span.end_ms, change)


def _from(start_ms: int, rule: PeriodRule) -> PeriodRule:
    """The same kind and zone from then on. If less than half a period is left until the zone's next boundary,
    that rest belongs to the first new period: a few hours are not granted a month's budget."""
    first = period_at(rule.kind, rule.zone, start_ms)
    if 2 * (first.end_ms - start_ms) < first.length_ms:
        first = period_at(rule.kind, rule.zone, first.end_ms)
    return PeriodRule(start_ms, rule.kind, rule.zone, first.end_ms)


def _keep(rules: list[PeriodRule], span: Interval) -> None:
    """The period keeps its bounds, and the next one begins where it ends."""
    in_force = next(rule for rule in reversed(rules) if rule.start_ms < span.end_ms)
    while len(rules) > 1 and rules[-1].start_ms >= span.start_ms:
        rules.pop()
    rules.append(PeriodRule(span.start_ms, in_force.kind, in_force.zone, span.end_ms))
    rules.append(_from(span.end_ms, in_force))


def is_given(rules: Sequence[PeriodRule], span: Interval) -> bool:
    """Whether the rules and the time zone data make this period, or would if no later rule cut it."""
    index = bisect_right(rules, span.start_ms, key=lambda rule: rule.start_ms)
    return not index or account_in(rules[index - 1], FOREVER_MS, span.start_ms).span == span


def account_at(rules: Sequence[PeriodRule], at_ms: int) -> Account:
    """The account within the rules, of which the first applies from the beginning of time."""
    index = bisect_right(rules, at_ms, key=lambda rule: rule.start_ms)
    until = rules[index].start_ms if index < len(rules) else FOREVER_MS
    return account_in(rules[index - 1], until, at_ms)


def account_in(rule: PeriodRule, until_ms: int, at_ms: int) -> Account:
    """The account within a rule that applies until ``until_ms``."""
    if at_ms < rule.first_end_ms:
        span = Interval(rule.start_ms, min(rule.first_end_ms, until_ms))
    else:
        within = Interval(rule.start_ms, until_ms)
        span = period_at(rule.kind, rule.zone, at_ms).within(within)
    return Account(rule.kind, rule.zone, span)
