"""The cards of a node that one pod holds, and what they take of the node's inventory."""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from scheduler_ext.model.node import Node
from scheduler_ext.model.other_resources import Others
from scheduler_ext.model.pod import Amounts, Pod
from timekeeper.core.accelerators import accelerator_of
from timekeeper.core.dialects import BY_NAME, OF_NVIDIA
from timekeeper.core.dialects.moments import cards_at_once
from timekeeper.core.dialects.nvidia_parts import is_in_parts
from timekeeper.core.ledger.hold import Vanished
from timekeeper.core.rating.held import held_milli
from timekeeper.core.request.card_amounts import NO_AMOUNT, CardAmount, NamedAmount
from timekeeper.core.request.cards import amounts_by_card, mismatch
from timekeeper.core.request.devices import DIALECT as DEVICE
from timekeeper.core.request.foreign import NamedCards, foreign_placement
from timekeeper.core.values import WHOLE_MILLI, Card, GPURequest, Placement, Slice

AllocationState = Literal["bound", "assumed", "orphaned", "reserved", "drained", "planned"]


class Allocation(Struct, frozen=True, kw_only=True, gc=False):
    """The cards of a node that one pod holds."""

    uid: str
    full_name: str
    request: GPURequest | None
    placement: Placement | None
    undecodable: bool  # the placement annotation cannot be read
    amounts: Amounts  # what kube-scheduler now counts for the pod, by resource
    cpu_milli: int  # likewise the CPU, in thousandths of a core
    grace_ms: int
    # bound: the Binding is seen. assumed: it is not seen yet. orphaned: the pod's object is gone, its
    # containers may still run. reserved: the pod still waits, and these cards are held for it.
    # drained: a gang waits, and these cards are kept empty for it. planned: its gang starts, and these cards
    # are kept for this member
    state: AllocationState
    # assumed: when to ask the API server about the pod. orphaned: until when it
    # holds its cards, unless its node lists it or is silent. reserved: when the reservation ends
    until_ms: int = 0
    uses: tuple[tuple[str, CardAmount], ...] = ()  # what it takes of each card, by UUID
    fault: str = ""  # why this pod closes the node: a key of `node.CLOSED`, or ""
    unnamed: int = 0  # whole cards that it holds and that only the node's device plugin could name
    # likewise replicas and instances, in the units of named resources; ``uses`` has them on any cards
    spread: Amounts = ()
    named: NamedCards = ()  # without a placement: the cards that another scheduler's annotations name
    gone: Vanished | None = None  # orphaned: its hold since its object was removed
    held_milli: int = 0  # what it counts toward caps
    since_ms: int = 0  # reserved: when the reservation began; drained: when the gang may start, 0: not known
    is_of_plan: bool = False  # assumed: if the pod is not bound, the cards are kept for it as before
    others: Others = ()  # what kube-scheduler now counts of memory and other resources
    by_claim: bool = False  # kube-scheduler made a claim for the pod's extended resources
    kept: tuple[str, ...] = ()  # drained: the UUIDs of the cards
    is_static: bool = False  # of a static pod, whose kubelet alone says what it requests

    @property
    def namespace(self) -> str:
        """The pod's namespace."""
        return self.full_name.partition("/")[0]

    @property
    def is_kept(self) -> bool:
        """True if no pod is there: the cards are only kept for one, or for a gang."""
        return self.state in ("reserved", "drained", "planned")


def allocation_of(pod: Pod, placement: Placement | None, state: AllocationState) -> Allocation:
    """The allocation of a pod by a placement, not judged by an inventory yet."""
    return Allocation(
        uid=pod.uid,
        full_name=pod.full_name,
        request=pod.request,
        placement=placement,
        undecodable=bool(pod.undecodable),
        amounts=() if pod.terminal else pod.amounts,
        cpu_milli=0 if pod.terminal else pod.cpu_milli,
        grace_ms=pod.grace_ms,
        state=state,
        named=pod.named,
        others=() if pod.terminal else pod.others,
        by_claim=pod.by_claim,
        is_static=pod.is_static,
    )


def orphaned(allocation: Allocation, gone: Vanished) -> Allocation:
    """The allocation of a pod whose object was removed while it held cards. kube-scheduler no longer counts
    it."""
    return replace(
        allocation, state="orphaned", until_ms=gone.until_ms, amounts=(), cpu_milli=0, others=(), gone=gone
    )


def unknown_orphan(uid: str, boot: str, now_ms: int, most_grace_ms: int) -> Allocation:
    """The allocation of a pod that only the node agent reports; its object may have been removed just now."""
    gone = Vanished(now_ms, most_grace_ms, boot, listed_ms=now_ms, is_listed=True)
    return orphaned(without_request(uid, f"?/{uid}", "orphaned"), gone)


def without_request(uid: str, full_name: str, state: AllocationState) -> Allocation:
    """An allocation of which no request is known: kube-scheduler counts nothing of it, and no cap."""
    return Allocation(
        uid=uid,
        full_name=full_name,
        request=None,
        placement=None,
        undecodable=False,
        amounts=(),
        cpu_milli=0,
        grace_ms=0,
        state=state,
    )


def is_unknown_orphan(allocation: Allocation) -> bool:
    """True if nothing is known of the pod but that the node agent reports it."""
    return allocation.state == "orphaned" and allocation.full_name.startswith("?/")


def uses_of(allocations: Mapping[str, Allocation]) -> dict[str, CardAmount]:
    """What is taken of each card, by UUID."""
    total: dict[str, CardAmount] = {}
    for allocation in allocations.values():
        for uuid, use in allocation.uses:
            total[uuid] = total[uuid] + use if uuid in total else use
    return total


def held_by_namespace(
    new: Mapping[str, Allocation], old: Mapping[str, Allocation]
) -> Iterator[tuple[str, int]]:
    """By how much each change of a node's allocations changes what its namespace holds."""
    if new is old:  # only the node's object has changed, or pods without GPUs have
        return
    for uid, each in new.items():
        was = old.get(uid)
        if was is not each:
            yield each.namespace, each.held_milli
            if was is not None:
                yield was.namespace, -was.held_milli
    for uid, was in old.items():
        if uid not in new:
            yield was.namespace, -was.held_milli


class _Taking(NamedTuple):
    """The members of an `Allocation` that follow from the node's inventory."""

    uses: tuple[tuple[str, CardAmount], ...] = ()
    fault: str = ""
    unnamed: int = 0
    spread: Amounts = ()


_NOTHING = _Taking()
_STATE = {"state", "until_ms", "is_of_plan"}
_JUDGED = {*_Taking._fields, "held_milli"}
_SAYS = attrgetter(*(name for name in Allocation.__struct_fields__ if name not in _STATE | _JUDGED))


def in_state_of(known: Allocation, now: Allocation) -> Allocation | None:
    """What was judged of the pod before, in its present state; None where more than that may have changed."""
    if not {known.state, now.state} <= {"assumed", "bound"} or _SAYS(known) != _SAYS(now):
        return None
    state = now.state, now.until_ms, now.is_of_plan
    if state == (known.state, known.until_ms, known.is_of_plan):
        return known
    return replace(known, state=now.state, until_ms=now.until_ms, is_of_plan=now.is_of_plan)


def judged(allocation: Allocation, node_object: Node | None) -> Allocation:
    """The allocation with what it takes of this inventory, and what it counts toward caps. If request and
    inventory do not bear the placement out, its fault closes the node."""
    taking = _taking(allocation, node_object)
    is_free = allocation.state == "drained" or (allocation.is_kept and not taking.uses)
    if is_unknown_orphan(allocation) or is_free or _is_served(allocation, node_object):
        held = 0
    else:
        cards = node_object.cards if node_object is not None else ()
        held = held_milli(allocation.request, dict(taking.uses), taking.unnamed, cards)
    return replace(
        allocation,
        uses=taking.uses,
        fault=taking.fault,
        unnamed=taking.unnamed,
        spread=taking.spread,
        held_milli=held,
    )


def _taking(allocation: Allocation, node_object: Node | None) -> _Taking:
    if node_object is None or not node_object.cards or _is_served(allocation, node_object):
        return _NOTHING
    if allocation.state == "drained":
        return _Taking(
            tuple((card.uuid, _all_of(card)) for card in node_object.cards if card.uuid in allocation.kept)
        )
    if is_unknown_orphan(allocation):
        return _by_agent(allocation, node_object, 0)
    if allocation.placement is None:
        return _without_placement(allocation, node_object)
    request = allocation.request
    if request is not None and request.dialect == node_object.family and node_object.plugin_chooses:
        return _by_agent(allocation, node_object, cards_at_once(request.asks))  # whatever the placement says
    if request is None or mismatch(request, allocation.placement, node_object.cards):
        if allocation.is_kept:
            return _NOTHING
        return _of_nvidia(request, node_object) or _Taking(fault="placement")
    if node_object.plugin_chooses and not BY_NAME[request.dialect].own_cards:
        return _by_agent(allocation, node_object, cards_at_once(request.asks))
    return _Taking(tuple(amounts_by_card(request, allocation.placement).items()))


def _all_of(card: Card) -> CardAmount:
    if card.resources:
        return NamedAmount(WHOLE_MILLI, card.memory_mib, card.resources, frozenset(card.tiles))
    return CardAmount(WHOLE_MILLI, card.memory_mib)


def _is_served(allocation: Allocation, node_object: Node | None) -> bool:
    """Whether a claim gives the pod its devices: kube-scheduler made one, and where a plugin advertises the
    resource it allocates none (kube-scheduler, `plugins/dynamicresources/extendeddynamicresources.go`)."""
    if not allocation.by_claim or allocation.request is None or node_object is None:
        return False
    resources = BY_NAME[allocation.request.dialect].resources
    return not any(amount and name in resources for name, amount in node_object.allocatable)


def _by_agent(allocation: Allocation, node_object: Node, count: int) -> _Taking:
    """The whole cards that the node agent reports for it; ``count`` unnamed cards if it
    names none. A pod with no known number of cards closes the node."""
    told = node_object.present.pods.get(allocation.uid, ()) if node_object.present is not None else ()
    there = {
        card.uuid: CardAmount(WHOLE_MILLI, card.memory_mib) for card in node_object.cards if card.uuid in told
    }
    named = bool(told) and len(there) == len(set(told))
    if named:
        return _Taking(tuple(there.items()))
    return _Taking(unnamed=count) if count else _Taking(fault="lingering")


def _without_placement(allocation: Allocation, node_object: Node) -> _Taking:
    """A pod that another scheduler bound, or Bursar's where the cards are only counted. Where the device
    plugin picks the cards, it holds as many as it requests."""
    if allocation.undecodable:
        return _Taking(fault="placement")
    request = allocation.request
    if request is not None and request.dialect == DEVICE:
        return _NOTHING  # of the node's cards; its devices are of another plugin
    named = allocation.named
    if request is not None and named and (taking := _of_named(request, named, node_object.cards)):
        return taking
    if request is not None and request.dialect == node_object.family and node_object.plugin_chooses:
        return _by_agent(allocation, node_object, cards_at_once(request.asks))
    if spread := _of_nvidia(request, node_object):
        return spread
    if node_object.is_counted and (request is None or BY_NAME[request.dialect].placed_by_others):
        return _NOTHING  # kube-scheduler counts what the plugin gives it, or the pod that it shares with
    return _Taking(fault="unplaced")


@lru_cache(maxsize=4096)  # where a plugin numbers the cards, those of all nodes of a kind are equal
def _of_named(request: GPURequest, named: NamedCards, cards: tuple[Card, ...]) -> _Taking | None:
    placement = foreign_placement(request, named, cards)
    return None if placement is None else _Taking(tuple(amounts_by_card(request, placement).items()))


def _of_nvidia(request: GPURequest | None, node_object: Node) -> _Taking | None:
    """What a pod holds of a node where NVIDIA's plugin gives out replicas or instances, or did when the pod
    was bound: kube-scheduler counts them, and the plugin chooses. None: of another pod, or node."""
    if request is None or not {request.dialect, node_object.family}.issubset(OF_NVIDIA):
        return None
    if not BY_NAME[request.dialect].own_cards:
        return _NOTHING if any(map(is_in_parts, node_object.cards)) else None
    slices = ((asking.container, (Slice("", 0, 0, 0, asking.ask.resources),)) for asking in request.asks)
    return _Taking(spread=amounts_by_card(request, Placement(tuple(slices)))[""].resources)


def within_node(node_object: Node, allocations: Mapping[str, Allocation]) -> Mapping[str, Allocation]:
    """The allocations, those of static pods together with no more than the node has."""
    static = sorted(uid for uid, allocation in allocations.items() if allocation.is_static)
    if not static:
        return allocations
    more = sum(amount for name, amount in node_object.allocatable if accelerator_of(name))
    left, known = WHOLE_MILLI * (len(node_object.cards) + more), dict(allocations)
    for uid in static:
        whole = judged(allocations[uid], node_object)
        held = min(whole.held_milli, left)
        known[uid] = replace(whole, held_milli=held, unnamed=min(whole.unnamed, held // WHOLE_MILLI))
        left -= held
    return known


def spread_over(cards: Iterable[Card], allocations: Mapping[str, Allocation]) -> Mapping[str, Allocation]:
    """The allocations, those without a known card on cards with enough left: if possible each on one. Which
    one does not matter, for the plugin chooses."""
    if not any(allocation.spread for allocation in allocations.values()):
        return allocations
    known = {
        uid: replace(allocation, uses=()) if allocation.spread else allocation
        for uid, allocation in allocations.items()
    }
    used = uses_of(known)
    left = {
        (name, card.uuid): most - dict(used.get(card.uuid, NO_AMOUNT).resources).get(name, 0)
        for card in cards
        for name, most in card.resources
    }
    for uid, allocation in sorted(known.items()):
        uses: dict[str, CardAmount] = {}
        for name, amount in allocation.spread:
            there = sorted((rest < amount, rest, uuid) for (of, uuid), rest in left.items() if of == name)
            for _, rest, uuid in there:
                taken = max(0, min(amount, rest))
                left[name, uuid] -= taken
                amount -= taken
                if taken:
                    uses[uuid] = uses.get(uuid, NO_AMOUNT) + NamedAmount(0, 0, ((name, taken),))
        if uses:
            known[uid] = replace(allocation, uses=tuple(uses.items()))
    return known
