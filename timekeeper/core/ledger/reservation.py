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
MOST_TRIES = 1_000
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
    displaced: "Displaced | None" = None  # who leaves for the pod's gang

    def lasts(self, now_ms: int) -> bool:
        """True while it counts."""
        return self.since_ms - SKEW_MS <= now_ms < self.until_ms <= self.since_ms + MAX_MS


@dataclass(frozen=True, slots=True)
class Displaced:
    """Who leaves so that the gang of a member has its cards: ``victims``, the UIDs of pods, each with the
    owner that must not displace the gang in turn. ``at_ms``: when cards were reserved, were free, or were
    given back; ``tries``: how often in succession they were given back; ``is_kept``: they were not
    given back."""

    victims: tuple[tuple[str, str], ...] = ()
    at_ms: int = 0
    tries: int = 0
    is_kept: bool = False


NOBODY_DISPLACED = Displaced()


def read_displaced(raw: Json) -> Displaced:
    """Who has left for the gang of this pod, whether it still waits, has its cards, or came to nothing."""
    condition = _condition(raw)
    text = "" if condition is None else str(condition.get("message"))
    try:
        said = mapping(json.loads(text)) if text.startswith("{") else {}
    except ValueError:
        return NOBODY_DISPLACED
    if condition is None or not said:
        return NOBODY_DISPLACED
    at_ms = max(hold.millis(condition.get("lastTransitionTime")) or 0, hold.millis(said.get("free")) or 0)
    listed = sorted((str(uid), str(owner)) for uid, owner in mapping(said.get("victims")).items())
    tries = said.get("tries")
    tries = tries if type(tries) is int and 0 <= tries < MOST_TRIES else 0
    return Displaced(tuple(listed), at_ms, tries, condition.get("status") == "True")


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
    said |= _said_of(reservation.displaced or NOBODY_DISPLACED)
    return {
        "type": names.HELD_CONDITION,
        "status": "True",
        "reason": _REASONS[reservation.kind],
        "message": json.dumps(said, sort_keys=True, separators=(",", ":")),
        "lastTransitionTime": timestamp(reservation.since_ms),
    }


def withdrawn(
    reason: str, message: str, now_ms: int, displaced: Displaced = NOBODY_DISPLACED
) -> dict[str, Any]:
    """The condition that records that no cards are held any more, and why; and who has left all the same."""
    said = _said_of(displaced)
    text = json.dumps({"why": message, **said}, sort_keys=True, separators=(",", ":")) if said else message
    return {
        "type": names.HELD_CONDITION,
        "status": "False",
        "reason": reason,
        "message": text,
        "lastTransitionTime": timestamp(now_ms),
    }


def _said_of(displaced: Displaced) -> dict[str, Any]:
    tries = {"tries": displaced.tries} if displaced.tries else {}
    return {**({"victims": dict(displaced.victims)} if displaced.victims else {}), **tries}


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
