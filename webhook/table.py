"""The table of standings, and what it says at a moment. Pure: bytes, clocks and settings are arguments.

All ages are by one monotonic clock of ours; the timekeeper's own clock is told by its table and carried on by
ours, so a clock that differs or jumps turns no standing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import orjson

from timekeeper.core.request import Json
from webhook.terms import WORDS, Mode, PriorityClass, Standing, Terms, UnknownStanding


class UndecodableTableError(ValueError):
    """The timekeeper's answer is no table of standings; the last good one stays."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A namespace in the table: its standing, what is left in milli-GPU x ms (None: unlimited), and until
    when that holds, by the timekeeper's clock (None: until the table changes)."""

    standing: Standing
    remaining: int | None
    valid_until_ms: int | None


@dataclass(frozen=True, slots=True)
class TableSettings:
    """What the timekeeper tells of ``_settings``. ``lookahead_ms`` None where it does not say."""

    mode: Mode
    scheduler_name: str
    sidecar: bool
    in_budget: PriorityClass
    over_budget: PriorityClass
    unknown_standing: UnknownStanding
    max_grace_s: int
    lookahead_ms: int | None


@dataclass(frozen=True, slots=True)
class Table:
    """One answer of the timekeeper; ``read_ms`` and ``heard_ms`` by our monotonic clock: when it was read,
    and when the timekeeper last said that it still holds."""

    etag: str
    generated_ms: int
    settings: TableSettings
    default: Entry
    namespaces: Mapping[str, Entry]
    read_ms: int
    heard_ms: int


UNKNOWN = Standing("UNKNOWN")


def decode(body: bytes, etag: str, now_ms: int) -> Table:
    """The table in a 200's body. Raises UndecodableTableError where it is no `wire.Standings`."""
    try:
        whole = orjson.loads(body)
        if whole["version"] != 1:
            raise UndecodableTableError("standings: not version 1")
        return Table(
            etag=etag,
            generated_ms=_whole(whole["generated"]),
            settings=_settings(whole["settings"]),
            default=_entry(whole["default"]),
            namespaces={name: _entry(raw) for name, raw in whole["namespaces"].items()},
            read_ms=now_ms,
            heard_ms=now_ms,
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise UndecodableTableError(f"standings: {type(error).__name__} {error}") from error


def still_good(table: Table, now_ms: int) -> Table:
    """The table after the timekeeper has answered that nothing has changed."""
    return replace(table, heard_ms=now_ms)


def standing(table: Table | None, namespace: str, spent: int, now_ms: int, stale_after_ms: int) -> Standing:
    """The namespace's standing now.

    ``spent``: what this worker has admitted of it in the last seconds, in milli-GPU x ms. OVER_BUDGET does
    not age. Any other standing is UNKNOWN once the timekeeper has not been heard for ``stale_after_ms``, and
    all are past their own ``validUntil``.
    """
    if table is None:
        return UNKNOWN
    entry = table.namespaces.get(namespace, table.default)
    if entry.valid_until_ms is not None and _timekeepers_now(table, now_ms) >= entry.valid_until_ms:
        return UNKNOWN
    if entry.standing.word == "OVER_BUDGET":
        return entry.standing
    if now_ms - table.heard_ms > stale_after_ms:
        return UNKNOWN
    if entry.remaining is not None and spent > 0 and entry.remaining <= spent:
        return replace(entry.standing, word="OVER_BUDGET", by_estimate=True)
    return entry.standing


def as_before(now: Standing) -> Standing:
    """The standing of a pod that an earlier call found over budget, by the estimate that this one leaves
    out."""
    return replace(now, word="OVER_BUDGET", by_estimate=True) if now.word == "IN_BUDGET" else now


def agreed(flags: Terms, table: Table | None) -> Terms:
    """The terms now: the table's where there is one, else this process's flags.

    A class whose value the timekeeper does not know has the flags' value where it is the same class.
    """
    if table is None:
        return flags
    settings = table.settings
    return replace(
        flags,
        known=True,
        mode=settings.mode,
        scheduler_name=settings.scheduler_name,
        in_budget=_valued(settings.in_budget, flags),
        over_budget=_valued(settings.over_budget, flags),
        unknown_standing=settings.unknown_standing,
        max_grace_s=settings.max_grace_s,
        sidecar=flags.sidecar if settings.sidecar else None,
    )


def _valued(given: PriorityClass, flags: Terms) -> PriorityClass:
    if given.value is not None:
        return given
    return next((known for known in (flags.in_budget, flags.over_budget) if known.name == given.name), given)


def _timekeepers_now(table: Table, now_ms: int) -> int:
    return table.generated_ms + now_ms - table.read_ms


def _settings(raw: Json) -> TableSettings:
    classes = raw["priorityClasses"]
    return TableSettings(
        mode="observe" if raw["mode"] == "observe" else "enforce",
        scheduler_name=_text(raw["schedulerName"]),
        sidecar=raw["sidecar"] is True,
        in_budget=_class(classes["inBudget"]),
        over_budget=_class(classes["overBudget"]),
        unknown_standing="overBudget" if raw["unknownStanding"] == "overBudget" else "inBudget",
        max_grace_s=_whole(raw["maxGracePeriodMs"]) // 1000,
        lookahead_ms=_whole_or_none(raw.get("lookaheadMs")),
    )


def _class(raw: Json) -> PriorityClass:
    return PriorityClass(_text(raw["name"]), _whole_or_none(raw["value"]))


def _entry(raw: Json) -> Entry:
    word = next((word for word in WORDS if word == raw["standing"]), None)
    if word is None:
        raise UndecodableTableError("standings: no such standing")
    return Entry(
        Standing(word, _whole_or_none(raw["ratio"]), _whole_or_none(raw["warnAt"])),
        _whole_or_none(raw["remaining"]),
        _whole_or_none(raw["validUntil"]),
    )


def _text(raw: object) -> str:
    if not isinstance(raw, str) or not raw:
        raise UndecodableTableError("standings: a name is missing")
    return raw


def _whole(raw: object) -> int:
    if not isinstance(raw, int) or isinstance(raw, bool):
        raise UndecodableTableError("standings: not a whole number")
    return raw


def _whole_or_none(raw: object) -> int | None:
    return None if raw is None else _whole(raw)
