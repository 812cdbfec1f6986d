"""Whom to tell of cards that fail and recover. Pure.

Events are stored for the whole cluster, and a card can fail in a new way each second. So a pod is told what
has changed since it was told last, at most once in a while of each kind: what comes in between is not told
one by one, but what it came to is.
"""

from __future__ import annotations

from sidecar.node.state.overuse import AgentEvent
from sidecar.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sidecar.node.values import NodeCard, PodState

QUIET_MS = 600_000
FAULTY, WELL = "GPUUnhealthy", "GPUHealthyAgain"


@value
class NotifiedFaults:
    """What a pod knows: which of its cards are not healthy, and why; when it was told last that some are not,
    and that some are again, None: never."""

    ill: Mapping[str, str]
    faulty_ms: int | None
    well_ms: int | None


def tell(
    told: Mapping[str, NotifiedFaults],
    known: Mapping[str, str],
    cards: Iterable[NodeCard],
    pods: Iterable[PodState],
    now_ms: int,
) -> tuple[dict[str, NotifiedFaults], tuple[AgentEvent, ...]]:
    """What the pods know afterwards, by UID, and the Events that make it so; a pod that is gone is forgotten.
    ``known``: the faults, by card, that a pod that was never told anything was told by an agent before."""
    faults = {card.uuid: card.fault for card in cards}
    after, notices = {}, list[AgentEvent]()
    for pod in pods:
        if pod.cards:
            before = told.get(pod.uid) or NotifiedFaults(known, None, None)
            after[pod.uid], new = _of_pod(before, pod, faults, now_ms)
            notices += new
    return after, tuple(notices)


def _of_pod(
    before: NotifiedFaults, pod: PodState, faults: Mapping[str, str], now_ms: int
) -> tuple[NotifiedFaults, list[AgentEvent]]:
    its = {uuid: faults[uuid] for uuid in pod.cards if uuid in faults}
    broke = {uuid: why for uuid, why in its.items() if why and why != before.ill.get(uuid)}
    mended = [uuid for uuid, why in its.items() if not why and uuid in before.ill]
    ill, notices = dict(before.ill), list[AgentEvent]()
    faulty_ms, well_ms = before.faulty_ms, before.well_ms
    if broke and _is_time(faulty_ms, now_ms):
        ill.update(broke)
        faulty_ms = now_ms
        each = (f"its GPU {uuid} is not healthy: {why}" for uuid, why in broke.items())
        notices.append(AgentEvent(pod.uid, pod.namespace, pod.name, "Warning", FAULTY, ", ".join(each)))
    if mended and _is_time(well_ms, now_ms):
        ill = {uuid: why for uuid, why in ill.items() if uuid not in mended}
        well_ms = now_ms
        each = (f"its GPU {uuid} is healthy again" for uuid in mended)
        notices.append(AgentEvent(pod.uid, pod.namespace, pod.name, "Normal", WELL, ", ".join(each)))
    return NotifiedFaults(ill, faulty_ms, well_ms), notices


def _is_time(last_ms: int | None, now_ms: int) -> bool:
    return last_ms is None or now_ms - last_ms >= QUIET_MS
