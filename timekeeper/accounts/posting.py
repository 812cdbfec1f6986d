"""Postings: settled charges, each written once, what is still to be posted for a session, and the net rate of
all at each moment, corrections included."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from timekeeper.accounts.session import Session
from timekeeper.core.ledger.metering import Interval, charge

SETTLED = "settled"
CORRECTION = "correction"

Pieces = Callable[[Interval], Iterable[Interval]]
Charge = tuple[int, int, int]  # from and to in milliseconds, rate in milli-GPU with its sign


@dataclass(frozen=True, slots=True)
class Posting:
    """One settled charge. ``rate_milli`` is negative if it takes back an earlier posting."""

    session_uid: str
    sequence: int  # counts a session's postings from 0: two settlers cannot write the same one
    namespace: str
    from_ms: int
    to_ms: int
    rate_milli: int
    kind: str
    reason: str
    created_ms: int

    @property
    def interval(self) -> Interval:
        """The time that it charges."""
        return Interval(self.from_ms, self.to_ms)

    @property
    def amount(self) -> int:
        """Milli-GPU x milliseconds, with the rate's sign."""
        return charge(self.rate_milli, self.interval)


@dataclass(frozen=True, slots=True)
class _Difference:
    interval: Interval
    rate_milli: int
    kind: str


def amount_within(postings: Iterable[Posting], span: Interval) -> int:
    """What the postings charge for time inside the span."""
    return sum(charge(each.rate_milli, each.interval.within(span)) for each in postings)


def still_to_post(
    session: Session, posted: tuple[Posting, ...], due: Interval, pieces: Pieces, reason: str, now_ms: int
) -> tuple[Posting, ...]:
    """The postings that bring the posted total to exactly ``due`` x rate.

    Time after everything posted is ``settled``; anything else is a ``correction``. ``pieces`` cuts an
    interval at the boundaries of the namespace's periods.
    """
    cut = (
        (part, missing)
        for missing in _missing(session.rate_milli, posted, due)
        for part in pieces(missing.interval)
    )
    return tuple(
        Posting(
            session_uid=session.uid,
            sequence=sequence,
            namespace=session.namespace,
            from_ms=part.start_ms,
            to_ms=part.end_ms,
            rate_milli=missing.rate_milli,
            kind=missing.kind,
            reason=reason,
            created_ms=now_ms,
        )
        for sequence, (part, missing) in enumerate(cut, start=len(posted))
    )


def _missing(rate_milli: int, posted: tuple[Posting, ...], due: Interval) -> Iterator[_Difference]:
    """The difference between due and posted, in runs of equal rate."""
    bounds = {bound for posting in posted for bound in (posting.from_ms, posting.to_ms)}
    if due.length_ms:
        bounds |= {due.start_ms, due.end_ms}
    horizon = max((each.to_ms for each in posted), default=0)
    run: _Difference | None = None
    for start_ms, end_ms in pairwise(sorted(bounds)):  # between two bounds nothing changes
        part = Interval(start_ms, end_ms)
        rate = (rate_milli if part.within(due).length_ms else 0) - sum(
            each.rate_milli for each in posted if part.within(each.interval).length_ms
        )
        kind = SETTLED if part.start_ms >= horizon else CORRECTION
        if run and (run.rate_milli, run.kind) == (rate, kind):
            run = _Difference(Interval(run.interval.start_ms, part.end_ms), rate, kind)
            continue
        if run and run.rate_milli:
            yield run
        run = _Difference(part, rate, kind)
    if run and run.rate_milli:
        yield run


@dataclass(frozen=True, slots=True)
class RateInterval:
    """A time, from (included) to (excluded), with one rate."""

    from_ms: int
    to_ms: int
    rate_milli: int

    @property
    def amount(self) -> int:
        """Milli-GPU x milliseconds."""
        return self.rate_milli * (self.to_ms - self.from_ms)


def steps(charges: Iterable[Charge]) -> dict[int, int]:
    """By how much the rate changes at each moment, in order of time, without zeros. Two sets of charges have
    the same net rate at every moment if and only if their steps are equal."""
    changes: dict[int, int] = {}
    for from_ms, to_ms, rate_milli in charges:
        if to_ms > from_ms:
            changes[from_ms] = changes.get(from_ms, 0) + rate_milli
            changes[to_ms] = changes.get(to_ms, 0) - rate_milli
    return {at: changes[at] for at in sorted(changes) if changes[at]}


def runs(changes: dict[int, int]) -> tuple[RateInterval, ...]:
    """The intervals of one rate that these steps describe, without those of rate 0."""
    found = []
    rate_milli = since_ms = 0
    for at_ms, change in changes.items():
        if rate_milli:
            found.append(RateInterval(since_ms, at_ms, rate_milli))
        rate_milli, since_ms = rate_milli + change, at_ms
    return tuple(found)
