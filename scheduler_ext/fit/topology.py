"""Which cards of a node are near each other, by the word that a pod says (`core.constraints.TOPOLOGIES`).

``pair``: linked directly, as the inventory's links tell; ``numa``: on one NUMA node. Both are asked of every
two cards of a container, so one that asks for a single card, or for ``node``, is content with any.
"""

from collections.abc import Iterable, Sequence

from timekeeper.core.values import Card, GPURequest

Near = tuple[int, ...]


def farthest(request: GPURequest) -> int:
    """How many cards must be near each other at most; 0 where that does not matter to the pod."""
    if request.topology not in ("pair", "numa"):
        return 0
    most = max(each.ask.devices for each in request.asks)
    return most if most > 1 else 0


def is_known(topology: str, cards: Iterable[Card]) -> bool:
    """True where the inventory tells it of any card."""
    return any((card.links if topology == "pair" else card.numa) is not None for card in cards)


def nearness(topology: str, cards: Sequence[Card]) -> Near:
    """For each card the bits of those that are near it, itself among them. A link counts both ways, whichever
    of the two tells it; a card of which nothing is known is near none."""
    return tuple(
        sum(1 << at for at, other in enumerate(cards) if other is card or _near(topology, card, other))
        for card in cards
    )


def _near(topology: str, one: Card, other: Card) -> bool:
    if topology == "numa":
        return one.numa is not None and one.numa == other.numa
    return other.uuid in (one.links or ()) or one.uuid in (other.links or ())
