"""Which held pods are released next: by priority, then age, with turns among namespaces of one priority.

A pod is released if every limit of its namespace has room for it, and takes that room at once. Where a limit
has no room for the next pod, no later pod takes from that limit: a large pod is not overtaken by small ones
for ever.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HeldPod:
    """A pod that waits behind the gate."""

    uid: str
    namespace: str
    name: str
    priority: int
    created_ms: int
    rate_milli: int  # the highest rate that it can have
    needs_budget: bool  # it counts as in budget from its release on
    by_other: bool = False  # another scheduler places it
    cards_milli: int = 0  # of such a pod: the most that it can hold of cards, unweighted


@dataclass(frozen=True, slots=True)
class Limit:
    """What the pods of a namespace take from one account, or another bound on them.

    A pod takes ``rate x span_ms + each``. It needs that much room, but no more than ``most``: a pod that
    costs more than a whole grant is released once nothing of the grant is used.
    """

    subject: str  # the same text: the same room
    room: int
    span_ms: int = 0
    each: int = 0
    most: int | None = None  # None: it needs all that it takes
    is_cap: bool = False  # the room is of cards, in milli-GPU

    def takes(self, pod: HeldPod) -> int:
        """What the pod takes from the room."""
        return pod.cards_milli if self.is_cap else pod.rate_milli * self.span_ms + self.each

    def has_room(self, pod: HeldPod, room: int) -> bool:
        """Whether the pod can be released while this much room is left."""
        takes = self.takes(pod)
        return room > 0 and room >= (takes if self.most is None else min(takes, self.most))


Limits = Callable[[HeldPod], tuple[Limit, ...]]


def in_order(pods: Iterable[HeldPod]) -> list[HeldPod]:
    """The pods of one namespace in the order of their release."""
    return sorted(pods, key=lambda each: (-each.priority, each.created_ms, each.uid))


def next_released(
    pods: Mapping[str, HeldPod],
    released: Iterable[str],
    limits: Limits,
    served: Mapping[str, int],
    most: int,
) -> list[HeldPod]:
    """The pods to release now, at most ``most``, in order.

    ``pods``: by UID. ``released``: UIDs of those whose release was sent already: they take their room, and
    are not released again. ``served``: namespace -> number of its last release, greater is later; of pods of
    one priority those go first whose namespace was served longest ago.
    """
    rooms: dict[str, int] = {}
    sent = frozenset(released)
    for uid in sent & pods.keys():
        _take(pods[uid], limits(pods[uid]), rooms)
    chosen: list[HeldPod] = []
    full: set[str] = set()
    for pod in _by_turns(pods, sent, served):
        if len(chosen) >= most:
            break
        mine = limits(pod)
        short = {each.subject for each in mine if not each.has_room(pod, rooms.get(each.subject, each.room))}
        if full.isdisjoint(each.subject for each in mine) and not short:
            _take(pod, mine, rooms)
            chosen.append(pod)
        full |= short
    return chosen


def _take(pod: HeldPod, limits: tuple[Limit, ...], rooms: dict[str, int]) -> None:
    for each in limits:
        rooms[each.subject] = rooms.get(each.subject, each.room) - each.takes(pod)


def _by_turns(pods: Mapping[str, HeldPod], sent: frozenset[str], served: Mapping[str, int]) -> list[HeldPod]:
    """All pods that were not sent: by priority, then by turns of their namespaces, then by age."""
    turns: Counter[tuple[str, int]] = Counter()
    keyed = []
    for pod in in_order(pod for uid, pod in pods.items() if uid not in sent):
        turn = turns[pod.namespace, pod.priority]
        turns[pod.namespace, pod.priority] += 1
        keyed.append((-pod.priority, turn, served.get(pod.namespace, 0), pod.created_ms, pod.uid, pod))
    return [each[-1] for each in sorted(keyed, key=lambda each: each[:-1])]
