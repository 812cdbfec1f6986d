"""For which gang the next plan is made, and what comes of it; which has a turn before an autoscaler. Pure."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from scheduler_ext.gangs.changes import Decision, Grow, KeepCards, OpenGates
from scheduler_ext.gangs.held_cards import HeldCards, starting_members
from scheduler_ext.gangs.memory import AGAIN_MS, AutoscalerTurn, Memory, Seen, Start
from scheduler_ext.gangs.plan import GangPlan, lack_text, missing_cards
from scheduler_ext.gangs.starting import with_places
from scheduler_ext.model.pod import Pod
from scheduler_ext.snapshot.gang_table import GangState
from scheduler_ext.waiting.order import QueueKey
from timekeeper.core.gangs import is_grouped

STEADY_MS = 5_000  # so long no member of a gang has left before one of another owner may join it
REST_MS, MAX_REST_MS = 15_000, 600_000  # of a gang after a failed start, doubled with each
# between two starts of gangs of a namespace that came to nothing, doubled with each
WINDOW_MS, MAX_WINDOW_MS = 300_000, 1_800_000
MOST_OPENED = 512  # planned members that kube-scheduler has not tried, before more gates go
MOST_LOOSE = 1_024  # pods of all namespaces in `Loose`
LACKS_MS, TURN_MS = 30_000, 900_000  # before an autoscaler sees a gang, and for how long the next waits
COST = 10  # plans without success take at most a tenth of the time

# by namespace: pods of gangs that have not started, without a gate, which get no node
Loose = Mapping[str, int]
Order = Callable[[Pod], QueueKey]
Turns = Iterator[tuple[GangState, tuple[Pod, ...]]]  # gangs with the members to plan


def due(memory: Memory, gang: GangState, seen: Seen) -> tuple[Pod, ...]:
    """The members for which a plan is to be made; empty: none now."""
    start, history = memory.starts.get(gang.key), memory.of(gang.key)
    if not gang.waiting or (start is not None and not start.joins) or rests(memory, gang, seen):
        return ()
    if not history.has_run:
        is_ready = not gang.conflict and len(gang.paid) >= gang.needed
        # others still have its cards, or it keeps none for a time
        is_kept = not gang.is_free if gang.reserved else pauses(memory, gang, seen)
        return gang.paid if is_ready and not is_kept else ()
    # of one that has grown, further members say its new size, which is no conflict
    is_steady = history.steady_ms is not None and seen.at_ms >= history.steady_ms + STEADY_MS
    planned = start.places if start is not None else {}
    kept = {pod.uid for pod in gang.reserved if pod.reserved and pod.reserved.free_ms is None}
    late = (pod for pod in gang.paid if pod.uid not in planned and pod.uid not in kept)
    return tuple(pod for pod in late if is_steady or gang.runs_with(pod))[:1]


def first(memory: Memory, seen: Seen) -> Turns:
    """Before the turns of others: gangs for which cards that are reserved have become free, and, once each,
    members of gangs that have started: such a one is a single pod."""
    for gang in memory.open.values():
        pods = due(memory, gang, seen) if memory.of(gang.key).has_run or gang.reserved else ()
        if pods and (pods[0].reserved is not None or pods[0].uid not in memory.of(gang.key).late):
            yield gang, pods


def waiting(memory: Memory, seen: Seen, order: Order) -> list[HeldCards]:
    """The gangs for which others may leave, in order."""
    found = []
    for key, gang in memory.open.items():
        has_run = memory.of(key).has_run
        pods = () if gang.reserved or key in memory.starts else due(memory, gang, seen)
        if pods:
            found.append(
                HeldCards(gang=gang, has_begun=has_run, wanted=pods if has_run else starting_members(gang))
            )
    return sorted(found, key=lambda held: place(held.gang, order))


def in_turn(memory: Memory, seen: Seen, order: Order) -> tuple[Memory, Turns]:
    """In order. In a round each has one plan without success: else those that come first would have all of
    the time."""
    ready = {key: pods for key, gang in memory.open.items() if (pods := due(memory, gang, seen))}
    left = [key for key in ready if memory.of(key).looked != memory.round]
    if ready and not left:
        memory, left = replace(memory, round=memory.round + 1), list(ready)
    left.sort(key=lambda key: (key != memory.turn.key, place(memory.open[key], order)))
    return memory, ((memory.open[key], ready[key]) for key in left)


def place(gang: GangState, order: Order) -> QueueKey:
    """Where the gang is in the one order of waiting pods: as its oldest pod, with the lowest priority."""
    first, least = gang.first, min(pod.priority for pod in gang.waiting)
    return order(first if first.priority == least else structs.replace(first, priority=least))


def suffices(memory: Memory, gang: GangState, plan: GangPlan) -> bool:
    """Whether the gang can start with this plan, or a member can follow those that run."""
    return plan.suffices(1 if memory.of(gang.key).has_run else max(1, gang.needed))


def planned(
    memory: Memory, gang: GangState, pods: Sequence[Pod], plan: GangPlan, seen: Seen, never: str = ""
) -> Decision:
    """The plan's cards are kept, and then gates go; or it is noted what the gang lacks, or why it can never
    start."""
    key, history = gang.key, memory.of(gang.key)
    if not suffices(memory, gang, plan):
        is_short = missing_cards(plan) > 0 and not history.has_run
        since_ms = seen.at_ms if history.short_ms is None else history.short_ms
        logged_ms = seen.at_ms + AGAIN_MS if seen.at_ms >= history.logged_ms else history.logged_ms
        short_ms = since_ms if is_short else None
        lack = never or lack_text(plan)
        history = replace(history, lack=lack, short_ms=short_ms, logged_ms=logged_ms)
        return memory.with_history(key, history), ()
    history = replace(history, lack="", short_ms=None)
    start = memory.starts.get(key) or Start(began_ms=0, until_ms=0, joins=history.has_run)
    until_ms = seen.at_ms + seen.settings.deadline_ms
    start = replace(with_places(start, plan), began_ms=seen.at_ms, until_ms=until_ms, planned_ms=seen.at_ms)
    kept = memory.with_history(key, replace(history, eviction=None)).with_start(key, start)
    # kube-scheduler tries no pod of a PodGroup while one of it has a gate
    others = [pod for pod in pods if pod.gated and pod.uid not in start.places and is_grouped(gang.gang.key)]
    opened = [*(member.pod for member in plan.members), *others]
    keep = KeepCards(gang, plan, seen.snapshot, kept, opened, begins=True)
    return memory.with_history(key, history), (keep,)


def passed_over(memory: Memory, gang: GangState, at_ms: int, took_ms: int) -> Memory:
    """After a plan without success that took so long."""
    memory = memory.with_history(gang.key, replace(memory.of(gang.key), looked=memory.round))
    return replace(memory, next_plan_ms=at_ms + min(AGAIN_MS, COST * took_ms))


def rests(memory: Memory, gang: GangState, seen: Seen) -> bool:
    """Whether the gang is not planned yet again after a start that came to nothing."""
    past = memory.failed.get(gang.key)
    return past is not None and seen.at_ms < past.ended_ms + min(MAX_REST_MS, REST_MS << (past.count - 1))


def pauses(memory: Memory, gang: GangState, seen: Seen) -> bool:
    """Whether gangs of the namespace that have not started keep no cards now, for starts of theirs came to
    nothing: they keep some for one deadline in each window."""
    past = memory.fruitless.get(gang.namespace)
    if past is None:
        return False
    window_ms = min(MAX_WINDOW_MS, WINDOW_MS << (past.count - 1))
    return seen.at_ms < past.ended_ms + window_ms - seen.settings.deadline_ms


def is_busy(memory: Memory, seen: Seen) -> bool:
    """Whether more gates would leave kube-scheduler too many pods that it has not tried."""
    pods = (seen.snapshot.pods.get(uid) for start in memory.starts.values() for uid in start.places)
    return sum(pod is not None and not seen.is_tried(pod) for pod in pods) > MOST_OPENED


def loose_pods(memory: Memory, seen: Seen) -> Loose:
    """Without namespaces that have none."""
    loose = Counter[str]()
    for gang in memory.open.values():
        if not memory.of(gang.key).has_run:
            start = memory.starts.get(gang.key)
            places = start.places if start is not None else {}
            bare = [pod for pod in gang.waiting if not pod.gates]
            count = sum(pod.uid not in places or seen.is_tried(pod) for pod in bare)
            if count:
                loose[gang.namespace] += count
    return loose


def is_full(loose: Loose, namespace: str, pods: Sequence[Pod]) -> bool:
    """Whether these would be too many pods of the namespace that have no gate and get no node. Each
    namespace that has such has its share of all, and may have those of one gang."""
    count = loose.get(namespace, 0)
    return count > 0 and any(pod.gated for pod in pods) and count + len(pods) > MOST_LOOSE // len(loose)


def take_turn(memory: Memory, seen: Seen, order: Order, has_grown: bool) -> Decision:
    """An autoscaler counts pods without gates alone: one gang that lacks cards loses its gates though it does
    not fit, and filter refuses its pods until all do. ``has_grown``: nodes have come for the gang whose turn
    it is, so it is planned again."""
    turn = memory.turn
    gang = memory.open.get(turn.key)
    is_over = seen.at_ms >= turn.until_ms or turn.key in memory.starts or memory.of(turn.key).has_run
    if gang is not None and not (is_over or gang.reserved):
        again = replace(memory.of(turn.key), looked=0)
        return memory.with_history(turn.key, again) if has_grown else memory, ()
    lacking = [
        gang
        for key, gang in memory.open.items()
        if (since_ms := memory.of(key).short_ms) is not None
        and seen.at_ms >= since_ms + LACKS_MS
        and due(memory, gang, seen)
    ]
    if not lacking:
        return replace(memory, turn=AutoscalerTurn(had=turn.had)), (Grow(None),)
    had = frozenset() if turn.had.issuperset(gang.key for gang in lacking) else turn.had
    gang = min((gang for gang in lacking if gang.key not in had), key=lambda gang: place(gang, order))
    turn = AutoscalerTurn(gang.key, seen.at_ms + TURN_MS, had | {gang.key})
    opened = OpenGates([pod for pod in gang.paid if pod.gated])
    return replace(memory, turn=turn), (Grow(None), Grow(gang, seen.now_ms + TURN_MS), opened)
