"""Processes on cards that their pods were not given. Pure.

Nobody paid for such a process, and it takes memory and time from those who did. How it can come to be: an
image that asks for all cards itself on a node whose runtime grants that, a privileged pod, a program of the
node's own, a pod that had cards before the agent came and whose object is gone.

A pod's start is seen in pieces: its process may show before its placement does. So a stranger counts only
when a second look still shows it, and is told of for a while after the last, for a node that opens and closes
with each short process wakes every waiting pod each time.
"""

from __future__ import annotations

from sidecar.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from sidecar.node.values import GPUProcess, PodState, ProcessOwner

LASTS_MS = 60_000
# NVIDIA's own programs that hold cards outside of pods, by the 15 letters that the kernel keeps of a name.
_PROGRAMS = frozenset({"nvidia-cuda-mps", "nvidia-persiste", "nv-hostengine"})


@value
class UnauthorizedUse:
    """Who is on a card unasked. ``pod_uid``: empty for a program of no pod; ``namespace`` and ``name`` of
    the pod: empty where it has no object; ``program``: what a process of no pod calls itself."""

    uuid: str
    pod_uid: str
    namespace: str
    name: str
    program: str


@value
class UseHistory:
    """``suspects``: seen at the last look alone; ``strangers``: seen twice in a row, each with the moment
    from which on it is forgotten."""

    suspects: frozenset[UnauthorizedUse]
    strangers: tuple[tuple[UnauthorizedUse, int], ...]


NOBODY = UseHistory(frozenset(), ())


def found(
    processes: Iterable[GPUProcess],
    seats: Mapping[int, ProcessOwner | None],
    pods: Iterable[PodState],
    held: Mapping[str, tuple[str, ...]],
    trusted: frozenset[str],
    name_of: Callable[[int], str],
) -> frozenset[UnauthorizedUse]:
    """The strangers of one look.

    ``seats``: whose a process is, None for nobody's; one that has no entry has ended, or nobody could tell.
    ``held``: the cards of each pod that is there. ``trusted``: namespaces whose pods may use any card.
    ``name_of``: what a process calls itself, asked for those of no pod; empty where it has ended.
    """
    known = {pod.uid: pod for pod in pods}
    strangers = set()
    for each in processes:
        seat = seats.get(each.pid)
        if seat is not None and each.uuid not in held.get(seat.pod_uid, ()):
            pod = known.get(seat.pod_uid)
            names = (pod.namespace, pod.name) if pod else ("", "")
            if names[0] not in trusted:
                strangers.add(UnauthorizedUse(each.uuid, seat.pod_uid, *names, ""))
        elif seat is None and each.pid in seats:
            program = name_of(each.pid)
            if program and program not in _PROGRAMS:
                strangers.add(UnauthorizedUse(each.uuid, "", "", "", program))
    return frozenset(strangers)


def after(watch: UseHistory, seen: frozenset[UnauthorizedUse], now_ms: int) -> UseHistory:
    """The watch after a look; ``now_ms`` by a clock that never goes back."""
    lasting = {each: until for each, until in watch.strangers if until > now_ms}
    proven = {each: now_ms + LASTS_MS for each in seen if each in lasting or each in watch.suspects}
    return UseHistory(seen, tuple(sorted({**lasting, **proven}.items(), key=lambda pair: _order(pair[0]))))


def new(before: UseHistory, now: UseHistory) -> tuple[UnauthorizedUse, ...]:
    """Those that count from this look on."""
    known = {each for each, _ in before.strangers}
    return tuple(each for each, _ in now.strangers if each not in known)


def sentence(watch: UseHistory) -> str:
    """Why they close the node; empty where there are none. The same for the same strangers."""
    if not watch.strangers:
        return ""
    first, *others = (each for each, _ in watch.strangers)
    more = f" (and {len(others)} more such)" if others else ""
    return f"{about(first)}{more}"


def about(stranger: UnauthorizedUse) -> str:
    """One stranger, for people."""
    if not stranger.pod_uid:
        return f"a process of no pod ({stranger.program}) uses card {stranger.uuid}"
    if not stranger.name:
        return f"a pod that has no object (UID {stranger.pod_uid}) uses card {stranger.uuid}"
    pod = f"{stranger.namespace}/{stranger.name}"
    return f"pod {pod} uses card {stranger.uuid}, which it was not given"


def _order(stranger: UnauthorizedUse) -> tuple[str, ...]:
    # those that can be named first
    return (
        "" if stranger.name else "~",
        stranger.namespace,
        stranger.name,
        stranger.pod_uid,
        stranger.program,
        stranger.uuid,
    )
