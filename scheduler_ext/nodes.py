"""A node as the extender sees it: its facts, who sits on its cards, and what that leaves free."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from scheduler_ext.facts import Facts
from scheduler_ext.pods import Amounts, Pod
from scheduler_ext.rooms import Room, Shape, room_of, shape_of
from timekeeper.core.cards import NO_USE, Use, mismatch, use_of
from timekeeper.core.values import Card, GPURequest, Placement

Held = Literal["bound", "assumed", "vanished"]


@dataclass(frozen=True, slots=True)
class Seat:
    """A pod on a node's cards: what it takes of each, by UUID, and how sure that is.

    ``assumed`` until the Binding is seen, and to be asked after from ``until_ms`` on; ``vanished`` until
    ``until_ms``, when the kubelet has surely ended it. ``fault``: a word of `facts.CLOSED`, or "".
    ``unnamed``: whole cards that only the node's plugin could name. ``amounts``: what kube-scheduler counts
    of it now.
    """

    uid: str
    full_name: str
    request: GPURequest | None
    placement: Placement | None
    undecodable: bool
    amounts: Amounts
    grace_ms: int
    held: Held
    until_ms: int = 0
    uses: tuple[tuple[str, Use], ...] = ()
    fault: str = ""
    unnamed: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """A node with its seats by pod UID (never changed), and what follows from them.

    ``closed``: a word of `facts.CLOSED`, or "" where it may be used. ``rooms``: what is free on each card, in
    the inventory's order; None for one that is not healthy; ``shape``: those of the healthy ones.
    ``left``: what kube-scheduler thinks is left. ``serves``: the dialect whose requests any of its cards may
    be given to, "" where more must be looked at.
    ``facts`` is None for a node that only pods speak of.
    """

    name: str
    facts: Facts | None
    seats: Mapping[str, Seat]
    closed: str
    rooms: tuple[Room | None, ...]
    unnamed: int
    left: tuple[tuple[str, int], ...]
    shape: Shape = field(compare=False)
    serves: str = ""

    @property
    def cards(self) -> tuple[Card, ...]:
        """The inventory."""
        return self.facts.cards if self.facts else ()


def node_of(name: str, facts: Facts | None, seats: Mapping[str, Seat]) -> Node:
    """The node that follows from its facts and seats."""
    if facts is None:
        return Node(name, None, seats, "", (), 0, (), shape_of(()))
    uses = uses_of(seats)
    closed = facts.fault or next((seat.fault for seat in seats.values() if seat.fault), "")
    rooms = tuple(room_of(c, uses.get(c.uuid, NO_USE)) if c.healthy else None for c in facts.cards)
    healthy = tuple(sorted(room for room in rooms if room is not None))
    return Node(
        name=name,
        facts=facts,
        seats=seats,
        closed=closed,
        rooms=rooms,
        unnamed=sum(seat.unnamed for seat in seats.values()),
        left=_left(facts, seats),
        shape=shape_of(healthy),
        serves="" if closed or not healthy or facts.plugin_chooses else facts.family,
    )


def with_facts(node: Node, facts: Facts | None) -> Node:
    """The node with what its object says now; every seat is judged anew by the inventory."""
    if node.facts == facts:
        return node
    return node_of(node.name, facts, {uid: judged(seat, facts) for uid, seat in node.seats.items()})


def with_seat(node: Node, seat: Seat) -> Node:
    """The node with this pod on it, in the place of an earlier seat of the same pod."""
    seat = judged(seat, node.facts)
    if node.seats.get(seat.uid) == seat:
        return node
    return node_of(node.name, node.facts, {**node.seats, seat.uid: seat})


def without_seat(node: Node, uid: str) -> Node:
    """The node without this pod."""
    if uid not in node.seats:
        return node
    return node_of(node.name, node.facts, {key: seat for key, seat in node.seats.items() if key != uid})


def seat_of(pod: Pod, placement: Placement | None, held: Held) -> Seat:
    """The seat of a pod by a placement, not yet judged by any inventory."""
    return Seat(
        uid=pod.uid,
        full_name=pod.full_name,
        request=pod.request,
        placement=placement,
        undecodable=bool(pod.undecodable),
        amounts=() if pod.terminal else pod.amounts,
        grace_ms=pod.grace_ms,
        held=held,
    )


def judged(seat: Seat, facts: Facts | None) -> Seat:
    """The seat with what it takes of this inventory: believed only where spec and inventory bear it out, else
    its fault closes the node."""
    seat = replace(seat, uses=(), fault="", unnamed=0)
    if facts is None or not facts.cards:
        return seat
    if seat.placement is None:
        return _without_placement(seat, facts)
    if seat.request is None or mismatch(seat.request, seat.placement, facts.cards):
        return replace(seat, fault="placement")
    return replace(seat, uses=tuple(use_of(seat.request, seat.placement).items()))


def vanished(seat: Seat, until_ms: int) -> Seat:
    """The seat of a pod whose object went while it held its cards; kube-scheduler no longer counts it."""
    return replace(seat, held="vanished", until_ms=until_ms, amounts=())


def uses_of(seats: Mapping[str, Seat]) -> dict[str, Use]:
    """What is taken of each card, by UUID."""
    total: dict[str, Use] = {}
    for seat in seats.values():
        for uuid, use in seat.uses:
            total[uuid] = total[uuid] + use if uuid in total else use
    return total


def is_roomier(new: Node, old: Node | None) -> bool:
    """True where a request may fit now that did not before."""
    if new.closed or not new.cards:
        return False
    if old is None or old.closed or old.facts is None or new.facts is None:
        return True
    if (new.facts.cards, new.facts.family) != (old.facts.cards, old.facts.family):
        return True
    return new.unnamed < old.unnamed or any(
        mine.share_milli > was.share_milli or mine.memory_mib > was.memory_mib
        for mine, was in zip(new.rooms, old.rooms, strict=True)
        if mine is not None and was is not None
    )


def _without_placement(seat: Seat, facts: Facts) -> Seat:
    """Bound by others. Where the node's plugin picks the cards, it holds as many as it asks, whichever."""
    if seat.undecodable:
        return replace(seat, fault="placement")
    if seat.request is None or seat.request.dialect != facts.family or not facts.plugin_chooses:
        return replace(seat, fault="unplaced")
    together = sum(each.ask.devices for each in seat.request.asks if not each.init)
    alone = max((each.ask.devices for each in seat.request.asks if each.init), default=0)
    return replace(seat, unnamed=max(together, alone))


def _left(facts: Facts, seats: Mapping[str, Seat]) -> tuple[tuple[str, int], ...]:
    taken: dict[str, int] = {}
    for seat in seats.values():
        for resource, amount in seat.amounts:
            taken[resource] = taken.get(resource, 0) + amount
    return tuple((resource, most - taken.get(resource, 0)) for resource, most in facts.allocatable)
