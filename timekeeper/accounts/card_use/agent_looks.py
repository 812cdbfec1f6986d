"""Use of cards as measured by node agents: evidence that no tenant can write.

An agent measures by process, so on a shared card too the figures are the pod's own. A sample stands for the
time since the agent's previous report, at most two intervals, and only while the pod held its cards. Nothing
is charged by it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from timekeeper.accounts.card_use.figures import WHOLE_MILLI, CardSample, UsageTotals, by_hour, cards_of
from timekeeper.core.request.cards import UndecodableError, decode_placement


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
