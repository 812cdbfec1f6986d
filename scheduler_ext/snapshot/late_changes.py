"""How cards that are kept for members of gangs that do not exist yet come, are taken, and end: one function
for each event, which makes the next snapshot. Pure.
"""

from dataclasses import replace

from scheduler_ext.model.pod import Pod
from scheduler_ext.snapshot.late_cards import RESTS, LateCards, LatePlace, kept
from scheduler_ext.snapshot.snapshot import Snapshot, allocated, release

_HOLDING = ("reserved", "assumed", "bound")


def keep_late(snapshot: Snapshot, wanted: LateCards) -> Snapshot:
    """Keep these cards, and no others of the gang. What was kept before counts as kept on."""
    before = snapshot.late.get(_name(wanted.namespace, wanted.key))
    if before is not None:
        wanted = replace(wanted, since_ms=before.since_ms)
    snapshot = end_late(snapshot, wanted.namespace, wanted.key)
    if not wanted.places:
        return snapshot
    for each in wanted.places:
        snapshot = allocated(snapshot, each.node, kept(each))
    return _with(snapshot, wanted)


def end_late(snapshot: Snapshot, namespace: str, key: str) -> Snapshot:
    """No cards are kept for the gang any more."""
    found = snapshot.late.get(_name(namespace, key))
    if found is None:
        return snapshot
    for each in found.free:
        snapshot = release(snapshot, each.pod.uid)
    return replace(snapshot, late=snapshot.late.without(_name(namespace, key)))


def places_for(snapshot: Snapshot, pod: Pod) -> dict[str, LatePlace]:
    """By node, a place that is kept for a pod like this one of its gang; nearly always none."""
    found = snapshot.late.get(_name(pod.namespace, pod.group)) if pod.group else None
    if found is None or pod.node:
        return {}
    alike = [each for each in found.free if each.pod.request == pod.request]
    return {each.node: each for each in reversed(alike)}


def take_place(snapshot: Snapshot, pod: Pod, place: LatePlace) -> Snapshot:
    """The pod has cards of its own in this place."""
    found = snapshot.late.get(_name(pod.namespace, pod.group))
    if found is None or place not in found.places:
        return snapshot
    taken = tuple(replace(each, taken_by=pod.uid) if each == place else each for each in found.places)
    return _with(release(snapshot, place.pod.uid), replace(found, places=taken))


def give_back_place(snapshot: Snapshot, uid: str) -> Snapshot:
    """The pod of this UID was certainly not bound: what it had taken is kept again."""
    pod = snapshot.pods.get(uid)
    found = snapshot.late.get(_name(pod.namespace, pod.group)) if pod is not None and pod.group else None
    if found is None or not any(each.taken_by == uid for each in found.places):
        return snapshot
    for each in found.places:
        if each.taken_by == uid:
            snapshot = allocated(snapshot, each.node, kept(each))
    free = tuple(replace(each, taken_by="") if each.taken_by == uid else each for each in found.places)
    return _with(snapshot, replace(found, places=free))


def expire_late(snapshot: Snapshot, now_ms: int) -> Snapshot:
    """Ends what is over: its time, or its gang, or all places are taken by pods that are bound. After that
    nothing is kept in this namespace for `RESTS` times as long: a pod may leave its place at once."""
    for namespace in [name for name, until_ms in snapshot.late_rests.items() if until_ms <= now_ms]:
        snapshot = replace(snapshot, late_rests=snapshot.late_rests.without(namespace))
    for each in [each for _, each in snapshot.late.items()]:
        is_in_use = any(_is_under_way(snapshot, place) for place in each.places)
        if each.until_ms <= now_ms or not is_in_use or not _goes_on(snapshot, each):
            snapshot = end_late(snapshot, each.namespace, each.key)
            snapshot = _rested(snapshot, each, now_ms)
    return snapshot


def rests(snapshot: Snapshot, namespace: str, now_ms: int) -> bool:
    """Whether nothing is kept for gangs of this namespace, because cards were kept before."""
    return (snapshot.late_rests.get(namespace) or 0) > now_ms


def _rested(snapshot: Snapshot, it: LateCards, now_ms: int) -> Snapshot:
    until_ms = max(now_ms + RESTS * (now_ms - it.since_ms), snapshot.late_rests.get(it.namespace) or 0)
    return replace(snapshot, late_rests=snapshot.late_rests.set(it.namespace, until_ms))


def _is_under_way(snapshot: Snapshot, place: LatePlace) -> bool:
    """Whether the place is free, or may be so again."""
    allocation = snapshot.allocation(place.taken_by) if place.taken_by else None
    return not place.taken_by or (allocation is not None and allocation.state == "assumed")


def _goes_on(snapshot: Snapshot, it: LateCards) -> bool:
    """Whether a member is bound, or about to be, and stays."""
    members = (snapshot.pods.get(uid) for uid in it.members)
    there = (snapshot.allocation(pod.uid) for pod in members if pod is not None and not pod.deleting)
    return any(each is not None and each.state in _HOLDING for each in there)


def _with(snapshot: Snapshot, it: LateCards) -> Snapshot:
    return replace(snapshot, late=snapshot.late.set(_name(it.namespace, it.key), it))


def _name(namespace: str, key: str) -> str:
    return f"{namespace}/{key}"
