"""What accounts have used of late. The posted part is carried forward, with each posting once; what open
sessions owe, and what they and released pods reserve, is computed anew."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from timekeeper.accounts.account_rows import AccountRow
from timekeeper.accounts.budget_history import DEFAULTS, History
from timekeeper.accounts.fair_shares import (
    GRID_MS,
    FairStanding,
    PostedUse,
    parts_of,
    read_standing,
    standings_of,
    terms_of,
)
from timekeeper.accounts.posting import Posting
from timekeeper.core.ledger.metering import Interval
from timekeeper.settler.state.session_table import Column, DecayLayer, SessionTable

_READ_AT_ONCE = 50  # namespaces whose past a tick reads
_HALF_LIVES = 30  # what is older is less than 1e-9 of it

ReadCharges = Callable[[Sequence[str], int], Iterable[tuple[str, Interval, float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FairUse:
    """By account. ``posted`` lacks nothing but what namespaces in ``unread`` add to accounts in ``making``.
    ``standings``: as of ``ranked_ms``, by ``ranked_by``, or if that is None by ``history``, which an earlier
    settler knew; none while shares are off."""

    posted: Mapping[str, PostedUse] = field(default_factory=dict)
    making: frozenset[str] = frozenset()
    unread: tuple[str, ...] = ()
    standings: Mapping[str, FairStanding] = field(default_factory=dict)
    ranks: Mapping[str, int] = field(default_factory=dict)  # of ``standings``
    ranked_ms: int = 0
    history: History | None = None
    ranked_by: "ShareLayout | None" = None
    layout: "ShareLayout | None" = None  # that ``posted`` follows

    def row(self, account: str) -> tuple[PostedUse | None, FairStanding | None]:
        """What the account's row has."""
        known = None if account in self.making else self.posted.get(account)
        return known, self.standings.get(account)

    def changed_since(self, before: "FairUse") -> set[str]:
        """The accounts whose rows differ."""
        if self is before:
            return set()
        if self.standings is before.standings and self.making == before.making:
            differ = (name for name, known in self.posted.items() if before.posted.get(name) is not known)
            return {name for name in differ if name not in self.making}
        names = before.posted.keys() | self.posted.keys() | self.standings.keys() | before.standings.keys()
        return {name for name in names if self.row(name) != before.row(name)}


NO_USE = FairUse()


def of_rows(rows: Mapping[str, AccountRow], history: History) -> FairUse:
    """As these rows have it."""
    if rows and history.settings(rows[DEFAULTS].as_of_ms).fair_share == "off":
        return NO_USE
    posted = {
        name: PostedUse(row.decayed, row.decayed_ms, row.half_life_ms)
        for name, row in rows.items()
        if row.decayed is not None and row.decayed_ms is not None and row.half_life_ms is not None
    }
    found = {name: read_standing(row.fair) for name, row in rows.items()}
    standings = {name: standing for name, standing in found.items() if standing is not None}
    ranked_ms = rows[DEFAULTS].as_of_ms if rows else 0
    return FairUse(
        posted=posted, standings=standings, ranks=_ranks(standings), ranked_ms=ranked_ms, history=history
    )


def _ranks(standings: Mapping[str, FairStanding]) -> dict[str, int]:
    return {name: standing.rank for name, standing in standings.items()}


class ShareLayout:
    """How the charges of namespaces are distributed to accounts, by histories that say the same of it."""

    def __init__(self, history: History, now_ms: int) -> None:
        self.history, self.terms = history, terms_of(history, now_ms)
        self._parts: dict[str, tuple[tuple[str, Interval], ...]] = {}
        self._at = {account: at for at, account in enumerate(self.terms)}
        self._layers: tuple[int, list[DecayLayer]] = -1, []

    def is_same(self, history: History, changed: Iterable[str], now_ms: int) -> bool:
        """Whether that of a later history is the same, which differs in the entries of these keys."""
        return all(
            not key.startswith("_")
            and key in self.terms
            and history.text(key) is not None
            and self.terms[key] == history.fair_share(key, now_ms)
            and self.history.group(key, now_ms) == history.group(key, now_ms)
            for key in changed
        )

    def parts(self, namespace: str) -> tuple[tuple[str, Interval], ...]:
        """The accounts that its charges count for, and of which time."""
        if namespace not in self._parts:
            found = parts_of(self.history, namespace)
            self._parts[namespace] = tuple(part for part in found if part[0] in self.terms)
        return self._parts[namespace]

    def accounts_now(self, namespace: str, now_ms: int) -> list[str]:
        """Those that count what it reserves."""
        return [name for name, during in self.parts(namespace) if during.start_ms <= now_ms < during.end_ms]

    def open_use(self, table: SessionTable, now_ms: int, lookahead_ms: int) -> dict[str, float]:
        """What open sessions owe, and reserve, by account."""
        names = table.names()
        if self._layers[0] != len(names):
            self._layers = len(names), self._layers_of(names)
        sums = table.decayed(self._layers[1], len(self._at), now_ms, lookahead_ms)
        return dict(zip(self._at, sums.tolist(), strict=True))

    def _layers_of(self, names: Sequence[str]) -> list[DecayLayer]:
        parts = [self.parts(name) if name else () for name in names]
        return [self._layer(parts, depth) for depth in range(max(map(len, parts), default=0))]

    def _layer(self, parts: Sequence[Sequence[tuple[str, Interval]]], depth: int) -> DecayLayer:
        """The accounts of one part of each namespace; after the last one there is none."""
        none = (len(self._at), 0, 0, 1)
        rows = [self._row(*of[depth]) if depth < len(of) else none for of in parts]
        columns: Column = np.array(rows, np.int64).T
        return DecayLayer(*columns)

    def _row(self, account: str, during: Interval) -> tuple[int, int, int, int]:
        return self._at[account], during.start_ms, during.end_ms, self.terms[account].half_life_ms


def followed(
    before: FairUse,
    layout: ShareLayout,
    postings: Iterable[Posting],
    namespaces: Iterable[str],
    read: ReadCharges,
    now_ms: int,
) -> FairUse:
    """The posted part with these postings, not written yet. Of accounts without a value, or with
    one by another half-life, it is made from what is written, a few namespaces in a tick."""
    terms, posted = layout.terms, dict[str, PostedUse]()
    making, unread = before.making, before.unread
    if before.layout is not layout:
        making &= terms.keys()
        lives = {name: known.half_life_ms for name, known in before.posted.items()}
        stale = {name for name, of in terms.items() if lives.get(name) != of.half_life_ms}
        if stale:
            making |= stale
            posted = {name: PostedUse(0.0, now_ms, terms[name].half_life_ms) for name in making}
            parted = (n for n in namespaces if any(name in making for name, _ in layout.parts(n)))
            unread = tuple(sorted(parted))

    def add(namespace: str, during: Interval, rate: float, accounts: frozenset[str] | None) -> None:
        for name, part in layout.parts(namespace):
            if accounts is None or name in accounts:
                known = posted.get(name) or before.posted[name]
                posted[name] = known.with_charge(rate, during.within(part), now_ms)

    batch, unread = unread[:_READ_AT_ONCE], unread[_READ_AT_ONCE:]
    if batch:
        longest_ms = max(terms[name].half_life_ms for name in making)
        for namespace, during, rate in read(batch, now_ms - _HALF_LIVES * longest_ms):
            add(namespace, during, rate, making)
    late = frozenset(unread)
    whole = frozenset(terms) - making if late else None
    for posting in postings:
        of = whole if posting.namespace in late else None
        add(posting.namespace, posting.interval, posting.rate_milli, of)
    if not posted and not before.making and before.layout is layout:
        return before
    kept = before.posted
    if before.layout is not layout:
        kept = {name: known for name, known in kept.items() if name in terms}
    making = making if unread else frozenset()
    return replace(before, posted={**kept, **posted}, making=making, unread=unread, layout=layout)


def uses(
    fair: FairUse,
    layout: ShareLayout,
    table: SessionTable,
    reserving: Iterable[tuple[str, int]],
    now_ms: int,
    wanted: Iterable[str] | None = None,
) -> dict[str, float]:
    """What each account has used, or each that is ``wanted``, in milli-GPU x milliseconds. ``reserving``: by
    namespace, what released pods without a session reserve."""
    lookahead_ms = layout.history.settings(now_ms).lookahead_ms
    of_open = layout.open_use(table, now_ms, lookahead_ms)
    names = of_open if wanted is None else wanted
    found = {name: fair.posted[name].at(now_ms) + of_open[name] for name in names}
    for namespace, amount in reserving:
        for name in layout.accounts_now(namespace, now_ms):
            if name in found:
                found[name] += amount
    return found


def ranked(
    before: FairUse, layout: ShareLayout, uses_now: Callable[[], Mapping[str, float]], now_ms: int
) -> FairUse:
    """With the ranks of now, if they are due: at each point of the grid, and once entries change. While
    something is still to be read, they stay."""
    is_same_point = now_ms // GRID_MS == before.ranked_ms // GRID_MS
    if before.making or (is_same_point and (before.ranked_by is layout or _is_earlier(before, layout))):
        return before
    standings = standings_of(layout.history, layout.terms, uses_now(), now_ms)
    return replace(before, standings=standings, ranks=_ranks(standings), ranked_ms=now_ms, ranked_by=layout)


def _is_earlier(before: FairUse, layout: ShareLayout) -> bool:
    """Whether an earlier settler ranked all of these accounts, by this history."""
    is_by_it = before.ranked_by is None and before.history is layout.history
    return is_by_it and before.standings.keys() == layout.terms.keys()
