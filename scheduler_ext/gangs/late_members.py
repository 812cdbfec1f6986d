"""The members of a gang that its controller creates only after others run, as pods and as members without
GPUs that a plan takes beside those that exist. Pure.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scheduler_ext.gangs.cpu_members import cpu_members_of
from scheduler_ext.gangs.plan import GangPlan, PlannedMember
from scheduler_ext.model.cpu import requested_milli
from scheduler_ext.model.other_resources import requested_others
from scheduler_ext.model.pod import CPUMember, Pod, read_pod
from scheduler_ext.snapshot.late_cards import LATE, LateCards, LatePlace, late_uid
from scheduler_ext.snapshot.snapshot import Snapshot
from timekeeper.core.gangs import Gang
from timekeeper.core.kube.node_constraints import read_node_constraints
from timekeeper.core.object_names import timestamp
from timekeeper.core.values import GPURequest


@dataclass(frozen=True, slots=True)
class Followers:
    """Members that do not exist yet: with GPUs, and without any."""

    pods: tuple[Pod, ...] = ()
    without_gpus: tuple[CPUMember, ...] = ()


def followers_of(first: Pod, snapshot: Snapshot) -> Followers:
    """Those that will follow the members of this pod's gang, less those that are there already."""
    gang = first.gang
    if gang is None or not gang.late:
        return Followers()
    there = _there(first, gang, snapshot)
    waiting = Counter(_shape(each) for each in cpu_members_of(first, snapshot))
    pods: list[Pod] = []
    without: list[CPUMember] = []
    for raw, count in _templates(first, gang):
        pod = read_pod(raw)
        if pod is None:
            member = _without_gpus(raw, first, gang)
            missing = max(0, count - waiting[_shape(member)])
            waiting[_shape(member)] -= count - missing
            without += [member] * missing
            continue
        missing = max(0, count - there[pod.request])
        there[pod.request] -= count - missing
        pods += _numbered(replace(pod, gang=gang), gang, len(pods), missing)
    return Followers(tuple(pods), tuple(without))


def of_both(made: GangPlan) -> tuple[list[PlannedMember], list[PlannedMember]]:
    """The members that exist, and those that follow."""
    found: tuple[list[PlannedMember], list[PlannedMember]] = [], []
    for each in made.members:
        found[each.pod.uid.startswith(LATE)].append(each)
    return found


def cards_for(
    late: Sequence[PlannedMember], beside: Sequence[Pod], since_ms: int, until_ms: int
) -> LateCards | None:
    """The cards to keep for those that follow these members; None: nothing is known of their gang."""
    first = beside[0]
    if first.gang is None:
        return None
    places = tuple(LatePlace(each.pod, each.node, each.placement) for each in late)
    uids = tuple(each.uid for each in beside)
    return LateCards(first.namespace, first.gang.key, since_ms, until_ms, uids, places)


def kept_text(late: LateCards | None) -> str:
    """How many cards are kept, for people; "": none."""
    if late is None or not late.places:
        return ""
    return f"; cards are kept for {len(late.places)} that come later, until {timestamp(late.until_ms)}"


def _templates(first: Pod, gang: Gang) -> Iterator[tuple[dict[str, Any], int]]:
    for each in gang.late:
        raw = each.pod
        found = raw.get("metadata")
        metadata = found if isinstance(found, dict) else {}
        named = {"namespace": first.namespace, "name": f"{gang.name}-late", "uid": LATE}
        yield {**raw, "metadata": {**metadata, **named}}, each.count


def _there(first: Pod, gang: Gang, snapshot: Snapshot) -> Counter[GPURequest | None]:
    """How many pods of the gang's name, and none of its members, wait or run, by their request."""
    found = (pod for _, pod in snapshot.pods.items() if pod.group == gang.key)
    return Counter(
        pod.request
        for pod in found
        if pod.namespace == first.namespace and not (pod.deleting or pod.terminal)
    )


def _numbered(pod: Pod, gang: Gang, begin: int, count: int) -> Iterator[Pod]:
    for at in range(begin, begin + count):
        yield replace(pod, uid=late_uid(pod.namespace, gang.key, str(at)), name=f"{gang.name}-late-{at}")


def _without_gpus(raw: dict[str, Any], first: Pod, gang: Gang) -> CPUMember:
    where = first.namespace, raw["metadata"]["name"], gang.key
    return CPUMember(*where, requested_milli(raw), requested_others(raw), read_node_constraints(raw))


def _shape(member: CPUMember) -> object:
    return member.cpu_milli, member.others
