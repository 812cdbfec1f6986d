"""The extender's part of the table of standings: the standing of each namespace at a moment."""

from dataclasses import dataclass, replace

import orjson

from scheduler_ext.model.standing import UNHEARD, UNKNOWN, NamespaceStanding, NamespaceStandings
from timekeeper.core import standings
from timekeeper.core.claims.drivers import DriverRule
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.protected import decoded
from timekeeper.core.wire import StandingWord


@dataclass(frozen=True, slots=True)
class Entry:
    """A namespace's standing, and until when it holds by the timekeeper's clock (None: until the table
    changes)."""

    standing: NamespaceStanding
    valid_until_ms: int | None


@dataclass(frozen=True, slots=True)
class TableSettings:
    """What the extender needs of the cluster's settings, as `NamespaceStandings` has it."""

    pdb_grace_ms: int | None
    drivers: tuple[DriverRule, ...] = ()
    lower: int | None = None


Table = standings.StandingsTable[TableSettings, Entry]


def decode(body: bytes, etag: str, now_ms: int) -> Table:
    """The table in a 200's body. Raises `standings.UndecodableStandingsError`."""
    return standings.decode(orjson.loads, body, etag, now_ms, _settings, _entry)


def standings_at(table: Table | None, now_ms: int, stale_after_ms: int) -> NamespaceStandings:
    """The standings now; see `standings.StandingsTable.is_unknown`."""
    if table is None:
        return UNHEARD

    def unknown(entry: Entry) -> NamespaceStanding:
        """What is a setting and no account stays: policy and caps, with what counts toward them, and
        the rank."""
        watched: StandingWord | None = None if entry.standing.watched is None else "UNKNOWN"
        was = entry.standing
        return replace(
            UNKNOWN,
            policy=was.policy,
            watched=watched,
            caps=was.caps,
            claims_milli=was.claims_milli,
            rank=was.rank,
        )

    def now(entry: Entry) -> NamespaceStanding:
        over, until_ms = entry.standing.over, entry.valid_until_ms
        return unknown(entry) if table.is_unknown(over, until_ms, now_ms, stale_after_ms) else entry.standing

    listed = {name: now(entry) for name, entry in table.namespaces.items()}
    wanted = table.settings
    return NamespaceStandings(listed, now(table.default), wanted.pdb_grace_ms, wanted.drivers, wanted.lower)


def _settings(raw: Json) -> TableSettings:
    grace_ms = standings.whole_number_or_none(raw.get("pdbGraceMs"))
    return TableSettings(grace_ms, standings.driver_rules(raw), _lower(raw))


def _lower(raw: Json) -> int | None:
    lower = mapping(mapping(raw.get("priorityClasses")).get("overBudget")).get("value")
    return standings.whole_number_or_none(lower)


def _entry(raw: Json) -> Entry:
    word = standings.standing_word(raw["standing"])
    watched = word if raw.get("mode") in ("observe", "meter") else None
    if watched is not None:
        word = "UNLIMITED"  # a budget in observe mode does not affect the order
    return Entry(
        NamespaceStanding(
            word,
            _text(raw["onExhausted"]),
            _text(raw.get("policy", "")),
            standings.is_spent(raw),
            watched,
            standings.caps(raw),
            standings.deciding_group(raw),
            _protected(raw),
            standings.held_by_claims(raw),
            _lower(raw) if "priorityClasses" in raw else None,
            standings.whole_number(raw.get("rank", 0)),
        ),
        standings.whole_number_or_none(raw["validUntil"]),
    )


def _protected(raw: Json) -> frozenset[str]:
    published = decoded(raw)
    return frozenset() if published is None else published.uids


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise standings.UndecodableStandingsError("standings: a word is missing")
    return raw
