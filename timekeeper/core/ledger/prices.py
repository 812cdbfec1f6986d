"""The price of an entry at a time: the first one, until a later one's day begins."""

from collections.abc import Iterable, Iterator
from datetime import date

from timekeeper.core.budgets.policy import Budget, BudgetSettings
from timekeeper.core.ledger.metering import day_begins_ms


def price_at(entry: Budget | BudgetSettings, at_ms: int, zone: str) -> str:
    """The price of a weighted GPU-hour, as it was written; "": none."""
    begun = (price for day, price in reversed(entry.later_prices) if day_begins_ms(day, zone) <= at_ms)
    return next(begun, entry.price)


def price_days(entry: Budget | BudgetSettings, zones: Iterable[str]) -> Iterator[int]:
    """When a later price may begin, in any of these time zones."""
    return (day_begins_ms(day, zone) for day, _ in entry.later_prices for zone in zones)


def late_price(
    before: Budget | BudgetSettings | None, entry: Budget | BudgetSettings, at_ms: int, zone: str
) -> tuple[date, str] | None:
    """The later price whose day had begun when the entry took effect at ``at_ms``, and that was not in force
    just before: it counts from then on alone."""
    begun = [(day, price) for day, price in entry.later_prices if day_begins_ms(day, zone) < at_ms]
    if not begun or (before is not None and price_at(before, at_ms - 1, zone) == begun[-1][1]):
        return None
    return begun[-1]
