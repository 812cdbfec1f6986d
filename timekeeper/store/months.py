"""What a month held: its hashes, those that were kept when it was closed, and corrections of its bill."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import orjson
from sqlalchemy import BigInteger, Select, and_, func, insert, literal, select, union_all

from timekeeper.accounts.budget_history import History, history_of
from timekeeper.accounts.session import kind_of
from timekeeper.accounts.usage import CLAIMED, PriceInterval, price_intervals
from timekeeper.core.ledger.metering import Interval
from timekeeper.core.ledger.months import (
    ChargeCorrection,
    ClosedMonth,
    CorrectedPart,
    MonthHash,
    Months,
    digest,
    line,
)
from timekeeper.core.texts import moment
from timekeeper.store import ledger
from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import (
    CHARGE_CORRECTIONS,
    CLOSED_MONTHS,
    FOLDED,
    GRANTS,
    POSTINGS,
    SESSIONS,
)
from timekeeper.store.engine.workloads import workload
from timekeeper.store.reports.columns import claimed, dated, ordered
from timekeeper.store.sessions import greatest, least, open_charges

_AT_ONCE = 1_000  # rows in memory
_MOST_AWAITED = 100  # sessions that are named


def hash_of(connection: Connection, span: Interval, now_ms: int) -> Callable[[], MonthHash]:
    """Read what the month holds now; its hashes are computed later, outside of the transaction. Prices are
    those of the rows, whatever a process has read of them before."""
    sums, entries = _Sums(), tuple(ledger.entries(connection))
    charges = digest(sums.lines(connection, span, now_ms))
    granted = list(_grants(connection, span))

    def computed() -> MonthHash:
        history = history_of(entries)
        prices = digest(
            line(*row)
            for row in sorted(
                (name, terms.from_ms, terms.to_ms, terms.group, terms.price, terms.currency)
                for terms in price_intervals(history, sums.namespaces, span)
                for name in terms.namespaces
            )
        )
        return MonthHash(sums.sessions, sums.amount, len(granted), charges, digest(granted), prices)

    return computed


class _Sums:
    """What is counted while the lines of the charges are read."""

    def __init__(self) -> None:
        self.sessions = self.amount = 0
        self.namespaces: set[str] = set()

    def lines(self, connection: Connection, span: Interval, now_ms: int) -> Iterator[str]:
        charges = _charges(connection.dialect.name, span)
        options = {"yield_per": _AT_ONCE}
        found = connection.execute(charges, {"now_ms": now_ms}, execution_options=options)
        for uid, namespace, amount in found:
            self.sessions += 1
            self.amount += int(amount)
            self.namespaces.add(namespace)
            yield line(uid, namespace, int(amount))


def _charges(dialect: str, span: Interval) -> Select[Any]:
    """UID, namespace and amount of each session with a charge in the month."""
    every = _intervals(span)
    uid, length = ordered(dialect, every.session_uid), every.to_ms - every.from_ms
    by, amount = (every.session_uid, every.namespace), func.sum(every.rate_milli * length)
    found = select(*by, amount.label("amount")).group_by(*by).having(amount != 0)
    return found.order_by(uid, ordered(dialect, by[1]))


def _intervals(span: Interval, namespace: str = "") -> Any:
    """Each interval of the month that is charged, or taken back; of open sessions until parameter ``now_ms``.
    ``namespace`` "": of all."""
    start, end = literal(span.start_ms, BigInteger), literal(span.end_ms, BigInteger)
    own, parts = SESSIONS.c, []
    is_settled = and_(own.uid == POSTINGS.c.session_uid, own.settled_ms.is_not(None))
    posted = select(POSTINGS, own.name).join(SESSIONS, is_settled).subquery("posted")
    running = open_charges(("name",), own.rate_milli > 0, own.bound_ms < end).subquery("running")
    for its in (posted.c, FOLDED.c, running.c):
        times = greatest(its.from_ms, start).label("from_ms"), least(its.to_ms, end).label("to_ms")
        part = select(its.session_uid, its.namespace, its.name, *times, its.rate_milli)
        part = part.where(its.from_ms < end, its.to_ms > start)
        parts.append(part.where(its.namespace == namespace) if namespace else part)
    return union_all(*parts).subquery("every").c


def _grants(connection: Connection, span: Interval) -> Iterator[str]:
    its = GRANTS.c
    columns = (its.id, its.subject, its.period_start_ms, its.period_end_ms, its.amount, its.kind, its.reason)
    found = select(*columns, its.actor, its.created_ms).order_by(its.id)
    found = found.where(its.created_ms >= span.start_ms, its.created_ms < span.end_ms)
    return (line(*row) for row in connection.execute(found))


def waits_for(connection: Connection, span: Interval, now_ms: int) -> tuple[int, list[tuple[str, str]]]:
    """How many sessions began before the month's end and may still be charged for more or less of it: they
    are not settled, and their last evidence is of the month. Of the first of these to fall silent: who they
    are, and what ends them once nothing of them runs, the removal of their object."""
    columns = ("kind", "name", "node")
    its = open_charges(columns, SESSIONS.c.bound_ms < span.end_ms).subquery("running").c
    found = select(func.count().over(), its.to_ms, its.kind, its.namespace, its.name, its.node)
    found = found.where(its.to_ms < span.end_ms).order_by(its.to_ms, its.session_uid).limit(_MOST_AWAITED)
    rows = connection.execute(found, {"now_ms": now_ms}).all()
    return int(rows[0][0]) if rows else 0, [_awaited(*row[1:]) for row in rows]


def _awaited(seen_ms: int, kind: str, namespace: str, name: str, node: str) -> tuple[str, str]:
    what, resource = ("claim", "resourceclaim") if kind == "claim" else ("pod", "pod")
    who = f"{what} {namespace}/{name} on {node} has not ended, and was last heard of at {moment(seen_ms)}"
    return who, f"kubectl delete -n {namespace} --force {resource} {name}"


Terms = tuple[str, str, str]  # group, price and currency


def charged(
    connection: Connection, span: Interval, now_ms: int, namespace: str, intervals: Iterable[PriceInterval]
) -> list[tuple[Terms, CorrectedPart]]:
    """What each session of the namespace was charged in the month on which terms, in order of time.
    ``intervals``: its own."""
    every = _intervals(span, namespace)
    own = dated(connection.dialect.name, tuple(intervals)).c
    start, end = greatest(every.from_ms, own.from_ms), least(every.to_ms, own.to_ms)
    keys = (own.group, own.price, own.currency, every.session_uid, every.name)
    amount, first = func.sum(every.rate_milli * (end - start)), func.min(start)
    found = select(*keys, amount, first, func.max(end)).where(start < end).group_by(*keys)
    found = found.having(amount != 0).order_by(first, ordered(connection.dialect.name, every.session_uid))
    return [
        ((group, price, currency), CorrectedPart(int(amount), from_ms, to_ms, {"uid": uid, "pod": name}))
        for group, price, currency, uid, name, amount, from_ms, to_ms in connection.execute(
            found, {"now_ms": now_ms}
        )
    ]


def pod_of(uid: str) -> str:
    """The UID of a session's pod, which may have had others; or of a claim's allocation."""
    kind = kind_of(uid)
    return uid if kind.charge == "claim" else kind.owner_uid


def newest_posting(connection: Connection) -> int:
    """The number of the last posting; 0: none."""
    return int(connection.execute(select(func.coalesce(func.max(POSTINGS.c.id), 0))).scalar_one())


def posted_since(connection: Connection, span: Interval, number: int) -> bool:
    """Whether a posting with a greater number lies in the month."""
    its = POSTINGS.c
    found = select(its.id).where(its.id > number, its.from_ms < span.end_ms, its.to_ms > span.start_ms)
    return connection.execute(found.limit(1)).first() is not None


def corrected_since(connection: Connection, closed: ClosedMonth) -> tuple[int, int]:
    """How many postings in the month were made after it was closed, and what they sum up to there: later
    proof of sessions that were settled by then."""
    its = POSTINGS.c
    length = least(its.to_ms, literal(closed.to_ms)) - greatest(its.from_ms, literal(closed.from_ms))
    late = and_(its.from_ms < closed.to_ms, its.to_ms > closed.from_ms, its.created_ms > closed.closed_ms)
    settled = and_(SESSIONS.c.settled_ms.is_not(None), its.kind == "correction")
    found = select(func.count(), func.coalesce(func.sum(its.rate_milli * length), 0))
    row = connection.execute(
        found.select_from(POSTINGS.join(SESSIONS, SESSIONS.c.uid == its.session_uid)).where(late, settled)
    ).one()
    return int(row[0]), int(row[1])


def close(connection: Connection, month: ClosedMonth) -> None:
    """Keep it."""
    found = month.hashes
    row = {
        "month": month.month,
        "from_ms": month.from_ms,
        "to_ms": month.to_ms,
        "closed_ms": month.closed_ms,
        "sessions": found.sessions,
        "amount": found.amount,
        "grants": found.grants,
        "charges_sha256": found.charges_sha256,
        "grants_sha256": found.grants_sha256,
        "prices_sha256": found.prices_sha256,
    }
    connection.execute(insert(CLOSED_MONTHS), row)


def calendar(connection: Connection, history: History, first_ms: int | None) -> Months:
    """The ledger's months: all readers take their bounds from here. ``first_ms``: see `History.months`."""
    its = CLOSED_MONTHS.c
    rows = connection.execute(select(its.month, its.from_ms, its.to_ms).order_by(its.from_ms))
    return history.months(first_ms, {name: Interval(start, end) for name, start, end in rows})


def closed(connection: Connection) -> dict[str, ClosedMonth]:
    """All closed months, the newest first."""
    rows = connection.execute(select(CLOSED_MONTHS).order_by(CLOSED_MONTHS.c.from_ms.desc()))
    return {row.month: _closed(row) for row in rows}


def _closed(row: Any) -> ClosedMonth:
    hashes = MonthHash(
        row.sessions, row.amount, row.grants, row.charges_sha256, row.grants_sha256, row.prices_sha256
    )
    return ClosedMonth(row.month, row.from_ms, row.to_ms, row.closed_ms, hashes)


def correction(connection: Connection, key: str) -> ChargeCorrection | None:
    """The correction that this idempotency key already has."""
    there = _corrections(connection, CHARGE_CORRECTIONS.c.idempotency_key == key)
    return there[0] if there else None


def correct(connection: Connection, asked: ChargeCorrection) -> ChargeCorrection:
    """Write the correction; its key has none yet."""
    row = {
        column.name: getattr(asked, column.name)
        for column in CHARGE_CORRECTIONS.c
        if column.name not in _READ
    }
    parts = orjson.dumps([(part.amount, part.from_ms, part.to_ms, part.of) for part in asked.parts])
    row |= {"uid": asked.uid or None, "parts": parts.decode() if asked.parts else None}
    connection.execute(insert(CHARGE_CORRECTIONS), row)
    return _corrections(connection, CHARGE_CORRECTIONS.c.idempotency_key == asked.idempotency_key)[0]


def corrections(
    connection: Connection, namespace: str, made: Interval | None = None, of: Interval | None = None
) -> list[ChargeCorrection]:
    """The corrections that were ``made`` in a time, or are ``of`` charges of a time; oldest first.
    ``namespace`` "": of all."""
    its = CHARGE_CORRECTIONS.c
    conditions = [its.namespace == namespace] if namespace else []
    if made is not None:
        conditions += [its.created_ms >= made.start_ms, its.created_ms < made.end_ms]
    if of is not None:
        conditions += [its.at_ms >= of.start_ms, its.at_ms < of.end_ms]
    return _corrections(connection, *conditions)


def parts_of(
    connection: Connection, history: History, made: ChargeCorrection
) -> Iterator[tuple[Terms, CorrectedPart]]:
    """What the correction belongs to, with its terms; where it says nothing of that, what was in force at its
    time."""
    for part in made.parts or [
        CorrectedPart(made.amount, made.at_ms, made.at_ms + 1, _corrected(connection, made))
    ]:
        at = made.namespace, part.from_ms
        yield (history.group(*at), *history.price(*at)), part


def in_common(connection: Connection, uids: Iterable[str]) -> dict[str, str]:
    """What sessions have in common, by a report's columns and ``labels``."""
    rows: list[dict[str, str]] = []
    dialect, names = connection.dialect.name, ("owner", "node", "models", "labels", "workload", *CLAIMED)
    for some in ledger.chunks(sorted(set(uids))):
        for table, uid in ((SESSIONS, SESSIONS.c.uid), (FOLDED, FOLDED.c.session_uid)):
            its = table.c
            derived = {"workload": workload(dialect, its)} | {
                name: claimed(dialect, its, name) for name in CLAIMED
            }
            columns = (its[name] if name in its else derived[name] for name in names)
            found = connection.execute(select(*columns).where(uid.in_(some)).distinct())
            rows += (dict(zip(names, row, strict=True)) for row in found)
    first = rows[0] if rows else {}
    same = {name: value for name, value in first.items() if all(row[name] == value for row in rows)}
    labels = [orjson.loads(row["labels"]).items() for row in rows] or [{}.items()]
    common = {key: text for key, text in labels[0] if all((key, text) in pairs for pairs in labels)}
    return same | {"labels": orjson.dumps(common).decode()}


def _corrected(connection: Connection, made: ChargeCorrection) -> dict[str, str]:
    """The pod or claim that the correction names, by a report's columns and ``labels``: of several with one
    name the last before the charge was wrong. Of a namespace the labels that its last pods have in common."""
    for table, uid, began_ms in (
        (SESSIONS, SESSIONS.c.uid, SESSIONS.c.bound_ms),
        (FOLDED, FOLDED.c.session_uid, FOLDED.c.from_ms),
    ):
        theirs = select(uid).where(table.c.namespace == made.namespace, began_ms <= made.at_ms)
        newest = theirs.order_by(began_ms.desc())
        if not made.pod:
            some = connection.scalars(newest.limit(_AT_ONCE))
            return {"labels": in_common(connection, some)["labels"]}
        found = connection.scalars(newest.where(table.c.name == made.pod).limit(1)).first()
        if found is not None:
            return {**in_common(connection, (found,)), "uid": found, "pod": made.pod}
    return {}


def _corrections(connection: Connection, *conditions: Any) -> list[ChargeCorrection]:
    its = CHARGE_CORRECTIONS.c
    rows = connection.execute(select(CHARGE_CORRECTIONS).where(*conditions).order_by(its.id))
    return [
        ChargeCorrection(
            **{name: row[name] for name in row if name not in _READ},
            number=row["id"],
            uid=row["uid"] or "",
            parts=tuple(CorrectedPart(*part) for part in orjson.loads(row["parts"] or "[]")),
        )
        for row in rows.mappings()
    ]


_READ = ("id", "uid", "parts")
