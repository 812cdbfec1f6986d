"""The Events that report failed and recovered cards to the pods that hold them. Pure.

Events are stored for the whole cluster, and a card can fail in a new way each second. So a pod gets at most
one Event of each kind in `QUIET_MS`, which reports the difference from the last one.
"""

from __future__ import annotations

from sidecar.node.state.overuse import AgentEvent
from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sidecar.node.values import NodeCard, PodState

QUIET_MS = 600_000
FAULTY, WELL = "GPUUnhealthy", "GPUHealthyAgain"


@value
class NotifiedFaults:
    """The faults that a pod's Events have reported."""

    faults: Mapping[str, str]  # by card
    faulty_ms: int | None  # the last Event about a fault; None: never
    well_ms: int | None  # the last Event about a recovery; None: never


def notify(
    notified: Mapping[str, NotifiedFaults],
    known: Mapping[str, str],
    cards: Iterable[NodeCard],
    pods: Iterable[PodState],
    now_ms: int,
) -> tuple[dict[str, NotifiedFaults], tuple[AgentEvent, ...]]:
    """The reported faults by pod UID, and the Events that are due. A pod that is gone is dropped. ``known``:
    the faults by card that the previous agent has reported to a pod without an entry in ``notified``."""
    faults = {card.uuid: card.fault for card in cards}
    after, due = {}, list[AgentEvent]()
    for pod in pods:
        if pod.cards:
            before = notified.get(pod.uid) or NotifiedFaults(known, None, None)
            after[pod.uid], events = _of_pod(before, pod, faults, now_ms)
            due += events
    return after, tuple(due)


def _of_pod(
    before: NotifiedFaults, pod: PodState, faults: Mapping[str, str], now_ms: int
) -> tuple[NotifiedFaults, list[AgentEvent]]:
    its = {uuid: faults[uuid] for uuid in pod.cards if uuid in faults}
    failed = {uuid: why for uuid, why in its.items() if why and why != before.faults.get(uuid)}
    recovered = [uuid for uuid, why in its.items() if not why and uuid in before.faults]
    reported, events = dict(before.faults), list[AgentEvent]()
    faulty_ms, well_ms = before.faulty_ms, before.well_ms
    if failed and _is_time(faulty_ms, now_ms):
        reported.update(failed)
        faulty_ms = now_ms
        each = (f"card {uuid} of this pod is not healthy: {why}" for uuid, why in failed.items())
        events.append(AgentEvent(pod.uid, pod.namespace, pod.name, "Warning", FAULTY, ", ".join(each)))
    if recovered and _is_time(well_ms, now_ms):
        reported = {uuid: why for uuid, why in reported.items() if uuid not in recovered}
        well_ms = now_ms
        each = (f"card {uuid} of this pod is healthy again" for uuid in recovered)
        events.append(AgentEvent(pod.uid, pod.namespace, pod.name, "Normal", WELL, ", ".join(each)))
    return NotifiedFaults(reported, faulty_ms, well_ms), events


def _is_time(last_ms: int | None, now_ms: int) -> bool:
    return last_ms is None or now_ms - last_ms >= QUIET_MS
