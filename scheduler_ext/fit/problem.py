"""The input of a search: a pod's requests, prepared once."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scheduler_ext.fit.card_sets import Chosen
from scheduler_ext.snapshot.free import Free, FreeShape, need_in, takes
from timekeeper.core.request.card_amounts import NO_AMOUNT, CardAmount
from timekeeper.core.values import Ask, ContainerAsk


@dataclass(frozen=True, slots=True)
class Layout:
    """A placement on one node's cards."""

    chosen: tuple[Chosen, ...]  # for each ask, in the pod's order, the positions of its cards
    free_by_card: tuple[Free, ...]  # what is then left on each card
    # for each ask and each of its cards the tile, where Xe links join them; else empty
    tiles: tuple[tuple[int, ...], ...] = ()
    closeness: int = 0  # of a pod that wants its cards close to each other: of `FreeShape.rungs`


@dataclass(frozen=True, slots=True)
class Unit:
    """Requests of containers that run together and share their cards: nearly always one."""

    at: tuple[int, ...]  # positions of the asks in the pod
    asks: tuple[Ask, ...]
    cards: frozenset[int] | None = None  # the only cards that may be chosen; None: any

    @property
    def devices(self) -> int:
        """How many cards it needs; of several asks each needs one."""
        return self.asks[0].devices

    @property
    def size(self) -> tuple[int, int, int]:
        """Sort key: what is hard to place comes first."""
        share = sum(ask.share_milli for ask in self.asks)
        return share, sum(ask.memory_mib for ask in self.asks), self.devices


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be placed on one node, and on which cards."""

    asks: Sequence[ContainerAsk]
    shape: FreeShape
    same: frozenset[int]  # positions of the asks that must share one card
    units: tuple[Unit, ...]  # what runs together, in the pod's order
    kinds: tuple[tuple[int, ...], ...]  # what distinguishes cards with equal free amounts
    all_differ: bool  # an init container runs beside sidecars: which pod's container is on a card matters


def task_of(asks: Sequence[ContainerAsk], shape: FreeShape, same: frozenset[int]) -> Task:
    """The task of placing the asks on cards of this shape. ``same``: positions of the asks that must share
    one card."""
    cards = range(len(shape.free_by_card))
    early = [asks[at].ask for at in same if asks[at].init]
    together = [at for at in sorted(same) if not asks[at].init]
    bearing = None
    if early and together:
        bears = all_taken(early, shape.free_by_card)
        bearing = frozenset(at for at in cards if bears[at])
    all_differ = any(each.init and beside(asks, at) for at, each in enumerate(asks))
    if all_differ:
        kinds: tuple[tuple[int, ...], ...] = tuple((at,) for at in cards)
    elif not shape.near and not shape.groups and bearing is None:
        kinds = ((),) * len(cards)
    else:
        maps = [near for near in (shape.near, *shape.groups) if near]
        kinds = tuple((int(bearing is None or at in bearing), *(near[at] for near in maps)) for at in cards)
    return Task(asks, shape, same, tuple(_units(asks, together, bearing)), kinds, all_differ)


def _units(
    asks: Sequence[ContainerAsk], together: Sequence[int], bearing: frozenset[int] | None
) -> Iterable[Unit]:
    for at, each in enumerate(asks):
        if together and at == together[0]:
            yield Unit(tuple(together), tuple(asks[each].ask for each in together), bearing)
        elif not each.init and at not in together:
            yield Unit((at,), (each.ask,))


def all_taken(asks: Iterable[Ask], free_by_card: Sequence[Free]) -> list[bool]:
    """For each card, whether it fits each of these asks by itself."""
    asked = list(asks)
    return [all(takes(ask, free) is not None for ask in asked) for free in free_by_card]


def beside(asks: Sequence[ContainerAsk], at: int) -> list[int]:
    """The native sidecars that run beside this init container: in the pod they stand before it, where no
    other kind of container can."""
    return [before for before in range(at) if not asks[before].init]


def uses_by(task: Task, chosen: Mapping[int, Chosen], positions: Iterable[int]) -> list[CardAmount]:
    """What those asks take of each card together."""
    free_by_card = task.shape.free_by_card
    uses = [NO_AMOUNT] * len(free_by_card)
    for at in positions:
        for card in chosen[at]:
            uses[card] += need_in(task.asks[at].ask, free_by_card[card])
    return uses
