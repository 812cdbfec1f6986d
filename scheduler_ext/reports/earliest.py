"""When a waiting pod, or its gang, may start at the earliest: once enough of the cards that it may use are
not held by pods that have declared time beyond that moment. Pure.

A lower bound as long as pods use the time that they declare and no card comes: which pod goes next, CPU,
topologies and caps can only make it later. It is Slurm's reservation for the first job, without its queue.
"""

from collections.abc import Iterable, Sequence

from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import UNHEARD, NamespaceStandings
from scheduler_ext.preemption.precedence import outranks
from scheduler_ext.snapshot.allocation import Allocation
from scheduler_ext.snapshot.drains import may_pass
from scheduler_ext.snapshot.free import free_of, takes
from scheduler_ext.snapshot.node_info import NodeInfo
from scheduler_ext.snapshot.snapshot import EMPTY, Snapshot
from timekeeper.core.cluster_map import NO_END, OF_DEVICES, not_before
from timekeeper.core.dialects.moments import cards_at_once
from timekeeper.core.request.card_amounts import NO_AMOUNT, CardAmount
from timekeeper.core.request.cards import allowed
from timekeeper.core.values import Ask, Card, GPURequest

# in place of a time: it is free; it may be at any time; once others have had it, who knows when; never
_NOW, _UNKNOWN, _PROMISED, _NEVER = -1, 0, 2**62, 2**63
_MAX_LOOKS = 2_500  # at nodes, after which no further pod is looked for in one call
_GOOD_FOR_MS = 30_000


class EarliestStarts:
    """Sentences; pods alike are looked for once in a while."""

    def __init__(self) -> None:
        self._known: dict[object, tuple[int, str]] = {}
        self.begin(EMPTY, UNHEARD, 0)

    def begin(self, snapshot: Snapshot, standings: NamespaceStandings, now_ms: int) -> None:
        """A call begins."""
        self._snapshot, self._standings, self._now_ms, self._left = snapshot, standings, now_ms, _MAX_LOOKS
        self._known = {key: said for key, said in self._known.items() if now_ms - said[0] < _GOOD_FOR_MS}

    def of(self, pod: Pod, names: Iterable[str], together: int) -> str:
        """``names``: of the nodes that may take it; ``together``: how many pods of its gang wait; "": it
        lacks no cards, or was not looked for."""
        if pod.request is None or pod.waits_for_devices:
            return OF_DEVICES if pod.request is not None else ""
        gang = pod.gang and (pod.gang.key, together)
        key = pod.namespace, pod.request, pod.node_constraints, pod.priority, pod.declared_ms, gang
        if key not in self._known and self._left > 0:
            nodes = [node for name in names if (node := self._snapshot.nodes.get(name)) is not None]
            self._left -= len(nodes)
            self._known[key] = self._now_ms, self._sentence(pod, pod.request, nodes, together)
        return self._known.get(key, (0, ""))[1]

    def _sentence(self, pod: Pod, request: GPURequest, nodes: Iterable[NodeInfo], together: int) -> str:
        wanted = [(ask, ask.devices) for ask in dict.fromkeys(each.ask for each in request.asks)]
        if all(ask.whole for ask, _ in wanted):
            wanted = [(ask, cards_at_once(request.asks)) for ask, _ in wanted[:1]]
        start_ms, where, every = _NEVER, "", list[int]()
        for node in nodes:
            times = [(self._times(pod, request, node, ask), number) for ask, number in wanted]
            mine_ms = max((_nth(there, number) for there, number in times), default=_NEVER)
            start_ms, where = min((start_ms, where), (mine_ms, node.name))
            every += times[0][0] if len(times) == 1 else []
        if pod.gang is not None and len(wanted) == 1:
            number = min(together, pod.gang.minimum) * wanted[0][1]
            start_ms, where = max((start_ms, where), (_nth(sorted(every), number), ""))
        if start_ms in (_NOW, _NEVER):
            return ""
        return not_before(start_ms, where) if start_ms != _UNKNOWN else NO_END

    def _times(self, pod: Pod, request: GPURequest, node: NodeInfo, ask: Ask) -> list[int]:
        """When each of the node's cards may be free for the ask, the first first."""
        ends = [(self._end_ms(pod, held), held) for held in node.allocations.values()]
        there = sorted((pair for pair in ends if pair[0] != _NEVER), key=lambda pair: pair[1].is_kept)
        on_card: dict[str, list[tuple[int, CardAmount]]] = {}
        for end_ms, held in there:
            before = (until_ms for uuid, _ in held.uses for until_ms, _ in on_card.get(uuid, ()))
            more_ms = max(0, max(before, default=0) - self._now_ms) if held.is_kept else 0
            for uuid, use in held.uses:
                on_card.setdefault(uuid, []).append((min(_PROMISED, end_ms + more_ms), use))
        cards = (card for card, free in zip(node.cards, node.free_by_card, strict=True) if free is not None)
        times = sorted(
            _from_ms(ask, card, sorted(on_card.get(card.uuid, ()), key=lambda use: use[0]))
            for card in cards
            if allowed(request, card)
        )
        unnamed = [end_ms for end_ms, held in there for _ in range(held.unnamed)]
        return sorted([*unnamed, *times[len(unnamed) :]])

    def _end_ms(self, pod: Pod, held: Allocation) -> int:
        """Until when it holds its cards; what is kept for a pod, as if that began now. `_NEVER`: the pod need
        not wait for it, for they are its own or kept for its gang, or it passes a drain; `_NOW`: it leaves,
        or may be evicted for the pod."""
        holder = self._snapshot.pods.get(held.uid)
        if held.state == "drained":
            return _NEVER if may_pass(pod, held.since_ms, self._now_ms) else _PROMISED
        if holder is None:
            return _UNKNOWN
        key = (pod.namespace, pod.gang.key) if pod.gang is not None else None
        is_mate = holder.gang is not None and (holder.namespace, holder.gang.key) == key
        if holder.uid == pod.uid or (is_mate and held.is_kept):
            return _NEVER
        if holder.leaves_ms or (not held.is_kept and outranks(pod, holder, self._standings)):
            return _NOW
        declared_ms = max(0, holder.declared_ms - holder.grace_ms)
        if held.is_kept:
            return self._now_ms + declared_ms if declared_ms else _PROMISED
        end_ms = (holder.started_ms or self._now_ms) + declared_ms if declared_ms else _UNKNOWN
        return end_ms if end_ms > self._now_ms else _UNKNOWN


def _nth(times: Sequence[int], number: int) -> int:
    return times[number - 1] if 0 < number <= len(times) else _NEVER


def _from_ms(ask: Ask, card: Card, held: Sequence[tuple[int, CardAmount]]) -> int:
    """When the ask fits on a card that pods hold until these times."""
    if ask.whole:  # most asks, and nothing may be left on the card
        return (_UNKNOWN if held[-1][0] == _PROMISED else held[-1][0]) if held else _NOW
    for at, end_ms in enumerate((_NOW, *(end_ms for end_ms, _ in held))):
        if takes(ask, free_of(card, sum((use for _, use in held[at:]), NO_AMOUNT))) is not None:
            return _UNKNOWN if end_ms == _PROMISED else end_ms
    return _NEVER
