"""The account of a moment and the grants in it, computed a second time. Imports nothing of ours.

Times are milliseconds since 1970, amounts thousandths of a card x milliseconds.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

HOUR, DAY = 3_600_000, 86_400_000
FOREVER = 253_402_300_799_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Budget:
    """``amount`` None: without a limit. ``mode``: that the entry names, or ""."""

    amount: int | None
    period: str = "month"
    mode: str = ""


UNLIMITED = Budget(None)


@dataclass
class Books:
    """The budgets in force by name, as (since when, budget), in order; None: removed. ``zones``: the time
    zone since when. ``labels``: the mode that a namespace's label names, or "". ``newest``: when the last
    change took effect."""

    budgets: dict[str, list[tuple[int, Budget | None]]] = field(default_factory=dict)
    zones: list[tuple[int, str]] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    newest: int = 0

    def label(self, name: str, mode: str, now: int) -> None:
        """The namespace's label names another mode, or none any more."""
        self.labels[name] = mode
        self.newest = now

    def mode(self, name: str) -> str:
        """The mode in force by entry or label; "": the cluster's."""
        budget = self.latest(name)
        return (budget.mode if budget else "") or self.labels.get(name, "")

    def change(self, name: str, budget: Budget | None, now: int) -> None:
        """The budget changes."""
        self.budgets.setdefault(name, []).append((now, budget))
        self.newest = now

    def move(self, zone: str, now: int) -> None:
        """The settings change, and perhaps the time zone."""
        self.zones.append((now, zone))
        self.newest = now

    def latest(self, name: str) -> Budget | None:
        """The newest text."""
        return self.budgets.get(name, [(0, None)])[-1][1]

    def in_force(self, name: str, at: int) -> Budget:
        past = [budget for since, budget in self.budgets.get(name, []) if since <= at]
        return (past[-1] if past else None) or UNLIMITED

    def _zone(self, at: int) -> str:
        return ([zone for since, zone in self.zones if since <= at] or ["UTC"])[-1]

    def account(self, name: str, at: int) -> tuple[int, int]:
        """Start and end of the account that contains this moment."""
        stretches = self._stretches(name)
        past = [each for each in stretches if each.since <= at]
        if not past:
            return 0, FOREVER
        later = [each.since for each in stretches if each.since > at]
        start, end = past[-1].account(at)
        return start, min([end, *later])

    def _stretches(self, name: str) -> list["_Stretch"]:
        """The first applies from the beginning of time. Another kind of period takes effect at once, another
        zone at the end of the running period; the zone's first period lasts at least half a period."""
        found: list[_Stretch] = []
        for at in sorted({at for at, _ in [*self.budgets.get(name, []), *self.zones]}):
            budget, zone = self.in_force(name, at), self._zone(at)
            if budget.amount is None:
                continue
            found = [each for each in found if each.since <= at] or found[:1]
            if not found:
                found = [_Stretch(0, budget.period, zone)]
            elif found[-1].kind != budget.period:
                found.append(_Stretch(at, budget.period, zone))
            elif found[-1].zone != zone:
                _, since = found[-1].account(at)
                start, end = period(budget.period, zone, since)
                if end - since < (end - start) / 2:
                    end = period(budget.period, zone, end)[1]
                found.append(_Stretch(since, budget.period, zone, end))
        return found


@dataclass(frozen=True)
class _Stretch:
    """Periods of one kind by one zone's calendar; ``first``: the end of the first one if the calendar does
    not determine it."""

    since: int
    kind: str
    zone: str
    first: int = 0

    def account(self, at: int) -> tuple[int, int]:
        if at < self.first:
            return self.since, self.first
        start, end = period(self.kind, self.zone, at)
        return max(start, self.since), end


def period(kind: str, zone: str, at: int) -> tuple[int, int]:
    """The calendar's hour, day or month around a moment, found step by step: every bound is on a quarter of
    an hour."""
    if kind == "once":
        return 0, FOREVER
    step = HOUR // 4
    start = at - at % step
    mine = _label(kind, zone, start)
    while _label(kind, zone, start - step) == mine:
        start -= step
    end = at - at % step + step
    while _label(kind, zone, end) == mine:
        end += step
    return start, end


@lru_cache(maxsize=65_536)
def _label(kind: str, zone: str, at: int) -> tuple[object, ...]:
    local = (_EPOCH + timedelta(milliseconds=at)).astimezone(ZoneInfo(zone))
    if kind == "hour":
        return local.year, local.month, local.day, local.hour, local.utcoffset()
    return (local.year, local.month) if kind == "month" else (local.year, local.month, local.day)
