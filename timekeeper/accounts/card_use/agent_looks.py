"""What nodes' agents say of their pods' use, as evidence that no tenant can write.

An agent counts by process, so a figure is the pod's own on a shared card too. It stands for the time since
the agent's report before, at most two intervals of it, and only while the pod held its cards. Nothing is
charged by it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from timekeeper.accounts.card_use.figures import WHOLE_MILLI, CardSample, UsageTotals, by_hour, cards_of
from timekeeper.core.request.cards import UndecodableError, decode_placement


@dataclass(frozen=True, slots=True)
class UsageSample:
    """One look of an agent at its node: how old it was when it was received, the figures of each pod's cards,
    and those of each card as a whole."""

    age_ms: int
    pods: tuple[tuple[str, tuple[CardSample, ...]], ...]
    cards: tuple[CardSample, ...]


@dataclass(frozen=True, slots=True)
class MeasuredSession:
    """A session as far as its use goes. ``since_ms``: when it began to hold its cards; ``ended_ms`` None
    while it does."""

    uid: str
    since_ms: int
    ended_ms: int | None
    devices: str
    requested_milli: int


@dataclass(frozen=True, slots=True)
class MemoryExcess:
    """A pod uses more of a card's memory than it was given, MiB."""

    uuid: str
    memory_mib: int
    share_mib: int


def moment_ms(look: UsageSample, received_ms: int) -> int:
    """When a look was taken by the receiver's clock; never before 1970."""
    return max(0, received_ms - look.age_ms)


def in_order(looks: Iterable[UsageSample], received_ms: int) -> tuple[tuple[int, UsageSample], ...]:
    """Looks with their moments, in the order of time."""
    return tuple(sorted(((moment_ms(look, received_ms), look) for look in looks), key=lambda each: each[0]))


def used(
    looks: Iterable[tuple[int, UsageSample]],
    held: Mapping[str, MeasuredSession],
    before_ms: int,
    most_ms: int,
) -> Iterator[tuple[str, int, UsageTotals]]:
    """The use that looks witness, as (session, UTC hour, use): in the order of time, the node's latest look
    before them at ``before_ms`` (0: there was none). Looks no later than that add nothing."""
    for at_ms, look in looks:
        if at_ms <= before_ms:
            continue
        since_ms, before_ms = before_ms, at_ms
        for uid, figures in look.pods:
            mine = held.get(uid)
            if mine is None or not since_ms:
                continue
            until_ms = at_ms if mine.ended_ms is None else min(at_ms, mine.ended_ms)
            from_ms = max(since_ms, mine.since_ms, at_ms - most_ms)
            cards = cards_of(mine.devices, mine.requested_milli)
            hours = by_hour(((until_ms, figures),), from_ms, most_ms, cards)
            yield from ((uid, hour_ms, each) for hour_ms, each in hours.items())


def excesses(devices: str, figures: Iterable[CardSample]) -> tuple[MemoryExcess, ...]:
    """The cards of a placement on which more memory is in use than it gives; none where it cannot be read.
    Whoever has a whole card takes nothing from anybody, and an inventory may have rounded its memory down."""
    shares = _shares_mib(devices)
    found = [
        MemoryExcess(each.uuid, each.memory_mib, shares[each.uuid])
        for each in figures
        if each.uuid in shares and each.memory_mib is not None and each.memory_mib > shares[each.uuid]
    ]
    return tuple(sorted(found, key=lambda each: each.uuid))


def _shares_mib(devices: str) -> dict[str, int]:
    """The memory that a placement's text gives of each card that it does not give whole, its containers
    together."""
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
