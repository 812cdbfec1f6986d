"""The node's cards over time: joins readings of NVML, driver events and failures into one inventory. Pure.

A card that was in the inventory stays there, as unhealthy if it fails or is missing. It is removed only if no
pod holds it, and only after a reboot, or if it is a MIG instance that no longer exists. A card keeps its
index, for two cards with one index make an inventory invalid.
"""

from __future__ import annotations

from sidecar.node.values import CardFailed, CardSilent, DeviceReading, NodeCard
from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

PATIENCE_MS = 10_000  # how long a card, or NVML, may fail to answer before it counts as unhealthy
CALM_MS = 600_000  # after an XID, a card is healthy again after this time if the driver requires no action
NOT_LISTED = "it is no longer listed"
DIVIDED = "it is divided into MIG instances"
_NVML = ""  # the key of NVML as a whole in `CardHistory.missed`


@value
class DriverFault:
    """A fault that a driver event reported."""

    uuid: str
    fault: str
    at_ms: int  # of the last such event


@value
class CardHistory:
    """The cards and their faults."""

    cards: tuple[NodeCard, ...]  # the inventory, by index
    missed: tuple[
        tuple[str, int], ...
    ]  # the cards (by UUID) and NVML itself that do not answer, each since when
    broken: tuple[DriverFault, ...]  # the last driver event of each card


def initial(cards: tuple[NodeCard, ...]) -> CardHistory:
    """The history of a new agent, from the inventory that was written last. Earlier driver events are
    dropped, as NVIDIA's device plugin does: the driver's present state counts."""
    return CardHistory(cards, (), ())


def after_reading(
    history: CardHistory, reading: DeviceReading, held: Collection[str] | None, rebooted: bool, now_ms: int
) -> CardHistory:
    """The history after a reading. ``held``: the UUIDs of cards that pods of this node hold, None if unknown.
    ``rebooted``: the node has booted since the inventory was written."""
    if reading.error:
        return _after_silence(history, reading.error, now_ms)
    shown = {card.uuid: card for card in reading.cards}
    started = dict(history.missed)
    broken = tuple(
        each
        for each in history.broken
        if not (_calm(each, reading, now_ms) or _is_back(each.uuid, shown, started, now_ms))
    )
    lasting = tuple(
        card for card in history.cards if card.uuid in shown or not _is_over(card, reading, held, rebooted)
    )
    missed = {card.uuid: started.get(card.uuid, now_ms) for card in lasting if card.uuid not in shown}
    cards = [
        _shown(card, shown[card.uuid], not missed)
        if card.uuid in shown
        else _absent(card, reading, now_ms - missed[card.uuid])
        for card in lasting
    ]
    known = {card.uuid for card in cards}
    cards += [card for card in reading.cards if card.uuid not in known]
    numbered = _numbered(cards, reading) if rebooted else _numbered(cards, None)
    return CardHistory(_with_broken(numbered, broken), tuple(missed.items()), broken)


def after_event(history: CardHistory, broke: CardFailed, now_ms: int) -> CardHistory:
    """The history after a driver event."""
    broken = tuple(each for each in history.broken if each.uuid not in broke.uuids)
    broken += tuple(DriverFault(uuid, broke.fault, now_ms) for uuid in broke.uuids)
    return CardHistory(_with_broken(history.cards, broken), history.missed, broken)


def new_faults(before: CardHistory, after: CardHistory) -> tuple[NodeCard, ...]:
    """The cards that are unhealthy now, and were healthy or had another fault."""
    faults = {card.uuid: card.fault for card in before.cards}
    return tuple(card for card in after.cards if card.fault and card.fault != faults.get(card.uuid))


def recovered(before: CardHistory, after: CardHistory) -> tuple[NodeCard, ...]:
    """The cards that are healthy again."""
    ill = {card.uuid for card in before.cards if not card.healthy}
    return tuple(card for card in after.cards if card.healthy and card.uuid in ill)


def _after_silence(history: CardHistory, reason: str, now_ms: int) -> CardHistory:
    """NVML as a whole failed: the inventory stays, and the cards are healthy for `PATIENCE_MS`."""
    since = dict(history.missed).get(_NVML, now_ms)
    cards = history.cards
    if now_ms - since >= PATIENCE_MS:
        cards = tuple(_ill(card, f"no cards can be read: {reason}") for card in cards)
    return CardHistory(
        cards, (*((k, at) for k, at in history.missed if k != _NVML), (_NVML, since)), history.broken
    )


def _calm(broken: DriverFault, reading: DeviceReading, now_ms: int) -> bool:
    return broken.uuid in reading.at_rest and now_ms - broken.at_ms >= CALM_MS


def _is_back(uuid: str, shown: Collection[str], missed: Mapping[str, int], now_ms: int) -> bool:
    """Whether the card was reset: it did not answer and does again, or NVML as a whole failed for so long
    that the driver must have been loaded again."""
    was_away = now_ms - missed.get(_NVML, now_ms) >= PATIENCE_MS
    return uuid in shown and (uuid in missed or was_away)


def _is_over(card: NodeCard, reading: DeviceReading, held: Collection[str] | None, rebooted: bool) -> bool:
    """Whether a card that NVML does not list is removed from the inventory."""
    if held is None or card.uuid in held:
        return False
    remade = card.uuid in reading.divided or (card.mig is not None and not reading.silent)
    return rebooted or remade


def _shown(before: NodeCard, now: NodeCard, all_shown: bool) -> NodeCard:
    """The card as read, with the index that it has. While other cards are missing, NVML does not report the
    paths to them, so the known ones stay."""
    latest = now if all_shown or before.links is None else before
    return now.but(index=before.index, links=latest.links, paths=latest.paths)


def _absent(card: NodeCard, reading: DeviceReading, silent_ms: int) -> NodeCard:
    if card.uuid in reading.divided:
        return _ill(card, DIVIDED)
    error = _error_of(card, reading.silent)
    if (error and error.sure) or silent_ms >= PATIENCE_MS:
        return _ill(card, error.reason if error else NOT_LISTED)
    return card


def _error_of(card: NodeCard, silent: tuple[CardSilent, ...]) -> CardSilent | None:
    named = (each for each in silent if each.uuid == card.uuid)
    at_its_index = (each for each in silent if not each.uuid and each.index == card.index)
    return next(named, None) or next(at_its_index, None)


def _ill(card: NodeCard, fault: str) -> NodeCard:
    return card.but(healthy=False, fault=fault)


def _with_broken(cards: tuple[NodeCard, ...], broken: tuple[DriverFault, ...]) -> tuple[NodeCard, ...]:
    faults = {each.uuid: each.fault for each in broken}
    return tuple(
        _ill(card, faults[card.uuid]) if card.uuid in faults and card.healthy else card for card in cards
    )


def _numbered(cards: list[NodeCard], anew: DeviceReading | None) -> tuple[NodeCard, ...]:
    """The cards in the order of unique indices. With ``anew``, the cards of that reading take NVML's indices
    first."""
    fresh: Mapping[str, int] = {card.uuid: card.index for card in anew.cards} if anew else {}
    taken: set[int] = set()
    numbered = []
    for card in sorted(cards, key=lambda card: card.uuid not in fresh) if anew else cards:
        index = fresh.get(card.uuid, card.index)
        while index in taken:
            index += 1
        taken.add(index)
        numbered.append(card.but(index=index))
    return tuple(sorted(numbered, key=lambda card: card.index))
