"""What open sessions owe and reserve, kept as running totals: a tick recomputes only sessions that may have
changed.

A session is recomputed when its evidence changed, and when time alone may change it: while a vanished pod
still has grace, while evidence lies ahead of the clock, and at moments known in advance. The totals always
equal what `figures_of` computes from the sessions one by one. Tests compare the two after every step; the
settler does so too, a namespace at a time (`self_check`).
"""

import heapq
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field

from timekeeper.accounts.balance import Rates, UnsettledSession
from timekeeper.accounts.posting import Posting, amount_within
from timekeeper.accounts.session import Session
from timekeeper.core.ledger.metering import Interval, WitnessedInterval

Span = tuple[int, int]


@dataclass(slots=True, kw_only=True)
class _SessionTotals:
    namespace: str
    node: str
    rate_milli: int  # what it is charged at
    reserving_milli: int  # its part of the namespace's reserving rate
    running_milli: int  # its part of the namespace's running rate
    start_ms: int  # charged from
    end_ms: int  # charged to, by the evidence so far
    posted: tuple[Posting, ...]
    runs: bool  # the pod exists and its start is known: only the end of its evidence can move
    due_ms: int = 0  # when time alone may change it; 0: never
    reserves_until_ms: int = 0  # until when it reserves its declared time; 0: it does not

    def within(self, span: Span) -> int:
        """The charge for the part of the session inside the span, by its evidence."""
        start, end = max(self.start_ms, span[0]), min(self.end_ms, span[1])
        return self.rate_milli * (end - start) if end > start else 0

    def pending(self, span: Span) -> int:
        """The charge inside the span that is not posted yet."""
        owed = self.within(span)
        return owed - amount_within(self.posted, Interval(*span)) if self.posted else owed

    def declared(self, span: Span) -> int:
        """What it reserves of its declared time inside the span, beyond its evidence so far."""
        if not self.reserves_until_ms:
            return 0
        start, end = max(self.end_ms, span[0]), min(self.reserves_until_ms, span[1])
        return self.rate_milli * (end - start) if end > start else 0


@dataclass(slots=True)
class _NamespaceTotals:
    """One namespace: its open sessions, the sums of their rates, and the pending amount of each span in
    use."""

    uids: set[str] = field(default_factory=set)
    reserving_milli: int = 0
    running_milli: int = 0
    pending: dict[Span, int] = field(default_factory=dict)
    declared: dict[Span, int] = field(default_factory=dict)  # span -> what pods reserve of it


@dataclass(slots=True, kw_only=True)
class OpenSessionTotals:
    """Per-session contributions and their sums by namespace."""

    settle_after_ms: int = 0  # the setting that the totals are computed with
    at_ms: int = 0  # time of the last tick
    is_whole: bool = False  # False during a tick: a tick that fails leaves totals that must be rebuilt
    # namespaces recomputed since the last written tick -> earliest moment whose charge changed, None: no
    # change
    changed_since: dict[str, int | None] = field(default_factory=dict)
    # the same for namespaces that had no budget at the time, until they have one
    changed_without_budget: dict[str, int] = field(default_factory=dict)
    time_dependent: set[str] = field(default_factory=set)  # UIDs of sessions to recompute in every tick
    # node -> UIDs of its sessions whose pods exist
    by_node: dict[str, set[str]] = field(default_factory=dict)
    _sessions: dict[str, _SessionTotals] = field(default_factory=dict)
    # during a rebuild: the contributions before it
    _previous: dict[str, _SessionTotals] = field(default_factory=dict)
    _namespaces: dict[str, _NamespaceTotals] = field(default_factory=dict)
    # heap of (moment, UID): recompute the session then
    _due: list[tuple[int, str]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._sessions)

    def rebuilding(self, settle_after_ms: int) -> "OpenSessionTotals":
        """Empty totals, to which every session must be added again. Remembers what was charged so far, so
        that ``changed_since`` names real changes only."""
        before = {**self._previous, **self._sessions}
        return OpenSessionTotals(
            settle_after_ms=settle_after_ms,
            changed_since=dict(self.changed_since),
            changed_without_budget=dict(self.changed_without_budget),
            _previous=before,
        )

    def mark_written(self, has_budget: Callable[[str], bool], withheld: Set[str] = frozenset()) -> None:
        """The tick is written. Changes in a namespace without a budget are not carried over: they are kept
        until it has a budget again, and its periods are then recomputed. Of ``withheld`` namespaces nothing
        is written: their changes stay, and every session is added again."""
        kept = {name: self.changed_since.pop(name) for name in withheld & self.changed_since.keys()}
        for name, at_ms in self.changed_since.items():
            if at_ms is not None:
                self.changed_without_budget[name] = min(at_ms, self.changed_without_budget.get(name, at_ms))
        for name in [name for name in self.changed_without_budget if has_budget(name)]:
            del self.changed_without_budget[name]
        self.changed_since.clear()
        self.changed_since.update(kept)
        self.is_whole = not withheld

    def finish_rebuild(self) -> None:
        """Every session has been added."""
        self._previous.clear()

    def pending(self, namespace: str, span: Interval) -> int:
        """What the namespace's open sessions owe for time inside the span, beyond what is posted."""
        sums, key = self._namespaces.get(namespace), (span.start_ms, span.end_ms)
        if sums is None:
            return 0
        if key not in sums.pending:
            sums.pending[key] = sum(self._sessions[uid].pending(key) for uid in sums.uids)
        return sums.pending[key]

    def pending_of(self, uid: str, span: Interval) -> int:
        """The same of one of its open sessions."""
        return self._sessions[uid].pending((span.start_ms, span.end_ms))

    def declared(self, namespace: str, span: Interval) -> int:
        """What the namespace's open sessions reserve of their declared time inside the span."""
        sums, key = self._namespaces.get(namespace), (span.start_ms, span.end_ms)
        if sums is None:
            return 0
        if key not in sums.declared:
            sums.declared[key] = sum(self._sessions[uid].declared(key) for uid in sums.uids)
        return sums.declared[key]

    def declared_each(self, namespace: str) -> Iterator[tuple[int, int, int]]:
        """Of each of these sessions: its rate, and from when until when it reserves."""
        for uid in self.sessions_of(namespace):
            each = self._sessions[uid]
            if each.reserves_until_ms > each.end_ms:
                yield each.rate_milli, each.end_ms, each.reserves_until_ms

    def rates(self, namespace: str, waiting_milli: int) -> Rates:
        """The rates of the namespace's open sessions, together with its waiting pods' rate."""
        sums = self._namespaces.get(namespace)
        if sums is None:
            return Rates(0, 0, waiting_milli)
        return Rates(sums.reserving_milli, sums.running_milli, waiting_milli)

    def sessions_of(self, namespace: str) -> tuple[str, ...]:
        """The UIDs of the namespace's open sessions."""
        sums = self._namespaces.get(namespace)
        return tuple(sums.uids) if sums else ()

    def namespaces(self) -> tuple[str, ...]:
        """The namespaces with open sessions."""
        return tuple(self._namespaces)

    def spans_of(self, namespace: str) -> tuple[Interval, ...]:
        """The spans with cached pending amounts for the namespace."""
        sums = self._namespaces.get(namespace)
        return tuple(Interval(*span) for span in sums.pending) if sums else ()

    def retain(self, parts: Set[tuple[str, int, int]]) -> None:
        """Drop the pending amounts of all other namespaces and spans."""
        for namespace, sums in self._namespaces.items():
            sums.pending = {span: each for span, each in sums.pending.items() if (namespace, *span) in parts}
            sums.declared = {
                span: each for span, each in sums.declared.items() if (namespace, *span) in parts
            }

    def due(self, now_ms: int) -> set[str]:
        """UIDs of sessions that time alone may have changed by now."""
        found = set(self.time_dependent)
        while self._due and self._due[0][0] <= now_ms:
            at_ms, uid = heapq.heappop(self._due)
            part = self._sessions.get(uid)
            if part is not None and part.due_ms == at_ms:
                part.due_ms = 0
                found.add(uid)
        return found

    def extend(self, uid: str, until_ms: int, now_ms: int) -> bool:
        """Fast path: new evidence that a running session continues. Returns False if the session must be
        recomputed."""
        part = self._sessions.get(uid)
        if part is None or not part.runs or not now_ms - self.settle_after_ms < until_ms <= now_ms:
            return False
        end_ms = max(part.start_ms, until_ms)
        if end_ms != part.end_ms:
            sums = self._namespaces[part.namespace]
            befores = [part.within(span) for span in sums.pending]
            self._note_change(part.namespace, min(end_ms, part.end_ms))
            if part.reserves_until_ms:
                for span in sums.declared:
                    sums.declared[span] -= part.declared(span)
            part.end_ms = end_ms
            for span, before in zip(sums.pending, befores, strict=True):
                sums.pending[span] += part.within(span) - before
            if part.reserves_until_ms:
                for span in sums.declared:
                    sums.declared[span] += part.declared(span)
            if not part.due_ms:
                self._plan_check(uid, part, end_ms + self.settle_after_ms)
        return True

    def put(self, open_session: UnsettledSession, witnessed: WitnessedInterval, now_ms: int) -> None:
        """Add an open session, or replace its former state."""
        session, uid = open_session.session, open_session.session.uid
        before, start_ms = self._sessions.get(uid), witnessed.interval.start_ms
        declares = session.reserves_until_ms is not None
        live_milli = 0 if witnessed.closed or declares else session.rate_milli
        part = _SessionTotals(
            namespace=session.namespace,
            node=session.witness,
            rate_milli=session.rate_milli,
            reserving_milli=live_milli if session.admitted_in_budget else 0,
            running_milli=live_milli if start_ms else 0,
            start_ms=start_ms,
            end_ms=witnessed.interval.end_ms,
            posted=open_session.posted,
            runs=start_ms > 0 and not session.is_over,
            due_ms=before.due_ms if before else 0,
            reserves_until_ms=0 if witnessed.closed else session.reserves_until_ms or 0,
        )
        self._note_change(
            session.namespace,
            _changed_since(before or self._previous.get(uid), open_session, witnessed.interval),
        )
        self._replace(uid, before, part)
        self._schedule(open_session, witnessed, part, now_ms)

    def remove(self, open_session: UnsettledSession, witnessed: WitnessedInterval) -> None:
        """Remove a session that is settled: all of it is posted."""
        session, uid = open_session.session, open_session.session.uid
        before = self._sessions.get(uid)
        self._note_change(session.namespace, _changed_since(before, open_session, witnessed.interval))
        if before is not None:
            self._replace(uid, before, None)
        self.time_dependent.discard(uid)

    def _note_change(self, namespace: str, at_ms: int | None) -> None:
        earlier = self.changed_since.get(namespace)
        moments = [each for each in (earlier, at_ms) if each is not None]
        self.changed_since[namespace] = min(moments, default=None)

    def index_node(self, session: Session) -> None:
        """Note whether the node's watermark counts for the session: only while its pod exists."""
        if session.is_over:
            self._unindex_node(session.witness, session.uid)
        else:
            self.by_node.setdefault(session.witness, set()).add(session.uid)

    def _unindex_node(self, node: str, uid: str) -> None:
        there = self.by_node.get(node)
        if there is not None:
            there.discard(uid)
            if not there:
                del self.by_node[node]

    def _replace(self, uid: str, before: _SessionTotals | None, after: _SessionTotals | None) -> None:
        either = after or before
        if either is None:
            return
        sums = self._namespaces.setdefault(either.namespace, _NamespaceTotals())
        for span in sums.pending:
            less = before.pending(span) if before else 0
            sums.pending[span] += (after.pending(span) if after else 0) - less
        for span in sums.declared:
            less = before.declared(span) if before else 0
            sums.declared[span] += (after.declared(span) if after else 0) - less
        for part, sign in ((before, -1), (after, 1)):
            if part is not None:
                sums.reserving_milli += sign * part.reserving_milli
                sums.running_milli += sign * part.running_milli
        if after is not None:
            sums.uids.add(uid)
            self._sessions[uid] = after
            return
        self._unindex_node(either.node, uid)
        sums.uids.discard(uid)
        del self._sessions[uid]
        if not sums.uids:
            del self._namespaces[either.namespace]

    def _schedule(
        self, open_session: UnsettledSession, witnessed: WitnessedInterval, part: _SessionTotals, now_ms: int
    ) -> None:
        """Decide when time alone may change the session next: in every tick, at a known moment, or never."""
        uid, known = open_session.session.uid, open_session.evidence
        evidence_ms = max(known.beat_ms or 0, known.watermark_ms or 0)
        if not witnessed.closed and (known.vanished_ms is not None or evidence_ms > now_ms):
            self.time_dependent.add(uid)
            return
        self.time_dependent.discard(uid)
        bound_ms = open_session.session.bound_ms
        silent_ms = witnessed.interval.end_ms + self.settle_after_ms
        if not witnessed.closed and not part.runs and bound_ms > now_ms:
            self._plan_check(uid, part, bound_ms)
        elif witnessed.interval.length_ms and silent_ms > now_ms:
            self._plan_check(uid, part, silent_ms)

    def _plan_check(self, uid: str, part: _SessionTotals, at_ms: int) -> None:
        """At most one check per session is planned: an earlier one plans the next."""
        if not part.due_ms or at_ms < part.due_ms:
            part.due_ms = at_ms
            heapq.heappush(self._due, (at_ms, uid))


def _changed_since(
    before: _SessionTotals | None, open_session: UnsettledSession, now: Interval
) -> int | None:
    """The earliest moment at which the session's charge differs from before."""
    then = Interval(before.start_ms, before.end_ms) if before else _span(open_session.posted)
    has_other_rate = before is not None and before.rate_milli != open_session.session.rate_milli
    if then == now and not has_other_rate:
        return None
    if before and not has_other_rate and then.start_ms == now.start_ms:
        return min(then.end_ms, now.end_ms)
    return min((each.start_ms for each in (then, now) if each.length_ms), default=None)


def _span(postings: tuple[Posting, ...]) -> Interval:
    return Interval(
        min((each.from_ms for each in postings), default=0), max((each.to_ms for each in postings), default=0)
    )
