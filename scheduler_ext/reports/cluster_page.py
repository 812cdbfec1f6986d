"""``GET /v1/cluster``: cards, the pods on them, and free capacity, for people and dashboards.

It returns a page of nodes at a time, so no answer grows with the cluster.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NotRequired, TypedDict

from scheduler_ext.reports.advice import AdviceView, advise
from scheduler_ext.reports.closed_nodes import culprits, why_closed
from scheduler_ext.reports.headroom import Counting
from scheduler_ext.reports.query import ClusterQuery, Size, typical_sizes
from scheduler_ext.reports.totals import Figures, Total, Totals, figures_of
from scheduler_ext.scoring.fragmentation_model import FragmentationModel
from scheduler_ext.scoring.stranding import largest, stranded_by
from scheduler_ext.snapshot.allocation import Allocation, uses_of
from scheduler_ext.snapshot.node_info import NodeInfo, unreserved
from scheduler_ext.snapshot.snapshot import Snapshot
from timekeeper.core.cluster_map import CardAllocation, MapPod
from timekeeper.core.request.cards import NO_AMOUNT, CardAmount, share_of
from timekeeper.core.values import MAX_AMOUNT, Amounts, Card


class PodView(MapPod):
    """A pod on a card as the map has it, and the named resources that it takes."""

    resources: NotRequired[dict[str, int]]  # named ones; then the share is the largest part


class CardView(CardAllocation):
    """A card as the map has it, its named resources, and the pods on it. Reservations do not count as
    used."""

    resources: NotRequired[dict[str, int]]  # named resources: what the card has
    used_resources: NotRequired[dict[str, int]]
    pods: list[PodView]


class FiguresView(TypedDict):
    """Sums over the cards of open nodes, in thousandths of a card except the first two. ``free``: compute.
    ``fragmented``: free compute with memory that a typical pod cannot use. ``stranded``: free compute with
    memory but without CPU beside it."""

    cards: int
    untouched: int
    free_milli: int
    reserved_milli: int
    fragmented_milli: int
    stranded_milli: int


class StrandedView(TypedDict):
    """Thousandths of a card that a namespace strands: they are free, and no pod can use them, because its
    pods hold the CPU or memory beside them."""

    namespace: str
    milli: int


class UnnamedView(TypedDict):
    """A pod, and how many cards it holds that only the node's device plugin could name."""

    namespace: str
    name: str
    uid: str
    cards: int
    held: str


class NodeView(TypedDict):
    """A node. ``closed``: why no GPU pods are placed on it, or null. ``closed_by``: the pods that cause this.
    ``figures``: null while it is closed. ``unnamed``: the pods whose cards only its device plugin could name;
    no card counts them as used. ``undescribed``: what it offers where no inventory describes its cards."""

    name: str
    family: str
    closed: str | None
    closed_by: list[str]
    cpu_left_milli: int
    figures: FiguresView | None
    stranded_by: list[StrandedView]
    unnamed: list[UnnamedView]
    undescribed: str
    cards: list[CardView]


class FitsView(TypedDict):
    """How many more pods of the size fit now, one after another, and on how many nodes. ``uncounted``: nodes
    that the call had no time for; call again."""

    request: str
    pods: int
    nodes: int
    uncounted: int


class ClusterView(TypedDict):
    """The answer. ``totals`` and the three counts (``waiting``: pods refused everywhere) concern the whole
    cluster. ``nodes``: those with cards, by name, up to the page's limit; the next page begins after
    ``next``, null on the last one. ``fits`` and ``advice``: over all requested nodes, on whatever page.
    ``stranded_by``: of the whole cluster, the 100 namespaces that strand most."""

    version: Literal[1]
    totals: FiguresView
    nodes_with_cards: int
    nodes_closed: int
    waiting: int
    fits: list[FitsView]
    advice: list[AdviceView]
    nodes: list[NodeView]
    next: str | None
    stranded_by: list[StrandedView]


class UnknownNodeError(LookupError):
    """The node does not exist; the text is for people."""


class Clusters:
    """Makes the answers. ``waiting``: the number of pods refused everywhere now."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        totals: Totals,
        counting: Counting,
        waiting: Callable[[], int],
    ) -> None:
        self._snapshot, self._totals, self._counting, self._waiting = snapshot, totals, counting, waiting

    def answer(self, asked: ClusterQuery) -> ClusterView:
        """One page. Raises UnknownNodeError."""
        snapshot = self._snapshot()
        total = self._totals.now(snapshot.nodes)
        nodes = _wanted(snapshot, asked)
        page = [node for node in nodes if node.name > asked.after][: asked.limit + 1]
        sizes = asked.sizes or typical_sizes(total.fragmentation_model.typical_pods)
        return ClusterView(
            version=1,
            totals=_figures(total.figures, total.fragmentation_model),
            nodes_with_cards=total.nodes,
            nodes_closed=total.closed.total(),
            waiting=self._waiting(),
            fits=[self._fits(each, nodes) for each in sizes],
            advice=advise(snapshot.nodes, snapshot.pods, nodes, asked.free),
            nodes=[_node(node, total) for node in page[: asked.limit]],
            next=page[asked.limit - 1].name if len(page) > asked.limit else None,
            stranded_by=_stranded(total.stranded_by),
        )

    def _fits(self, size: Size, nodes: Iterable[NodeInfo]) -> FitsView:
        found = self._counting.count(size.pod, nodes)
        return FitsView(request=size.text, pods=found.pods, nodes=found.nodes, uncounted=found.uncounted)


def _wanted(snapshot: Snapshot, asked: ClusterQuery) -> list[NodeInfo]:
    if asked.node:
        node = snapshot.nodes.get(asked.node)
        if node is None:
            raise UnknownNodeError(f"node {asked.node!r} is not known to the extender")
        return [node]
    return sorted((n for n in snapshot.nodes.values() if n.is_on_map), key=lambda node: node.name)


def _figures(figures: Figures, fragmentation_model: FragmentationModel) -> FiguresView:
    pods = max(1, fragmentation_model.pods)
    return FiguresView(
        cards=figures.cards,
        untouched=figures.untouched,
        free_milli=figures.free_milli,
        reserved_milli=figures.reserved_milli,
        fragmented_milli=figures.fragmented // pods,
        stranded_milli=figures.stranded // pods,
    )


def cards_of(node: NodeInfo) -> list[CardView]:
    """The node's cards with the pods on them."""
    uses = uses_of(unreserved(node).allocations)
    on_card: dict[str, list[PodView]] = {}
    by_uuid = {card.uuid: card for card in node.cards}
    for allocation in node.allocations.values():
        for uuid, use in allocation.uses:
            on_card.setdefault(uuid, []).append(_pod(allocation, use, by_uuid[uuid]))
    return [_card(card, uses.get(card.uuid, NO_AMOUNT), on_card.get(card.uuid, [])) for card in node.cards]


def _node(node: NodeInfo, total: Total) -> NodeView:
    return NodeView(
        name=node.name,
        family=node.node_object.family if node.node_object else "",
        closed=why_closed(node) or None,
        closed_by=list(culprits(node)),
        cpu_left_milli=node.cpu_left,
        figures=None
        if node.closed
        else _figures(figures_of(node, total.fragmentation_model), total.fragmentation_model),
        stranded_by=_stranded(stranded_by(node)),
        unnamed=_unnamed(node),
        undescribed=node.undescribed,
        cards=cards_of(node),
    )


def _unnamed(node: NodeInfo) -> list[UnnamedView]:
    found = []
    for each in node.allocations.values():
        if each.unnamed:
            namespace, _, name = each.full_name.partition("/")
            found.append(
                UnnamedView(namespace=namespace, name=name, uid=each.uid, cards=each.unnamed, held=each.state)
            )
    return sorted(found, key=lambda pod: (pod["namespace"], pod["name"]))


def _stranded(by_namespace: Mapping[str, int]) -> list[StrandedView]:
    return [StrandedView(namespace=name, milli=milli) for name, milli in largest(by_namespace).items()]


def _pod(allocation: Allocation, use: CardAmount, card: Card) -> PodView:
    namespace, _, name = allocation.full_name.partition("/")
    view = PodView(
        namespace=namespace,
        name=name,
        uid=allocation.uid,
        share_milli=share_of(use, card) if use.resources else use.share_milli,
        memory_mib=use.memory_mib,
        held=allocation.state,
    )
    if use.resources:
        view["resources"] = _named(use.resources)
    return view


def _named(amounts: Amounts) -> dict[str, int]:
    """Sums of pods may exceed 64 bits where a card has shrunk."""
    return {name: min(amount, MAX_AMOUNT) for name, amount in amounts}


def _card(card: Card, used: CardAmount, pods: list[PodView]) -> CardView:
    view = CardView(
        uuid=card.uuid,
        index=card.index,
        model=card.model,
        memory_mib=card.memory_mib,
        healthy=card.healthy,
        cordoned=card.cordoned,
        used_share_milli=share_of(used, card) if used.resources else used.share_milli,
        used_memory_mib=used.memory_mib,
        pods=sorted(pods, key=lambda pod: (pod["namespace"], pod["name"])),
    )
    if card.resources:
        view["resources"], view["used_resources"] = _named(card.resources), _named(used.resources)
    return view
