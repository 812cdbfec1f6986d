"""All gangs, kept beside the pods of snapshots, and what the pods of one say. A pod that is being deleted or
has ended does not live. A gang has started if a living member with a node bears the mark.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from scheduler_ext.model.pod import Pod
from scheduler_ext.snapshot.immutable_map import Map
from timekeeper.core import names
from timekeeper.core.gangs import UNKNOWN_SIZE, Gang, ended_for_good, is_grouped, said_now

GangKey = str  # its namespace, and what tells it from others there


def gang_key(pod: Pod) -> GangKey | None:
    """The pod's gang; None without one."""
    return None if pod.gang is None else f"{pod.namespace}/{pod.gang.key}"


def side_of(pod: Pod) -> str:
    """Whose pod it is, also of one that is made in its place: its controller's, its gang's, its namespace."""
    gang = f"gang/{pod.gang.name}" if pod.gang is not None else ""
    whose = pod.controller or gang
    return f"{pod.namespace}/{whose}" if whose else pod.namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class GangState:
    """What the pods of a gang say. ``waiting``: the living members without a node, oldest first; ``bound``:
    those with one, likewise; ``leaving``: how many are being deleted; ``ended_well``: how many have and will
    not come again; ``conflict``: what they contradict each other in, "": nothing; ``said``: with how many it
    starts as its Job says, None: that is not known."""

    key: GangKey
    gang: Gang
    waiting: tuple[Pod, ...]
    bound: tuple[Pod, ...]
    leaving: int = 0
    ended_well: int = 0
    conflict: str = ""
    said: int | None = None

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return self.key.partition("/")[0]

    @property
    def needed(self) -> int:
        """With how many living members it starts."""
        return self.gang.needed(self.living, self.ended_well, self.said)

    @property
    def living(self) -> int:
        """How many members live."""
        return len(self.waiting) + len(self.bound)

    @property
    def lacks_members(self) -> bool:
        """Whether fewer live than it needs by what its pods alone say; not of a PodGroup, which says it."""
        needed = self.gang.needed(self.living, self.ended_well, None)
        return not is_grouped(self.gang.key) and self.living < needed

    @property
    def marks(self) -> int:
        """How many living members with a node say that it has started."""
        return sum(pod.is_marked for pod in self.bound)

    def runs_with(self, pod: Pod) -> bool:
        """Whether this waiting member belongs to those that run: they say that the gang has started, its
        owner is theirs, and none of them leaves."""
        is_theirs = pod.owner != "" and any(mate.owner == pod.owner for mate in self.bound)
        return self.marks > 0 and is_theirs and not self.leaving

    @property
    def paid(self) -> tuple[Pod, ...]:
        """The waiting members that nothing but the gang's own gate keeps from kube-scheduler."""
        return tuple(pod for pod in self.waiting if not {*pod.gates} - {names.GANG_GATE})

    @property
    def owner(self) -> str:
        """Whose gang it is, also of one that is made in its place."""
        return "/".join((self.namespace, *self.gang.key.split("/")[:2]))

    @property
    def reserved(self) -> tuple[Pod, ...]:
        """The waiting members for which cards are reserved."""
        return tuple(pod for pod in self.waiting if pod.reserved is not None)

    @property
    def is_free(self) -> bool:
        """Whether the last of these cards has become free."""
        return all(pod.reserved and pod.reserved.free_ms is not None for pod in self.reserved)

    @property
    def first(self) -> Pod:
        """The oldest living member."""
        return min((*self.waiting[:1], *self.bound[:1]), key=lambda pod: (pod.asked_ms, pod.uid))


class Gangs:
    """May be called from any thread: what is known is one immutable value, which is replaced as a whole."""

    def __init__(self) -> None:
        # the pods; by UID their gangs, by gang the UIDs of its pods
        self._known: tuple[Map[Pod], Map[str], Map[frozenset[str]]] = Map(), Map(), Map()

    def members(self, pods: Map[Pod], key: GangKey) -> list[Pod]:
        """The members among these pods that hold cards and stay, as far as their objects say."""
        return [pod for pod in self._all(pods, key) if pod.holding and not pod.deleting]

    def state(self, pods: Map[Pod], key: GangKey) -> GangState | None:
        """What these pods say of the gang; None: no member lives."""
        every = self._all(pods, key)
        living = [pod for pod in every if not (pod.deleting or pod.terminal)]
        if not living:
            return None
        ended = (pod.owner for pod in every if pod.has_ended_well and pod.reference[1:2] != ("Job",))
        in_order = sorted(living, key=lambda pod: (pod.asked_ms, pod.uid))
        said = [(pod.owner, pod.gang) for pod in in_order if pod.gang is not None]
        gangs = said_now([(owner, gang) for owner, gang in said if gang.size != UNKNOWN_SIZE] or said)
        return GangState(
            key=key,
            gang=max(gangs, key=lambda gang: (gang.size, gang.minimum)),
            waiting=tuple(pod for pod in in_order if not pod.node),
            bound=tuple(pod for pod in in_order if pod.node),
            leaving=sum(pod.deleting and not pod.terminal for pod in every),
            ended_well=ended_for_good(gangs[0].key, {pod.owner for pod in living}, ended),
            conflict=conflict_of(gangs),
            said=next((pod.needs_said for pod in in_order if pod.needs_said is not None), None),
        )

    def changed(self, before: Map[Pod], pods: Map[Pod]) -> set[GangKey]:
        """The gangs of the pods that are not the same in both."""
        both = ((before.get(uid), pods.get(uid)) for uid in pods.changed_since(before))
        found = (gang_key(pod) for pair in both for pod in pair if pod is not None)
        return {key for key in found if key is not None}

    def _all(self, pods: Map[Pod], key: GangKey) -> list[Pod]:
        found = (pods.get(uid) for uid in sorted(self.by_key(pods).get(key) or ()))
        return [pod for pod in found if pod is not None]

    def by_key(self, pods: Map[Pod]) -> Map[frozenset[str]]:
        """By gang the UIDs of its pods, also of those that have ended."""
        known, keys, members = self._known
        for uid in pods.changed_since(known) if pods is not known else ():
            pod, before = pods.get(uid), keys.get(uid)
            key = None if pod is None else gang_key(pod)
            if key == before:
                continue
            if before is not None:
                keys, left = keys.without(uid), (members.get(before) or frozenset()) - {uid}
                members = members.set(before, left) if left else members.without(before)
            if key is not None:
                keys, members = (
                    keys.set(uid, key),
                    members.set(key, (members.get(key) or frozenset()) | {uid}),
                )
        self._known = pods, keys, members
        return members


def conflict_of(gangs: Iterable[Gang]) -> str:
    """What the members contradict each other in; "": nothing."""
    found = set(gangs)
    for field, what, values in (
        (names.GANG_SIZE, "number", {each.size for each in found}),
        (names.GANG_MINIMUM, "number", {each.minimum for each in found}),
        (names.GANG_TOPOLOGY, "label", {each.topology or "none" for each in found}),
        (names.GANG_TOPOLOGY_PREFERRED, "label", {each.preferred or "none" for each in found}),
    ):
        if len(values) > 1:
            named = " and ".join(map(str, sorted(values)[:3]))
            return f"metadata.annotations[{field}]: its members say {named}; allowed: one {what} for all"
    return ""


def spare_members(members: Collection[Pod]) -> int:
    """How many of these members of one gang may leave without its end."""
    least = max((each.gang.minimum for each in members if each.gang), default=0)
    return max(0, len(members) - least)


def not_without(leaving: Iterable[Pod], members: Iterable[Collection[Pod]]) -> list[Pod]:
    """The pods that leave with these, if ``members`` are those of their gangs that stay or are among them."""
    going = {each.uid for each in leaving}
    found: list[Pod] = []
    for gang in members:
        if sum(each.uid in going for each in gang) > spare_members(gang):
            found += [each for each in gang if each.uid not in going]
    return found
