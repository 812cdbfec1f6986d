"""Whether a request fits on a node, and on which cards. Filter, prioritize and bind all ask here."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter

from scheduler_ext.fit import refusal
from scheduler_ext.fit.card_sets import Steps, TooManyStepsError, best_way
from scheduler_ext.fit.problem import Layout
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.fit.search import lay_out
from scheduler_ext.fit.tiles import asks_tiles, free_links, lay_out_linked, with_tiles
from scheduler_ext.model.node import Node
from scheduler_ext.model.topology import farthest, is_known, keeping_groups, nearness, rungs_of
from scheduler_ext.scoring.policy import BINPACK, NodeContext, Policy, Score, as_its_plugin_chooses
from scheduler_ext.snapshot.free import Free, FreeShape, shape_of
from scheduler_ext.snapshot.node_info import NodeInfo
from timekeeper.core.dialects import DIALECTS, OF_NVIDIA, serves
from timekeeper.core.dialects.nvidia import DIALECT as NVIDIA
from timekeeper.core.dialects.nvidia_parts import is_in_parts
from timekeeper.core.request.cards import allowed, has_named, need
from timekeeper.core.values import CLOSEST, Ask, Card, GPURequest, Placement, Slice

PREFERRED: Score = 2**59  # of a node on whose preferred card the pod fits: above any policy's score
CLOSER: Score = 2**60  # for each step of closeness, of which there are five, above that
_FREE = itemgetter(0)
_REPEATED = frozenset(dialect.name for dialect in DIALECTS if dialect.plugin_repeats)


def fit(
    request: GPURequest, node: NodeInfo, policy: Policy = BINPACK, steps: Steps | None = None
) -> Placement | Refusal:
    """The cards of each container on this node, or the refusal.

    Exact: a placement is found whenever one exists, unless the search reaches its limit, which is a refusal
    of its own kind. Never overfills a card, never puts a whole-card request beside another pod, never uses an
    unhealthy or cordoned card.
    """
    usable = _usable(request, node, _keeping_groups(request, node))
    if isinstance(usable, Refusal):
        return usable
    shape = _shape(request, usable, node)
    if isinstance(shape, Refusal):
        return shape
    if policy.per_node is not None:
        key = policy.per_node.context_key(_context(request, node, lambda: usable), shape.free_by_card)
        policy = policy.per_node.for_node(key, shape.free_by_card)
    layout = layout_in(request, shape, policy, steps or Steps())
    if isinstance(layout, Refusal):
        return layout
    cards = [card for _, card in usable]
    placed = zip(request.asks, layout.chosen, strict=True)
    placement = Placement(
        tuple(
            (each.container, tuple(_slice(each.ask, cards[at]) for at in chosen)) for each, chosen in placed
        )
    )
    return with_tiles(request.asks, placement, layout, node) if asks_tiles(request) else placement


def shape_for(request: GPURequest, node: NodeInfo) -> FreeShape | Refusal:
    """What is free on the cards that the request may use: all that its answer depends on."""
    if node.serves == request.dialect and not is_picky(request):
        return node.shape
    usable = _usable(request, node)
    return usable if isinstance(usable, Refusal) else _shape(request, usable, node)


def is_picky(request: GPURequest) -> bool:
    """True if the answer depends on more than what is free on the cards."""
    by_card = (
        request.uuids
        or request.exclude_uuids
        or request.min_memory_mib
        or request.xe_linked
        or request.by_set
        or request.lone_card
    )
    by_model = request.models or request.exclude_models or request.model_pattern
    return bool(by_model or by_card or request.topology)


def context_for(request: GPURequest, node: NodeInfo) -> NodeContext:
    """What a policy may consider beside the shape that `shape_for` returned."""

    def usable() -> list[tuple[Free, Card]]:
        found = _usable(request, node)
        return [] if isinstance(found, Refusal) else found

    return _context(request, node, usable)


def spots_of(node: NodeInfo) -> list[tuple[Free, str]]:
    """For each card that may be given out what is free on it, and its model."""
    return [(free, card.model) for free, card in _given_out(node)]


def layout_in(request: GPURequest, shape: FreeShape, policy: Policy, steps: Steps) -> Layout | Refusal:
    """The layout of the request over cards of this shape, or a refusal for lack of free cards."""
    if shape.rungs:
        return _closest(request, shape, policy, steps)
    return _layout_in(request, shape, policy, steps)


def _layout_in(request: GPURequest, shape: FreeShape, policy: Policy, steps: Steps) -> Layout | Refusal:
    same = frozenset(at for at, each in enumerate(request.asks) if each.container in request.same_gpu)
    if request.dialect in _REPEATED and not all(each.ask.whole for each in request.asks):
        policy = as_its_plugin_chooses(policy)
    try:
        layout = (
            lay_out_linked(request.asks, shape, policy, steps)
            if request.xe_linked
            else lay_out(request.asks, shape, policy, steps, same)
        )
    except TooManyStepsError:
        return refusal.GIVEN_UP
    return layout if layout is not None else refusal.not_enough_free(request)


def score_of(layout: Layout, policy: Policy) -> Score:
    """The policy's score of the layout, to compare with other nodes."""
    used = sorted({at for chosen in layout.chosen for at in chosen})
    preferred = any(layout.free_by_card[at].preferred for at in used)
    return policy.score(layout.free_by_card, used) + PREFERRED * preferred + CLOSER * layout.closeness


def _barred(request: GPURequest, node: NodeInfo) -> Refusal | None:
    """The refusal that applies whatever the node's cards are."""
    if node.node_object is None:
        return refusal.UNKNOWN_NODE
    if node.claim_drivers:
        return refusal.by_claims(node.claim_drivers)
    if node.closed:
        return refusal.closed(node.closed)
    if not _is_served(request, node.node_object) and node.node_object.has_gpus:
        return refusal.another_family(request, node.node_object)
    if node.node_object.cards:
        return None
    return refusal.NOT_DESCRIBED if node.node_object.has_gpus else refusal.NO_CARDS


def _is_served(request: GPURequest, node_object: Node) -> bool:
    """Whether the node's plugin serves the request: NVIDIA's also parts of cards beside whole ones."""
    if serves(node_object.family, request.dialect):
        return True
    is_nvidias = node_object.family == NVIDIA.name and request.dialect in OF_NVIDIA
    return is_nvidias and any(
        has_named(container.ask, card) for container in request.asks for card in node_object.cards
    )


def _usable(
    request: GPURequest, node: NodeInfo, order: Sequence[int] = ()
) -> list[tuple[Free, Card]] | Refusal:
    """The cards that may be given out and that the request's constraints allow, with what is free on each.
    Sorted by that, since the search treats nodes with equal free amounts alike, and then in this order of
    places, or by index."""
    barred = _barred(request, node)
    if barred:
        return barred
    given_out = _given_out(node, order)
    if not given_out:
        return refusal.no_usable_card(node.cards)
    if request.lone_card and len(node.cards) > 1:
        return refusal.SEVERAL_CARDS
    usable = [each for each in given_out if allowed(request, each[1])]
    if not usable:
        return refusal.not_allowed(request)
    if node.node_object is not None and node.node_object.plugin_chooses:
        if len(usable) < len(given_out) or request.same_gpu or not _all_near(request, usable):
            return refusal.NOT_BY_CHOICE
        usable = _without_unnamed(usable, node.unnamed)
    return sorted(usable, key=_FREE if order else lambda each: (each[0], each[1].index))


def _keeping_groups(request: GPURequest, node: NodeInfo) -> Sequence[int]:
    """The order of cards with equal free amounts: first those whose group is broken already. Empty where
    the node's plugin repeats the choice, and where Xe links decide."""
    groups = node.node_object.groups if node.node_object is not None else None
    if groups is None or request.dialect in _REPEATED or request.xe_linked:
        return ()
    both = enumerate(node.free_by_card)
    return keeping_groups(groups, sum(1 << at for at, free in both if free is not None and free.untouched))


def _given_out(node: NodeInfo, order: Sequence[int] = ()) -> list[tuple[Free, Card]]:
    """The cards that may be given out, with what is free on each, in this order of places."""
    frees, cards = node.free_by_card, node.cards
    if order:
        return [(free, cards[at]) for at in order if (free := frees[at]) is not None]
    return [(free, card) for free, card in zip(frees, cards, strict=True) if free is not None]


def _context(
    request: GPURequest, node: NodeInfo, usable: Callable[[], list[tuple[Free, Card]]]
) -> NodeContext:
    """``usable`` is called only if it is needed: most policies never look at single cards."""

    def uuids() -> tuple[str, ...]:
        return tuple(card.uuid for _, card in usable())

    if node.model and not (request.uuids or request.exclude_uuids):
        return NodeContext((node.model,), (), node.cpu_left, uuids, node.name)
    used = set(uuids())
    others = tuple((free, card.model) for free, card in _given_out(node) if card.uuid not in used)
    other_cards = () if node.node_object is not None and node.node_object.plugin_chooses else others
    models = tuple(card.model for _, card in usable())
    return NodeContext(models, other_cards, node.cpu_left, uuids, node.name)


def _without_unnamed(usable: list[tuple[Free, Card]], count: int) -> list[tuple[Free, Card]]:
    """Without as many untouched cards as pods hold unnamed. Which ones does not matter, for the device plugin
    picks the cards."""
    whole = [(free, card) for free, card in usable if free.untouched and not is_in_parts(card)]
    others = [(free, card) for free, card in usable if not free.untouched or is_in_parts(card)]
    return others + whole[: max(0, len(whole) - count)]


def _all_near(request: GPURequest, usable: list[tuple[Free, Card]]) -> bool:
    """True if any of the cards will do, whichever the plugin picks."""
    if not farthest(request):
        return True
    all_cards = (1 << len(usable)) - 1
    return all(near == all_cards for near in nearness(request.topology, [card for _, card in usable]))


def _shape(request: GPURequest, usable: list[tuple[Free, Card]], node: NodeInfo) -> FreeShape | Refusal:
    """What is free, and which cards are near each other where that matters. A refusal if even the empty node
    has too few cards near each other."""
    free_by_card = tuple(free for free, _ in usable)
    cards = [card for _, card in usable]
    groups = (nearness("pair", cards), nearness("numa", cards)) if request.by_set else ()
    if request.by_set:
        impossible = _impossible_sets(request, shape_of(free_by_card, (), (), (), groups), cards)
        if impossible is not None:
            return impossible
    if request.topology == CLOSEST:
        return shape_of(free_by_card, rungs=rungs_of(CLOSEST, cards), groups=groups)
    together = farthest(request)
    if request.xe_linked and not any(card.tile_links for card in cards):
        return refusal.NO_XE_LINKS
    links = free_links(cards, node) if request.xe_linked else ()
    if not together:
        return shape_of(free_by_card, (), links, (), groups)
    if not is_known(request.topology, cards):
        return refusal.not_known(request.topology)
    rungs = rungs_of("pair", cards) if request.topology == "pair" else ()
    near = rungs[-1][1] if rungs else nearness(request.topology, cards)
    shape = shape_of(free_by_card, near, links, rungs, groups)
    try:
        possible = best_way(Ask(together, 0, 0), range(len(cards)), shape, Steps())
    except TooManyStepsError:
        return refusal.GIVEN_UP
    return shape if possible is not None else refusal.never_near(request.topology, together)


def _impossible_sets(request: GPURequest, shape: FreeShape, cards: list[Card]) -> Refusal | None:
    """The refusal if even the empty node does not have the cards of a container's sets; None if it has."""
    for ask in (each.ask for each in request.asks if each.ask.sets):
        try:
            if best_way(ask, range(len(cards)), shape, Steps()) is None:
                return refusal.no_such_sets(ask, cards)
        except TooManyStepsError:
            return refusal.GIVEN_UP
    return None


def _closest(request: GPURequest, shape: FreeShape, policy: Policy, steps: Steps) -> Layout | Refusal:
    """The layout by the closest rung that one meets. Each rung has an equal part of the steps."""
    answer = refusal.GIVEN_UP
    for left, (closeness, near) in zip(range(len(shape.rungs), 0, -1), shape.rungs, strict=True):
        mine = Steps(steps.left // left)
        steps.left -= mine.left
        rung = shape_of(shape.free_by_card, near, shape.links, (), shape.groups)
        found = _layout_in(request, rung, policy, mine)
        steps.left += mine.left
        if isinstance(found, Layout):
            return replace(found, closeness=closeness)
        answer = found
    return answer


def _slice(ask: Ask, card: Card) -> Slice:
    use = need(ask, card)
    return Slice(card.uuid, card.index, use.share_milli, use.memory_mib, use.resources)
