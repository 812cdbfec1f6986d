"""On which cards processes compute through MPS, as the inventory tells it: what lasts alone. Pure.

NVML tells of the processes of this moment, and a batch of short jobs would have the node written at the start
and the end of each. So a card is told of once it has had such processes at every look for a while, and for
long after the last of them, for NVIDIA's daemon is then most likely still there.
"""

from __future__ import annotations

from sidecar.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Iterable

BEGINS_AFTER_MS = 30_000
LASTS_MS = 600_000


@value
class MpsCards:
    """``told``: the UUIDs of the cards of which the inventory says so. ``since``: those that are
    otherwise now than it says, each with the moment since which that is so."""

    told: frozenset[str]
    since: tuple[tuple[str, int], ...]


def begun(told: Iterable[str]) -> MpsCards:
    """What an agent that starts goes on from: what the one before it told."""
    return MpsCards(frozenset(told), ())


def after(before: MpsCards, answered: Iterable[str], computing: Iterable[str], now_ms: int) -> MpsCards:
    """After a look. ``answered``: the cards that told anything; of the others nothing changes.
    ``computing``: those with processes that compute through MPS."""
    there, through, since = set(answered), set(computing), dict(before.since)
    unseen = {uuid: at for uuid, at in since.items() if uuid not in there}
    other = {uuid: since.get(uuid, now_ms) for uuid in there if (uuid in through) != (uuid in before.told)}
    due = {uuid for uuid, at in other.items() if now_ms - at >= _patience_ms(uuid, before)}
    left = {uuid: at for uuid, at in (unseen | other).items() if uuid not in due}
    return MpsCards(before.told ^ due, tuple(sorted(left.items())))


def _patience_ms(uuid: str, before: MpsCards) -> int:
    return LASTS_MS if uuid in before.told else BEGINS_AFTER_MS
