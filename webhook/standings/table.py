"""Decodes the timekeeper's table of standings, and derives a namespace's standing and policy from it.

Ages are measured by one monotonic clock of this process. The table contains the timekeeper's time, and this
clock advances it, so a clock that differs or jumps changes no standing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import orjson

from timekeeper.core.json_values import Json, mapping, sequence
from webhook.policy import WORDS, AdmissionPolicy, Mode, PriorityClass, Sidecar, Standing, UnknownStanding


class UndecodableStandingsError(ValueError):
    """The timekeeper's answer is not a table of standings; the last valid one stays."""


@dataclass(frozen=True, slots=True)
class StandingsEntry:
    """A namespace in the table."""

    standing: Standing
    remaining: int | None  # remaining amount, milli-GPU x ms; None: unlimited
    valid_until_ms: int | None  # end of the standing by the timekeeper's clock; None: until the table changes
    mode: Mode | None = None  # the namespace's own; None: the cluster's
    rules: Mapping[str, str] = field(default_factory=dict)  # the namespace's own modes
    exempt: frozenset[str] = frozenset()  # users and groups besides the cluster's


@dataclass(frozen=True, slots=True)
class StandingsSettings:
    """The cluster's ``_settings`` as the timekeeper sends them."""

    mode: Mode
    scheduler_name: str
    sidecar: bool
    sidecar_native: bool
    in_budget: PriorityClass
    over_budget: PriorityClass
    unknown_standing: UnknownStanding
    max_grace_s: int
    lookahead_ms: int | None  # None: not sent
    rules: Mapping[str, str] = field(default_factory=dict)
    exempt: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class StandingsTable:
    """One answer of the timekeeper."""

    etag: str
    generated_ms: int  # by the timekeeper's clock
    settings: StandingsSettings
    default: StandingsEntry  # of namespaces without an entry
    namespaces: Mapping[str, StandingsEntry]
    read_ms: int  # when it was received, by our monotonic clock
    confirmed_ms: int  # when the timekeeper last said that it is current, by our monotonic clock


UNKNOWN = Standing("UNKNOWN")
PREEMPTION_POLICIES = ("PreemptLowerPriority", "Never")

# A class can be deleted and created again with another value. Numbers that were not confirmed for so long are
# not written into pods, because the API server refuses a pod whose numbers differ from its class.
CLASSES_HOLD_MS = 5_000


def decode(body: bytes, etag: str, now_ms: int) -> StandingsTable:
    """The table in a 200's body. Raises UndecodableTableError where it is no `wire.Standings`."""
    try:
        whole = orjson.loads(body)
        if whole["version"] != 1:
            raise UndecodableStandingsError("standings: not version 1")
        return StandingsTable(
            etag=etag,
            generated_ms=_whole(whole["generated"]),
            settings=_settings(whole["settings"]),
            default=_entry(whole["default"]),
            namespaces={name: _entry(raw) for name, raw in whole["namespaces"].items()},
            read_ms=now_ms,
            confirmed_ms=now_ms,
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise UndecodableStandingsError(f"standings: {type(error).__name__} {error}") from error


def confirmed(table: StandingsTable, now_ms: int) -> StandingsTable:
    """The table after the timekeeper has answered that nothing changed."""
    return replace(table, confirmed_ms=now_ms)


def entry_of(table: StandingsTable, namespace: str) -> StandingsEntry:
    """The namespace's own entry, else the default one."""
    return table.namespaces.get(namespace, table.default)


def standing(
    table: StandingsTable | None, namespace: str, spent: int, now_ms: int, stale_after_ms: int
) -> Standing:
    """The namespace's standing now.

    ``spent``: what this worker admitted of the namespace in the last seconds, in milli-GPU x ms. OVER_BUDGET
    does not age. Every other standing becomes UNKNOWN when the timekeeper has not answered for
    ``stale_after_ms``, and every standing after its ``validUntil``.
    """
    if table is None:
        return UNKNOWN
    entry = entry_of(table, namespace)
    if entry.valid_until_ms is not None and _timekeepers_now(table, now_ms) >= entry.valid_until_ms:
        return UNKNOWN
    if entry.standing.word == "OVER_BUDGET":
        return entry.standing
    if now_ms - table.confirmed_ms > stale_after_ms:
        return UNKNOWN
    if entry.remaining is not None and spent > 0 and entry.remaining <= spent:
        return replace(entry.standing, word="OVER_BUDGET", by_estimate=True)
    return entry.standing


def is_fresh(table: StandingsTable | None, now_ms: int) -> bool:
    """Whether the numbers of priority classes in the table may be written into pods."""
    return table is not None and now_ms - table.confirmed_ms <= CLASSES_HOLD_MS


def effective_policy(
    flags: AdmissionPolicy, table: StandingsTable | None, fresh: bool = True, namespace: str = ""
) -> AdmissionPolicy:
    """A namespace's policy now: from the table where there is one, else from this process's flags.

    A class without a value in the table gets the flags' value where the name is the same, unless the class is
    absent. From a table that is not `is_fresh` no preemption policy is taken; an absent class stays absent,
    because a pod without the class is better than a refused pod.
    """
    if table is None:
        return flags
    settings, own = table.settings, entry_of(table, namespace)
    return replace(
        flags,
        known=True,
        mode=own.mode or settings.mode,
        rules={**settings.rules, **own.rules},
        exempt=settings.exempt | own.exempt,
        scheduler_name=settings.scheduler_name,
        in_budget=_valued(settings.in_budget, flags, fresh),
        over_budget=_valued(settings.over_budget, flags, fresh),
        unknown_standing=settings.unknown_standing,
        max_grace_s=settings.max_grace_s,
        sidecar=_sidecar(flags.sidecar, settings),
    )


def _valued(given: PriorityClass, flags: AdmissionPolicy, fresh: bool) -> PriorityClass:
    if given.value is not None or given.absent:
        return given if fresh else replace(given, preemption_policy=None)
    return next((known for known in (flags.in_budget, flags.over_budget) if known.name == given.name), given)


def _sidecar(flags: Sidecar | None, settings: StandingsSettings) -> Sidecar | None:
    """None where flag or table disables it; native where neither demands a plain container: the flag is for
    clusters without native sidecars, whatever the table says."""
    if flags is None or not settings.sidecar:
        return None
    return flags if settings.sidecar_native else replace(flags, native=False)


def _timekeepers_now(table: StandingsTable, now_ms: int) -> int:
    return table.generated_ms + now_ms - table.read_ms


def _settings(raw: Json) -> StandingsSettings:
    classes = raw["priorityClasses"]
    return StandingsSettings(
        mode=_mode(raw["mode"]),
        rules=_rules(raw.get("rules")),
        exempt=_exempt(raw.get("exempt")),
        scheduler_name=_text(raw["schedulerName"]),
        sidecar=raw["sidecar"] is True,
        sidecar_native=raw.get("sidecarNative") is not False,
        in_budget=_class(classes["inBudget"]),
        over_budget=_class(classes["overBudget"]),
        unknown_standing="overBudget" if raw["unknownStanding"] == "overBudget" else "inBudget",
        max_grace_s=_whole(raw["maxGracePeriodMs"]) // 1000,
        lookahead_ms=_whole_or_none(raw.get("lookaheadMs")),
    )


def _class(raw: Json) -> PriorityClass:
    """The timekeeper publishes no table before it has listed all classes: one without a value is absent."""
    value, policy = _whole_or_none(raw["value"]), raw.get("preemptionPolicy")
    known = value is not None and policy in PREEMPTION_POLICIES
    return PriorityClass(_text(raw["name"]), value, policy if known else None, absent=value is None)


def _entry(raw: Json) -> StandingsEntry:
    word = next((word for word in WORDS if word == raw["standing"]), None)
    if word is None:
        raise UndecodableStandingsError("standings: unknown standing")
    until_ms = _whole_or_none(raw["validUntil"])
    return StandingsEntry(
        Standing(
            word,
            _whole_or_none(raw["ratio"]),
            _whole_or_none(raw["warnAt"]),
            on_exhausted=_text(raw["onExhausted"]),
            until_ms=until_ms,
        ),
        _whole_or_none(raw["remaining"]),
        until_ms,
        _mode(raw["mode"]) if raw.get("mode") else None,
        _rules(raw.get("rules")),
        _exempt(raw.get("exempt")),
    )


def _mode(raw: object) -> Mode:
    return "observe" if raw == "observe" else "enforce"


def _rules(raw: object) -> Mapping[str, str]:
    """The modes by rule; a timekeeper of another release may send none, or rules that are unknown here."""
    return {_text(rule): _text(mode) for rule, mode in mapping(raw).items()}


def _exempt(raw: object) -> frozenset[str]:
    return frozenset(_text(each) for each in sequence(raw))


def _text(raw: object) -> str:
    if not isinstance(raw, str) or not raw:
        raise UndecodableStandingsError("standings: a name is missing")
    return raw


def _whole(raw: object) -> int:
    if not isinstance(raw, int) or isinstance(raw, bool):
        raise UndecodableStandingsError("standings: not a whole number")
    return raw


def _whole_or_none(raw: object) -> int | None:
    return None if raw is None else _whole(raw)
