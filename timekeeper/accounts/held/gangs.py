"""What a gang of held pods waits for, and what is next for it. Pure.

The members' own objects are the record: each shows whether it has the gate, a node, and cards that are
reserved for it, with the epoch of the decision that reserved them. So another process goes on where one was
killed. A gate is removed only once enough members have reservations of one epoch; if one of them has no gate
any more, that decision was made, and the others' gates follow. An epoch ends with its reservations: what
has no node by then is decided anew, with a later epoch.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from timekeeper.accounts.held.order import HeldPod
from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.gangs import Gang
from timekeeper.core.names import GANG_MINIMUM, GANG_SIZE, GANG_TOPOLOGY, GANG_TOPOLOGY_PREFERRED
from timekeeper.core.values import GPURequest

OPEN_PART = 3  # gates are removed only with a third of its reservations left, which kube-scheduler needs
BOUND_MS = 5_000  # a binding that was made before the deadline is seen by then
LATE_MS = 300_000  # nothing is evicted so long after the deadline: the gang may have run whole since


@dataclass(frozen=True, slots=True)
class GangMember:
    """``epoch``: of the last reservation on its object, 0 without one, which lasts from ``since_ms`` to
    ``until_ms``."""

    uid: str
    name: str
    created_ms: int
    is_bound: bool
    is_gated: bool
    epoch: int = 0
    since_ms: int = 0
    until_ms: int = 0
    owner: str = ""  # its controller, "Kind/name"
    is_kept: bool = False  # another gate than ours keeps it from schedulers
    controller: tuple[str, ...] = ()  # its apiVersion, kind, name and UID

    def can_open(self, now_ms: int) -> bool:
        """Whether enough of its reservation is left to remove the gate."""
        return OPEN_PART * (self.until_ms - now_ms) >= self.until_ms - self.since_ms


@dataclass(frozen=True, slots=True)
class WaitingGang:
    """A gang of which a member has no node. ``members``: those that exist and do not leave, oldest first.
    ``held``: those behind the gate, as one pod; None: none is. ``conflict``: what they contradict each other
    in. ``was_whole``: enough had a node at one time for it to start."""

    namespace: str
    gang: Gang
    members: tuple[GangMember, ...]
    held: HeldPod | None = None
    conflict: str = ""
    was_whole: bool = False

    @property
    def key(self) -> str:
        """What tells it from every other gang."""
        return f"{self.namespace}/{self.gang.key}"

    @property
    def bound(self) -> int:
        """How many members have a node."""
        return sum(each.is_bound for each in self.members)


@dataclass(frozen=True, slots=True)
class BrokenGang:
    """A gang of which a member was preempted, and that has fewer pods with cards than its minimum since.
    ``uids``: of those."""

    namespace: str
    gang: Gang
    uids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WaitFor:
    """Nothing can be done now. ``why``: for people."""

    why: str


@dataclass(frozen=True, slots=True)
class AskForCards:
    """Have cards reserved for these members, for at least ``needed`` of them. ``bound``: the other members,
    which have a node; ``drain_ms``: until when cards are kept empty if they do not fit, ``late_ms``: until
    when they are kept for members that do not exist yet; 0: none are."""

    uids: tuple[str, ...]
    needed: int
    bound: tuple[str, ...] = ()
    drain_ms: int = 0
    late_ms: int = 0


@dataclass(frozen=True, slots=True)
class OpenGates:
    """Remove the gates of these members."""

    uids: tuple[str, ...]


GangStep = WaitFor | AskForCards | OpenGates


def next_step(it: WaitingGang, now_ms: int) -> GangStep:
    """What is next for a gang; whether it can be paid is not asked here."""
    if it.conflict:
        return WaitFor(it.conflict)
    epoch = max((each.epoch for each in it.members if now_ms < each.until_ms), default=0)
    mine = [each for each in it.members if epoch and each.epoch == epoch]
    gated = [each for each in mine if each.is_gated]
    if gated and len(gated) < len(mine):
        return OpenGates(_uids(gated))  # begun: another one has no gate any more
    needed = max(1, it.gang.minimum - it.bound)
    if len(gated) >= needed and all(each.can_open(now_ms) for each in gated):
        return OpenGates(_uids(gated))
    if any(not each.is_bound for each in mine) and not gated:
        return WaitFor(f"its gates are removed: {it.bound} of {len(it.members)} members have a node")
    if _has_failed(it) and _ended_ms(it) <= now_ms < _ended_ms(it) + LATE_MS:
        return WaitFor(f"{it.bound} of {it.gang.minimum} members had a node in time, and are evicted")
    if len(it.members) < it.gang.minimum and not it.was_whole:  # of one that was, some have ended
        return WaitFor(exist_text(it))
    kept = [each.name for each in it.members if each.is_kept]
    if kept:
        return WaitFor(f"{exist_text(it)}; another scheduling gate keeps {kept[0]}")
    asked = [each for each in it.members if not each.is_bound][: max(0, it.gang.size - it.bound)]
    if not asked:
        return WaitFor(f"{it.bound} of {it.gang.size} members run; there are more of its name than its size")
    bound = _uids(each for each in it.members if each.is_bound)
    return AskForCards(_uids(asked), min(needed, len(asked)), bound)


def let_go(it: WaitingGang, now_ms: int) -> tuple[str, ...]:
    """The members to evict: those that have a node although too few have by the deadline. None of a gang that
    ran whole before."""
    ended_ms = _ended_ms(it)
    if not _has_failed(it) or not ended_ms + BOUND_MS <= now_ms < ended_ms + LATE_MS:
        return ()
    return _uids(each for each in it.members if each.is_bound)


def broken(namespace: str, pods: Iterable[LedgerPod]) -> BrokenGang | None:
    """The gang of which one of these pods was preempted; None: it goes on, or has ended."""
    found = [(each, each.gang) for each in pods if each.gang is not None]
    running = tuple(each.uid for each, _ in found if each.is_charged)
    if not running:
        return None
    gang = max((each for _, each in found), key=lambda each: (each.size, each.minimum))
    return BrokenGang(namespace, gang, running) if len(running) < gang.minimum else None


def is_starting(pods: Iterable[LedgerPod], now_ms: int) -> bool:
    """Whether cards are reserved for one of them: a start has a deadline of its own."""
    members = (member_of(each) for each in pods)
    return any(each is not None and now_ms < each.until_ms + BOUND_MS for each in members)


def started_until_ms(it: WaitingGang) -> int:
    """When the start ends of which gates have been removed, 0 without one."""
    return max((each.until_ms for each in it.members if not each.is_gated), default=0)


def _has_failed(it: WaitingGang) -> bool:
    """Whether some members, and too few, have nodes, unless one of them was lost later."""
    return _ended_ms(it) > 0 and 0 < it.bound < it.gang.minimum and not it.was_whole


def _ended_ms(it: WaitingGang) -> int:
    """When the last reservation of its members ends, 0 without any."""
    return max((each.until_ms for each in it.members), default=0)


def exist_text(it: WaitingGang) -> str:
    """How many of its members exist."""
    least = f", of which {it.gang.minimum} start at least" if it.gang.minimum < it.gang.size else ""
    late = f", and {it.gang.late_count} come later" if it.gang.late else ""
    return f"{len(it.members)} of {it.gang.size} members exist{least}{late}"


def as_one_pod(namespace: str, gang: Gang, pods: Iterable[HeldPod], late_milli: int = 0) -> HeldPod | None:
    """The held members as one pod: what they need together, in the first one's place; None without any.
    ``late_milli``: the rate of those that do not exist yet."""
    held = list(pods)
    if not held:
        return None
    one = _as_one(held)
    rate_milli = one.rate_milli + late_milli
    return replace(one, uid=f"{namespace}/{gang.key}", name=gang.name, rate_milli=rate_milli)


def late_milli(held: Iterable[HeldPod], there: Iterable[LedgerPod]) -> int:
    """The highest rate of the members that come later than these, less those that are ``there`` already:
    they have or await their own part of the budget."""
    requests = Counter(each.request for each in there)
    return max((_missing_milli(each, requests.copy()) for each in held), default=0)


def _missing_milli(pod: HeldPod, there: Counter[GPURequest]) -> int:
    total = 0
    for request, count, rate_milli in pod.late:
        missing = max(0, count - there[request])
        there[request] -= count - missing
        total += missing * rate_milli
    return total


def gangs_as_one(pods: Iterable[HeldPod]) -> list[tuple[HeldPod, int]]:
    """The held pods, those of a gang as one, with the UID and the name of the oldest; each with its number of
    pods."""
    found: dict[tuple[str, str], list[HeldPod]] = {}
    for each in pods:
        found.setdefault((each.namespace, each.gang or f"pod {each.uid}"), []).append(each)
    return [(_as_one(each) if each[0].gang else each[0], len(each)) for each in found.values()]


def _as_one(pods: Iterable[HeldPod]) -> HeldPod:
    held = sorted(pods, key=lambda each: (each.created_ms, each.uid))
    return replace(
        held[0],
        priority=min(each.priority for each in held),
        rate_milli=sum(each.rate_milli for each in held),
        needs_budget=any(each.needs_budget for each in held),
        length_ms=max(each.length_ms for each in held),
        cards_milli=sum(each.cards_milli for each in held),
        is_gang=True,
    )


def member_of(pod: LedgerPod) -> GangMember | None:
    """The pod as a member; None for one that leaves, or has ended."""
    if pod.ended_ms is not None or pod.hold.deletion_ms is not None:
        return None
    reserved = pod.reserved if pod.reserved is not None and pod.reserved.kind == "gang" else None
    times = (reserved.epoch, reserved.since_ms, reserved.until_ms) if reserved is not None else (0, 0, 0)
    where = pod.uid, pod.name, pod.created_ms, bool(pod.node), pod.is_gated
    return GangMember(*where, *times, pod.owner, pod.has_other_gate, pod.controller)


def conflict_of(gangs: Iterable[Gang]) -> str:
    """What the members contradict each other in; "": nothing."""
    found = set(gangs)
    for field, what, values in (
        (GANG_SIZE, "number", {each.size for each in found}),
        (GANG_MINIMUM, "number", {each.minimum for each in found}),
        (GANG_TOPOLOGY, "label", {each.topology or "none" for each in found}),
        (GANG_TOPOLOGY_PREFERRED, "label", {each.preferred or "none" for each in found}),
    ):
        if len(values) > 1:
            named = " and ".join(map(str, sorted(values)[:3]))
            return f"metadata.annotations[{field}]: its members say {named}; allowed: one {what} for all"
    return ""


def _uids(members: Iterable[GangMember]) -> tuple[str, ...]:
    return tuple(each.uid for each in members)
