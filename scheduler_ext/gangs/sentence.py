"""What a gang waits for, for people. Pure."""

from collections.abc import Iterator
from dataclasses import replace

from scheduler_ext.gangs.changes import Decision, TellGang
from scheduler_ext.gangs.memory import Memory, Seen
from scheduler_ext.gangs.next_plan import Loose, is_full, pauses, rests
from scheduler_ext.snapshot.gang_table import GangKey, GangState
from timekeeper.core import names
from timekeeper.core.gangs import UNKNOWN_SIZE
from timekeeper.core.texts import UNPAID

PAID_MS = 5_000  # the timekeeper pays within, where the account can


def tell(memory: Memory, seen: Seen, loose: Loose) -> Decision:
    """Each gang's sentence goes out once it is another."""
    new = {
        key: text
        for key, gang in memory.open.items()
        if (text := sentence(memory, gang, seen, loose)) != memory.told.get(key)
    }
    tells = [TellGang(memory.open[key], text) for key, text in new.items() if text]
    return replace(memory, told=memory.told.with_all(new)), tells


def sentence(memory: Memory, gang: GangState, seen: Seen, loose: Loose) -> str:
    """What the gang waits for; "" if no member waits."""
    if not gang.waiting:
        return ""
    return f"Gang {gang.gang.name} {'; '.join(filter(None, _parts(memory, gang, seen, loose)))}."


def _parts(memory: Memory, gang: GangState, seen: Seen, loose: Loose) -> Iterator[str]:
    start, has_run, living = memory.starts.get(gang.key), memory.of(gang.key).has_run, gang.living
    is_unknown = gang.gang.size == UNKNOWN_SIZE
    # members of a gang that has grown keep the size that they were created with
    size = living if is_unknown else max(gang.gang.size, living)
    least = f", of which {gang.needed} start at least" if gang.needed < size else ""
    yield (
        f"runs: {len(gang.bound)} of {size} members have a node"
        if has_run
        else f"starts whole: {living} of {size} members exist{least}"
    )
    if is_unknown:
        yield f"there is no PodGroup {gang.gang.name} in namespace {gang.namespace}"
    elif gang.conflict and not has_run:
        yield gang.conflict
    elif start is not None and start.places:
        yield f"{len(start.places)} have cards {start.where}, and get their nodes"
    elif gang.reserved:
        yield f"cards are reserved for {len(gang.reserved)} members, and {_leaving(gang)} for it"
    elif gate := next((gate for pod in gang.waiting for gate in pod.gates if gate not in names.GATES), ""):
        yield f"another scheduling gate keeps a member: {gate}"
    elif unpaid := [pod for pod in gang.waiting if names.BUDGET_GATE in pod.gates]:
        if seen.now_ms - max(pod.asked_ms for pod in unpaid) >= PAID_MS:
            yield f"{len(unpaid)} {UNPAID}"
    elif not has_run and pauses(memory, gang, seen):
        yield f"a start in namespace {gang.namespace} came to nothing, and the next comes in some minutes"
    elif rests(memory, gang, seen):
        yield "its last start came to nothing, and it is tried again soon"
    elif not has_run and is_full(loose, gang.namespace, gang.paid):
        yield f"too many pods of gangs in namespace {gang.namespace} that had no place wait without a gate"
    else:
        yield (lack := memory.of(gang.key).lack)
        others = any(start.places for key, start in memory.starts.items() if key != gang.key)
        yield "cards are kept for starts of other gangs" if lack and others else ""
        yield _kept(seen, gang.key)


def _leaving(gang: GangState) -> str:
    """Who leaves for it, by number: names of pods are for readers of their namespaces."""
    shown = (victim for pod in gang.reserved for victim in pod.displaced.victims)
    victims = {uid: owner.partition("/")[0] for uid, owner in shown}
    pods, spaces = len(victims), len({*victims.values()})
    if not victims:
        return "other pods leave"
    where = "1 namespace" if spaces == 1 else f"{spaces} namespaces"
    return f"1 pod of {where} leaves" if pods == 1 else f"{pods} pods of {where} leave"


def _kept(seen: Seen, key: GangKey) -> str:
    """The drain of the gang."""
    drain = seen.snapshot.drain
    if drain is None or not drain.cards or f"{drain.namespace}/{drain.key}" != key:
        return ""
    cards, nodes = sum(len(uuids) for _, uuids in drain.cards), len(drain.cards)
    return f"{cards} cards on {nodes} {'node' if nodes == 1 else 'nodes'} are kept for it {drain.text}"
