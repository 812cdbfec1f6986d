"""Which cards of a node are near each other, for a topology that a pod requests
(`core.constraints.TOPOLOGIES`).

``pair``: linked directly by the inventory's links. ``numa``: on one NUMA node. Either must hold for every two
cards of a container, so a container with one card, or with topology ``node``, accepts any.
"""

from collections.abc import Iterable, Sequence

from timekeeper.core.values import Card, GPURequest

Near = tuple[int, ...]


def farthest(request: GPURequest) -> int:
    """How many cards must be near each other at most; 0 if nearness does not matter to the pod."""
    if request.topology not in ("pair", "numa"):
        return 0
    most = max(each.ask.devices for each in request.asks)
    return most if most > 1 else 0


def is_known(topology: str, cards: Iterable[Card]) -> bool:
    """True if the inventory says it of any card."""
    return any((card.links if topology == "pair" else card.numa) is not None for card in cards)


def nearness(topology: str, cards: Sequence[Card]) -> Near:
    """For each card the bits of the cards near it, itself included. A link recorded on either card counts; a
    card without data is near none."""
    return tuple(
        sum(1 << at for at, other in enumerate(cards) if other is card or _near(topology, card, other))
        for card in cards
    )


def _near(topology: str, one: Card, other: Card) -> bool:
    if topology == "numa":
        return one.numa is not None and one.numa == other.numa
    return other.uuid in (one.links or ()) or one.uuid in (other.links or ())
