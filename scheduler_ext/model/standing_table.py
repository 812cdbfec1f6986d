"""The timekeeper's table of standings, and what it says at a moment. Pure: bytes and clocks are arguments.

All ages are by one monotonic clock of this process. The table gives the timekeeper's clock, and the monotonic
clock continues it, so that a clock that differs or jumps changes no standing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import orjson

from scheduler_ext.model.standing import UNHEARD, UNKNOWN, NamespaceStanding, NamespaceStandings, Word
from timekeeper.core.json_values import Json

_WORDS: tuple[Word, ...] = ("IN_BUDGET", "OVER_BUDGET", "UNLIMITED", "UNKNOWN")


class UndecodableTableError(ValueError):
    """The timekeeper's answer is no table of standings; the last good one stays."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A namespace's standing, and until when it holds by the timekeeper's clock (None: until the table
    changes)."""

    standing: NamespaceStanding
    valid_until_ms: int | None


@dataclass(frozen=True, slots=True)
class Table:
    """One answer of the timekeeper; ``read_ms`` and ``heard_ms`` by our clock: when it was read, and when the
    timekeeper last said that it still holds."""

    etag: str
    generated_ms: int
    default: Entry
    namespaces: Mapping[str, Entry]
    read_ms: int
    heard_ms: int
    pdb_grace_ms: int | None = None


def decode(body: bytes, etag: str, now_ms: int) -> Table:
    """The table in a 200's body. Raises UndecodableTableError where it is no `wire.Standings`."""
    try:
        whole = orjson.loads(body)
        if whole["version"] != 1:
            raise UndecodableTableError("standings: not version 1")
        return Table(
            etag=etag,
            generated_ms=_whole(whole["generated"]),
            default=_entry(whole["default"]),
            namespaces={name: _entry(raw) for name, raw in whole["namespaces"].items()},
            read_ms=now_ms,
            heard_ms=now_ms,
            pdb_grace_ms=None if (grace := whole["settings"].get("pdbGraceMs")) is None else _whole(grace),
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise UndecodableTableError(f"standings: {type(error).__name__} {error}") from error


def still_good(table: Table, now_ms: int) -> Table:
    """The table after the timekeeper has answered that nothing has changed."""
    return replace(table, heard_ms=now_ms)


def standings_at(table: Table | None, now_ms: int, stale_after_ms: int) -> NamespaceStandings:
    """What the table says now. OVER_BUDGET does not age. Any other standing is UNKNOWN once the timekeeper
    has not been heard for ``stale_after_ms``, and every one is past its own ``validUntil``."""
    if table is None:
        return UNHEARD
    stale = now_ms - table.heard_ms > stale_after_ms
    theirs_ms = table.generated_ms + now_ms - table.read_ms

    def unknown(entry: Entry) -> NamespaceStanding:
        return UNKNOWN if entry.standing.watched is None else NamespaceStanding("UNKNOWN", watched="UNKNOWN")

    def now(entry: Entry) -> NamespaceStanding:
        if entry.valid_until_ms is not None and theirs_ms >= entry.valid_until_ms:
            return unknown(entry)
        return unknown(entry) if stale and not entry.standing.over else entry.standing

    listed = {name: now(entry) for name, entry in table.namespaces.items()}
    return NamespaceStandings(listed, now(table.default), table.pdb_grace_ms)


def _entry(raw: Json) -> Entry:
    word = next((word for word in _WORDS if word == raw["standing"]), None)
    if word is None:
        raise UndecodableTableError("standings: no such standing")
    until_ms = raw["validUntil"]
    watched = word if raw.get("mode") == "observe" else None
    if watched is not None:
        word = "UNLIMITED"  # a budget in observe mode does not affect the order
    return Entry(
        NamespaceStanding(word, _text(raw["onExhausted"]), _text(raw.get("policy", "")), watched),
        None if until_ms is None else _whole(until_ms),
    )


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise UndecodableTableError("standings: a word is missing")
    return raw


def _whole(raw: object) -> int:
    if not isinstance(raw, int) or isinstance(raw, bool):
        raise UndecodableTableError("standings: not a whole number")
    return raw
