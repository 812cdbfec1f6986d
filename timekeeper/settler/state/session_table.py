"""Open sessions as columns of numbers, a row a session. Each tick computes all of them whole: nothing is
remembered but what the last written tick computed, to name what differs."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from timekeeper.accounts.balance import Rates
from timekeeper.accounts.posting import Posting, amount_within
from timekeeper.accounts.session import Session
from timekeeper.core.ledger.charged import NEVER, ChargedColumns, EvidenceColumns, charged
from timekeeper.core.ledger.metering import Interval

Column = NDArray[Any]
Span = tuple[int, int]

_BOUND = 2.0**62  # sums that are less, by floating point, fit into 63 bits
_FEW = 8  # a span that more namespaces ask for is computed for all of them at once
_LATEST = np.iinfo(np.int64).max

_SESSION = (
    *("namespace", "witness", "rate_milli", "bound_ms", "started_ms", "ended_ms", "vanished_ms", "grace_ms"),
    *("mark_ms", "beat_ms", "reserves_until_ms", "in_budget", "is_listed", "is_posted_before"),
)
# of the last written tick; a rate of NEVER: the row is new, and what is posted was charged
_LAST = ("last_bound_ms", "last_end_ms", "last_rate_milli", "last_due", "last_closed")
_NAMES = (*_SESSION, *_LAST)
_AT = {name: at for at, name in enumerate(_NAMES)}
_NO_SESSION = [NEVER if name in ("ended_ms", "vanished_ms", "reserves_until_ms") else 0 for name in _NAMES]


class DecayLayer(NamedTuple):
    """For each namespace, in the order of `SessionTable.names`: an account's number, from when to when
    charges count for it, and its half-life."""

    account: Column
    from_ms: Column
    to_ms: Column
    half_life_ms: Column


class SessionTable:
    """The open sessions with their postings, and what each owes as of the last `compute`.

    ``changed_since``: the namespaces with a difference from the last written tick, each with the earliest
    moment whose charge differs; None: no charge does.
    """

    def __init__(self) -> None:
        self.at_ms = 0  # of the last `compute`
        self.is_whole = False  # False during a tick: one that fails leaves rows that are not written
        self.changed_since: dict[str, int | None] = {}
        # the same of namespaces that had no budget at the time, until they have one
        self.changed_without_budget: dict[str, int] = {}
        # node, or CLAIMS -> UIDs of its sessions whose pods exist
        self.by_witness: dict[str, set[str]] = {}
        self._rows: dict[str, int] = {}
        self._uids: list[str] = []  # by row
        self._free: list[int] = []
        self._by_namespace: dict[str, dict[str, int]] = {}  # namespace -> UID -> row
        self._namespaces, self._witnesses = [""], {"": 0}  # the first ones are of rows without a session
        self._namespace_at = {"": 0}
        self._marks: Column = np.zeros(1, np.int64)
        self._values: Column = np.zeros((len(_NAMES), 0), np.int64)
        # row, namespace, from, to, rate
        self._posted: Column = np.zeros((5, 0), np.int64)
        self._touched: set[int] = set()  # rows that were put, or posted, since the last written tick
        self._now = ChargedColumns(*(np.zeros(0, np.int64) for _ in range(3)))
        self._due: Column = np.zeros(0, bool)
        self._numbers: type = np.int64
        self._pending: _Sums = {}
        self._declared: _Sums = {}
        self._rates: tuple[Column, ...] = ()

    def __len__(self) -> int:
        return len(self._rows)

    def index_witness(self, session: Session) -> None:
        """Note whether the watermark of its witness counts for the session: only while its pod exists."""
        if not session.is_over:
            self.by_witness.setdefault(session.witness, set()).add(session.uid)
            return
        there = self.by_witness.get(session.witness, set())
        there.discard(session.uid)
        if not there:
            self.by_witness.pop(session.witness, None)

    def restore(self, written: Iterable[tuple[Session, tuple[Posting, ...], int, int]]) -> None:
        """Hold these sessions, each as `put` takes it. What the last written tick computed of them stays
        known."""
        last = {uid: self._values[-len(_LAST) :, row].tolist() for uid, row in self._rows.items()}
        self.remove(list(self._rows))
        self.by_witness.clear()
        for session, posted, beat_ms, mark_ms in written:
            self.put(session, posted, beat_ms, mark_ms)
            self.index_witness(session)
            if session.uid in last:
                self._values[-len(_LAST) :, self._rows[session.uid]] = last[session.uid]

    def put(self, session: Session, posted: tuple[Posting, ...], beat_ms: int, mark_ms: int) -> None:
        """Add an open session with its postings, or replace it. ``mark_ms``: its witness's watermark, as
        written; 0: none."""
        row, last = self._rows.get(session.uid), None
        if row is None:
            row = self._new_row(session)
            self.post(posted)
            moments = [moment for posting in posted for moment in (posting.from_ms, posting.to_ms)]
            last = (min(moments, default=0), max(moments, default=0), NEVER, False, False)
        witness = self._witness(session.witness)
        self._marks[witness] = mark_ms
        self._values[: -len(_LAST), row] = (
            self._namespace_at[session.namespace],
            witness,
            session.rate_milli,
            session.bound_ms,
            session.started_ms or 0,
            NEVER if session.ended_ms is None else session.ended_ms,
            NEVER if session.vanished_ms is None else session.vanished_ms,
            session.grace_ms,
            session.watermark_ms or 0,
            beat_ms,
            NEVER if session.reserves_until_ms is None else session.reserves_until_ms,
            session.admitted_in_budget,
            False,
            bool(posted) and amount_within(posted, Interval(0, session.bound_ms)) != 0,
        )
        if last is not None:
            self._values[-len(_LAST) :, row] = last
        self._touched.add(row)

    def post(self, postings: Iterable[Posting]) -> None:
        """Add postings of sessions that are here."""
        new = [
            (
                self._rows[posting.session_uid],
                self._namespace_at[posting.namespace],
                posting.from_ms,
                posting.to_ms,
                posting.rate_milli,
            )
            for posting in postings
        ]
        if new:
            self._posted = np.concatenate([self._posted, np.array(new, np.int64).T], axis=1)
            self._touched.update(row for row, *_ in new)
            self._forget_sums()

    def remove(self, uids: Collection[str]) -> None:
        """Remove sessions that are settled."""
        gone = [(uid, self._rows.pop(uid)) for uid in uids if uid in self._rows]
        for uid, row in gone:
            name = self._namespaces[self._values[_AT["namespace"], row]]
            del self._by_namespace[name][uid]
            if not self._by_namespace[name]:
                del self._by_namespace[name]
            self._values[:, row] = _NO_SESSION
        rows = [row for _, row in gone]
        self._free += rows
        self._touched.difference_update(rows)
        self._posted = self._posted[:, ~np.isin(self._posted[0], rows)] if rows else self._posted

    def hear(self, beats: Mapping[str, int], marks: Mapping[str, int], listed: Iterable[str]) -> None:
        """Take in heartbeats of sessions, watermarks of witnesses, and which of the vanished pods are listed
        now."""
        for uid, beat_ms in beats.items():
            if uid in self._rows:
                self._values[_AT["beat_ms"], self._rows[uid]] = beat_ms
        for witness, mark_ms in marks.items():
            at = self._witness(witness)
            self._marks[at] = mark_ms
        is_listed = self._column("is_listed")
        is_listed[:] = False
        is_listed[_indexes(self._rows[uid] for uid in listed if uid in self._rows)] = True

    def compute(self, now_ms: int, settle_after_ms: int) -> list[str]:
        """Compute what every session is charged for now. Returns those of which something may have to be
        posted: a proved end, or an end without evidence for ``settleAfter``, that the last written tick did
        not see so, and sessions of which time before their beginning is posted."""
        column = self._column
        is_over = (column("ended_ms") != NEVER) | (column("vanished_ms") != NEVER)
        evidences = EvidenceColumns(
            bound_ms=column("bound_ms"),
            started_ms=column("started_ms"),
            ended_ms=column("ended_ms"),
            beat_ms=column("beat_ms"),
            watermark_ms=np.where(is_over, column("mark_ms"), self._marks[column("witness")]),
            vanished_ms=column("vanished_ms"),
            grace_ms=column("grace_ms"),
            is_listed=column("is_listed") != 0,
        )
        self._now = charged(evidences, now_ms, np.minimum, np.maximum, np.where)
        self.at_ms = now_ms
        length_ms = self._now.end_ms - column("bound_ms")
        silent = (now_ms - self._now.end_ms >= settle_after_ms) & (length_ms > 0)
        self._due = self._now.proven | silent | (self._now.closed & (length_ms == 0))
        self._numbers = np.int64 if self._are_small() else object
        looked = self._due & ((column("last_due") == 0) | (self._now.end_ms != column("last_end_ms")))
        touched = _indexes(self._touched)
        looked[touched] = self._due[touched] | (column("is_posted_before")[touched] != 0)
        self._forget_sums()
        return [self._uids[row] for row in np.flatnonzero(looked)]

    def note_changes(self) -> None:
        """Everything is put, computed and posted: set ``changed_since``."""
        column = self._column
        start_ms, end_ms, rate = column("bound_ms"), self._now.end_ms, column("rate_milli")
        then_ms, until_ms, last_rate = (
            column("last_bound_ms"),
            column("last_end_ms"),
            column("last_rate_milli"),
        )
        is_new = last_rate == NEVER
        is_same_rate = is_new | (rate == last_rate)
        is_same = (start_ms == then_ms) & (end_ms == until_ms) & is_same_rate
        first_ms = np.minimum(
            np.where(until_ms > then_ms, then_ms, _LATEST), np.where(end_ms > start_ms, start_ms, _LATEST)
        )
        goes_on = is_same_rate & ~is_new & (start_ms == then_ms)
        since_ms = np.where(is_same, _LATEST, np.where(goes_on, np.minimum(until_ms, end_ms), first_ms))
        differs = ~is_same | (self._now.closed != column("last_closed"))
        differs[_indexes(self._touched)] = True
        names = column("namespace")[differs]
        earliest = np.full(len(self._namespaces), _LATEST)
        np.minimum.at(earliest, names, since_ms[differs])
        moments = ((self._namespaces[at], int(earliest[at])) for at in np.unique(names))
        self.changed_since = {name: None if at_ms == _LATEST else at_ms for name, at_ms in moments if name}

    def mark_written(self, has_budget: Callable[[str], bool], withheld: Set[str] = frozenset()) -> None:
        """The tick is written. Changes in a namespace without a budget are not carried over: they are kept
        until it has a budget again, and its periods are then computed again. Of ``withheld`` namespaces
        nothing is written: their changes stay, and every session is added again."""
        for name, at_ms in self.changed_since.items():
            if at_ms is not None and name not in withheld:
                self.changed_without_budget[name] = min(at_ms, self.changed_without_budget.get(name, at_ms))
        for name in [name for name in self.changed_without_budget if has_budget(name)]:
            del self.changed_without_budget[name]
        self.changed_since = {}
        self.is_whole = not withheld
        column, now = self._column, self._now
        kept = [self._namespace_at[name] for name in withheld if name in self._namespace_at]
        rows = np.isin(column("namespace"), kept, invert=True)
        for name, values in zip(
            _LAST, (column("bound_ms"), now.end_ms, column("rate_milli"), self._due, now.closed), strict=True
        ):
            column(name)[rows] = values[rows]
        self._touched = set()

    def pending(self, namespace: str, span: Interval) -> int:
        """What the namespace's open sessions owe for time inside the span, beyond what is posted."""
        return self._sum(self._pending, self._owed, namespace, (span.start_ms, span.end_ms))

    def declared(self, namespace: str, span: Interval) -> int:
        """What the namespace's open sessions reserve of their declared time inside the span."""
        return self._sum(self._declared, self._reserved, namespace, (span.start_ms, span.end_ms))

    def pending_of(self, uid: str, span: Interval) -> int:
        """Like `pending`, of one of its open sessions."""
        row = self._rows[uid]
        _, amounts = self._owed((span.start_ms, span.end_ms), _indexes((row,)), self._posted[0] == row)
        return int(amounts.sum())

    def declared_each(self, namespace: str) -> Iterator[tuple[int, int, int]]:
        """Of each session that reserves declared time: its rate, and from when until when."""
        for row in self._by_namespace.get(namespace, {}).values():
            until_ms, end_ms = self._values[_AT["reserves_until_ms"], row], self._now.end_ms[row]
            if until_ms > end_ms and not self._now.closed[row]:
                yield int(self._values[_AT["rate_milli"], row]), int(end_ms), int(until_ms)

    def rates(self, namespace: str, waiting_milli: int) -> Rates:
        """The rates of the namespace's open sessions, together with its waiting pods' rate."""
        if not self._rates:
            column = self._column
            is_live = ~self._now.closed & (column("reserves_until_ms") == NEVER)
            self._rates = tuple(
                self._by_name(column("namespace"), np.where(is_live & which, column("rate_milli"), 0))
                for which in (column("in_budget") != 0, column("bound_ms") > 0)
            )
        at = self._namespace_at.get(namespace, 0)
        reserving, running = (int(rates[at]) for rates in self._rates)
        return Rates(reserving, running, waiting_milli)

    def names(self) -> Sequence[str]:
        """The namespaces by number; it grows."""
        return self._namespaces

    def decayed(
        self, layers: Iterable[DecayLayer], accounts: int, at_ms: int, lookahead_ms: int
    ) -> NDArray[Any]:
        """What of these accounts' use is not in postings, by number: what open sessions owe beyond them, as
        `core.ledger.fair_share.decayed` has it, and what they reserve."""
        column, (_, names, from_ms, to_ms, rate) = self._column, self._posted
        live = column("rate_milli") != 0
        own, rates = column("namespace")[live], column("rate_milli")[live]
        end_ms, until_ms = self._now.end_ms[live], column("reserves_until_ms")[live]
        reserves = np.where(column("in_budget")[live] != 0, lookahead_ms, 0)
        reserves = np.where(until_ms == NEVER, reserves, np.maximum(0, until_ms - end_ms))
        ahead = np.where(self._now.closed[live], 0, reserves) * 1.0 * rates
        names = np.concatenate([own, names])
        from_ms = np.concatenate([column("bound_ms")[live], from_ms])
        to_ms = np.minimum(np.concatenate([end_ms, to_ms]), at_ms)
        rate = np.concatenate([rates, -rate]) / np.log(2)
        sums = np.zeros(accounts + 1)
        for layer in layers:
            account, half_life_ms = layer.account[names], layer.half_life_ms[names]
            begin_ms = np.maximum(from_ms, layer.from_ms[names])
            finish_ms = np.maximum(begin_ms, np.minimum(to_ms, layer.to_ms[names]))
            grown = -np.expm1((begin_ms - finish_ms) * np.log(2) / half_life_ms)
            amounts = rate * half_life_ms * grown * np.exp2((finish_ms - at_ms) / half_life_ms)
            is_now = (layer.from_ms[own] <= at_ms) & (at_ms < layer.to_ms[own])
            sums += np.bincount(account, amounts, accounts + 1)
            sums += np.bincount(layer.account[own], np.where(is_now, ahead, 0.0), accounts + 1)
        return sums[:-1]

    def sessions_of(self, namespace: str) -> tuple[str, ...]:
        """The UIDs of the namespace's open sessions."""
        return tuple(self._by_namespace.get(namespace, ()))

    def namespaces(self) -> tuple[str, ...]:
        """The namespaces with open sessions."""
        return tuple(self._by_namespace)

    def _column(self, name: str) -> Column:
        column: Column = self._values[_AT[name]]
        return column

    def _new_row(self, session: Session) -> int:
        if not self._free:
            many = max(64, self._values.shape[1])
            self._free = list(range(self._values.shape[1] + many - 1, self._values.shape[1] - 1, -1))
            self._values = np.concatenate([self._values, np.array([_NO_SESSION] * many).T], axis=1)
            self._uids += [""] * many
        row = self._rows[session.uid] = self._free.pop()
        self._uids[row] = session.uid
        if session.namespace not in self._namespace_at:
            self._namespace_at[session.namespace] = len(self._namespaces)
            self._namespaces.append(session.namespace)
        self._by_namespace.setdefault(session.namespace, {})[session.uid] = row
        return row

    def _witness(self, name: str) -> int:
        at = self._witnesses.setdefault(name, len(self._witnesses))
        if at == len(self._marks):
            self._marks = np.concatenate([self._marks, np.zeros_like(self._marks)])
        return at

    def _are_small(self) -> bool:
        """Whether the sums of every namespace fit into 63 bits."""
        column, (_, names, from_ms, to_ms, rate) = self._column, self._posted
        latest_ms = np.maximum(self._now.end_ms, column("reserves_until_ms"))
        amounts = (
            rate * 1.0 * (to_ms - from_ms),
            column("rate_milli") * 1.0 * (latest_ms - column("bound_ms")),
        )
        sums = np.bincount(np.concatenate([names, column("namespace")]), np.abs(np.concatenate(amounts)), 1)
        return bool(sums.max() < _BOUND)

    def _forget_sums(self) -> None:
        self._pending, self._declared = {}, {}
        self._rates = ()

    def _sum(self, known: "_Sums", amounts_in: "_AmountsIn", namespace: str, span: Span) -> int:
        """Of what is asked for of a span: for few namespaces from their rows, then for all at once."""
        at, rows = self._namespace_at.get(namespace, 0), self._by_namespace.get(namespace)
        if rows is None:
            return 0
        asked = known.setdefault(span, 0)
        if isinstance(asked, int) and asked < _FEW:
            known[span] = asked + 1
            _, amounts = amounts_in(span, _indexes(rows.values()), self._posted[1] == at)
            return int(amounts.sum())
        if isinstance(asked, int):
            asked = known[span] = self._by_name(*amounts_in(span, slice(None), slice(None)))
        return int(asked[at])

    def _owed(self, span: Span, rows: "_Some", posted: "_Some") -> tuple[Column, Column]:
        """What rows owe, and what is posted, negative: the namespace of each, and the amount."""
        column = self._column
        _, names, from_ms, to_ms, rate = (values[posted] for values in self._posted)
        start_ms, end_ms = column("bound_ms")[rows], self._now.end_ms[rows]
        owed = self._amounts(column("rate_milli")[rows], start_ms, end_ms, span)
        taken = self._amounts(rate, from_ms, to_ms, span)
        return np.concatenate([column("namespace")[rows], names]), np.concatenate([owed, -taken])

    def _reserved(self, span: Span, rows: "_Some", _: "_Some") -> tuple[Column, Column]:
        """What rows reserve of their declared time: the namespace of each, and the amount."""
        column, now = self._column, self._now
        rate = np.where(now.closed[rows], 0, column("rate_milli")[rows])
        amounts = self._amounts(rate, now.end_ms[rows], column("reserves_until_ms")[rows], span)
        return column("namespace")[rows], amounts

    def _amounts(self, rate: Column, from_ms: Column, to_ms: Column, span: Span) -> Column:
        length_ms = np.minimum(to_ms, span[1]) - np.maximum(from_ms, span[0])
        amounts: Column = rate.astype(self._numbers) * np.maximum(0, length_ms)
        return amounts

    def _by_name(self, names: Column, amounts: Column) -> Column:
        sums: Column = np.zeros(len(self._namespaces), self._numbers)
        np.add.at(sums, names, amounts)
        return sums


_Some = Column | slice
_Sums = dict[Span, "Column | int"]  # int: how many namespaces asked
_AmountsIn = Callable[[Span, _Some, _Some], tuple[Column, Column]]


def _indexes(found: Iterable[int]) -> Column:
    return np.fromiter(found, np.intp)
