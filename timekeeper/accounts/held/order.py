"""Which held pods are released next: by priority, then age, with turns among namespaces of one priority.

A pod is released if every limit of its namespace allows it, and takes its part at once. If a limit does
not allow the next pod, later pods take nothing from that limit, and later pods of the same namespace wait:
so small pods do not overtake a large one for ever. A cap that concerns the pod alone keeps no later pod
waiting.

Namespaces may share a limit, that of their group. A pod that the shared limit does not allow keeps pods of
other namespaces waiting only if no limit of its own namespace holds it back, and if the shared limit can
allow it in the present period. Otherwise one pod of one namespace could hold back all pods of a group.
"""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import compress
from operator import is_not

from timekeeper.accounts.budget_history import History
from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.rating.held import held_milli
from timekeeper.core.request.cards import amounts_by_card, decode_placement
from timekeeper.core.values import Card, UndecodableError


@dataclass(frozen=True, slots=True, kw_only=True)
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
    # its declared time and its grace; 0: it reserves the lookahead
    length_ms: int = 0
    cards_milli: int = 0  # of a pod of another scheduler: the most that it can hold of cards, unweighted
    # its controller, "Kind/name"; no row of the database has it, so it makes none differ
    owner: str = field(default="", compare=False)
    is_gang: bool = False  # it stands for all held pods of a gang
    gang: str = ""  # what tells its gang from others of the namespace; "": it starts by itself
    # the number of GPUs of its claims, if admission did not know it; its release records it
    late_devices: int | None = field(default=None, compare=False)

    @property
    def released_with(self) -> str:
        """Equal for the pods of its namespace that are released as one: those of its gang, or it alone."""
        return self.gang or f"pod {self.uid}"


@dataclass(frozen=True, slots=True)
class Limit:
    """What the pods of a namespace take from one account, or another bound on them.

    A pod takes ``rate x span_ms + each``. It needs that much, but no more than ``most``: a pod that
    costs more than a whole grant is released once nothing of the grant is used. A pod that declares its time
    takes that, within ``left_ms``, instead of the span, and needs all of it.
    """

    subject: str  # the same text: the same account
    left: int
    span_ms: int = 0
    each: int = 0
    left_ms: int = 0
    most: int | None = None  # None: it needs all that it takes
    is_cap: bool = False  # what is left is of cards, in milli-GPU
    is_shared: bool = False  # it bounds several namespaces
    # the most that there can be left in the present period, if every pod ended now; None: not known
    attainable: int | None = None

    def takes(self, pod: HeldPod) -> int:
        """What the pod takes of it."""
        if self.is_cap:
            return pod.cards_milli
        span_ms = min(pod.length_ms, self.left_ms) if pod.length_ms else self.span_ms
        return pod.rate_milli * span_ms + self.each

    def allows(self, pod: HeldPod, left: int) -> bool:
        """Whether the pod can be released while this much is left."""
        return left > 0 and left >= self._needs(pod)

    def keeps(self, pod: HeldPod) -> bool:
        """Whether the pod, which it does not allow now, keeps this limit from all later pods."""
        return self.attainable is None or self.allows(pod, self.attainable)

    def _needs(self, pod: HeldPod) -> int:
        takes = self.takes(pod)
        needs_all = self.most is None or pod.length_ms > 0 or pod.is_gang
        return takes if needs_all or self.most is None else min(takes, self.most)

    def can_never_pay(self, pod: HeldPod) -> bool:
        """Whether a whole grant is less than what the pod needs."""
        return self.most is not None and self._needs(pod) > self.most


Limits = Callable[[HeldPod], tuple[Limit, ...]]


@dataclass(frozen=True, slots=True)
class FairOrder:
    """Which namespaces' pods go first: those whose accounts have used least for their weight, as
    `core.ledger.fair_share.ranks` has it, with what each release adds. ``accounts``: of a namespace, that of
    its group if it has one, then its own; ``uses``: of an account, grows with each pod that is taken."""

    accounts: Mapping[str, tuple[str, ...]]
    weights: Mapping[str, int]
    uses: dict[str, float]
    lookahead_ms: int

    def of_step(self) -> "FairOrder":
        """One of its own, which counts what is taken in a step."""
        return replace(self, uses=dict(self.uses))

    def place(self, namespace: str) -> tuple[float, float]:
        """Sorts namespaces, least first; equal where their accounts tie."""
        first, *later = map(self._level, self.accounts[namespace])
        return first, later[0] if later else 0.0

    def take(self, pod: HeldPod) -> None:
        """The pod is released: what it reserves counts at once."""
        for account in self.accounts.get(pod.namespace, ()):
            self.uses[account] += pod.rate_milli * (pod.length_ms or self.lookahead_ms)

    def _level(self, account: str) -> float:
        use, weight = max(0, round(self.uses[account])), self.weights[account]
        return use / weight if weight else math.inf


def in_order(pods: Iterable[HeldPod]) -> list[HeldPod]:
    """The pods of one namespace in the order of their release."""
    return sorted(pods, key=lambda each: (-each.priority, each.created_ms, each.uid))


def queues_of(pods: Iterable[HeldPod]) -> dict[str, list[HeldPod]]:
    """The pods of each namespace, in order."""
    queues: dict[str, list[HeldPod]] = {}
    for pod in pods:
        queues.setdefault(pod.namespace, []).append(pod)
    return {name: in_order(each) for name, each in queues.items()}


def queues_after(
    queues: Mapping[str, list[HeldPod]], before: Mapping[str, HeldPod], now: Mapping[str, HeldPod]
) -> dict[str, list[HeldPod]]:
    """The queues of the pods ``now``, from those of the pods ``before``, both by UID. Only a namespace with
    new or changed pods is sorted; pods that are the same objects keep their order."""
    gone, new = _differing(before, now), queues_of(_differing(now, before).values())
    after = dict(queues)
    for name in {each.namespace for each in gone.values()}:
        after[name] = [each for each in queues[name] if each.uid not in gone]
    after |= {name: in_order([*after.get(name, ()), *pods]) for name, pods in new.items()}
    return {name: each for name, each in after.items() if each}


def _differing(pods: Mapping[str, HeldPod], others: Mapping[str, HeldPod]) -> dict[str, HeldPod]:
    """The pods that are not the same objects among the others. Most are, of 10,000: no bytecode for each."""
    return dict(compress(pods.items(), map(is_not, map(others.get, pods), pods.values())))


def next_released(
    queues: Mapping[str, Sequence[HeldPod]],
    sent: Iterable[HeldPod],
    limits: Limits,
    served: Mapping[str, int],
    most: int,
    passed: Set[str] = frozenset(),
    fair: FairOrder | None = None,
) -> list[HeldPod]:
    """The pods to release now, at most ``most``, in order. Its time grows with the number of namespaces, and
    not with that of pods.

    ``queues``: the pods of each namespace, in order. ``sent``: those whose release was sent: they take
    their part, and are not released again. ``served``: namespace -> number of its last release, greater is
    later; of pods of one priority those go first whose namespace was served longest ago. ``passed``: UIDs of
    pods to leave out. ``fair``: an order of namespaces, then of age, in place of these turns.
    """
    left: dict[str, int] = {}
    left_out = set(passed)
    step = None if fair is None else fair.of_step()
    for pod in sent:
        left_out.add(pod.uid)
        _take(pod, limits(pod), left, step)
    heads = _Heads(queues, left_out, served, step)
    chosen: list[HeldPod] = []
    full: set[str] = set()
    while heads and len(chosen) < most:
        pod = heads.pop()
        mine = limits(pod)
        short = [
            each
            for each in mine
            if each.subject in full or not each.allows(pod, left.get(each.subject, each.left))
        ]
        is_kept_alone = all(each.is_shared and each.keeps(pod) for each in short)
        full.update(each.subject for each in short if is_kept_alone or not each.is_shared)
        if not short:
            _take(pod, mine, left, step)
            chosen.append(pod)
        if all(each.is_cap for each in short):  # other pods of the namespace may have no such limit
            heads.push_next(pod.namespace)
    return chosen


_Head = tuple[int, tuple[float, float], int, str, HeldPod]  # no two have one UID: pods are not compared


class _Heads:
    """The first waiting pod of each namespace. Of one priority, namespaces take turns, or have an order."""

    def __init__(
        self,
        queues: Mapping[str, Sequence[HeldPod]],
        left_out: Set[str],
        served: Mapping[str, int],
        fair: FairOrder | None,
    ) -> None:
        self._served, self._fair = served, fair
        self._waiting = {
            name: (pod for pod in each if pod.uid not in left_out) for name, each in queues.items()
        }
        self._turns: Counter[tuple[str, int]] = Counter()
        self._heap: list[_Head] = []
        for name in queues:
            self.push_next(name)

    def __len__(self) -> int:
        return len(self._heap)

    def push_next(self, namespace: str) -> None:
        """The next pod of the namespace, if there is one, is its first."""
        pod = next(self._waiting[namespace], None)
        if pod is not None and self._fair is not None:
            self._push(pod, self._fair.place(namespace))
        elif pod is not None:
            turn = self._turns[namespace, pod.priority]
            self._turns[namespace, pod.priority] += 1
            self._push(pod, (turn, self._served.get(namespace, 0)))

    def _push(self, pod: HeldPod, place: tuple[float, float]) -> None:
        heapq.heappush(self._heap, (-pod.priority, place, pod.created_ms, pod.uid, pod))

    def pop(self) -> HeldPod:
        """The pod whose turn it is; its namespace has no first pod until the next is pushed."""
        while self._fair is not None:  # what was taken since has put some namespaces further back
            pod, place = self._heap[0][-1], self._heap[0][1]
            if (now := self._fair.place(pod.namespace)) == place:
                break
            heapq.heapreplace(self._heap, (-pod.priority, now, pod.created_ms, pod.uid, pod))
        return heapq.heappop(self._heap)[-1]


def _take(pod: HeldPod, limits: tuple[Limit, ...], left: dict[str, int], fair: FairOrder | None) -> None:
    if fair is not None:
        fair.take(pod)
    for each in limits:
        left[each.subject] = left.get(each.subject, each.left) - each.takes(pod)


def capped_namespaces(
    held: Iterable[HeldPod], namespaces: Iterable[str], history: History, now_ms: int
) -> frozenset[str]:
    """The namespaces whose pods count in a cap of one of these held pods: its own, and those of its group."""
    own = {each.namespace for each in held if each.by_other}
    groups = {history.group(each, now_ms) for each in own} - {""}
    if not groups:
        return frozenset(own)
    return frozenset(own | {each for each in namespaces if history.group(each, now_ms) in groups})


def cards_held(
    pods: Iterable[LedgerPod],
    namespaces: Collection[str],
    scheduler: str,
    cards: Callable[[str], tuple[Card, ...]],
    most_milli: Callable[[LedgerPod], int],
) -> dict[str, int]:
    """What the pods of these namespaces hold, in milli-GPU, but for static pods. A pod of another scheduler
    than ``scheduler`` that was released and has no node counts with the most that it can hold beside its
    claims' sessions."""
    total = dict.fromkeys(namespaces, 0)
    for pod in pods:
        if pod.namespace not in total or pod.ended_ms is not None or pod.is_static:
            continue
        if pod.node:
            total[pod.namespace] += pod_milli(pod, cards(pod.node))
        elif pod.has_other_scheduler(scheduler) and not pod.is_gated:
            total[pod.namespace] += most_milli(pod)
    return total


def pod_milli(pod: LedgerPod, cards: tuple[Card, ...]) -> int:
    """What a pod on a node with these cards holds of them."""
    try:
        uses = amounts_by_card(pod.request, decode_placement(pod.devices)) if pod.devices else {}
    except UndecodableError:
        uses = {}
    known = {card.uuid for card in cards}
    return held_milli(pod.request, uses if known.issuperset(uses) else {}, 0, cards)
