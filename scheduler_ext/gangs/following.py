"""What becomes of the memory as pods change: which gangs wait, which have started, which are gone. Pure."""

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

from scheduler_ext.gangs.changes import Decision, Mark, OpenGates
from scheduler_ext.gangs.memory import AGAIN_MS, NEW, Failures, GangHistory, Memory, Seen
from scheduler_ext.snapshot.gang_table import GangKey, GangState
from scheduler_ext.snapshot.immutable_map import Map
from timekeeper.core.gangs import group_of_key

FORGOTTEN_MS = 3_600_000  # after a start that came to nothing
MOST_OPENED = 64  # of pods without GPUs in one step, so that gangs go on meanwhile
MIN_MARKS = 2  # so one node that is lost takes no gang's last mark


def follow(
    memory: Memory, states: Mapping[GangKey, GangState | None], whole: Iterable[GangState], seen: Seen
) -> tuple[Memory, list[GangState]]:
    """And the gangs that have started now. ``states``: what the pods of those that changed say, None: no
    member lives; ``whole``: those whose last needed Binding is made, for the marked pod may be lost before
    it is seen."""
    histories, told, waiting = memory.histories, memory.told, dict(memory.open)
    begun: list[GangState] = []
    for started in whole:
        before = histories.get(started.key) or NEW
        begun += () if before.has_run else (started,)
        histories = histories.set(started.key, replace(before, has_run=True))
    for key, gang in states.items():
        if gang is None:
            histories, told = histories.without(key), told.without(key)
            waiting.pop(key, None)
            continue
        before = histories.get(key) or NEW
        history = _followed(before, gang, seen)
        begun += (gang,) if history.has_run and not before.has_run else ()
        histories = histories if history == before else histories.set(key, history)
        if _is_open(gang, seen):
            waiting[key] = gang
        else:
            waiting.pop(key, None)
    gone = {key for key, gang in states.items() if gang is None}
    memory = replace(
        memory if not gone else _without(memory, gone),
        pods=seen.snapshot.pods,
        open=waiting,
        histories=histories,
        told=told,
        marking={uid: until_ms for uid, until_ms in memory.marking.items() if seen.at_ms < until_ms},
        failed=_recent(memory.failed, {gang.key for gang in begun}, seen),
        fruitless=_recent(memory.fruitless, {gang.namespace for gang in begun}, seen),
    )
    return memory, begun


def marks(memory: Memory, seen: Seen) -> Decision:
    """A gang that has started keeps enough living marks, and one that has all it needs has started."""
    unmarked = []
    for gang in memory.open.values():
        if gang.bound and not memory.is_starting(gang):
            pods = [pod for pod in gang.bound if not (pod.is_marked or pod.uid in memory.marking)]
            marked = len(gang.bound) - len(pods)  # or the watch will show it
            unmarked += pods[: max(0, MIN_MARKS - marked)]
    marking = dict.fromkeys((pod.uid for pod in unmarked), seen.at_ms + AGAIN_MS)
    return replace(memory, marking={**memory.marking, **marking}), list(map(Mark, unmarked))


def those_beside(memory: Memory, gangs: Map[frozenset[str]], seen: Seen) -> Decision:
    """Pods without GPUs start once each gang of their name has started, or all of its pods have ended. So one
    of which none exists yet keeps them. ``gangs``: by key the UIDs of its pods."""
    waiting = [pod for _, pod in seen.snapshot.cpu_members.items() if pod.gated]
    goes: dict[tuple[str, str], bool] = {}
    awaited = {(pod.namespace, pod.gang) for pod in waiting}
    for key, uids in gangs.items() if waiting else ():
        namespace, _, rest = key.partition("/")
        group = namespace, group_of_key(rest)
        if group in awaited:
            pods = (seen.snapshot.pods.get(uid) for uid in uids)
            is_begun = memory.of(key).has_run or all(pod is not None and pod.terminal for pod in pods)
            goes[group] = is_begun and goes.get(group, True)
    opened = [pod for pod in waiting if goes.get((pod.namespace, pod.gang))]
    return memory, [OpenGates(opened[:MOST_OPENED])] if opened else ()


def _followed(history: GangHistory, gang: GangState, seen: Seen) -> GangHistory:
    has_node = bool(gang.bound) or any(pod.uid in seen.bound for pod in gang.waiting)
    has_run = gang.marks > 0 or (history.has_run and has_node)  # without a node its next start is a new one
    is_there = bool(gang.paid) if has_run else len(gang.bound) + len(gang.paid) >= gang.needed
    steady_ms = seen.at_ms if history.steady_ms is None else history.steady_ms
    return replace(
        history,
        has_run=has_run,
        steady_ms=steady_ms if is_there and not gang.leaving else None,
        late=history.late.intersection(pod.uid for pod in gang.waiting),
    )


def _is_open(gang: GangState, seen: Seen) -> bool:
    is_short_of_marks = gang.marks < min(MIN_MARKS, len(gang.bound))
    is_pending = seen.settings.ready_for_ms > 0 and any(pod.is_pending for pod in gang.bound)
    return bool(gang.waiting) or is_short_of_marks or is_pending


def _without(memory: Memory, gone: Set[GangKey]) -> Memory:
    """No member lives. The cards of a start are free since its pods wait no more."""
    return replace(
        memory,
        starts={key: start for key, start in memory.starts.items() if key not in gone},
        turn=replace(memory.turn, had=memory.turn.had - gone),
    )


def _recent(failures: Mapping[str, Failures], begun: Set[str], seen: Seen) -> Mapping[str, Failures]:
    return {
        name: past
        for name, past in failures.items()
        if seen.at_ms < past.ended_ms + FORGOTTEN_MS and name not in begun
    }
