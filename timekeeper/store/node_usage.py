"""Node agents' reports: each node's last report in one row, and its pods' use by the hour. What a Prometheus
measures of metered pods is one row more."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import orjson
from sqlalchemy import Executable, Row, delete, func, select, text, update

from timekeeper.accounts.card_use.figures import (
    WHOLE_MILLI,
    CardSample,
    MeasuredSession,
    MemoryExcess,
    UsageSample,
    UsageTotals,
    in_order,
    used,
)
from timekeeper.accounts.card_use.idleness import (
    IdlePeriod,
    IdlePod,
    UsedClaim,
    follow_idle,
    idle_users,
    overlap,
    uuid_of,
)
from timekeeper.accounts.card_use.overuse import (
    FRESH_MS,
    ObservedExcess,
    OverusePeriod,
    OverusingPod,
    follow,
)
from timekeeper.accounts.claims.claim_sessions import decode_devices
from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import FIGURES, NODE_USES, SESSIONS
from timekeeper.store.ledger import chunks

TENANT = "tenant"

Hour = tuple[str, int]  # a session's UID and the hour's beginning

# The same SQL on both databases. Rows come in one order, so two writers cannot deadlock.
_ADD = text(
    "INSERT INTO figures (session_uid, hour_ms, source, covered_ms, used_milli_ms, memory_mib_ms)"
    " VALUES (:session_uid, :hour_ms, :source, :covered_ms, :used_milli_ms, :memory_mib_ms)"
    " ON CONFLICT (session_uid, hour_ms, source) DO UPDATE SET"
    " covered_ms = figures.covered_ms + excluded.covered_ms,"
    " used_milli_ms = figures.used_milli_ms + excluded.used_milli_ms,"
    " memory_mib_ms = figures.memory_mib_ms + excluded.memory_mib_ms"
)


def add(connection: Connection, used: Mapping[Hour, UsageTotals], source: str) -> None:
    """Add use to these hours: one statement for any number."""
    for change in addition(used, source):
        connection.execute(*change)


def addition(
    used: Mapping[Hour, UsageTotals], source: str = TENANT
) -> list[tuple[Executable, list[dict[str, Any]]]]:
    """What `add` executes."""
    rows = [
        {
            "session_uid": uid,
            "hour_ms": hour_ms,
            "source": source,
            "covered_ms": each.covered_ms,
            "used_milli_ms": each.milli_ms,
            "memory_mib_ms": each.memory_mib_ms,
        }
        for (uid, hour_ms), each in sorted(used.items(), key=lambda item: item[0])
    ]
    return [(_ADD, rows)] if rows else []


def hours_of(
    connection: Connection, requested_milli: Mapping[str, int], since_ms: int
) -> list[tuple[int, int, int]]:
    """The hours since then in which the sessions of these UIDs were measured: of each what they held in the
    measured time, and what they used, in milli-GPU x ms. ``requested_milli``: what each holds. Where an agent
    and a sidecar measured, the agent's figures count."""
    found: dict[Hour, Row[Any]] = {}
    for some in chunks(sorted(requested_milli)):
        its = FIGURES.c
        rows = select(FIGURES).where(its.session_uid.in_(some), its.hour_ms >= since_ms)
        by_source = connection.execute(rows.order_by(its.source.desc()))  # node is last
        found |= {(row.session_uid, row.hour_ms): row for row in by_source}
    hours: dict[int, tuple[int, int]] = {}
    for (uid, hour_ms), row in found.items():
        measured, used_then = hours.get(hour_ms, (0, 0))
        held = requested_milli[uid] * row.covered_ms
        hours[hour_ms] = measured + held, used_then + row.used_milli_ms
    return [(hour_ms, *hours[hour_ms]) for hour_ms in sorted(hours)]


NODE = "node"
MAX_RUNS = 8  # runs of an agent whose sequences are remembered
_LAPSE_INTERVALS = 3  # one look without figures, or one late look, ends no episode
_FORGOTTEN_MS = 30 * 86_400_000  # a node that is silent for longer is gone


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One post of a node agent. ``boot`` names the agent's run, ``sequence`` is the number of this post
    within the run."""

    node: str
    boot: str
    sequence: int
    received_ms: int
    looks: tuple[UsageSample, ...]


class ReportOutcome(Enum):
    """Whether a report was new."""

    NEW = "new"
    REPEATED = "repeated"


@dataclass(frozen=True, slots=True)
class ReportResult:
    """``elsewhere`` and ``unknown``: the number of pod entries left out because their session is on another
    node, or does not exist."""

    taken: ReportOutcome
    elsewhere: int = 0
    unknown: int = 0


def record(
    connection: Connection, report: NodeReport, interval_ms: int, idle_below_milli: int = 0
) -> ReportResult:
    """Write a report's additions. A report whose sequence its run has reached already adds nothing.
    ``interval_ms``: the interval between reports; one look counts for at most twice that long.
    ``idle_below_milli``: a pod that uses less of what it holds, in thousandths, is idle."""
    row = _row(connection, report)
    runs: dict[str, int] = orjson.loads(row.runs)
    if report.sequence <= runs.get(report.boot, -1):
        return ReportResult(ReportOutcome.REPEATED)
    named = {uid for look in report.looks for uid, _ in look.pods}
    held, elsewhere = _held(connection, named, report.node)
    looks = in_order(report.looks, report.received_ms)
    add(connection, _by_hour(used(looks, held, row.use_ms, 2 * interval_ms)), NODE)
    new = tuple((at_ms, look) for at_ms, look in looks if at_ms > row.use_ms)
    lapse_ms = max(FRESH_MS, _LAPSE_INTERVALS * interval_ms)
    episodes = follow(_episodes(row), new, held, lapse_ms)
    idle_pods = follow_idle(
        _idle(row), new, held, idle_below_milli, lapse_ms, _claimed(connection, report.node)
    )
    _write(connection, report, row, new, episodes, idle_pods)
    return ReportResult(ReportOutcome.NEW, elsewhere, len(named) - len(held) - elsewhere)


# The row of the Prometheus that measures metered pods: no node has such a name. Its ``runs`` have its state.
PROMETHEUS = "_prometheus"
MEASURED_EVERY_MS = 60_000
_SILENT_MS = 10 * MEASURED_EVERY_MS  # then nothing asks it any more
_LAPSE_MS = _LAPSE_INTERVALS * MEASURED_EVERY_MS


@dataclass(frozen=True, slots=True)
class PrometheusState:
    """How the last question to Prometheus went, asked at ``asked_ms``. ``heard_ms``: its last usable answer,
    0: none yet; ``findings``: sentences about what of it is wrong or missing."""

    asked_ms: int
    heard_ms: int
    measured: int  # metered pods with a figure
    findings: tuple[str, ...]


def measuring(connection: Connection, now_ms: int) -> PrometheusState | None:
    """How it went; None where nothing asks Prometheus."""
    lately = NODE_USES.c.received_ms.between(now_ms - _SILENT_MS, now_ms + FRESH_MS)
    found = connection.execute(
        select(NODE_USES.c.runs).where(NODE_USES.c.name == PROMETHEUS, lately)
    ).scalar()
    if found is None or found == "{}":
        return None
    raw = orjson.loads(found)
    return PrometheusState(raw["asked"], raw["heard"], raw["measured"], tuple(raw["findings"]))


def record_measured(
    connection: Connection,
    state: PrometheusState,
    sample: UsageSample | None,
    sessions: Mapping[str, MeasuredSession],
    idle_below_milli: int,
) -> dict[Hour, UsageTotals]:
    """Write how it went, and which pods are idle by the sample, None: there was no usable answer. Returns the
    use since the sample before, for `add`: it is for many pods, so the caller writes it in portions."""
    now_ms = state.asked_ms
    row = _row(connection, NodeReport(PROMETHEUS, "", 0, now_ms, ()))
    written = {
        "asked": now_ms,
        "heard": state.heard_ms,
        "measured": state.measured,
        "findings": state.findings,
    }
    values: dict[str, Any] = {
        "runs": orjson.dumps(written).decode(),
        "received_ms": max(row.use_ms, now_ms),
    }
    uses: dict[Hour, UsageTotals] = {}
    if sample is not None and now_ms > row.use_ms:
        dated = ((now_ms, sample),)
        periods = follow_idle(_idle(row), dated, sessions, idle_below_milli, _LAPSE_MS, _claimed(connection))
        values |= {"use_ms": now_ms, "idle": _written_idle(periods)}
        uses = _by_hour(used(dated, sessions, row.use_ms, 2 * MEASURED_EVERY_MS))
    connection.execute(update(NODE_USES).where(NODE_USES.c.name == PROMETHEUS).values(**values))
    return uses


def _by_hour(uses: Iterable[tuple[str, int, UsageTotals]]) -> dict[Hour, UsageTotals]:
    """The sums of each pod and hour."""
    found: dict[Hour, UsageTotals] = {}
    for uid, hour_ms, each in uses:
        key = (uid, hour_ms)
        found[key] = found[key] + each if key in found else each
    return found


def reporting(connection: Connection, now_ms: int) -> int:
    """The number of nodes whose agent reported lately."""
    lately = (NODE_USES.c.received_ms > now_ms - FRESH_MS) & (NODE_USES.c.name != PROMETHEUS)
    return connection.execute(select(func.count()).select_from(NODE_USES).where(lately)).scalar_one()


def measured(connection: Connection, now_ms: int) -> list[tuple[str, str]]:
    """Each node with a recent look, and its cards' use: JSON by card UUID."""
    is_node = NODE_USES.c.name != PROMETHEUS
    found = select(NODE_USES.c.name, NODE_USES.c.cards).where(_is_fresh(now_ms), is_node)
    found = found.order_by(NODE_USES.c.name)
    return [(row.name, row.cards) for row in connection.execute(found)]


def over(connection: Connection, namespace: str, now_ms: int) -> list[OverusingPod]:
    """The pods over their memory share by the last reports, by UID, of one namespace or (empty) of all."""
    columns = (NODE_USES.c.name, NODE_USES.c.use_ms, NODE_USES.c.overuse)
    rows = select(*columns).where(_is_fresh(now_ms), NODE_USES.c.overuse != "{}")
    by_uid: dict[str, list[tuple[str, OverusePeriod]]] = {}
    for row in connection.execute(rows):
        for uid, episode in _episodes(row).items():
            by_uid.setdefault(uid, []).append((row.name, episode))
    named = select(SESSIONS.c.uid, SESSIONS.c.namespace, SESSIONS.c.name, SESSIONS.c.node)
    named = named.where(SESSIONS.c.ended_ms.is_(None)).order_by(SESSIONS.c.uid)
    if namespace:
        named = named.where(SESSIONS.c.namespace == namespace)
    return [
        OverusingPod(row.uid, row.namespace, row.name, row.node, episode)
        for some in chunks(sorted(by_uid))
        for row in connection.execute(named.where(SESSIONS.c.uid.in_(some)))
        for node, episode in by_uid[row.uid]
        if node == row.node
    ]


def idle(connection: Connection, now_ms: int, namespace: str = "") -> list[IdlePod]:
    """The idle pods by the last reports, by UID, of one namespace or (empty) of all."""
    is_fresh = _is_fresh(now_ms) | ((NODE_USES.c.name == PROMETHEUS) & _is_fresh(now_ms, _LAPSE_MS))
    rows = connection.execute(
        select(NODE_USES.c.name, NODE_USES.c.idle).where(is_fresh, NODE_USES.c.idle != "{}")
    )
    every = [(row.name, key, period) for row in rows for key, period in _idle(row).items()]
    cards = {(name, uuid): period for name, key, period in every if (uuid := uuid_of(key))}
    found = {key: (name, period) for name, key, period in every if not uuid_of(key)}
    claims = tuple(_claims(connection, namespace)) if cards else ()
    for node, uuid in {(claim.node, uuid) for claim in claims for uuid in claim.uuids} - cards.keys():
        if (PROMETHEUS, uuid) in cards:  # it names no nodes, but UUIDs are of one card
            cards[node, uuid] = cards[PROMETHEUS, uuid]
    users = idle_users(claims, cards) if cards else {}
    named = select(SESSIONS.c.uid, SESSIONS.c.namespace, SESSIONS.c.name, SESSIONS.c.node)
    named = named.where(SESSIONS.c.ended_ms.is_(None)).order_by(SESSIONS.c.uid)
    if namespace:
        named = named.where(SESSIONS.c.namespace == namespace)
    own = {
        row.uid: _by_its_cards(row, found)
        for some in chunks(sorted(found.keys() | users.keys()))
        for row in connection.execute(named.where(SESSIONS.c.uid.in_(some)))
    }
    both = (_with_claims(uid, own, users) for uid in sorted(own.keys() | users.keys()))
    return [each for each in both if each is not None]


def _by_its_cards(row: Any, found: Mapping[str, tuple[str, IdlePeriod]]) -> IdlePod | None:
    node, period = found.get(row.uid, ("", None))
    is_there = period is not None and node in (row.node, PROMETHEUS)
    return IdlePod(row.uid, row.namespace, row.name, row.node, period) if is_there and period else None


def _with_claims(
    uid: str, own: Mapping[str, IdlePod | None], users: Mapping[str, IdlePod | None]
) -> IdlePod | None:
    """The pod by its cards and its claims, None unless it is idle by all that it has of them."""
    pods = [found[uid] for found in (own, users) if uid in found]
    period = overlap(each.period if each else None for each in pods)
    return replace(pods[0], period=period) if period and pods[0] else None


def _claims(connection: Connection, namespace: str) -> Iterator[UsedClaim]:
    """The claims that hold GPUs and are used, of one namespace or (empty) of all."""
    its = SESSIONS.c
    columns = (its.namespace, its.node, its.bound_ms, its.devices, its.consumers, its.users)
    rows = select(*columns).where(its.settled_ms.is_(None), its.ended_ms.is_(None), its.kind == "claim")
    if namespace:
        rows = rows.where(its.namespace == namespace)
    for row in connection.execute(rows.where(its.requested_milli > 0, its.consumers != "")):
        names = dict(each.split("/", 1) for each in row.users.split())
        uuids = tuple(each.uuid for each in decode_devices(row.devices) if not each.is_admin)
        pods = tuple((uid, names.get(uid, "")) for uid in row.consumers.split())
        yield UsedClaim(row.namespace, row.node, row.bound_ms, uuids, pods)


def _claimed(connection: Connection, node: str = "") -> dict[str, int]:
    """The smallest part of a device that a claim holds, in thousandths, by UUID, where it is not all of it,
    on one node or (empty) on all."""
    its = SESSIONS.c
    rows = select(its.devices).where(its.settled_ms.is_(None), its.ended_ms.is_(None), its.kind == "claim")
    parts: dict[str, int] = {}
    for devices in connection.execute(rows.where(its.node == node) if node else rows).scalars():
        for device in decode_devices(devices):
            if 0 < device.milli < parts.get(device.uuid, WHOLE_MILLI):
                parts[device.uuid] = device.milli
    return parts


def _idle(row: Any) -> dict[str, IdlePeriod]:
    return {uid: IdlePeriod(*times) for uid, times in orjson.loads(row.idle).items()}


def _written_idle(periods: Mapping[str, IdlePeriod]) -> str:
    return orjson.dumps({uid: [each.since_ms, each.seen_ms] for uid, each in periods.items()}).decode()


def _is_fresh(now_ms: int, within_ms: int = FRESH_MS) -> Any:
    """True if the time is not too old and, after a clock was set back, not in the future."""
    return NODE_USES.c.use_ms.between(now_ms - within_ms + 1, now_ms + within_ms)


# The same SQL on both databases: of two workers with a node's first report one waits and finds the row.
_FIRST = text(
    "INSERT INTO node_uses (name, runs, use_ms, received_ms, cards, overuse, idle)"
    " VALUES (:name, '{}', 0, :received_ms, '{}', '{}', '{}') ON CONFLICT (name) DO NOTHING"
)


def _row(connection: Connection, report: NodeReport) -> Any:
    """The node's row, locked. A missing row is created, and rows of nodes gone for long are dropped then."""
    which = select(NODE_USES).where(NODE_USES.c.name == report.node).with_for_update()
    row = connection.execute(which).first()
    if row is None:
        long_ago = NODE_USES.c.received_ms < report.received_ms - _FORGOTTEN_MS
        connection.execute(delete(NODE_USES).where(long_ago))
        connection.execute(_FIRST, {"name": report.node, "received_ms": report.received_ms})
        row = connection.execute(which).one()
    return row


def _held(connection: Connection, uids: Iterable[str], node: str) -> tuple[dict[str, MeasuredSession], int]:
    """The sessions of these pods on the node, and the number on other nodes. Locked only against rollup,
    which would leave figures without a session."""
    its = SESSIONS.c
    since = func.coalesce(its.started_ms, its.bound_ms).label("since_ms")
    columns = (its.uid, its.node, since, its.ended_ms, its.devices, its.requested_milli)
    found = select(*columns).where(its.uid.in_(list(uids))).order_by(its.uid)
    rows = connection.execute(found.with_for_update(read=True, key_share=True)).all()
    held = {
        row.uid: MeasuredSession(row.uid, row.since_ms, row.ended_ms, row.devices, row.requested_milli)
        for row in rows
        if row.node == node
    }
    return held, len(rows) - len(held)


def _write(
    connection: Connection,
    report: NodeReport,
    row: Any,
    new: tuple[tuple[int, UsageSample], ...],
    episodes: Mapping[str, OverusePeriod],
    idle_pods: Mapping[str, IdlePeriod],
) -> None:
    runs = {boot: count for boot, count in orjson.loads(row.runs).items() if boot != report.boot}
    runs[report.boot] = report.sequence
    kept = dict(list(runs.items())[-MAX_RUNS:])
    values: dict[str, Any] = {
        "runs": orjson.dumps(kept).decode(),
        # after our clock was set back, the last look is not after the last receipt
        "received_ms": max(row.use_ms, report.received_ms),
    }
    if new:
        at_ms, last = new[-1]
        values |= {
            "use_ms": at_ms,
            "cards": orjson.dumps(_uses(last.cards)).decode(),
            "overuse": orjson.dumps({uid: _written(each) for uid, each in episodes.items()}).decode(),
            "idle": _written_idle(idle_pods),
        }
    connection.execute(update(NODE_USES).where(NODE_USES.c.name == report.node).values(**values))


def _uses(cards: Iterable[CardSample]) -> dict[str, Mapping[str, Any]]:
    return {
        each.uuid: {"uuid": each.uuid, "utilisation": each.utilisation, "memory_mib": each.memory_mib}
        for each in cards
    }


def _written(episode: OverusePeriod) -> dict[str, Any]:
    cards = [
        {
            "uuid": each.excess.uuid,
            "memory_mib": each.excess.memory_mib,
            "share_mib": each.excess.share_mib,
            "seen": each.seen_ms,
        }
        for each in episode.cards
    ]
    return {"since": episode.since_ms, "cards": cards}


def _episodes(row: Any) -> dict[str, OverusePeriod]:
    """The node's episodes of overuse by pod UID."""
    return {
        uid: OverusePeriod(
            entry["since"],
            tuple(
                ObservedExcess(
                    MemoryExcess(each["uuid"], each["memory_mib"], each["share_mib"]),
                    each["seen"],
                )
                for each in entry["cards"]
            ),
        )
        for uid, entry in orjson.loads(row.overuse).items()
    }
