"""Which pods are really on the node's cards: what the annotation ``bursar.dev/holders`` says (`Holders` in
timekeeper/core/wire.py). Pure.

A pod is there while a process is in its cgroup, whatever has become of its object: a pod deleted by force
runs on until its grace period ends, and so does one whose node is cut off. The agent knows that it is a GPU
pod from what it told itself before, also where it was started anew since: the annotation is its memory, and
the boot ID in it says whether anything of that can still be there.
"""

from __future__ import annotations

import json
import re

from sidecar.node.state import plugin_devices
from sidecar.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from sidecar.node.state.plugin_devices import PluginDevices
    from sidecar.node.values import PodState
    from timekeeper.core.wire import Holders

MOST_CLOSED = 400  # characters that readers keep of why the node is closed
# Resources of a plugin whose kubelet side picks the cards; as in timekeeper.core.dialects
_PICKED_BY_PLUGIN = re.compile(r"nvidia\.com/(gpu|mig-)")


@value
class HoldersRecord:
    """`Holders` past the door: ``pods`` are those that are there, by UID, with their cards."""

    boot: str
    known: bool
    pods: Mapping[str, tuple[str, ...]]
    closed: str


@value
class Observation:
    """What one look found; None in place of what could not be looked at.

    ``pods``: all of the node's that the API server knows and that have not ended. ``populated``: by UID, the
    pods that have a cgroup, and whether a process is in it. ``given``: by UID, the cards that the kubelet's
    plugin gave; ``picks``: there is such a plugin, so that the placement's cards say nothing.
    """

    pods: tuple[PodState, ...] | None
    populated: Mapping[str, bool] | None
    given: Mapping[str, tuple[str, ...]] | None
    picks: bool


def begun(text: str | None, boot: str) -> HoldersRecord:
    """What an agent that starts can say: what the one before it said in this boot, and that it has seen
    nothing yet. A text that is none of ours counts as none."""
    before = _read(text)
    if before is None or before.boot != boot:
        return HoldersRecord(boot, False, {}, "")
    return HoldersRecord(boot, False, before.pods, before.closed)


def after(before: HoldersRecord, sight: Observation) -> HoldersRecord:
    """What is said after a look.

    Once everything was seen, that stays so; until then ``known`` is false. While the cgroups cannot be read,
    no pod is taken off the list, and those that were given cards are put on it: they may have begun.
    """
    seen = {} if sight.pods is None else {pod.uid: pod.cards for pod in sight.pods}
    placed = {} if sight.picks else {uid: cards for uid, cards in seen.items() if cards}
    cards = {**before.pods, **placed, **{uid: them for uid, them in (sight.given or {}).items() if them}}
    there = {uid: them for uid, them in sorted(cards.items()) if _is_there(uid, before, sight)}
    return HoldersRecord(before.boot, before.known or _is_whole(sight), there, before.closed)


def closed(held: HoldersRecord, why: str) -> HoldersRecord:
    """The same, closed for this reason; open where it is empty."""
    return HoldersRecord(held.boot, held.known, held.pods, why[:MOST_CLOSED])


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
    """The cards that a plugin gave, of the pods that the API server knows. The kubelet tells names; of
    several pods of one name in a row it knows the last alone, as the API server does."""
    uids = {(pod.namespace, pod.name): pod.uid for pod in pods}
    named = ((uids.get((each.namespace, each.name)), each) for each in given)
    return {uid: plugin_devices.cards_among(each, uuids) for uid, each in named if uid is not None}


def picked_by_plugin(capacity: Iterable[tuple[str, str]]) -> bool:
    """Whether a plugin that picks the cards itself serves a node of this capacity."""
    return any(_PICKED_BY_PLUGIN.match(resource) for resource, _ in capacity)


def _is_there(uid: str, before: HoldersRecord, sight: Observation) -> bool:
    if sight.populated is None:
        return True
    # The kubelet gives cards before it makes the pod's cgroup, and starts processes after that.
    has_cards_of_plugin = bool(sight.given and sight.given.get(uid))
    return sight.populated.get(uid, False) or (has_cards_of_plugin and uid in sight.populated)


def _is_whole(sight: Observation) -> bool:
    return (
        sight.pods is not None
        and sight.populated is not None
        and (sight.given is not None or not sight.picks)
    )


def _read(told: str | None) -> HoldersRecord | None:
    try:
        whole = json.loads(told or "")
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
