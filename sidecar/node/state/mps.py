"""The cards that processes use through MPS, for the inventory: lasting use only. Pure.

NVML reports the present processes, and with a batch of short jobs the node would be written at the start and
the end of each. So a card is marked once it had such processes at every reading for `BEGINS_AFTER_MS`, and
unmarked `LASTS_MS` after the last of them, for NVIDIA's daemon most likely still runs.
"""

from __future__ import annotations

from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Iterable

BEGINS_AFTER_MS = 30_000
LASTS_MS = 600_000


@value
class MpsCards:
    """The cards with MPS in the inventory, and those whose state differs from it."""

    advertised: frozenset[str]  # UUIDs of the cards that the inventory marks
    since: tuple[tuple[str, int], ...]  # cards whose present state differs, each since when


def initial(advertised: Iterable[str]) -> MpsCards:
    """The state of a new agent: what the previous one wrote."""
    return MpsCards(frozenset(advertised), ())


def after(before: MpsCards, answered: Iterable[str], computing: Iterable[str], now_ms: int) -> MpsCards:
    """The state after a reading. ``answered``: the cards that answered; the others do not change.
    ``computing``: the cards that processes use through MPS."""
    there, with_mps, since = set(answered), set(computing), dict(before.since)
    unseen = {uuid: at for uuid, at in since.items() if uuid not in there}
    other = {
        uuid: since.get(uuid, now_ms) for uuid in there if (uuid in with_mps) != (uuid in before.advertised)
    }
    due = {uuid for uuid, at in other.items() if now_ms - at >= _patience_ms(uuid, before)}
    left = {uuid: at for uuid, at in (unseen | other).items() if uuid not in due}
    return MpsCards(before.advertised ^ due, tuple(sorted(left.items())))


def _patience_ms(uuid: str, before: MpsCards) -> int:
    return LASTS_MS if uuid in before.advertised else BEGINS_AFTER_MS
