"""Which budget was in force when: entries dated by when they took effect, and the accounts that follow from
them.

A report of last month is made with last month's entries; a change today moves nothing that lies behind it.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from timekeeper.core.budgets import EntryError, read_entry
from timekeeper.core.ledger import FOREVER_MS, Interval, period_at
from timekeeper.core.policy import UNLIMITED, Budget, Settings

DAY_MS = 86_400_000
SETTINGS = "_settings"
DEFAULTS = "_defaults"


@dataclass(frozen=True, slots=True)
class Entry:
    """The text of one key of the budget ConfigMaps from a moment on; None: from then on there is none."""

    key: str
    text: str | None
    from_ms: int


@dataclass(frozen=True, slots=True)
class InForce:
    """The budget that holds for a namespace, and the key it stands under (empty where there is none)."""

    key: str
    budget: Budget


@dataclass(frozen=True, slots=True)
class Account:
    """The span in which a namespace's grants and charges are held against each other."""

    kind: str
    zone: str
    span: Interval


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A time through which periods of one kind ran, in one time zone."""

    start_ms: int
    kind: str
    zone: str


@dataclass(frozen=True, slots=True)
class _Dated:
    """One key's values with the moments from which they hold, in order."""

    texts: tuple[str | None, ...]
    values: tuple[Budget | Settings | None, ...]
    from_ms: tuple[int, ...]

    def at(self, at_ms: int) -> Budget | Settings | None:
        index = bisect_right(self.from_ms, at_ms)
        return self.values[index - 1] if index else None


@dataclass(frozen=True, slots=True)
class History:
    """All entries that ever took effect. ``unread`` names the keys of stored texts that no longer parse: they
    count as never written."""

    unread: tuple[EntryError, ...]
    _dated: dict[str, _Dated]
    _stretches: dict[str, tuple[_Stretch, ...]] = field(default_factory=dict, compare=False)

    def text(self, key: str) -> str | None:
        """The newest text of a key; None where it has none any more."""
        dated = self._dated.get(key)
        return dated.texts[-1] if dated else None

    def living(self) -> frozenset[str]:
        """The keys that have a text now."""
        return frozenset(key for key, dated in self._dated.items() if dated.texts[-1] is not None)

    def newest_ms(self) -> int:
        """When the newest entry took effect; 0 where there is none."""
        return max((dated.from_ms[-1] for dated in self._dated.values()), default=0)

    def settings(self, at_ms: int) -> Settings:
        """The settings in force then; the defaults where none were written."""
        dated = self._dated.get(SETTINGS)
        value = dated.at(at_ms) if dated else None
        return value if isinstance(value, Settings) else Settings()

    def budget(self, namespace: str, at_ms: int) -> InForce:
        """The namespace's own entry, else ``_defaults``, else no limit."""
        for key in (namespace, DEFAULTS):
            dated = self._dated.get(key)
            value = dated.at(at_ms) if dated else None
            if isinstance(value, Budget):
                return InForce(key, value)
        return InForce("", UNLIMITED)

    def account(self, namespace: str, at_ms: int) -> Account:
        """The account that ``at_ms`` falls in: the calendar's period, cut where the kind of period changed.

        Where a budget is taken away and given again, its periods go on as if it had been there all the time,
        so that this refills nothing. A namespace that never had a budget has one account, of all time.
        """
        stretches = self._stretches_of(namespace)
        index = bisect_right([each.start_ms for each in stretches], at_ms)
        if not index:
            return Account("once", "UTC", Interval(0, FOREVER_MS))
        own = stretches[index - 1]
        until = stretches[index].start_ms if index < len(stretches) else FOREVER_MS
        span = period_at(own.kind, own.zone, at_ms).within(Interval(own.start_ms, until))
        return Account(own.kind, own.zone, span)

    def pieces(self, namespace: str, interval: Interval) -> Iterator[Interval]:
        """The interval cut at the bounds of the namespace's accounts and at each midnight in UTC, in order,
        without empty parts. So no posting reaches over two days, and sums by day hold whole ones."""
        start = interval.start_ms
        while start < interval.end_ms:
            midnight = start - start % DAY_MS + DAY_MS
            end = min(interval.end_ms, midnight, self.account(namespace, start).span.end_ms)
            yield Interval(start, end)
            start = end

    def _stretches_of(self, namespace: str) -> tuple[_Stretch, ...]:
        if namespace not in self._stretches:
            self._stretches[namespace] = tuple(_merged(self._changes(namespace)))
        return self._stretches[namespace]

    def _changes(self, namespace: str) -> Iterator[_Stretch]:
        """Kind and zone at each moment when either may have changed, where there was a limit then."""
        keys = (namespace, DEFAULTS, SETTINGS)
        moments = {at for key in keys if key in self._dated for at in self._dated[key].from_ms}
        for at in sorted(moments):
            budget = self.budget(namespace, at).budget
            if budget.amount is not None:
                yield _Stretch(at, budget.period, self.settings(at).time_zone)


def history_of(entries: Iterable[Entry]) -> History:
    """The history that entries in the order of their moments make."""
    rows: dict[str, list[tuple[Entry, Budget | Settings | None]]] = {}
    unread = []
    for entry in entries:
        value = None if entry.text is None else read_entry(entry.key, entry.text, settled=True)
        if isinstance(value, EntryError):
            unread.append(value)
        else:
            rows.setdefault(entry.key, []).append((entry, value))
    dated = {
        key: _Dated(
            tuple(entry.text for entry, _ in each),
            tuple(value for _, value in each),
            tuple(entry.from_ms for entry, _ in each),
        )
        for key, each in rows.items()
    }
    return History(tuple(unread), dated)


def _merged(changes: Iterable[_Stretch]) -> Iterator[_Stretch]:
    """Neighbours of one kind and zone are one stretch; the first reaches back to the beginning of time."""
    last: _Stretch | None = None
    for each in changes:
        if last is None:
            last = _Stretch(0, each.kind, each.zone)
            yield last
        elif (each.kind, each.zone) != (last.kind, last.zone):
            last = each
            yield each
