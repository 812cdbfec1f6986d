"""Cards held for a waiting pod, as its own object tells: the condition that says on which node, which cards,
and until when.

Nothing else keeps a reservation, so it survives whoever made it, and every replica sees the same. It is one
more thing in an object that somebody might forge: it counts only for as long as a reservation may at most
last, only for a pod that waits, and only where the pod's request is satisfied by these very cards of the
node's inventory (`nodes.judged`). It never lets anybody in, it only keeps others out.
"""

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from timekeeper.core import names
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.ledger import hold
from timekeeper.core.request.cards import UndecodableError, decode_placement, encode_placement
from timekeeper.core.values import Placement

MOST_MS = 3_600_000  # longer than this no reservation counts, whatever it says
SKEW_MS = 60_000  # so far our clock may be behind the one of the replica that wrote it
Kind = Literal["fragmentation", "reclaim"]
_REASONS: dict[Kind, str] = {"fragmentation": "Fragmentation", "reclaim": "Reclaim"}


@dataclass(frozen=True, slots=True)
class Reservation:
    """These cards of this node are kept for the pod from ``since_ms`` until ``until_ms``, milliseconds since
    1970. ``kind``: ``reclaim`` where somebody leaves for his standing, who would not for his priority; else
    ``fragmentation``."""

    node: str
    placement: Placement
    since_ms: int
    until_ms: int
    kind: Kind = "fragmentation"

    def lasts(self, now_ms: int) -> bool:
        """True while it counts."""
        return self.since_ms - SKEW_MS <= now_ms < self.until_ms <= self.since_ms + MOST_MS


def read_reservation(raw: Json) -> Reservation | None:
    """The reservation that a pod's JSON carries; None where it carries none that can be read."""
    conditions = sequence(mapping(raw.get("status")).get("conditions"))
    for each in conditions:
        if isinstance(each, Mapping) and each.get("type") == names.HELD_CONDITION:
            return _read(each) if each.get("status") == "True" else None
    return None


def condition_of(reservation: Reservation) -> dict[str, Any]:
    """The condition that says so; `read_reservation` reads it back, its beginning to the second."""
    said = json.loads(encode_placement(reservation.placement))
    said |= {"node": reservation.node, "until": _rfc3339(reservation.until_ms, "milliseconds")}
    return {
        "type": names.HELD_CONDITION,
        "status": "True",
        "reason": _REASONS[reservation.kind],
        "message": json.dumps(said, sort_keys=True, separators=(",", ":")),
        "lastTransitionTime": _rfc3339(reservation.since_ms, "seconds"),
    }


def withdrawn(reason: str, message: str, now_ms: int) -> dict[str, Any]:
    """The condition that says that nothing is held any more, and why."""
    return {
        "type": names.HELD_CONDITION,
        "status": "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": _rfc3339(now_ms, "seconds"),
    }


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
    kind: Kind = "reclaim" if condition.get("reason") == _REASONS["reclaim"] else "fragmentation"
    return Reservation(node, placement, since_ms, until_ms, kind)


def _rfc3339(at_ms: int, to: str) -> str:
    at = datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC)
    return at.isoformat(timespec=to).replace("+00:00", "Z")
