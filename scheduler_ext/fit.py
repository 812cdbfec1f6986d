"""Whether a request fits on a node, and on which of its cards: the one question that filter, prioritize and
bind answer alike."""

from scheduler_ext import refusal
from scheduler_ext.layout import Layout, Steps, TooManyStepsError, lay_out
from scheduler_ext.nodes import Node
from scheduler_ext.policy import BINPACK, Policy, Score
from scheduler_ext.refusal import Refusal
from scheduler_ext.rooms import Room, Shape, shape_of
from timekeeper.core.cards import allowed, need
from timekeeper.core.values import Ask, Card, GPURequest, Placement, Slice


def fit(
    request: GPURequest, node: Node, policy: Policy = BINPACK, steps: Steps | None = None
) -> Placement | Refusal:
    """The cards of each container on this node, or why there are none.

    Exact: a placement is found whenever one exists, unless the search uses up its steps, which is a refusal
    of its own. Never a card too full, never a whole card beside others, never an unhealthy one.
    """
    usable = _usable(request, node)
    if isinstance(usable, Refusal):
        return usable
    layout = layout_in(request, _shape(usable), policy, steps or Steps())
    if isinstance(layout, Refusal):
        return layout
    placed = zip(request.asks, layout.chosen, strict=True)
    return Placement(
        tuple(
            (each.container, tuple(_slice(each.ask, usable[at][1]) for at in chosen))
            for each, chosen in placed
        )
    )


def shape_for(request: GPURequest, node: Node) -> Shape | Refusal:
    """The rooms of the cards that the request may use: all that its answer depends on."""
    if node.serves == request.dialect and not (request.models or request.exclude_models or request.uuids):
        return node.shape
    usable = _usable(request, node)
    return usable if isinstance(usable, Refusal) else _shape(usable)


def layout_in(request: GPURequest, shape: Shape, policy: Policy, steps: Steps) -> Layout | Refusal:
    """The layout of the request over cards of this shape, or the refusal for want of room."""
    try:
        layout = lay_out(request.asks, shape.rooms, policy, steps)
    except TooManyStepsError:
        return refusal.GIVEN_UP
    return layout if layout is not None else refusal.no_room(request)


def score_of(layout: Layout, policy: Policy) -> Score:
    """How good the policy finds the layout, to be compared with those of other nodes."""
    used = sorted({at for chosen in layout.chosen for at in chosen})
    return policy.score(layout.rooms, used)


def _barred(request: GPURequest, node: Node) -> Refusal | None:
    """What bars the request from the node whatever its cards are."""
    if node.facts is None:
        return refusal.UNKNOWN_NODE
    if node.closed:
        return refusal.closed(node.closed)
    if not node.facts.cards:
        return refusal.NO_CARDS
    if request.dialect != node.facts.family:
        return refusal.another_family(request, node.facts)
    return None


def _usable(request: GPURequest, node: Node) -> list[tuple[Room, Card]] | Refusal:
    """The healthy cards that the request's constraints allow, with their rooms, sorted by these first: nodes
    with the same rooms are the same to the search."""
    barred = _barred(request, node)
    if barred:
        return barred
    healthy = [(room, card) for room, card in zip(node.rooms, node.cards, strict=True) if room is not None]
    if not healthy:
        return refusal.NO_HEALTHY_CARD
    usable = [each for each in healthy if allowed(request, each[1])]
    if not usable:
        return refusal.not_allowed(request)
    if node.facts is not None and node.facts.plugin_chooses:
        if len(usable) < len(healthy):
            return refusal.NOT_BY_CHOICE
        usable = _without_unnamed(usable, node.unnamed)
    return sorted(usable, key=lambda each: (each[0], each[1].index))


def _without_unnamed(usable: list[tuple[Room, Card]], count: int) -> list[tuple[Room, Card]]:
    """Without as many untouched cards as pods hold that nobody named: which they are does not matter, for the
    node's plugin picks them anyway."""
    untouched = [each for each in usable if each[0].untouched]
    return [each for each in usable if not each[0].untouched] + untouched[: max(0, len(untouched) - count)]


def _shape(usable: list[tuple[Room, Card]]) -> Shape:
    return shape_of(tuple(room for room, _ in usable))


def _slice(ask: Ask, card: Card) -> Slice:
    use = need(ask, card)
    return Slice(card.uuid, card.index, use.share_milli, use.memory_mib)
