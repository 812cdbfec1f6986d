"""Init containers: placed last, beside what the pod has anyway, each where it adds least."""

from collections.abc import Sequence

from scheduler_ext.fit.card_sets import Chosen, Steps, best_way, near_first, near_of
from scheduler_ext.fit.problem import Layout, Task, beside, uses_by
from scheduler_ext.scoring.policy import Policy
from scheduler_ext.snapshot.free import Free, less, need_in, takes
from timekeeper.core.request.card_amounts import CardAmount
from timekeeper.core.values import Ask


def with_inits(task: Task, chosen: dict[int, Chosen], policy: Policy, steps: Steps) -> Layout | None:
    """The layout completed by the init containers, each where it adds least to the pod; None if one does not
    fit.

    Exact: an init container runs beside the sidecars before it alone, so each is placed by itself, except
    those that must share a card. Raises TooManyStepsError.
    """
    peaks = uses_by(task, chosen, chosen)
    complete = dict(chosen)
    for at, each in enumerate(task.asks):
        if each.init:
            around = uses_by(task, chosen, beside(task.asks, at))
            cards = _cheapest(task, at, _among(task, at, complete), (around, peaks), policy, steps)
            if cards is None:
                return None
            complete[at] = cards
            for card in cards:
                use = around[card] + need_in(each.ask, task.shape.free_by_card[card])
                peaks[card] = peaks[card].most(use)
    left = tuple(less(free, use) for free, use in zip(task.shape.free_by_card, peaks, strict=True))
    return Layout(tuple(complete[at] for at in range(len(task.asks))), left)


def _among(task: Task, at: int, complete: dict[int, Chosen]) -> Sequence[int]:
    """The cards that this init container may have. Where it must share a card: that of the containers placed
    already, or else a card that fits all of them."""
    cards = range(len(task.shape.free_by_card))
    if at not in task.same:
        return cards
    placed = next((complete[other] for other in task.same if other in complete), None)
    if placed is not None:
        return placed
    sharing = [other for other in task.same if task.asks[other].init]
    around = {other: uses_by(task, complete, beside(task.asks, other)) for other in sharing}
    return [
        card
        for card in cards
        if all(
            takes(task.asks[other].ask, less(task.shape.free_by_card[card], around[other][card])) is not None
            for other in sharing
        )
    ]


def _cheapest(
    task: Task,
    at: int,
    among: Sequence[int],
    uses: tuple[Sequence[CardAmount], Sequence[CardAmount]],
    policy: Policy,
    steps: Steps,
) -> Chosen | None:
    """The cards on which it adds least. ``uses``: what runs beside the init container, and the pod's peaks so
    far, both by card."""
    ask, (around, peaks) = task.asks[at].ask, uses
    found = []
    for card in among:
        free = task.shape.free_by_card[card]
        after = takes(ask, less(free, around[card]))
        if after is not None:
            extra = _extra(ask, free, around[card], peaks[card])
            found.append(((extra, *policy.order(free, after, card)), card))
    near = near_of(ask, task.shape)
    best = near_first(found, near) if near else [card for _, card in sorted(found)]
    return best_way(ask, best, task.shape, steps)


def _extra(ask: Ask, free: Free, around: CardAmount, peak: CardAmount) -> int:
    """How much less is left of the card with the ask on it."""
    higher = peak.most(around + need_in(ask, free))
    return less(free, peak).left_milli - less(free, higher).left_milli
