"""When a start ends, and what comes of one that came to nothing: its members are let go, the gang rests, and
other gangs get the cards. Pure."""

from dataclasses import replace

from scheduler_ext.gangs.changes import Decision, EndPlans, Evict
from scheduler_ext.gangs.memory import AGAIN_MS, Failures, Memory, Seen, Start
from scheduler_ext.snapshot.gang_table import GangState

LONGEST_MS = 600_000  # a start lasts, while kube-scheduler has not tried a member
AVOIDED_MS = 600_000  # nodes on which a member got no place, by the next plans


def is_due(start: Start, gang: GangState, seen: Seen) -> bool:
    """Whether the start ends now. A member whose Binding is made will be seen with its node."""
    if seen.at_ms < start.until_ms or any(pod.uid in seen.bound for pod in gang.waiting):
        return False
    is_untried = any(not seen.is_tried(pod) for pod in gang.waiting if pod.uid in start.places)
    return not is_untried or seen.at_ms >= start.began_ms + LONGEST_MS


def end(memory: Memory, gang: GangState, seen: Seen) -> Decision:
    """Its deadline is over. A gang that has not started holds no card: what is not evicted now, because it
    has changed or is protected, is so later."""
    start, history = memory.starts[gang.key], memory.of(gang.key)
    has_failed = not (start.joins or history.has_run or len(gang.bound) >= gang.needed)
    ended: tuple[EndPlans, ...] = ()
    if not start.is_over:
        memory = _with_failure(memory, gang, start, has_failed, seen)
        memory = _with_others(memory, gang.namespace, seen) if has_failed else memory
        failure = "" if not has_failed else "some-bound" if gang.bound else "none-bound"
        ended = (EndPlans(start.places, failure),)
    if not (has_failed and gang.bound):
        return memory.with_start(gang.key, None), ended
    over = Start(began_ms=start.began_ms, until_ms=seen.at_ms + AGAIN_MS, is_over=True)
    few = f"{len(gang.bound)} of the {gang.needed} pods with which gang {gang.gang.name} starts had a node"
    why = f"{few} in time. The gang starts whole, or none of its pods holds cards."
    memory, evicted = _let_go(memory.with_start(gang.key, over), gang, why, seen)
    return memory, (*ended, evicted)


def end_pending(memory: Memory, gang: GangState, seen: Seen) -> Decision:
    """A gang leaves of which a member is Pending for too long after its start."""
    marked_ms = [pod.marked_ms for pod in gang.bound if pod.is_marked]
    pending = [pod.name for pod in gang.bound if pod.is_pending]
    if not (pending and marked_ms and seen.now_ms >= min(marked_ms) + seen.settings.ready_for_ms):
        return memory, ()
    eviction = memory.of(gang.key).eviction
    if eviction is not None and seen.at_ms < eviction[1] + AGAIN_MS:
        return memory, ()
    why = f"{pending[0]} of gang {gang.gang.name} has not run in time after its start."
    memory, evicted = _let_go(memory, gang, why, seen)
    return memory, (replace(evicted, failure="not-ready" if eviction is None else ""),)


def given_back(memory: Memory, gang: GangState, seen: Seen) -> Decision:
    """Cards that were reserved for the gang were given back before it could start: that is one start."""
    start = Start(began_ms=seen.at_ms, until_ms=seen.at_ms)
    return _with_failure(memory, gang, start, True, seen), (EndPlans((), "none-bound"),)


def _with_failure(memory: Memory, gang: GangState, start: Start, is_gangs: bool, seen: Seen) -> Memory:
    """The gang rests, and avoids the nodes of those without one. ``is_gangs``: it came to nothing as a whole,
    so its namespace pauses; starts that began together count once."""
    history, past = memory.of(gang.key), memory.fruitless.get(gang.namespace, Failures())
    nodes = {member.node: seen.at_ms + AVOIDED_MS for member in start.places.values()}
    memory = memory.with_history(gang.key, replace(history, avoided={**history.avoided, **nodes}))
    failed = {gang.key: Failures(memory.failed.get(gang.key, Failures()).count + 1, seen.at_ms)}
    is_counted = is_gangs and start.began_ms > past.ended_ms
    fruitless = {gang.namespace: Failures(past.count + 1, seen.at_ms)} if is_counted else {}
    return replace(memory, failed={**memory.failed, **failed}, fruitless={**memory.fruitless, **fruitless})


def _with_others(memory: Memory, namespace: str, seen: Seen) -> Memory:
    """The other starts of the namespace have this deadline, too: else it might keep cards for one each. Those
    that are not tried yet, or are complete by now, come to their own end (`is_due`)."""
    starts = dict(memory.starts)
    for key, other in memory.starts.items():
        if key.startswith(f"{namespace}/") and not (other.joins or other.is_over):
            starts[key] = replace(other, until_ms=min(other.until_ms, seen.at_ms))
    return replace(memory, starts=starts)


def _let_go(memory: Memory, gang: GangState, why: str, seen: Seen) -> tuple[Memory, Evict]:
    history = memory.of(gang.key)
    is_told = bool(gang.bound) and (history.eviction is None or history.eviction[0] != why)
    memory = memory.with_history(gang.key, replace(history, eviction=(why, seen.at_ms)))
    return memory, Evict(gang, why, is_told)
