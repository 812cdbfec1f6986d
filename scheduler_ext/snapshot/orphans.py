"""Pods whose objects are gone and that may still be there: what becomes of their seats by what the node's
agent tells (design: D3).

The agent's word goes before the clock. A pod that it listed is gone when it lists it no longer, however much
of its grace period is left, and stays while it lists it, however long that is over. Of one that it never
listed its silence says nothing: it may have looked before the pod's containers began, and written after the
object went. So such a seat waits for its grace period, or for a look in another boot of the node.

A pod that nobody but an agent tells of (`nodes.nameless`) was found at a start of ours. When its object went
nobody knows, and the agent may be gone too, with its word left behind. So that word has an age here: the
kubelet ends a pod without an object within its grace period, and none is longer than the longest.
"""

from collections.abc import Collection
from dataclasses import replace

from scheduler_ext.model.node import Facts
from scheduler_ext.snapshot.node_info import Node, Seat, is_nameless


def followed(seat: Seat, facts: Facts | None) -> Seat | None:
    """The seat of a vanished pod by what is told of its node now; None where the pod is there no longer."""
    present = facts.present if facts is not None else None
    if facts is not None and facts.boot and not seat.boot:
        seat = replace(seat, boot=facts.boot)  # the first that is told of after it vanished
    if facts is None or present is None:
        return replace(seat, listed=False) if seat.listed else seat  # nobody tells: the clock alone counts
    if seat.uid in present.pods:
        return seat if seat.listed else replace(seat, listed=True)
    is_other_boot = bool(seat.boot and facts.boot) and seat.boot != facts.boot
    return None if present.known and (seat.listed or is_other_boot) else seat


def lasts(seat: Seat, now_ms: int) -> bool:
    """True while a vanished pod's seat, or one that is reserved, is not to be let go by the clock."""
    if is_nameless(seat):
        return seat.listed and now_ms < seat.until_ms
    return seat.listed or now_ms < seat.until_ms


def dated(seat: Seat, now_ms: int, most_grace_ms: int) -> Seat:
    """The seat with its end, where it is that of a nameless pod and has none yet."""
    is_new = is_nameless(seat) and not seat.until_ms
    return replace(seat, until_ms=now_ms + most_grace_ms) if is_new else seat


def listed(node: Node) -> Collection[str]:
    """The pods that the node's agent tells to be there."""
    facts = node.facts
    return facts.present.pods.keys() if facts is not None and facts.present is not None else ()
