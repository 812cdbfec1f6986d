"""What the owners of a gang's pods say of it once members are missing. Pods that ended well go with their
nodes, indexes fail for good, and an owner is made smaller while it waits: the others would wait for ever.

What is known is noted on the oldest living member, where the timekeeper reads it, too.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from scheduler_ext.clients.gang_calls import GangCalls
from scheduler_ext.model.pod import Pod, asks_for_gpus
from scheduler_ext.snapshot.gang_table import GangKey, GangState
from timekeeper.core.gang_owners import is_owner, pods_at_once, pods_left
from timekeeper.core.gangs import MOST_NOTED, UNKNOWN_SIZE, Gang, is_grouped
from timekeeper.core.json_values import Json, mapping

LACKS_MS = 10_000  # members, before their owners are read
AGAIN_MS = 60_000
NOTED_MS = 5_000
MOST_OWNERS = 16  # of one gang that are read
JOB = ("batch/v1", "Job")
Reference = tuple[str, ...]  # `Pod.reference`


class GangOwners:
    """`known` may be called from any thread."""

    def __init__(self, calls: GangCalls, group: Callable[[str], int | None]) -> None:
        self._calls, self._group = calls, group
        self._since_ms: dict[GangKey, int] = {}  # since when it lacks members
        self._read_ms: dict[GangKey, int] = {}
        self._needs: dict[GangKey, int] = {}  # as its owners said last
        self._noted_ms: dict[str, int] = {}  # UID -> until when nothing is noted there again

    def known(self, gang: GangState) -> GangState:
        """The gang, also where the member is gone on which it was noted."""
        return replace(gang, said=self._needs.get(gang.key, gang.said))

    def follow(self, gangs: Mapping[GangKey, GangState], at_ms: int) -> GangState | None:
        """Note what is known of those that lack members. One gang's owners at most are read: it is returned
        as they say."""
        lacking = [gang for gang in gangs.values() if gang.lacks_members]
        self._since_ms = {gang.key: self._since_ms.get(gang.key, at_ms) for gang in lacking}
        for gang in lacking:
            self._note(gang, at_ms)
        for gang in gangs.values():
            if is_grouped(gang.gang.key):
                self._note_group(gang, at_ms)
        due = [gang for gang in lacking if at_ms >= self._due_ms(gang.key) and _owners(gang)]
        return self.read(min(due, key=lambda gang: self._due_ms(gang.key)), at_ms) if due else None

    def _due_ms(self, key: GangKey) -> int:
        again_ms = self._read_ms[key] + AGAIN_MS if key in self._read_ms else 0
        return max(self._since_ms[key] + LACKS_MS, again_ms)

    def forget(self, key: GangKey) -> None:
        """No member lives."""
        for known in (self._since_ms, self._read_ms, self._needs):
            known.pop(key, None)

    def read(self, gang: GangState, at_ms: int) -> GangState:
        """The gang as its owners say now; as its pods do, where one of these is gone or cannot be read."""
        self._read_ms[gang.key] = at_ms
        owners = _owners(gang)
        said = zip(owners, self._calls.owners(gang.namespace, owners), strict=True)
        there = {owner: body for owner, body in said if body is not None and _uid(body) == owner[-1]}
        if not owners or len(there) < len(owners):
            return gang
        needed = needs_by(gang.gang, there)
        if needed < gang.gang.minimum or gang.said is not None:
            self._needs[gang.key] = needed
        gang = self.known(gang)
        self._note(gang, at_ms)
        return gang

    def _note(self, gang: GangState, at_ms: int) -> None:
        """On the oldest member, unless it says so, or the watch will show it."""
        if gang.said is not None and gang.first.needs_said != gang.said:
            self._calls.note_needs(self._unnoted([gang.first], at_ms), gang.said)

    def _note_group(self, gang: GangState, at_ms: int) -> None:
        """The minimum of a PodGroup, on each of its pods that says no size."""
        pods = [pod for pod in (*gang.bound, *gang.waiting) if pod.gang and pod.gang.size == UNKNOWN_SIZE]
        if not pods:
            return
        least = self._group(f"{gang.namespace}/{gang.gang.name}")
        least = gang.gang.minimum if least is None else least
        if least != UNKNOWN_SIZE:
            self._calls.note_needs(self._unnoted(pods, at_ms), min(least, MOST_NOTED))

    def _unnoted(self, pods: Iterable[Pod], at_ms: int) -> list[Pod]:
        """Those of the pods on which nothing was noted just now, which the watch will show."""
        self._noted_ms = {uid: until_ms for uid, until_ms in self._noted_ms.items() if at_ms < until_ms}
        unnoted = [pod for pod in pods if pod.uid not in self._noted_ms]
        self._noted_ms |= dict.fromkeys((pod.uid for pod in unnoted), at_ms + NOTED_MS)
        return unnoted


def needs_by(gang: Gang, owners: Mapping[Reference, Json]) -> int:
    """With how many members it starts, as these owners of its members say. An owner that is all of its gang
    may also have been made smaller; of one among others it is not known how many members it had."""
    ((reference, owner), *_) = owners.items()
    if reference[:2] != JOB:
        group, kind = reference[0].partition("/")[0], reference[1]
        return min(gang.minimum, pods_at_once(group, kind, owner, asks_for_gpus) or gang.minimum)
    left = [pods_left(job) for job in owners.values()]
    needed = max(0, gang.minimum - sum(before - now for before, now in left))
    return max(1, min(needed, *(now for _, now in left))) if gang.key.startswith("job/") else needed


def _owners(gang: GangState) -> list[Reference]:
    """The Jobs of its living members; else the one owner, where it is all of the gang and of a known kind."""
    references = sorted({pod.reference for pod in (*gang.waiting, *gang.bound) if pod.reference})
    jobs = [reference for reference in references if reference[:2] == JOB]
    if jobs or not gang.gang.is_owned:
        return jobs[:MOST_OWNERS]
    return [reference for reference in references if is_owner(*reference[:2])][:1]


def _uid(job: Json) -> str:
    return str(mapping(job.get("metadata")).get("uid"))
