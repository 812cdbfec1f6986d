"""Sees pods that use more of a card's memory than they were given. Pure: it reports, and evicts nobody.

NVML's account of a process has its CUDA context in it, some hundred MiB, as the card's memory has. A pod is
told of once it was over for a while, so that a short peak is no alarm, then once an hour while it lasts (an
Event lives for an hour), and when it is within its share again. However often it comes and goes, no more is
told in an hour than one such pair: its owner chooses how often, and Events are stored for the whole cluster.
"""

from __future__ import annotations

import json

from sidecar.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sidecar.node.state.use import PodLoad, UsageReading
    from sidecar.node.values import PodState

    Shares = Mapping[str, int]  # UUID -> MiB

OVER_FOR_MS = 15_000
TELL_AGAIN_MS = 3_600_000
OVER = "GPUMemoryOveruse"
WITHIN = "GPUMemoryWithinShare"


@value
class CardOveruse:
    """A pod uses more of a card's memory than it was given, MiB."""

    uuid: str
    memory_mib: int
    share_mib: int


@value
class OveruseEpisode:
    """A pod that is over its share since a moment, or, without ``cards``, within it again since then.
    ``told_ms``: when an excess of it was told of last, None: never."""

    since_ms: int
    told_ms: int | None
    cards: tuple[CardOveruse, ...]


@value
class AgentEvent:
    """An Event for a pod: its ``kind`` is ``Warning`` or ``Normal``, ``note`` a sentence for people."""

    uid: str
    namespace: str
    name: str
    kind: str
    reason: str
    note: str


def shares(devices: str) -> tuple[tuple[str, int], ...]:
    """The MiB of each card in the annotation ``bursar.dev/devices``, its containers together; none where the
    text cannot be read, which the extender reports."""
    found: dict[str, int] = {}
    try:
        for slices in json.loads(devices)["containers"].values():
            for each in slices:
                found[str(each["uuid"])] = found.get(str(each["uuid"]), 0) + int(each["memory_mib"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return ()  # also for 1e999, which is JSON and no number of MiB
    return tuple(sorted(found.items()))


def watch(
    episodes: Mapping[str, OveruseEpisode],
    measured: UsageReading,
    pods: Iterable[PodState],
    given: Mapping[str, Shares],
    now_ms: int,
) -> tuple[dict[str, OveruseEpisode], tuple[AgentEvent, ...]]:
    """The episodes after a look, by UID, and whom to tell what. ``given``: each pod's shares, by UID. A card
    that told no figure changes nothing; a pod that is gone is forgotten, and one that is within its share an
    hour after it was told of."""
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
            notices.append(_notice(pod, "Normal", WITHIN, "uses no more GPU memory than it was given again"))
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
    """The cards on which the pod is over; where a card does not tell now, what was told before stays."""
    told = {each.uuid: each.memory_mib for each in load.cards} if load else {}
    found = [
        CardOveruse(uuid, memory_mib, given[uuid])
        for uuid, memory_mib in sorted(told.items())
        if uuid in given and memory_mib is not None and memory_mib > given[uuid]
    ]
    return (*found, *(each for each in before if told.get(each.uuid) is None))


def _sentence(over: tuple[CardOveruse, ...]) -> str:
    cards = (f"{each.memory_mib} MiB of {each.uuid} and was given {each.share_mib} MiB" for each in over)
    return f"uses {', '.join(cards)}"


def _notice(pod: PodState, kind: str, reason: str, note: str) -> AgentEvent:
    return AgentEvent(pod.uid, pod.namespace, pod.name, kind, reason, note)
