"""What admission needs of the table of standings: a namespace's standing and policy."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from timekeeper.core import standings
from timekeeper.core.accelerators import UnknownAccelerators
from timekeeper.core.admission.policy import (
    AdmissionPolicy,
    PriorityClass,
    Standing,
    UnknownStanding,
    without_placement,
)
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.names import Mode
from timekeeper.core.protected import Published, decoded
from timekeeper.core.request.host import CardHost
from timekeeper.core.wire import HeldFor


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingsEntry:
    """A namespace in the table."""

    standing: Standing
    remaining: int | None  # remaining amount, milli-GPU x ms; None: unlimited
    valid_until_ms: int | None  # end of the standing by the timekeeper's clock; None: until the table changes
    mode: Mode | None = None  # the namespace's own; None: the cluster's
    rules: Mapping[str, str] = field(default_factory=dict)  # the namespace's own modes
    exempt: frozenset[str] = frozenset()  # users and groups besides the cluster's
    caps: standings.Caps = standings.NO_CAPS
    reserves_declared: bool = False  # pods reserve their whole declared time
    requires_duration: bool = False  # pods must declare how long they mean to run
    host_share_milli: int | None = None  # its own `AdmissionPolicy.host_share_milli`; None: the cluster's
    group: str = ""  # key of the group's entry; "": none
    group_left: standings.GroupLeft = standings.NO_GROUP_LEFT
    protect: Published | None = None  # which pods keep their class when the budget is spent
    places: bool = True  # Bursar places its pods
    takes_whole_cards: bool = False  # its `AdmissionPolicy.takes_whole_cards`
    finds_gangs: bool = False  # its `AdmissionPolicy.finds_gangs`
    sidecar: bool | None = None  # whether its pods get one; None: as the cluster's
    # its `AdmissionPolicy.in_budget`, `over_budget` and `keeps_classes`; None: as the cluster's
    classes: tuple[PriorityClass, PriorityClass, bool] | None = None
    waits_for_sidecar: bool = False  # `AdmissionPolicy.waits_for_sidecar`


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingsSettings:
    """The cluster's ``_settings`` as the timekeeper sends them."""

    mode: Mode
    scheduler_name: str
    sidecar: bool
    in_budget: PriorityClass
    over_budget: PriorityClass
    cluster_default: str = ""  # `AdmissionPolicy.cluster_default`
    classes: tuple[PriorityClass, ...] = ()  # that users may name
    unknown_standing: UnknownStanding
    max_grace_s: int
    lookahead_ms: int | None  # None: not sent
    unknown_accelerators: UnknownAccelerators = "refuse"
    rules: Mapping[str, str] = field(default_factory=dict)
    exempt: frozenset[str] = frozenset()
    card_host: CardHost | None = None  # CPU and memory for each card
    host_share_milli: int = 2_000
    # driver -> whether its devices are GPUs, of those that an administrator has named
    drivers: Mapping[str, bool] = field(default_factory=dict)
    # resource -> whether it is an accelerator's, of those that an administrator has named
    devices: Mapping[str, bool] = field(default_factory=dict)


StandingsTable = standings.StandingsTable[StandingsSettings, StandingsEntry]

UNKNOWN = Standing("UNKNOWN")
PREEMPTION_POLICIES = ("PreemptLowerPriority", "Never")

# A class can be deleted and created again with another value. Numbers that were not confirmed for so long are
# not written into pods, because the API server refuses a pod whose numbers differ from its class.
CLASSES_HOLD_MS = 5_000


def standing(
    table: StandingsTable | None,
    namespace: str,
    spent: int,
    now_ms: int,
    stale_after_ms: int,
    denies: bool = False,
) -> Standing:
    """The namespace's standing now.

    ``spent``: what this worker counts of the namespace and the table may not know, in milli-GPU x ms: over
    budget by this estimate is a namespace that so exceeds what remains to it, or to its group alone. Only a
    budget with `deny` is compared with ``denies``, and only another without.
    """
    if table is None:
        return UNKNOWN
    entry = table.entry_of(namespace)
    now, of_group = entry.standing, entry.group_left
    over = now.status == "OVER_BUDGET"
    if table.is_unknown(over, entry.valid_until_ms, now_ms, stale_after_ms):
        return UNKNOWN
    if over or not spent:
        return now
    accounts = (entry.remaining, now.on_exhausted), (of_group.remaining, of_group.on_exhausted)
    for left, action in accounts:
        if left is not None and spent >= left and (action == "deny") is denies:
            return replace(now, status="OVER_BUDGET", by_estimate=True, on_exhausted=action, remaining=left)
    return now


def is_fresh(table: StandingsTable | None, now_ms: int) -> bool:
    """Whether the numbers of priority classes in the table may be written into pods."""
    return table is not None and not table.is_stale(now_ms, CLASSES_HOLD_MS)


def effective_policy(
    flags: AdmissionPolicy, table: StandingsTable | None, fresh: bool = True, namespace: str = ""
) -> AdmissionPolicy:
    """A namespace's policy now: from the table where there is one, else from this process's flags.

    A class without a value in the table gets the flags' value where the name is the same, unless the class is
    absent. From a table that is not `is_fresh` no preemption policy is taken; an absent class stays absent,
    because a pod without the class is better than a refused pod.
    """
    if table is None:
        return without_placement(flags)
    settings, own = table.settings, table.entry_of(namespace)
    within, lower, keeps = own.classes or (settings.in_budget, settings.over_budget, False)
    policy = replace(
        flags,
        known=True,
        places=own.places,
        takes_whole_cards=own.takes_whole_cards,
        finds_gangs=own.finds_gangs,
        mode=own.mode or settings.mode,
        rules={**settings.rules, **own.rules},
        exempt=settings.exempt | own.exempt,
        scheduler_name=settings.scheduler_name,
        in_budget=_valued(within, flags, fresh),
        over_budget=_valued(lower, flags, fresh),
        keeps_classes=keeps,
        cluster_default=settings.cluster_default,
        unknown_standing=settings.unknown_standing,
        max_grace_s=settings.max_grace_s,
        unknown_accelerators=settings.unknown_accelerators,
        devices=settings.devices,
        sidecar=flags.sidecar if (settings.sidecar if own.sidecar is None else own.sidecar) else None,
        requires_sidecar=own.sidecar is True,
        waits_for_sidecar=own.waits_for_sidecar,
        caps=own.caps,
        reserves_declared=own.reserves_declared,
        requires_duration=own.requires_duration,
        card_host=settings.card_host,
        host_share_milli=own.host_share_milli or settings.host_share_milli,
    )
    return without_placement(policy)


def _valued(given: PriorityClass, flags: AdmissionPolicy, fresh: bool) -> PriorityClass:
    if given.value is not None or given.absent:
        return given if fresh else replace(given, preemption_policy=None)
    return next((known for known in (flags.in_budget, flags.over_budget) if known.name == given.name), given)


def read_settings(raw: Json) -> StandingsSettings:
    """The cluster's settings in `wire.Standings`. Raises `standings.UndecodableStandingsError`."""
    classes = raw["priorityClasses"]
    return StandingsSettings(
        mode=_mode(raw["mode"]),
        rules=_rules(raw.get("rules")),
        exempt=_exempt(raw.get("exempt")),
        scheduler_name=_text(raw["schedulerName"]),
        sidecar=raw["sidecar"] is True,
        in_budget=_class(classes["inBudget"]),
        over_budget=_class(classes["overBudget"]),
        cluster_default=_class(default).name if (default := mapping(classes.get("clusterDefault"))) else "",
        classes=tuple(map(_class, sequence(raw.get("classes")))),
        unknown_standing="overBudget" if raw["unknownStanding"] == "overBudget" else "inBudget",
        max_grace_s=standings.whole_number(raw["maxGracePeriodMs"]) // 1000,
        lookahead_ms=standings.whole_number_or_none(raw.get("lookaheadMs")),
        unknown_accelerators=_accelerators(raw.get("unknownAccelerators")),
        card_host=standings.card_host(raw),
        host_share_milli=standings.whole_number(mapping(raw.get("host")).get("timesMilli", 2_000)),
        drivers={name: each is True for name, each in mapping(raw.get("drivers")).items()},
        devices={name: word is True for name, word in mapping(raw.get("devices")).items()},
    )


def _class(raw: Json) -> PriorityClass:
    """The timekeeper publishes no table before it has listed all classes: one without a value is absent."""
    value, policy = standings.whole_number_or_none(raw["value"]), raw.get("preemptionPolicy")
    known = value is not None and policy in PREEMPTION_POLICIES
    return PriorityClass(_text(raw["name"]), value, policy if known else None, absent=value is None)


def _classes(raw: Json) -> tuple[PriorityClass, PriorityClass, bool]:
    return _class(raw["inBudget"]), _class(raw["overBudget"]), raw.get("keep") is True


def read_entry(raw: Json) -> StandingsEntry:
    """A namespace's entry there. Raises the same."""
    until_ms = standings.whole_number_or_none(raw["validUntil"])
    remaining, group = standings.whole_number_or_none(raw["remaining"]), standings.group(raw)
    return StandingsEntry(
        standing=Standing(
            standings.standing_word(raw["standing"]),
            standings.whole_number_or_none(raw["ratio"]),
            standings.whole_number_or_none(raw["warnAt"]),
            on_exhausted=_text(raw["onExhausted"]),
            remaining=remaining,
            until_ms=until_ms,
            hold=_hold(raw.get("hold")),
            group=standings.deciding_group(raw),
        ),
        remaining=remaining,
        valid_until_ms=until_ms,
        mode=_mode(raw["mode"]) if raw.get("mode") else None,
        rules=_rules(raw.get("rules")),
        exempt=_exempt(raw.get("exempt")),
        caps=standings.caps(raw),
        reserves_declared=raw.get("reserve") == "declared",
        requires_duration=raw.get("requireDuration") is True,
        host_share_milli=standings.whole_number_or_none(raw.get("hostShare")),
        group=group,
        group_left=standings.group_left(raw) if group else standings.NO_GROUP_LEFT,
        protect=decoded(raw),
        places=raw.get("placement") != "off",
        takes_whole_cards=raw.get("wholeCards") == "bursar",
        finds_gangs=raw.get("gangs") == "auto",
        sidecar=None if "sidecar" not in raw else raw["sidecar"] != "off",
        classes=_classes(raw["priorityClasses"]) if "priorityClasses" in raw else None,
        waits_for_sidecar=raw.get("sidecar") == "waits",
    )


def _mode(raw: object) -> Mode:
    return "observe" if raw == "observe" else "meter" if raw == "meter" else "enforce"


def _accelerators(raw: object) -> UnknownAccelerators:
    """What becomes of accelerators that no dialect reads; refused by a timekeeper of a release that does not
    say so, as that release's own webhook refused `amd.com/gpu`."""
    return "meter" if raw == "meter" else "pass" if raw == "pass" else "refuse"


def _hold(raw: object) -> HeldFor:
    """How new pods are held; "" from a timekeeper of a release that does not say so."""
    return "budget" if raw == "budget" else "turn" if raw == "turn" else ""


def _rules(raw: object) -> Mapping[str, str]:
    """The modes by rule; a timekeeper of another release may send none, or rules that are unknown here."""
    return {_text(rule): _text(mode) for rule, mode in mapping(raw).items()}


def _exempt(raw: object) -> frozenset[str]:
    return frozenset(_text(each) for each in sequence(raw))


def _text(raw: object) -> str:
    if not isinstance(raw, str) or not raw:
        raise standings.UndecodableStandingsError("standings: a name is missing")
    return raw
