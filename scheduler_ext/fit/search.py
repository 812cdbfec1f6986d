"""The exact search: which cards of one node each container gets, found whenever a way exists.

First a straight pass in the pod's own order, each ask on the cards that its policy prefers: that nearly
always succeeds. If it fails, a depth-first search follows, largest asks first. It tries one of several
interchangeable cards, and never searches a state again that it could not complete. Neither loses a placement,
because an ask depends only on what is free on a card and on the card's kind (`Task.kinds`).

Containers run together and add up. An ordinary init container runs beside the native sidecars started before
it and nothing else, so it may reuse the pod's own cards: it is placed last (`init_containers`).
"""

from collections.abc import Sequence

from scheduler_ext.fit.card_sets import Chosen, Steps, TooManyStepsError, best_way, near_first, near_of, ways
from scheduler_ext.fit.init_containers import with_inits
from scheduler_ext.fit.problem import Layout, Task, Unit, task_of
from scheduler_ext.scoring.policy import Policy
from scheduler_ext.snapshot.free import Free, FreeShape, takes_all
from timekeeper.core.values import ContainerAsk

MAX_SEARCHED = 200  # containers: the search recurses once for each


def lay_out(
    asks: Sequence[ContainerAsk],
    shape: FreeShape,
    policy: Policy,
    steps: Steps,
    same: frozenset[int] = frozenset(),
) -> Layout | None:
    """A layout of the asks over cards of this shape, None if there is none. ``same``: positions of the asks
    that must share one card.

    With a `greedy` policy the straight pass alone counts. Raises TooManyStepsError at the limit of the
    search. The straight pass costs no steps unless cards must be near each other.
    """
    task = task_of(asks, shape, same)
    if _too_much(task) or (len(asks) > 1 and not _each_enough(task, steps)):
        return None
    chosen = _straight(task, policy, steps)
    layout = with_inits(task, chosen, policy, steps) if chosen is not None else None
    if layout is not None or len(asks) == 1 or policy.greedy:
        return layout
    if len(task.units) > MAX_SEARCHED:
        raise TooManyStepsError
    return _LayoutSearch(task, policy, steps).run()


def _too_much(task: Task) -> bool:
    """True if the pod needs more than the node has free in sum."""
    mains = [ask for unit in task.units for ask in unit.asks]
    share = sum(ask.devices * ask.share_milli for ask in mains)
    memory = sum(ask.devices * ask.memory_mib for ask in mains)
    free_by_card = task.shape.free_by_card
    return share > sum(free.share_milli for free in free_by_card) or memory > sum(
        free.memory_mib for free in free_by_card
    )


def _each_enough(task: Task, steps: Steps) -> bool:
    """True if each unit and each init container would fit alone."""
    alone = [*task.units, *(Unit((at,), (each.ask,)) for at, each in enumerate(task.asks) if each.init)]
    return all(_enough(unit, task, steps) for unit in alone)


def _enough(unit: Unit, task: Task, steps: Steps) -> bool:
    cards = [at for at, free in enumerate(task.shape.free_by_card) if takes_all(unit.asks, free) is not None]
    return best_way(unit.asks[0], cards, task.shape, steps) is not None


def _straight(task: Task, policy: Policy, steps: Steps) -> dict[int, Chosen] | None:
    free_by_card = list(task.shape.free_by_card)
    chosen: dict[int, Chosen] = {}
    for unit in task.units:
        fitting = _fitting(unit, task, free_by_card, policy)
        cards = best_way(unit.asks[0], fitting, task.shape, steps)
        if cards is None:
            return None
        chosen.update(dict.fromkeys(unit.at, cards))
        _take(unit, cards, free_by_card)
    return chosen


def _fitting(unit: Unit, task: Task, free_by_card: Sequence[Free], policy: Policy) -> list[int]:
    """Positions of the cards that fit the unit, best first; ties by position."""
    found = []
    named = bool(unit.asks[0].resources)
    for at, free in enumerate(free_by_card):
        after = takes_all(unit.asks, free)
        if after is not None and (unit.cards is None or at in unit.cards):
            order = policy.order(free, after, at)
            found.append(((not free.preferred, *order) if named else order, at))
    near = near_of(unit.asks[0], task.shape)
    return near_first(found, near) if near else [at for _, at in sorted(found)]


def _take(unit: Unit, chosen: Chosen, free_by_card: list[Free]) -> None:
    for at in chosen:
        after = takes_all(unit.asks, free_by_card[at])
        if after is None:
            raise AssertionError("a card was chosen that does not take the ask")
        free_by_card[at] = after


class _LayoutSearch:
    """One depth-first search; its fields are the state of the walk."""

    def __init__(self, task: Task, policy: Policy, steps: Steps) -> None:
        self.task, self.policy, self.steps = task, policy, steps
        self.order = sorted(task.units, key=lambda unit: unit.size, reverse=True)
        self.free_by_card = list(task.shape.free_by_card)
        self.chosen: dict[int, Chosen] = {}
        self.dead: set[tuple[int, tuple[tuple[Free, tuple[int, ...]], ...]]] = set()

    def run(self, depth: int = 0) -> Layout | None:
        if depth == len(self.order):
            return with_inits(self.task, self.chosen, self.policy, self.steps)
        state = (depth, tuple(sorted(zip(self.free_by_card, self.task.kinds, strict=True))))
        if state in self.dead:
            return None
        unit = self.order[depth]
        for chosen in ways(unit.asks[0], self._alike(unit), self.task.shape, self.steps):
            self.steps.spend()
            before = [self.free_by_card[card] for card in chosen]
            _take(unit, chosen, self.free_by_card)
            self.chosen.update(dict.fromkeys(unit.at, chosen))
            found = self.run(depth + 1)
            if found is not None:
                return found
            for card, free in zip(chosen, before, strict=True):
                self.free_by_card[card] = free
        if not self.task.all_differ:
            self.dead.add(state)
        return None

    def _alike(self, unit: Unit) -> list[list[int]]:
        """The cards that fit the unit, best first, in groups of interchangeable ones."""
        groups: dict[object, list[int]] = {}
        for at in _fitting(unit, self.task, self.free_by_card, self.policy):
            groups.setdefault((self.free_by_card[at], self.task.kinds[at]), []).append(at)
        return list(groups.values())
