"""Detects processes on cards that are not allocated to their pods. Pure.

Such a process is not charged, and it takes memory and time from the pods that are. Causes: an image that
requests all cards itself, on a node whose runtime grants that; a privileged pod; a program of the node; a pod
whose object was deleted before the agent first ran.

A pod's process can be visible before its placement is. So a use counts only if the next reading still shows
it. It lasts for `LASTS_MS` after the last reading that shows it, because each opening and closing of the node
requeues every waiting pod.
"""

from __future__ import annotations

from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from sidecar.node.values import GPUProcess, PodState, ProcessOwner

LASTS_MS = 60_000


@value
class StrangerUse:
    """A card's use by a pod, or by a program outside of pods, that it is not allocated to."""

    uuid: str  # of the card
    pod_uid: str  # empty: the process belongs to no pod
    namespace: str  # of the pod; empty if its object is gone
    name: str  # of the pod; empty if its object is gone
    program: str  # the name of a process of no pod


@value
class UseHistory:
    """The uses over several readings."""

    suspects: frozenset[StrangerUse]  # in the last reading
    proven: tuple[tuple[StrangerUse, int], ...]  # in two readings in a row, each with the moment of its end


NONE = UseHistory(frozenset(), ())


def found(
    processes: Iterable[GPUProcess],
    owners: Mapping[int, ProcessOwner | None],
    pods: Iterable[PodState],
    held: Mapping[str, tuple[str, ...]],
    trusted: frozenset[str],
    name_of: Callable[[int], str],
) -> frozenset[StrangerUse]:
    """The unauthorized uses in one reading.

    ``owners``: the owner of each process by PID, None for a process of no pod; a process without an entry has
    ended or is unknown. ``held``: the cards of each holder, by pod UID. ``trusted``: namespaces whose pods
    may use any card. ``name_of``: returns the name of a process of no pod; empty if it has ended, or is one
    of the vendor's.
    """
    known = {pod.uid: pod for pod in pods}
    uses = set()
    for each in processes:
        owner = owners.get(each.pid)
        if owner is not None and each.uuid not in held.get(owner.pod_uid, ()):
            pod = known.get(owner.pod_uid)
            names = (pod.namespace, pod.name) if pod else ("", "")
            if names[0] not in trusted:
                uses.add(StrangerUse(each.uuid, owner.pod_uid, *names, ""))
        elif owner is None and each.pid in owners:
            program = name_of(each.pid)
            if program:
                uses.add(StrangerUse(each.uuid, "", "", "", program))
    return frozenset(uses)


def after(history: UseHistory, seen: frozenset[StrangerUse], now_ms: int) -> UseHistory:
    """The history after a reading. ``now_ms``: of a monotonic clock."""
    lasting = {each: until for each, until in history.proven if until > now_ms}
    proven = {each: now_ms + LASTS_MS for each in seen if each in lasting or each in history.suspects}
    return UseHistory(seen, tuple(sorted({**lasting, **proven}.items(), key=lambda pair: _order(pair[0]))))


def new(before: UseHistory, now: UseHistory) -> tuple[StrangerUse, ...]:
    """The uses that count from this reading on."""
    known = {each for each, _ in before.proven}
    return tuple(each for each, _ in now.proven if each not in known)


def sentence(history: UseHistory) -> str:
    """Why the uses close the node; empty if there are none. The same sentence for the same uses."""
    if not history.proven:
        return ""
    first, *others = (each for each, _ in history.proven)
    more = f" (and {len(others)} more such)" if others else ""
    return f"{describe(first)}{more}"


def describe(use: StrangerUse) -> str:
    """One use, for people."""
    if not use.pod_uid:
        return f"a process outside of pods ({use.program}) uses card {use.uuid}"
    if not use.name:
        return f"a deleted pod (UID {use.pod_uid}) uses card {use.uuid}"
    pod = f"{use.namespace}/{use.name}"
    return f"pod {pod} uses card {use.uuid}, which is not allocated to it"


def _order(use: StrangerUse) -> tuple[str, ...]:
    # pods with a name first
    return (
        "" if use.name else "~",
        use.namespace,
        use.name,
        use.pod_uid,
        use.program,
        use.uuid,
    )
