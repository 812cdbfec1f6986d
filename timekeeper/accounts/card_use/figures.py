"""Use of cards as reported by sidecars, summed by hour: the tenant's own claim, for display only.

Nothing is charged by it. A sample stands for the time since the previous heartbeat, at most two intervals, so
repeated, reordered and late heartbeats add nothing twice.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct

from timekeeper.core.dialects.amounts import MAX_MEMORY_MIB
from timekeeper.core.ledger.metering import Interval
from timekeeper.core.request.cards import decode_placement
from timekeeper.core.values import UndecodableError

HOUR_MS = 3_600_000
WHOLE_MILLI = 1_000


class CardSample(Struct, frozen=True):
    """NVML's figures for one card; None if NVML has none."""

    uuid: str
    utilisation: int | None  # percent of the last moments in which the card was busy
    memory_mib: int | None  # memory in use
    exclusive: bool  # by the sidecar, no other pod is on the card


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """Sums of measured use."""

    covered_ms: int  # time with samples
    milli_ms: int  # milli-GPU x milliseconds
    memory_mib_ms: int  # MiB x milliseconds

    def __add__(self, other: "UsageTotals") -> "UsageTotals":
        return UsageTotals(
            self.covered_ms + other.covered_ms,
            self.milli_ms + other.milli_ms,
            self.memory_mib_ms + other.memory_mib_ms,
        )


@dataclass(frozen=True, slots=True)
class SessionCards:
    """The cards whose samples count for a session."""

    # UUID -> what the session holds of the card, in thousandths; empty: the placement is unknown
    shares: Mapping[str, int]
    most: int  # number of cards

    def own(self, figures: Iterable[CardSample]) -> tuple[CardSample, ...]:
        """The samples that belong to the session alone: each card once, no card of another session, no shared
        card."""
        found: dict[str, CardSample] = {}
        for each in figures:
            is_own = self.shares.get(each.uuid, 0) >= WHOLE_MILLI
            is_known = each.uuid in self.shares or not self.shares
            if is_known and (each.exclusive or is_own) and len(found) < self.most:
                found.setdefault(each.uuid, each)
        return tuple(found.values())


@functools.lru_cache(maxsize=4096)
def cards_of(devices: str, requested_milli: int) -> SessionCards:
    """The cards of a session: by its placement's text, else by the number that it requested."""
    try:
        placement = decode_placement(devices) if devices else None
    except UndecodableError:
        placement = None
    if placement is None:
        return SessionCards({}, max(1, -(-requested_milli // WHOLE_MILLI)))
    shares: Counter[str] = Counter()
    for _, slices in placement.containers:
        for each in slices:
            shares[each.uuid] += each.share_milli
    even = requested_milli // len(shares)  # of a card of which a pod has memory alone
    return SessionCards({uuid: share or even for uuid, share in shares.items()}, len(shares))


def by_hour(
    beats: Sequence[tuple[int, tuple[CardSample, ...]]], before_ms: int, most_ms: int, cards: SessionCards
) -> dict[int, UsageTotals]:
    """The use that heartbeats prove, by UTC hour. ``beats``: with their moments, in order of time;
    ``before_ms``: the latest earlier heartbeat (0: none); ``most_ms``: the time that one heartbeat stands for
    at most."""
    found: dict[int, UsageTotals] = {}
    for at_ms, figures in beats:
        if at_ms <= before_ms:
            continue
        since_ms, before_ms = before_ms, at_ms
        rates = _rates(cards.own(figures)) if since_ms else None
        if rates is None:
            continue
        for span in _hours(Interval(max(since_ms, at_ms - most_ms), at_ms)):
            hour_ms, length_ms = span.start_ms // HOUR_MS * HOUR_MS, span.length_ms
            used = UsageTotals(length_ms, rates[0] * length_ms, rates[1] * length_ms)
            found[hour_ms] = found[hour_ms] + used if hour_ms in found else used
    return found


def _rates(figures: tuple[CardSample, ...]) -> tuple[int, int] | None:
    """Milli-GPU and MiB in use on all cards together; None if no card reports its utilisation."""
    if all(each.utilisation is None for each in figures):
        return None
    milli = sum(min(WHOLE_MILLI, 10 * (each.utilisation or 0)) for each in figures)
    return milli, sum(min(MAX_MEMORY_MIB, each.memory_mib or 0) for each in figures)


def _hours(interval: Interval) -> Iterator[Interval]:
    start_ms = interval.start_ms
    while start_ms < interval.end_ms:
        end_ms = min(interval.end_ms, (start_ms // HOUR_MS + 1) * HOUR_MS)
        yield Interval(start_ms, end_ms)
        start_ms = end_ms


@dataclass(frozen=True, slots=True)
class UsageSample:
    """One measurement of a node agent."""

    age_ms: int  # its age when it was received
    pods: tuple[tuple[str, tuple[CardSample, ...]], ...]  # UID -> figures of the pod on each card
    cards: tuple[CardSample, ...]  # figures of each card as a whole


@dataclass(frozen=True, slots=True)
class MeasuredSession:
    """A session whose cards the agent measures."""

    uid: str
    since_ms: int  # when it began to hold its cards
    ended_ms: int | None  # None: it still holds them
    devices: str
    requested_milli: int


@dataclass(frozen=True, slots=True)
class MemoryExcess:
    """A pod uses more of a card's memory than its share, MiB."""

    uuid: str
    memory_mib: int
    share_mib: int


def moment_ms(sample: UsageSample, received_ms: int) -> int:
    """When a sample was taken, by the receiver's clock; never before 1970."""
    return max(0, received_ms - sample.age_ms)


def in_order(samples: Iterable[UsageSample], received_ms: int) -> tuple[tuple[int, UsageSample], ...]:
    """Samples with their moments, in order of time."""
    dated = ((moment_ms(sample, received_ms), sample) for sample in samples)
    return tuple(sorted(dated, key=lambda each: each[0]))


def used(
    samples: Iterable[tuple[int, UsageSample]],
    sessions: Mapping[str, MeasuredSession],
    before_ms: int,
    most_ms: int,
) -> Iterator[tuple[str, int, UsageTotals]]:
    """The use that the samples prove, as (session UID, UTC hour, use). ``samples`` in order of time;
    ``before_ms``: the node's latest earlier sample (0: none). Samples that are not later than that add
    nothing."""
    for at_ms, sample in samples:
        if at_ms <= before_ms:
            continue
        since_ms, before_ms = before_ms, at_ms
        for uid, figures in sample.pods:
            session = sessions.get(uid)
            if session is None or not since_ms:
                continue
            until_ms = at_ms if session.ended_ms is None else min(at_ms, session.ended_ms)
            from_ms = max(since_ms, session.since_ms, at_ms - most_ms)
            cards = cards_of(session.devices, session.requested_milli)
            hours = by_hour(((until_ms, figures),), from_ms, most_ms, cards)
            yield from ((uid, hour_ms, each) for hour_ms, each in hours.items())


def excesses(devices: str, figures: Iterable[CardSample]) -> tuple[MemoryExcess, ...]:
    """The cards of a placement on which more memory is in use than the placement gives; none if it cannot be
    read. A pod with a whole card takes nothing from others, and an inventory may have rounded the card's
    memory down."""
    shares = _shares_mib(devices)
    found = [
        MemoryExcess(each.uuid, each.memory_mib, shares[each.uuid])
        for each in figures
        if each.uuid in shares and each.memory_mib is not None and each.memory_mib > shares[each.uuid]
    ]
    return tuple(sorted(found, key=lambda each: each.uuid))


def _shares_mib(devices: str) -> dict[str, int]:
    """The memory that a placement gives of each card that it does not give whole, all containers together."""
    try:
        placed = decode_placement(devices) if devices else None
    except UndecodableError:
        placed = None
    shares: dict[str, tuple[int, int]] = {}
    for _, slices in placed.containers if placed else ():
        for each in slices:
            milli, mib = shares.get(each.uuid, (0, 0))
            shares[each.uuid] = milli + each.share_milli, mib + each.memory_mib
    return {uuid: mib for uuid, (milli, mib) in shares.items() if milli < WHOLE_MILLI}
