"""What the agent knows of the node's cards over time: looks, events and silence, told as one inventory.

A card once told of stays in the inventory: as unhealthy where it fails, or is gone. Only what nobody can hold
any more is left out: after a reboot, and MIG instances that are no more, and then only if no pod has it. A
card keeps its index, for an index given twice makes an inventory unreadable.
"""

from __future__ import annotations

from sidecar.node.values import CardFailed, CardSilent, NodeCard, NvmlReading
from sidecar.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

PATIENCE_MS = 10_000  # so long a card, or NVML, may be silent without reason
CALM_MS = 600_000  # so long after an XID a card counts as well again, where the driver asks for nothing
NOT_LISTED = "NVML does not list it any more"
DIVIDED = "it is divided into MIG instances"
_NVML = ""  # stands for all of NVML in ``missed``


@value
class DriverFault:
    """By an event of the driver: which card, why, and when last."""

    uuid: str
    fault: str
    at_ms: int


@value
class CardHistory:
    """``cards``: as they are advertised, by index. ``missed``: since when cards (by UUID) and NVML itself are
    silent. ``broken``: by events, the last of each card."""

    cards: tuple[NodeCard, ...]
    missed: tuple[tuple[str, int], ...]
    broken: tuple[DriverFault, ...]


def begun(cards: tuple[NodeCard, ...]) -> CardHistory:
    """The book of an agent that starts, from the inventory that was written last. What an event told before
    that is forgotten, as by NVIDIA's own plugin: the driver is asked anew."""
    return CardHistory(cards, (), ())


def after_look(
    book: CardHistory, look: NvmlReading, held: Collection[str] | None, rebooted: bool, now_ms: int
) -> CardHistory:
    """The book after a look. ``held``: the UUIDs that pods of this node hold; None while that is not known.
    ``rebooted``: the node has started anew since the inventory was written."""
    if look.error:
        return _after_silence(book, look.error, now_ms)
    shown = {card.uuid: card for card in look.cards}
    started = dict(book.missed)
    broken = tuple(
        each
        for each in book.broken
        if not (_calm(each, look, now_ms) or _is_back(each.uuid, shown, started, now_ms))
    )
    lasting = tuple(
        card for card in book.cards if card.uuid in shown or not _is_over(card, look, held, rebooted)
    )
    missed = {card.uuid: started.get(card.uuid, now_ms) for card in lasting if card.uuid not in shown}
    cards = [
        _shown(card, shown[card.uuid], not missed)
        if card.uuid in shown
        else _absent(card, look, now_ms - missed[card.uuid])
        for card in lasting
    ]
    known = {card.uuid for card in cards}
    cards += [card for card in look.cards if card.uuid not in known]
    numbered = _numbered(cards, look) if rebooted else _numbered(cards, None)
    return CardHistory(_with_broken(numbered, broken), tuple(missed.items()), broken)


def after_event(book: CardHistory, broke: CardFailed, now_ms: int) -> CardHistory:
    """The book after an event of the driver."""
    broken = tuple(each for each in book.broken if each.uuid not in broke.uuids)
    broken += tuple(DriverFault(uuid, broke.fault, now_ms) for uuid in broke.uuids)
    return CardHistory(_with_broken(book.cards, broken), book.missed, broken)


def new_faults(before: CardHistory, after: CardHistory) -> tuple[NodeCard, ...]:
    """The cards that are unhealthy now, and were not, or for another reason."""
    faults = {card.uuid: card.fault for card in before.cards}
    return tuple(card for card in after.cards if card.fault and card.fault != faults.get(card.uuid))


def recovered(before: CardHistory, after: CardHistory) -> tuple[NodeCard, ...]:
    """The cards that are healthy again."""
    ill = {card.uuid for card in before.cards if not card.healthy}
    return tuple(card for card in after.cards if card.healthy and card.uuid in ill)


def _after_silence(book: CardHistory, reason: str, now_ms: int) -> CardHistory:
    """NVML as a whole tells nothing: the inventory stays, and for a while as it is."""
    since = dict(book.missed).get(_NVML, now_ms)
    cards = book.cards
    if now_ms - since >= PATIENCE_MS:
        cards = tuple(_ill(card, f"NVML: {reason}") for card in cards)
    return CardHistory(
        cards, (*((k, at) for k, at in book.missed if k != _NVML), (_NVML, since)), book.broken
    )


def _calm(broken: DriverFault, look: NvmlReading, now_ms: int) -> bool:
    return broken.uuid in look.at_rest and now_ms - broken.at_ms >= CALM_MS


def _is_back(uuid: str, shown: Collection[str], missed: Mapping[str, int], now_ms: int) -> bool:
    """Whether the card was silent and answers again, so that it was reset; or all of NVML was, for so long
    that the driver must have been loaded anew."""
    was_away = now_ms - missed.get(_NVML, now_ms) >= PATIENCE_MS
    return uuid in shown and (uuid in missed or was_away)


def _is_over(card: NodeCard, look: NvmlReading, held: Collection[str] | None, rebooted: bool) -> bool:
    """Whether a card that is not shown need not be told of any more."""
    if held is None or card.uuid in held:
        return False
    remade = card.uuid in look.divided or (card.mig is not None and not look.silent)
    return rebooted or remade


def _shown(before: NodeCard, now: NodeCard, all_shown: bool) -> NodeCard:
    """The card as it is shown, under the index it has. While others are missing, its links to them are not
    told by NVML, but they are there."""
    links = now.links if all_shown or before.links is None else before.links
    return now.but(index=before.index, links=links)


def _absent(card: NodeCard, look: NvmlReading, silent_ms: int) -> NodeCard:
    if card.uuid in look.divided:
        return _ill(card, DIVIDED)
    told = _told_of(card, look.silent)
    if (told and told.sure) or silent_ms >= PATIENCE_MS:
        return _ill(card, told.reason if told else NOT_LISTED)
    return card


def _told_of(card: NodeCard, silent: tuple[CardSilent, ...]) -> CardSilent | None:
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


def _numbered(cards: list[NodeCard], anew: NvmlReading | None) -> tuple[NodeCard, ...]:
    """The cards in the order of their indices, none of which is given twice. Where a node's cards are
    numbered ``anew``, those that are shown take NVML's indices before the others."""
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
