"""The exact search: which cards of one node each container gets, found whenever there is a way.

First a straight pass in the pod's own order, each ask on the cards its policy likes best: nearly always that
succeeds and is what the policy means. Where it fails, a depth-first search over the asks, greatest first.
Cards with equal rooms are tried once; a set of rooms from which the remaining asks could not be placed is
never searched again. Both are exact, since an ask sees nothing of a card but its room.

Containers run together and add up. An ordinary init container runs beside the native sidecars started before
it and nobody else, so it may reuse the pod's own cards: it is laid out last, where it costs least.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from scheduler_ext.policy import Policy
from scheduler_ext.rooms import Room, need_in, takes
from timekeeper.core.cards import NO_USE, Use
from timekeeper.core.values import Ask, ContainerAsk

MOST_STEPS = 10_000
MOST_SEARCHED = 200  # containers; the search goes one call deeper for each

Chosen = tuple[int, ...]  # positions of cards


@dataclass(frozen=True, slots=True)
class Layout:
    """For each ask, in the pod's order, the positions of its cards; and every room as it is then left."""

    chosen: tuple[Chosen, ...]
    rooms: tuple[Room, ...]


class TooManyStepsError(Exception):
    """The search was given up: neither a layout nor the proof that there is none was found in time."""


@dataclass(slots=True)
class Steps:
    """How many more trials a search may make; what it has made is missing."""

    left: int = MOST_STEPS

    def spend(self) -> None:
        """One trial. Raises TooManyStepsError when there is none left."""
        if self.left == 0:
            raise TooManyStepsError
        self.left -= 1


def lay_out(
    asks: Sequence[ContainerAsk], rooms: Sequence[Room], policy: Policy, steps: Steps
) -> Layout | None:
    """A layout of the asks over the cards with these rooms, None where there is none.

    Raises TooManyStepsError when the search has used up its steps; the straight pass costs none.
    """
    mains = [at for at, each in enumerate(asks) if not each.init]
    if _too_much([asks[at].ask for at in mains], rooms) or not all(_enough(each.ask, rooms) for each in asks):
        return None
    chosen = _straight(asks, mains, rooms, policy)
    layout = _with_inits(asks, chosen, rooms, policy) if chosen is not None else None
    if layout is not None or len(asks) == 1:
        return layout
    if len(mains) > MOST_SEARCHED:
        raise TooManyStepsError
    return _Search(asks, mains, rooms, policy, steps).run()


def _too_much(asks: Sequence[Ask], rooms: Sequence[Room]) -> bool:
    """More than there is in sum: what no search need look into."""
    share = sum(ask.devices * ask.share_milli for ask in asks)
    memory = sum(ask.devices * ask.memory_mib for ask in asks)
    return share > sum(room.share_milli for room in rooms) or memory > sum(room.memory_mib for room in rooms)


def _enough(ask: Ask, rooms: Sequence[Room]) -> bool:
    return sum(takes(ask, room) is not None for room in rooms) >= ask.devices


def _straight(
    asks: Sequence[ContainerAsk], mains: Sequence[int], start: Sequence[Room], policy: Policy
) -> dict[int, Chosen] | None:
    rooms = list(start)
    chosen = {}
    for at in mains:
        ask = asks[at].ask
        fitting = _fitting(ask, rooms, policy)
        if len(fitting) < ask.devices:
            return None
        chosen[at] = tuple(fitting[: ask.devices])
        _take(ask, chosen[at], rooms)
    return chosen


def _fitting(ask: Ask, rooms: Sequence[Room], policy: Policy) -> list[int]:
    """The positions of the cards that take the ask, best first; ties by position."""
    found = []
    for at, room in enumerate(rooms):
        after = takes(ask, room)
        if after is not None:
            found.append((policy.order(room, after), at))
    return [at for _, at in sorted(found)]


def _take(ask: Ask, chosen: Chosen, rooms: list[Room]) -> None:
    for at in chosen:
        after = takes(ask, rooms[at])
        if after is None:
            raise AssertionError("a card was chosen that does not take the ask")
        rooms[at] = after


class _Search:
    """One depth-first search; its fields are the state of the walk."""

    def __init__(
        self,
        asks: Sequence[ContainerAsk],
        mains: Sequence[int],
        start: Sequence[Room],
        policy: Policy,
        steps: Steps,
    ) -> None:
        self.asks, self.start, self.policy = asks, start, policy
        self.order = sorted(mains, key=lambda at: _size(asks[at].ask), reverse=True)
        self.rooms = list(start)
        self.chosen: dict[int, Chosen] = {}
        self.dead: set[tuple[int, tuple[Room, ...]]] = set()
        self.steps = steps
        # An init container beside sidecars sees who is on a card, not its room alone: no two are alike then.
        self.all_differ = any(each.init and _beside(asks, at) for at, each in enumerate(asks))

    def run(self, depth: int = 0) -> Layout | None:
        if depth == len(self.order):
            return _with_inits(self.asks, self.chosen, self.start, self.policy)
        state = (depth, tuple(sorted(self.rooms)))
        if state in self.dead:
            return None
        at = self.order[depth]
        ask = self.asks[at].ask
        for chosen in self._choices(ask):
            self.steps.spend()
            before = [self.rooms[card] for card in chosen]
            _take(ask, chosen, self.rooms)
            self.chosen[at] = chosen
            found = self.run(depth + 1)
            if found is not None:
                return found
            for card, room in zip(chosen, before, strict=True):
                self.rooms[card] = room
        if not self.all_differ:
            self.dead.add(state)
        return None

    def _choices(self, ask: Ask) -> Iterator[Chosen]:
        """Every way to choose cards for the ask that differs by more than equal cards, best first."""
        groups: dict[object, list[int]] = {}
        for at in _fitting(ask, self.rooms, self.policy):
            groups.setdefault(at if self.all_differ else self.rooms[at], []).append(at)
        return _combinations(tuple(groups.values()), ask.devices)


def _combinations(groups: Sequence[list[int]], wanted: int) -> Iterator[Chosen]:
    """Ways to take ``wanted`` in all from the groups, where members of a group are alike."""
    if wanted == 0:
        yield ()
        return
    if sum(map(len, groups)) < wanted:
        return
    first, rest = groups[0], groups[1:]
    for count in range(min(len(first), wanted), -1, -1):
        for others in _combinations(rest, wanted - count):
            yield (*first[:count], *others)


def _size(ask: Ask) -> tuple[int, int, int]:
    return ask.share_milli, ask.memory_mib, ask.devices


def _beside(asks: Sequence[ContainerAsk], at: int) -> list[int]:
    """The native sidecars that run beside the init container at this place: they stand before it in the pod,
    where no other kind of container can."""
    return [before for before in range(at) if not asks[before].init]


def _with_inits(
    asks: Sequence[ContainerAsk], chosen: dict[int, Chosen], start: Sequence[Room], policy: Policy
) -> Layout | None:
    """The layout with the init containers put where they cost the pod least; None where one does not fit."""
    together = _uses(asks, chosen, chosen, start)
    peaks = list(together)
    complete = dict(chosen)
    for at, each in enumerate(asks):
        if each.init:
            beside = _uses(asks, chosen, _beside(asks, at), start)
            cards = _cheapest(each.ask, start, beside, peaks, policy)
            if cards is None:
                return None
            complete[at] = cards
            for card in cards:
                peaks[card] = _peak(peaks[card], beside[card] + need_in(each.ask, start[card]))
    left = tuple(_less(room, use) for room, use in zip(start, peaks, strict=True))
    return Layout(tuple(complete[at] for at in range(len(asks))), left)


def _cheapest(
    ask: Ask, start: Sequence[Room], beside: Sequence[Use], peaks: Sequence[Use], policy: Policy
) -> Chosen | None:
    found = []
    for at, room in enumerate(start):
        after = takes(ask, _less(room, beside[at]))
        if after is not None:
            peak = _peak(peaks[at], beside[at] + need_in(ask, room))
            extra = _less(room, peaks[at]).left_milli - _less(room, peak).left_milli
            found.append((extra, policy.order(room, after), at))
    best = sorted(found)[: ask.devices]
    return tuple(at for _, _, at in best) if len(best) == ask.devices else None


def _uses(
    asks: Sequence[ContainerAsk], chosen: Mapping[int, Chosen], who: Iterable[int], start: Sequence[Room]
) -> list[Use]:
    """What those asks take of each card together."""
    uses = [NO_USE] * len(start)
    for at in who:
        for card in chosen[at]:
            uses[card] += need_in(asks[at].ask, start[card])
    return uses


def _peak(a: Use, b: Use) -> Use:
    return Use(max(a.share_milli, b.share_milli), max(a.memory_mib, b.memory_mib))


def _less(room: Room, use: Use) -> Room:
    return Room(room.share_milli - use.share_milli, room.memory_mib - use.memory_mib, room.card_mib)
