"""``protect`` in the table of standings: what the timekeeper publishes, and what the roles decode."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from timekeeper.core.budgets.protection import Protection
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.standings import whole_number, whole_number_or_none
from timekeeper.core.wire import ProtectWire


@dataclass(frozen=True, slots=True)
class Published:
    """A namespace's ``protect``. ``left``: of the floor, for further pods, in its unit; ``uids``: the pods
    that are protected now, while the namespace is over budget."""

    protection: Protection
    left: int
    uids: frozenset[str]
    has_turns: bool = False  # new pods wait for their turn (maxWaiting)


def encoded(protection: Protection, left: int, uids: Iterable[str], has_turns: bool) -> ProtectWire:
    """The part of an entry."""
    return {
        "labels": dict(protection.labels),
        "owners": list(protection.kinds),
        "cards": protection.cards_milli,
        "amount": protection.amount,
        "left": left,
        "uids": sorted(uids),
        "turns": has_turns,
    }


def decoded(entry: Json) -> Published | None:
    """That of an entry; None if it protects none, or is of a release that does not know it. Raises
    UndecodableStandingsError or AttributeError for another form."""
    raw: Json | None = entry.get("protect")
    if raw is None:
        return None
    labels: Mapping[str, str] = mapping(raw.get("labels"))
    kinds = tuple(map(str, sequence(raw.get("owners"))))
    floors = whole_number_or_none(raw.get("cards")), whole_number_or_none(raw.get("amount"))
    protection = Protection(tuple(sorted(labels.items())), kinds, *floors)
    uids = frozenset(map(str, sequence(raw.get("uids"))))
    return Published(protection, whole_number(raw.get("left")), uids, raw.get("turns") is True)
