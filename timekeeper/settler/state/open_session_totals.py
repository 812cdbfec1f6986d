"""What the open sessions owe and reserve, kept as sums: a tick works out anew only what may have moved.

A session is looked at again where its evidence changed, and where time alone may change it: while a vanished
pod still has grace, while evidence lies ahead of the clock, and at moments that are known beforehand. All
sums are what `figures_of` makes of the sessions one by one; tests hold the two against each other after every
step, and so does the settler itself, a namespace at a time.
"""

import heapq
from collections.abc import Callable, Set
from dataclasses import dataclass, field

from timekeeper.accounts.balance import Rates, UnsettledSession
from timekeeper.accounts.posting import Posting, amount_within
from timekeeper.accounts.session import Session
from timekeeper.core.ledger.metering import Interval, WitnessedInterval

Span = tuple[int, int]


@dataclass(slots=True)
class _SessionTotals:
    """One session's part. ``runs``: its pod is there and its start is known, so that nothing but the end of
    its evidence can move. ``due_ms``: when time alone may change it, 0 where never."""

    namespace: str
    node: str
    rate_milli: int
    reserving_milli: int
    running_milli: int
    start_ms: int
    end_ms: int
    posted: tuple[Posting, ...]
    runs: bool
    due_ms: int = 0

    def within(self, span: Span) -> int:
        """What the evidence of the session charges for the time inside the span."""
        start, end = max(self.start_ms, span[0]), min(self.end_ms, span[1])
        return self.rate_milli * (end - start) if end > start else 0

    def pending(self, span: Span) -> int:
        """What it owes for that time beyond what was posted."""
        owed = self.within(span)
        return owed - amount_within(self.posted, Interval(*span)) if self.posted else owed


@dataclass(slots=True)
class _NamespaceTotals:
    """One namespace: its open sessions, their rates added up, and what is pending in each span that was asked
    for."""

    uids: set[str] = field(default_factory=set)
    reserving_milli: int = 0
    running_milli: int = 0
    pending: dict[Span, int] = field(default_factory=dict)


@dataclass(slots=True)
class OpenSessionTotals:
    """The shares of all open sessions and their sums. ``touched``: the namespaces of those that were looked
    at since the last tick that was written, each with the earliest moment that it is charged for otherwise
    (None: for none); ``owed``: the same of those that had no budget then, until they have one again.
    ``is_whole``: False while a tick is under way, so that one that fails leaves no
    half-counted sums behind."""

    settle_after_ms: int = 0
    at_ms: int = 0
    is_whole: bool = False
    touched: dict[str, int | None] = field(default_factory=dict)
    owed: dict[str, int] = field(default_factory=dict)
    restless: set[str] = field(default_factory=set)
    by_node: dict[str, set[str]] = field(default_factory=dict)
    _shares: dict[str, _SessionTotals] = field(default_factory=dict)
    _before: dict[str, _SessionTotals] = field(default_factory=dict)
    _sums: dict[str, _NamespaceTotals] = field(default_factory=dict)
    _due: list[tuple[int, str]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._shares)

    def anew(self, settle_after_ms: int) -> "OpenSessionTotals":
        """An empty one, that is told of every session again. What was charged until now is known, so that
        only what is then charged otherwise is ``touched``."""
        before = {**self._before, **self._shares}
        return OpenSessionTotals(
            settle_after_ms, touched=dict(self.touched), owed=dict(self.owed), _before=before
        )

    def written(self, has_budget: Callable[[str], bool]) -> None:
        """The tick is written. What moved in a namespace without a budget was carried over nowhere: that is
        kept for when it has one again, and its periods are looked at."""
        for name, at_ms in self.touched.items():
            if at_ms is not None:
                self.owed[name] = min(at_ms, self.owed.get(name, at_ms))
        for name in [name for name in self.owed if has_budget(name)]:
            del self.owed[name]
        self.touched.clear()
        self.is_whole = True

    def counted(self) -> None:
        """Every session was told of."""
        self._before.clear()

    def pending(self, namespace: str, span: Interval) -> int:
        """What the namespace's open sessions owe for the time inside the span, beyond what was posted."""
        sums, key = self._sums.get(namespace), (span.start_ms, span.end_ms)
        if sums is None:
            return 0
        if key not in sums.pending:
            sums.pending[key] = sum(self._shares[uid].pending(key) for uid in sums.uids)
        return sums.pending[key]

    def rates(self, namespace: str, waiting_milli: int) -> Rates:
        """The rates of the namespace's open sessions, with that of its waiting pods."""
        sums = self._sums.get(namespace)
        if sums is None:
            return Rates(0, 0, waiting_milli)
        return Rates(sums.reserving_milli, sums.running_milli, waiting_milli)

    def sessions_of(self, namespace: str) -> tuple[str, ...]:
        """The UIDs of the namespace's open sessions."""
        sums = self._sums.get(namespace)
        return tuple(sums.uids) if sums else ()

    def namespaces(self) -> tuple[str, ...]:
        """Those with open sessions."""
        return tuple(self._sums)

    def spans_of(self, namespace: str) -> tuple[Interval, ...]:
        """The spans whose sums are kept for the namespace."""
        sums = self._sums.get(namespace)
        return tuple(Interval(*span) for span in sums.pending) if sums else ()

    def keep(self, parts: Set[tuple[str, int, int]]) -> None:
        """Keep the sums of these namespaces and spans, and of no others."""
        for namespace, sums in self._sums.items():
            sums.pending = {span: each for span, each in sums.pending.items() if (namespace, *span) in parts}

    def due(self, now_ms: int) -> set[str]:
        """The sessions that time alone may have changed by now."""
        found = set(self.restless)
        while self._due and self._due[0][0] <= now_ms:
            at_ms, uid = heapq.heappop(self._due)
            share = self._shares.get(uid)
            if share is not None and share.due_ms == at_ms:
                share.due_ms = 0
                found.add(uid)
        return found

    def extend(self, uid: str, until_ms: int, now_ms: int) -> bool:
        """Evidence that a running session goes on: the common case, in a few steps. False where it must be
        looked at whole."""
        share = self._shares.get(uid)
        if share is None or not share.runs or not now_ms - self.settle_after_ms < until_ms <= now_ms:
            return False
        end_ms = max(share.start_ms, until_ms)
        if end_ms != share.end_ms:
            sums = self._sums[share.namespace]
            befores = [share.within(span) for span in sums.pending]
            self._touch(share.namespace, min(end_ms, share.end_ms))
            share.end_ms = end_ms
            for span, before in zip(sums.pending, befores, strict=True):
                sums.pending[span] += share.within(span) - before
            if not share.due_ms:
                self._wake(uid, share, end_ms + self.settle_after_ms)
        return True

    def put(self, held: UnsettledSession, seen: WitnessedInterval, now_ms: int) -> None:
        """An open session as it is now."""
        session, uid = held.session, held.session.uid
        before, start_ms = self._shares.get(uid), seen.interval.start_ms
        live_milli = 0 if seen.closed else session.rate_milli
        share = _SessionTotals(
            namespace=session.namespace,
            node=session.node,
            rate_milli=session.rate_milli,
            reserving_milli=live_milli if session.admitted_in_budget else 0,
            running_milli=live_milli if start_ms else 0,
            start_ms=start_ms,
            end_ms=seen.interval.end_ms,
            posted=held.posted,
            runs=start_ms > 0 and not session.is_over,
            due_ms=before.due_ms if before else 0,
        )
        self._touch(session.namespace, _touched(before or self._before.get(uid), held, seen.interval))
        self._replace(uid, before, share)
        self._schedule(held, seen, share, now_ms)

    def settle(self, held: UnsettledSession, seen: WitnessedInterval) -> None:
        """A session that is open no more: all of it is posted."""
        session, uid = held.session, held.session.uid
        before = self._shares.get(uid)
        self._touch(session.namespace, _touched(before, held, seen.interval))
        if before is not None:
            self._replace(uid, before, None)
        self.restless.discard(uid)

    def _touch(self, namespace: str, at_ms: int | None) -> None:
        earlier = self.touched.get(namespace)
        moments = [each for each in (earlier, at_ms) if each is not None]
        self.touched[namespace] = min(moments, default=None)

    def runs_on(self, session: Session) -> None:
        """Note whether the session's node speaks for it: only while its pod is there."""
        if session.is_over:
            self._leave(session.node, session.uid)
        else:
            self.by_node.setdefault(session.node, set()).add(session.uid)

    def _leave(self, node: str, uid: str) -> None:
        there = self.by_node.get(node)
        if there is not None:
            there.discard(uid)
            if not there:
                del self.by_node[node]

    def _replace(self, uid: str, before: _SessionTotals | None, after: _SessionTotals | None) -> None:
        either = after or before
        if either is None:
            return
        sums = self._sums.setdefault(either.namespace, _NamespaceTotals())
        for span in sums.pending:
            less = before.pending(span) if before else 0
            sums.pending[span] += (after.pending(span) if after else 0) - less
        for share, sign in ((before, -1), (after, 1)):
            if share is not None:
                sums.reserving_milli += sign * share.reserving_milli
                sums.running_milli += sign * share.running_milli
        if after is not None:
            sums.uids.add(uid)
            self._shares[uid] = after
            return
        self._leave(either.node, uid)
        sums.uids.discard(uid)
        del self._shares[uid]
        if not sums.uids:
            del self._sums[either.namespace]

    def _schedule(
        self, held: UnsettledSession, seen: WitnessedInterval, share: _SessionTotals, now_ms: int
    ) -> None:
        """When time alone may change the session next: now and again, at a known moment, or never."""
        uid, known = held.session.uid, held.evidence
        evidence_ms = max(known.beat_ms or 0, known.watermark_ms or 0)
        if not seen.closed and (known.vanished_ms is not None or evidence_ms > now_ms):
            self.restless.add(uid)
            return
        self.restless.discard(uid)
        latest_ms = held.session.bound_ms + held.session.start_grace_ms
        silent_ms = seen.interval.end_ms + self.settle_after_ms
        if not seen.closed and not share.runs and latest_ms > now_ms:
            self._wake(uid, share, latest_ms)
        elif seen.interval.length_ms and silent_ms > now_ms:
            self._wake(uid, share, silent_ms)

    def _wake(self, uid: str, share: _SessionTotals, at_ms: int) -> None:
        """One look at most is planned for a session: an earlier one that is planned plans the next."""
        if not share.due_ms or at_ms < share.due_ms:
            share.due_ms = at_ms
            heapq.heappush(self._due, (at_ms, uid))


def _touched(before: _SessionTotals | None, held: UnsettledSession, now: Interval) -> int | None:
    """The earliest moment that a session is charged for otherwise than before."""
    then = Interval(before.start_ms, before.end_ms) if before else _span(held.posted)
    if then == now:
        return None
    if before and then.start_ms == now.start_ms:
        return min(then.end_ms, now.end_ms)
    return min((each.start_ms for each in (then, now) if each.length_ms), default=None)


def _span(postings: tuple[Posting, ...]) -> Interval:
    """From the first to the last moment that was posted."""
    return Interval(
        min((each.from_ms for each in postings), default=0), max((each.to_ms for each in postings), default=0)
    )
