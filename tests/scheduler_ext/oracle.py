"""Whether a pod fits on a node's cards, by trying everything: small, slow, and importing nothing of ours."""

import itertools
from dataclasses import dataclass
from typing import Literal

Chosen = tuple[tuple[int, ...], ...]  # for each container the positions of its cards


@dataclass(frozen=True)
class Card:
    """One card and what others have of it. ``numa`` and ``links`` (positions) are None where unknown."""

    memory: int = 16000
    model: str = "A100"
    healthy: bool = True
    cordoned: bool = False
    numa: int | None = None
    links: frozenset[int] | None = None
    used_percent: int = 0
    used_memory: int = 0


@dataclass(frozen=True)
class Container:
    """What it asks on each of its cards; memory 0: the same part as of compute, which is rounded down."""

    kind: Literal["main", "sidecar", "init"]
    cards: int
    percent: int
    memory: int


@dataclass(frozen=True)
class World:
    """A node's cards, a pod's containers (init containers and sidecars first), and its constraints.
    ``uuids``: positions of cards. ``same``: positions of containers."""

    cards: tuple[Card, ...]
    containers: tuple[Container, ...]
    models: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    uuids: tuple[int, ...] = ()
    topology: str = ""
    same: tuple[int, ...] = ()


def fits(world: World) -> bool:
    """True where any choice of cards is right."""
    ways = [list(itertools.combinations(range(len(world.cards)), each.cards)) for each in world.containers]
    return any(right(world, chosen) for chosen in itertools.product(*ways))


def right(world: World, chosen: Chosen) -> bool:
    """True where the choice keeps every constraint, and no card is too full at any moment."""
    return (
        all(allowed(world, at) for cards in chosen for at in cards)
        and all(len(set(cards)) == each.cards for cards, each in zip(chosen, world.containers, strict=True))
        and len({chosen[at] for at in world.same}) <= 1
        and all(
            near(world, one, other) for cards in chosen for one in cards for other in cards if one != other
        )
        and all(borne(world, chosen, moment) for moment in moments(world))
    )


def allowed(world: World, at: int) -> bool:
    """True where the pod may have the card at all."""
    card = world.cards[at]
    return (
        card.healthy
        and not card.cordoned
        and (not world.uuids or at in world.uuids)
        and (not world.models or card.model in world.models)
        and card.model not in world.exclude
    )


def near(world: World, one: int, other: int) -> bool:
    """True where the two cards may be of one container."""
    a, b = world.cards[one], world.cards[other]
    if world.topology == "numa":
        return a.numa is not None and a.numa == b.numa
    if world.topology == "pair":
        return other in (a.links or ()) or one in (b.links or ())
    return True


def moments(world: World) -> list[list[int]]:
    """Who runs together: each init container with the sidecars before it, and in the end all the others."""
    kinds = [each.kind for each in world.containers]
    together = [[at for at, kind in enumerate(kinds) if kind != "init"]]
    for at, kind in enumerate(kinds):
        if kind == "init":
            together.append([at, *(before for before in range(at) if kinds[before] == "sidecar")])
    return together


def borne(world: World, chosen: Chosen, moment: list[int]) -> bool:
    """True where no card is too full while these containers run."""
    for at, card in enumerate(world.cards):
        here = [world.containers[each] for each in moment if at in chosen[each]]
        percent = card.used_percent + sum(each.percent for each in here)
        memory = card.used_memory + sum(taken(each, card) for each in here)
        whole = any(each.percent == 100 for each in here)
        shared = len(here) > 1 or card.used_percent or card.used_memory
        if percent > 100 or memory > card.memory or (whole and shared):
            return False
    return True


def taken(container: Container, card: Card) -> int:
    """MiB of this card."""
    return container.memory or card.memory * container.percent // 100
