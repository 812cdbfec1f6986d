"""Cards held for a waiting pod, as a condition on the pod: node, cards, and end.

The condition is the only record of a reservation, so it survives the process that wrote it, and every replica
sees the same. Like any status it could be forged. So it counts for at most MAX_MS, only for a waiting pod,
and only where these cards of the node's inventory satisfy the pod's request (`allocation.judged`). A
reservation never admits a pod; it only keeps others off the cards.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from timekeeper.core import names
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.ledger import hold
from timekeeper.core.object_names import timestamp
from timekeeper.core.request.cards import decode_placement, encode_placement
from timekeeper.core.values import Placement, UndecodableError

MAX_MS = 3_600_000  # the longest reservation that counts
SKEW_MS = 60_000  # how far our clock may lag behind that of the replica that wrote it
ReservationKind = Literal["fragmentation", "reclaim"]
_REASONS: dict[ReservationKind, str] = {
    "fragmentation": "Fragmentation",
    "reclaim": "Reclaim",
}
_KINDS = {reason: kind for kind, reason in _REASONS.items()}


@dataclass(frozen=True, slots=True)
class Reservation:
    """These cards of this node are held for the pod from ``since_ms`` until ``until_ms`` (milliseconds since
    1970)."""

    node: str
    placement: Placement
    since_ms: int
    until_ms: int
    # reclaim: a victim is chosen by its namespace's standing, not by priority
    kind: ReservationKind = "fragmentation"
    free_ms: int | None = None  # since when no other pod has held these cards; None: not yet

    def lasts(self, now_ms: int) -> bool:
        """True while it counts."""
        return self.since_ms - SKEW_MS <= now_ms < self.until_ms <= self.since_ms + MAX_MS


def read_reservation(raw: Json) -> Reservation | None:
    """The reservation in a pod's JSON; None without a readable one."""
    condition = _condition(raw)
    return _read(condition) if condition is not None and condition.get("status") == "True" else None


def withdrawn_ms(raw: Json) -> int | None:
    """When the pod's reservation was withdrawn, in milliseconds since 1970; None: it was not."""
    condition = _condition(raw)
    if condition is None or condition.get("status") != "False":
        return None
    return hold.millis(condition.get("lastTransitionTime"))


def condition_of(reservation: Reservation) -> dict[str, Any]:
    """The condition that records it. `read_reservation` reads it back; its start is rounded to seconds."""
    said = json.loads(encode_placement(reservation.placement))
    said |= {"node": reservation.node, "until": timestamp(reservation.until_ms, "milliseconds")}
    if reservation.free_ms is not None:
        said["free"] = timestamp(reservation.free_ms, "milliseconds")
    return {
        "type": names.HELD_CONDITION,
        "status": "True",
        "reason": _REASONS[reservation.kind],
        "message": json.dumps(said, sort_keys=True, separators=(",", ":")),
        "lastTransitionTime": timestamp(reservation.since_ms),
    }


def withdrawn(reason: str, message: str, now_ms: int) -> dict[str, Any]:
    """The condition that records that no cards are held any more, and why."""
    return {
        "type": names.HELD_CONDITION,
        "status": "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": timestamp(now_ms),
    }


def _condition(raw: Json) -> Mapping[str, Any] | None:
    for each in sequence(mapping(raw.get("status")).get("conditions")):
        if isinstance(each, Mapping) and each.get("type") == names.HELD_CONDITION:
            return each
    return None


def _read(condition: Mapping[str, Any]) -> Reservation | None:
    text, since_ms = condition.get("message"), hold.millis(condition.get("lastTransitionTime"))
    try:
        placement = decode_placement(str(text))
    except UndecodableError:
        return None
    said = json.loads(str(text))
    node, until_ms = said.get("node"), hold.millis(said.get("until"))
    if not isinstance(node, str) or not node or since_ms is None or until_ms is None:
        return None
    if condition.get("reason") == "Gang":  # by a release before the gang's gate: it holds nothing any more
        return None
    kind = _KINDS.get(str(condition.get("reason")), "fragmentation")
    return Reservation(node, placement, since_ms, until_ms, kind, hold.millis(said.get("free")))
