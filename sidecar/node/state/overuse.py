"""Detects pods that use more of a card's memory than their share, and reports them by Events. It evicts no
pod. Pure.

NVML's memory of a process includes its CUDA context, some hundred MiB. A pod gets an Event after
`OVER_FOR_MS`, so that a short peak is not reported, then once an hour while the overuse lasts (an Event lives
for an hour), and one when it is within its share again. An hour has at most one such pair, however often the
overuse starts and ends: the pod's owner controls that, and Events are stored for the whole cluster.
"""

from __future__ import annotations

import json

from timekeeper.edge.mended_json import mended
from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sidecar.node.state.use import PodLoad, UsageReading
    from sidecar.node.values import PodState
    from timekeeper.edge.events import EventType

    Shares = Mapping[str, int]  # UUID -> MiB

OVER_FOR_MS = 15_000
TELL_AGAIN_MS = 3_600_000
OVER = "GPUMemoryOveruse"
WITHIN = "GPUMemoryWithinShare"


@value
class CardOveruse:
    """A pod's use of a card beyond its share."""

    uuid: str
    memory_mib: int  # in use
    share_mib: int


@value
class OveruseEpisode:
    """A pod that is beyond its share, or was so within the last hour."""

    since_ms: int  # when its present state began
    told_ms: int | None  # the last Event about overuse; None: none yet
    cards: tuple[CardOveruse, ...]  # empty: within its share


@value
class AgentEvent:
    """A Kubernetes Event about a pod, or about the node if ``namespace`` is empty."""

    uid: str
    namespace: str
    name: str
    kind: EventType
    reason: str
    note: str  # a sentence


def shares(devices: str) -> tuple[tuple[str, int], ...]:
    """The MiB of each card in the annotation ``bursar.dev/devices``, all containers together; none if the
    text is malformed, which the extender reports."""
    found: dict[str, int] = {}
    try:
        for slices in json.loads(mended(devices.encode()))["containers"].values():
            for each in slices:
                found[str(each["uuid"])] = found.get(str(each["uuid"]), 0) + int(each["memory_mib"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return ()  # also for 1e999, which is valid JSON
    return tuple(sorted(found.items()))


def detect(
    episodes: Mapping[str, OveruseEpisode],
    measured: UsageReading,
    pods: Iterable[PodState],
    given: Mapping[str, Shares],
    now_ms: int,
) -> tuple[dict[str, OveruseEpisode], tuple[AgentEvent, ...]]:
    """The episodes by pod UID after a reading, and the Events that are due. ``given``: each pod's shares, by
    UID. A card without a figure changes nothing. A pod that is gone is dropped, and one within its share an
    hour after its last Event."""
    loads = {each.uid: each for each in measured.pods}
    after: dict[str, OveruseEpisode] = {}
    notices = []
    for pod in pods:
        before, load = episodes.get(pod.uid), loads.get(pod.uid)
        over = _excesses(load, given.get(pod.uid, {}), before.cards if before else ())
        if over:
            after[pod.uid] = episode = _after(before, over, now_ms)
            if episode.told_ms == now_ms:
                notices.append(_notice(pod, "Warning", OVER, _sentence(over)))
            continue
        if before and before.cards and before.told_ms is not None and before.told_ms >= before.since_ms:
            notices.append(_notice(pod, "Normal", WITHIN, "uses no more GPU memory than its share again"))
        if before and before.told_ms is not None and now_ms - before.told_ms < TELL_AGAIN_MS:
            after[pod.uid] = OveruseEpisode(now_ms, before.told_ms, ())
    return after, tuple(notices)


def _after(before: OveruseEpisode | None, over: tuple[CardOveruse, ...], now_ms: int) -> OveruseEpisode:
    since_ms = before.since_ms if before and before.cards else now_ms
    told_ms = before.told_ms if before else None
    is_late = told_ms is None or now_ms - told_ms >= TELL_AGAIN_MS
    is_due = is_late and now_ms - since_ms >= OVER_FOR_MS
    return OveruseEpisode(since_ms, now_ms if is_due else told_ms, over)


def _excesses(
    load: PodLoad | None, given: Shares, before: tuple[CardOveruse, ...]
) -> tuple[CardOveruse, ...]:
    """The cards on which the pod is beyond its share; for a card without a figure the previous state
    stays."""
    used = {each.uuid: each.memory_mib for each in load.cards} if load else {}
    found = [
        CardOveruse(uuid, memory_mib, given[uuid])
        for uuid, memory_mib in sorted(used.items())
        if uuid in given and memory_mib is not None and memory_mib > given[uuid]
    ]
    return (*found, *(each for each in before if used.get(each.uuid) is None))


def _sentence(over: tuple[CardOveruse, ...]) -> str:
    cards = (f"{each.memory_mib} MiB of {each.uuid} (its share is {each.share_mib} MiB)" for each in over)
    return f"uses {', '.join(cards)}"


def _notice(pod: PodState, kind: EventType, reason: str, note: str) -> AgentEvent:
    return AgentEvent(pod.uid, pod.namespace, pod.name, kind, reason, note)
