"""A node as the extender sees it: its facts, who sits on its cards, and what that leaves free."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from scheduler_ext.model.node import Facts
from scheduler_ext.model.pod import Amounts, Pod
from scheduler_ext.model.reservation import Reservation
from scheduler_ext.snapshot.free import Room, Shape, room_of, shape_of
from timekeeper.core.request.cards import NO_AMOUNT, CardAmount, amounts_by_card, mismatch
from timekeeper.core.values import WHOLE_MILLI, Card, GPURequest, Placement

Held = Literal["bound", "assumed", "vanished", "reserved"]


@dataclass(frozen=True, slots=True)
class Seat:
    """A pod on a node's cards: what it takes of each, by UUID, and how sure that is.

    ``assumed`` until the Binding is seen, and to be asked after from ``until_ms`` on; ``vanished`` until
    ``until_ms``, when the kubelet has surely ended it (0: not known yet); ``reserved``: not there yet, and
    its cards are held for it until then. ``fault``: a word of `facts.CLOSED`, or "". ``unnamed``: whole cards
    that only the node's plugin could name. ``amounts`` and ``cpu_milli``: what kube-scheduler counts of it
    now. ``listed``: it vanished, and the node's agent has told since that it is there; ``boot``: the node's,
    as it vanished.
    """

    uid: str
    full_name: str
    request: GPURequest | None
    placement: Placement | None
    undecodable: bool
    amounts: Amounts
    cpu_milli: int
    grace_ms: int
    held: Held
    until_ms: int = 0
    uses: tuple[tuple[str, CardAmount], ...] = ()
    fault: str = ""
    unnamed: int = 0
    listed: bool = False
    boot: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """A node with its seats by pod UID (never changed), and what follows from them.

    ``closed``: a word of `facts.CLOSED`, or "" where it may be used. ``rooms``: what is free on each card, in
    the inventory's order; None for one that is not to be given out; ``shape``: those of the others.
    ``left``: what kube-scheduler thinks is left; ``others_milli``: the CPU that pods without a seat take;
    ``cpu_left``: what all together leave of it, in thousandths of a core. ``serves``: the dialect whose
    requests any of its cards may be given to, "" where more must be looked at; ``model``: that of its cards,
    "" where they differ.
    ``facts`` is None for a node that only pods speak of.
    """

    name: str
    facts: Facts | None
    seats: Mapping[str, Seat]
    closed: str
    rooms: tuple[Room | None, ...]
    unnamed: int
    left: tuple[tuple[str, int], ...]
    others_milli: int
    cpu_left: int
    shape: Shape = field(compare=False)
    serves: str = ""
    model: str = ""

    @property
    def cards(self) -> tuple[Card, ...]:
        """The inventory."""
        return self.facts.cards if self.facts else ()


def node_of(name: str, facts: Facts | None, seats: Mapping[str, Seat], others_milli: int = 0) -> Node:
    """The node that follows from its facts, its seats, and the CPU that pods without a seat take."""
    if facts is None:
        return Node(name, None, seats, "", (), 0, (), others_milli, 0, shape_of(()))
    uses = uses_of(seats)
    # of several faults always the same, whichever pod came first: a restart must tell no other reason
    closed = facts.fault or min((seat.fault for seat in seats.values() if seat.fault), default="")
    rooms = tuple(room_of(c, uses.get(c.uuid, NO_AMOUNT)) if c.usable else None for c in facts.cards)
    healthy = tuple(sorted(room for room in rooms if room is not None))
    models = {c.model for c, room in zip(facts.cards, rooms, strict=True) if room is not None}
    return Node(
        name=name,
        facts=facts,
        seats=seats,
        closed=closed,
        rooms=rooms,
        unnamed=sum(seat.unnamed for seat in seats.values()),
        left=_left(facts, seats),
        others_milli=others_milli,
        cpu_left=facts.cpu_milli - others_milli - sum(seat.cpu_milli for seat in seats.values()),
        shape=shape_of(healthy),
        serves="" if closed or not healthy or facts.plugin_chooses else facts.family,
        model=next(iter(models)) if len(models) == 1 else "",
    )


def with_facts(node: Node, facts: Facts | None) -> Node:
    """The node with what its object says now; every seat is judged anew by the inventory."""
    if node.facts == facts:
        return node
    seats = {uid: judged(seat, facts) for uid, seat in node.seats.items()}
    return node_of(node.name, facts, seats, node.others_milli)


def with_seat(node: Node, seat: Seat) -> Node:
    """The node with this pod on it, in the place of an earlier seat of the same pod."""
    seat = judged(seat, node.facts)
    if node.seats.get(seat.uid) == seat:
        return node
    return node_of(node.name, node.facts, {**node.seats, seat.uid: seat}, node.others_milli)


def without_seat(node: Node, uid: str) -> Node:
    """The node without this pod."""
    if uid not in node.seats:
        return node
    seats = {key: seat for key, seat in node.seats.items() if key != uid}
    return node_of(node.name, node.facts, seats, node.others_milli)


def without_seats(node: Node, uids: Collection[str]) -> Node:
    """The node without any of these pods."""
    if not any(uid in node.seats for uid in uids):
        return node
    seats = {uid: seat for uid, seat in node.seats.items() if uid not in uids}
    return node_of(node.name, node.facts, seats, node.others_milli)


def with_others(node: Node, more_milli: int) -> Node:
    """The node with so much more CPU taken by pods without a seat; nothing else of it changes."""
    others_milli = node.others_milli + more_milli
    if node.facts is None:
        return replace(node, others_milli=others_milli)
    return replace(node, others_milli=others_milli, cpu_left=node.cpu_left - more_milli)


def seat_of(pod: Pod, placement: Placement | None, held: Held) -> Seat:
    """The seat of a pod by a placement, not yet judged by any inventory."""
    return Seat(
        uid=pod.uid,
        full_name=pod.full_name,
        request=pod.request,
        placement=placement,
        undecodable=bool(pod.undecodable),
        amounts=() if pod.terminal else pod.amounts,
        cpu_milli=0 if pod.terminal else pod.cpu_milli,
        grace_ms=pod.grace_ms,
        held=held,
    )


def judged(seat: Seat, facts: Facts | None) -> Seat:
    """The seat with what it takes of this inventory: believed only where spec and inventory bear it out, else
    its fault closes the node."""
    seat = replace(seat, uses=(), fault="", unnamed=0)
    if facts is None or not facts.cards:
        return seat
    if is_nameless(seat):
        return _by_agent(seat, facts, 0)
    if seat.placement is None:
        return _without_placement(seat, facts)
    if seat.request is None or mismatch(seat.request, seat.placement, facts.cards):
        return seat if seat.held == "reserved" else replace(seat, fault="placement")
    if facts.plugin_chooses:
        return _by_agent(seat, facts, _cards_asked(seat.request))
    return replace(seat, uses=tuple(amounts_by_card(seat.request, seat.placement).items()))


def reserved(pod: Pod, reservation: Reservation) -> Seat:
    """The seat of a pod for which cards are held; kube-scheduler counts nothing of it there."""
    seat = seat_of(pod, reservation.placement, "reserved")
    return replace(seat, until_ms=reservation.until_ms, undecodable=False, amounts=(), cpu_milli=0)


def unreserved(node: Node) -> Node:
    """The node as it is but for what is held for pods that are not there yet; itself where nothing is."""
    seats = {uid: seat for uid, seat in node.seats.items() if seat.held != "reserved"}
    return node if len(seats) == len(node.seats) else node_of(node.name, node.facts, seats, node.others_milli)


def vanished(seat: Seat, until_ms: int, boot: str) -> Seat:
    """The seat of a pod whose object went while it held its cards, in this boot of the node; kube-scheduler
    no longer counts it."""
    return replace(seat, held="vanished", until_ms=until_ms, amounts=(), cpu_milli=0, boot=boot)


def nameless(uid: str, boot: str) -> Seat:
    """The seat of a pod that nobody has told us of but the node's agent."""
    full_name = f"?/{uid}"
    return Seat(uid, full_name, None, None, False, (), 0, 0, "vanished", listed=True, boot=boot)


def is_nameless(seat: Seat) -> bool:
    """True for the seat of a pod of which nothing is known but that it is there."""
    return seat.held == "vanished" and seat.full_name.startswith("?/")


def uses_of(seats: Mapping[str, Seat]) -> dict[str, CardAmount]:
    """What is taken of each card, by UUID."""
    total: dict[str, CardAmount] = {}
    for seat in seats.values():
        for uuid, use in seat.uses:
            total[uuid] = total[uuid] + use if uuid in total else use
    return total


def is_roomier(new: Node, old: Node | None) -> bool:
    """True where a request may fit now that did not before; cards that free under a reservation are room for
    the pod that they are held for."""
    if new.closed or not new.cards:
        return False
    if old is None or old.closed or old.facts is None or new.facts is None:
        return True
    if (new.facts.cards, new.facts.family) != (old.facts.cards, old.facts.family):
        return True
    return _has_more(new, old) or _has_more(unreserved(new), unreserved(old))


def is_short(node: Node, amounts: Amounts) -> bool:
    """True where kube-scheduler's own sums are short too, though not for good: a node it would not have
    offered, and where its own preemption can make room. For every other want of room it would find nobody to
    preempt, and try again at once, for ever."""
    if node.facts is None:
        return False
    allocatable, left = dict(node.facts.allocatable), dict(node.left)
    over = [resource for resource, amount in amounts if amount > left.get(resource, 0)]
    return bool(over) and all(amount <= allocatable.get(resource, 0) for resource, amount in amounts)


def _has_more(new: Node, old: Node) -> bool:
    if new.facts is not None and new.facts.plugin_chooses:
        return _whole_left(new) > _whole_left(old)
    return new.unnamed < old.unnamed or any(
        mine.share_milli > was.share_milli or mine.memory_mib > was.memory_mib
        for mine, was in zip(new.rooms, old.rooms, strict=True)
        if mine is not None and was is not None
    )


def _whole_left(node: Node) -> int:
    """Cards that nobody is on, where no more is known of some pods than how many they have."""
    return sum(room.untouched for room in node.rooms if room is not None) - node.unnamed


def _by_agent(seat: Seat, facts: Facts, count: int) -> Seat:
    """The seat on the cards that the node's agent knows it to have, each of them as a whole; on so many of
    which nobody knows which they are where the agent does not name them. A pod of which not even the number
    is known closes the node."""
    told = facts.present.pods.get(seat.uid, ()) if facts.present is not None else ()
    there = {card.uuid: CardAmount(WHOLE_MILLI, card.memory_mib) for card in facts.cards if card.uuid in told}
    named = bool(told) and len(there) == len(set(told))
    if named:
        return replace(seat, uses=tuple(there.items()))
    return replace(seat, unnamed=count) if count else replace(seat, fault="lingering")


def _cards_asked(request: GPURequest) -> int:
    """The most cards that the pod has at one time."""
    together = sum(each.ask.devices for each in request.asks if not each.init)
    return max(together, max((each.ask.devices for each in request.asks if each.init), default=0))


def _without_placement(seat: Seat, facts: Facts) -> Seat:
    """Bound by others. Where the node's plugin picks the cards, it holds as many as it asks, whichever."""
    if seat.undecodable:
        return replace(seat, fault="placement")
    if seat.request is None or seat.request.dialect != facts.family or not facts.plugin_chooses:
        return replace(seat, fault="unplaced")
    return _by_agent(seat, facts, _cards_asked(seat.request))


def _left(facts: Facts, seats: Mapping[str, Seat]) -> tuple[tuple[str, int], ...]:
    taken: dict[str, int] = {}
    for seat in seats.values():
        for resource, amount in seat.amounts:
            taken[resource] = taken.get(resource, 0) + amount
    return tuple((resource, most - taken.get(resource, 0)) for resource, most in facts.allocatable)
