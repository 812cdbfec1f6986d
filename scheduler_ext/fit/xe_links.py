"""The exact search for containers whose cards come in pairs that an Xe link joins: one tile of each card, and
the two tiles are those of the link.

A container takes as many links as it needs pairs; its cards are distinct, and all of them are near each other
where the pod requests that. Every way is tried, so a container never gets cards that another one needs.
"""

from collections.abc import Iterator, Sequence

from scheduler_ext.fit.card_sets import Chosen, Steps, TooManyStepsError
from scheduler_ext.fit.problem import Layout
from scheduler_ext.fit.search import MAX_SEARCHED
from scheduler_ext.scoring.policy import Policy
from scheduler_ext.snapshot.free import Free, FreeShape, TileLinks, takes
from timekeeper.core.values import Ask, ContainerAsk

_Taken = frozenset[tuple[int, int]]  # card and tile


def lay_out_linked(
    asks: Sequence[ContainerAsk], shape: FreeShape, policy: Policy, steps: Steps
) -> Layout | None:
    """A layout of the asks, each for an even number of cards with one tile each; None if there is none.
    Raises TooManyStepsError."""
    if len(asks) > MAX_SEARCHED:
        raise TooManyStepsError

    def run(at: int, free: tuple[Free, ...], taken: _Taken) -> Layout | None:
        if at == len(asks):
            return Layout((), free, ())
        ask = asks[at].ask
        for links in _ways(ask, _fitting(ask, shape, free, taken, policy), shape, ask.devices // 2, steps):
            ends = [end for a, tile, b, other in links for end in ((a, tile), (b, other))]
            after = _less(ask, free, [card for card, _ in ends])
            rest = run(at + 1, after, taken | frozenset(ends))
            if rest is not None:
                cards, tiles = tuple(card for card, _ in ends), tuple(tile for _, tile in ends)
                return Layout((cards, *rest.chosen), rest.free_by_card, (tiles, *rest.tiles))
        return None

    return run(0, shape.free_by_card, frozenset())


def _fitting(ask: Ask, shape: FreeShape, free: Sequence[Free], taken: _Taken, policy: Policy) -> TileLinks:
    """The links whose two cards fit the ask and whose tiles are free, best first."""
    order = {}
    for at, each in enumerate(free):
        after = takes(ask, each)
        if after is not None:
            order[at] = (not each.preferred, *policy.order(each, after, at))
    found = [
        (sorted((order[a], order[b])), (a, tile, b, other))
        for a, tile, b, other in shape.links
        if a in order and b in order and (a, tile) not in taken and (b, other) not in taken
    ]
    return tuple(link for _, link in sorted(found))


def _ways(
    ask: Ask, links: TileLinks, shape: FreeShape, pairs: int, steps: Steps, held: Chosen = ()
) -> Iterator[TileLinks]:
    """Every set of this many links whose cards are distinct, and near each other where that matters."""
    if pairs == 0:
        yield ()
        return
    for place, (a, tile, b, other) in enumerate(links):
        steps.spend()
        if a in held or b in held or not _near(shape, (*held, a, b)):
            continue
        for rest in _ways(ask, links[place + 1 :], shape, pairs - 1, steps, (*held, a, b)):
            yield ((a, tile, b, other), *rest)


def _near(shape: FreeShape, cards: Chosen) -> bool:
    return not shape.near or all(shape.near[one] >> other & 1 for one in cards for other in cards)


def _less(ask: Ask, free: tuple[Free, ...], cards: Sequence[int]) -> tuple[Free, ...]:
    after = list(free)
    for at in cards:
        left = takes(ask, after[at])
        if left is None:
            raise AssertionError("a card was chosen that does not take the ask")
        after[at] = left
    return tuple(after)
