"""The pods that really hold the node's cards, for the annotation ``bursar.dev/holders`` (`Holders` in
timekeeper/core/wire.py). Pure.

A pod holds its cards while a process is in its cgroup, whether or not its object still exists: a pod that was
deleted by force runs on until its grace period ends, and so does one whose node is disconnected. That it is a
GPU pod is known from the annotation, which serves as the agent's memory across restarts; the boot ID in it
tells whether such a process can still run.
"""

from __future__ import annotations

import json

from sidecar.node.state import plugin_devices
from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from sidecar.node.state.plugin_devices import PluginDevices
    from sidecar.node.values import NodeState, PodState
    from timekeeper.core.wire import Holders

MAX_CLOSED = 400  # characters of the reason why the node is closed; readers cut it there


@value
class HoldersRecord:
    """The annotation as a value."""

    boot: str  # the ID of the node's boot
    known: bool  # everything was observed at least once in this boot, so that no holder is missing
    pods: Mapping[str, tuple[str, ...]]  # holders: by pod UID, the cards
    closed: str  # why no card is allocated on the node; empty: they are


@value
class Observation:
    """The result of one survey; None for a source that could not be read."""

    pods: tuple[PodState, ...] | None  # all pods of the node that have not ended, by the API server
    populated: Mapping[str, bool] | None  # by UID, the pods with a cgroup, and whether a process is in it
    given: Mapping[str, tuple[str, ...]] | None  # by UID, the cards that the device plugin has allocated
    picks: bool  # a device plugin picks the cards, so the placement's cards do not count


def initial(text: str | None, boot: str) -> HoldersRecord:
    """The record of a new agent: the previous agent's holders in this boot, not known to be complete. A
    malformed text counts as none."""
    before = _read(text)
    if before is None or before.boot != boot:
        return HoldersRecord(boot, False, {}, "")
    return HoldersRecord(boot, False, before.pods, before.closed)


def after(before: HoldersRecord, sight: Observation) -> HoldersRecord:
    """The record after a survey.

    ``known`` becomes true once every source was read, and stays so. While the cgroups cannot be read, no pod
    is removed, and every pod with cards is added, for it may have started.
    """
    seen = {} if sight.pods is None else {pod.uid: pod.cards for pod in sight.pods}
    placed = {} if sight.picks else {uid: cards for uid, cards in seen.items() if cards}
    cards = {**before.pods, **placed, **{uid: them for uid, them in (sight.given or {}).items() if them}}
    there = {uid: them for uid, them in sorted(cards.items()) if _is_there(uid, before, sight)}
    return HoldersRecord(before.boot, before.known or _is_whole(sight), there, before.closed)


def closed(held: HoldersRecord, why: str) -> HoldersRecord:
    """The record with this reason for being closed; empty: open."""
    return HoldersRecord(held.boot, held.known, held.pods, why[:MAX_CLOSED])


def text(held: HoldersRecord) -> str:
    """The annotation, canonical: keys sorted, no blanks."""
    pods = {uid: list(cards) for uid, cards in held.pods.items()}
    whole: Holders = {
        "version": 1,
        "boot": held.boot,
        "known": held.known,
        "pods": pods,
        "closed": held.closed,
    }
    return json.dumps(whole, sort_keys=True, separators=(",", ":"))


def by_uid(
    given: Iterable[PluginDevices], pods: Iterable[PodState], uuids: frozenset[str]
) -> dict[str, tuple[str, ...]]:
    """The cards that a plugin has allocated, by the UIDs of the API server's pods. The kubelet reports names;
    of successive pods with one name it lists the last only, as the API server does."""
    uids = {(pod.namespace, pod.name): pod.uid for pod in pods}
    named = ((uids.get((each.namespace, each.name)), each) for each in given)
    return {uid: plugin_devices.cards_among(each, uuids) for uid, each in named if uid is not None}


def is_of_plugin(node: NodeState, of_plugin: tuple[str, ...]) -> bool:
    """Whether a device plugin serves the node: its resources begin so."""
    return any(resource.startswith(of_plugin) for resource, _ in node.capacity)


def picked_by_plugin(node: NodeState, of_plugin: tuple[str, ...]) -> bool:
    """Whether it picks the cards, whatever a placement says."""
    return is_of_plugin(node, of_plugin) and not node.is_described


def _is_there(uid: str, before: HoldersRecord, sight: Observation) -> bool:
    if sight.populated is None:
        return True
    # The kubelet allocates cards before it makes the pod's cgroup, and starts processes after that.
    has_cards_of_plugin = bool(sight.given and sight.given.get(uid))
    return sight.populated.get(uid, False) or (has_cards_of_plugin and uid in sight.populated)


def _is_whole(sight: Observation) -> bool:
    return (
        sight.pods is not None
        and sight.populated is not None
        and (sight.given is not None or not sight.picks)
    )


def _read(text: str | None) -> HoldersRecord | None:
    try:
        whole = json.loads(text or "")
        if whole["version"] != 1:
            return None
        pods = {_word(uid): tuple(map(_word, cards)) for uid, cards in whole["pods"].items()}
        return HoldersRecord(_word(whole["boot"]), bool(whole["known"]), pods, _word(whole["closed"]))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def _word(raw: Any) -> str:
    if type(raw) is not str:
        raise TypeError("not a text")
    return raw
