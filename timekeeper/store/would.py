"""What would have happened to the pods of metered namespaces: a row for each pod, and one more for each that
would have been evicted. They are written by the settler alone."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import ColumnElement, Integer, Select, case, func, literal_column, select, update

from timekeeper.accounts.would import VerdictWord
from timekeeper.store.engine.engine import Connection, insert_all
from timekeeper.store.engine.schema import DAY_MS, WOULD, WOULD_SINCE

WEEK_MS = 7 * DAY_MS
MONDAY_MS = 4 * DAY_MS  # the first one after 1970 began
LATE_MS = 600_000  # a pod that was judged so long after its creation has the standing of another time
_EACH_QUERY = 500
# as text, so that PostgreSQL takes all of its places for one expression
_WEEK: ColumnElement[int] = literal_column(f"((at_ms + {WEEK_MS - MONDAY_MS}) / {WEEK_MS})", Integer)


@dataclass(frozen=True, slots=True)
class WouldRow:
    """``at_ms``: when the pod was created, or when it would have been evicted."""

    uid: str
    verdict: VerdictWord
    namespace: str
    pod: str
    rule: str
    sentence: str
    at_ms: int
    judged_ms: int


def begin(connection: Connection, now_ms: int, only_meter: bool) -> int:
    """Pods that were created before this time are judged already, or were there before the ledger.
    ``only_meter``: this ledger governs nothing."""
    since_ms: int | None = connection.execute(select(WOULD_SINCE.c.since_ms)).scalar()
    if since_ms is None:
        row = {"id": 1, "since_ms": now_ms, "only_meter": only_meter}
        connection.execute(WOULD_SINCE.insert(), row)
        return now_ms
    connection.execute(update(WOULD_SINCE).values(only_meter=only_meter))
    return since_ms


def note(connection: Connection, since_ms: int) -> None:
    """All pods that were created before this time are judged."""
    its = WOULD_SINCE.c
    connection.execute(update(WOULD_SINCE).where(its.since_ms < since_ms).values(since_ms=since_ms))


def only_meters(connection: Connection) -> bool:
    """Whether the ledger governs nothing, whatever budgets say."""
    return bool(connection.execute(select(WOULD_SINCE.c.only_meter)).scalar())


def record(connection: Connection, rows: Sequence[WouldRow]) -> None:
    """Add the rows of pods that have none of their kind yet: one of its creation, and one of its eviction."""
    known = {(row.uid, row.verdict == "evicted") for row in _of(connection, {each.uid for each in rows})}
    new: dict[tuple[str, bool], WouldRow] = {}
    for each in rows:
        kind = each.uid, each.verdict == "evicted"
        if kind not in known:
            new.setdefault(kind, each)
    insert_all(connection, WOULD, [asdict(each) for each in new.values()])


AWAY: tuple[VerdictWord, ...] = ("refused", "held", "evicted")


def not_there(connection: Connection, uids: set[str], away: tuple[VerdictWord, ...] = AWAY) -> set[str]:
    """Those of these pods that would not hold cards, by their verdicts."""
    return {row.uid for row in _of(connection, uids) if row.verdict in away}


def of_pod(connection: Connection, namespace: str, pod: str) -> tuple[int, VerdictWord] | None:
    """When the newest pod of this name was created, and what would have been done with it; None: it was not
    judged."""
    its = WOULD.c
    judged = ("admitted", "demoted", "held", "refused")
    found = select(its.at_ms, its.verdict).where(its.namespace == namespace, its.pod == pod)
    row = connection.execute(found.where(its.verdict.in_(judged)).order_by(its.id.desc()).limit(1)).first()
    return None if row is None else (row.at_ms, row.verdict)


def _of(connection: Connection, uids: set[str]) -> Iterable[Any]:
    names = sorted(uids)
    for at in range(0, len(names), _EACH_QUERY):
        its = WOULD.c
        some = its.uid.in_(names[at : at + _EACH_QUERY])
        yield from connection.execute(select(its.uid, its.verdict).where(some)).all()


@dataclass(frozen=True, slots=True)
class WouldQuery:
    """Which rows. ``namespaces``: any of these. ``after``: only groups after this week, namespace, verdict
    and rule, in the answer's order."""

    from_ms: int
    to_ms: int
    namespaces: tuple[str, ...]
    after: tuple[int, str, str, str] | None = None


@dataclass(frozen=True, slots=True)
class WouldGroup:
    """The pods of one namespace and week with one verdict by one rule. ``week``: its number since 1970;
    ``of``: pods of the namespace that were judged in that week; ``late``: how many were judged by the
    standing of a later time; ``pod``, ``sentence``: of the newest."""

    week: int
    namespace: str
    verdict: str
    rule: str
    pods: int
    of: int
    late: int
    pod: str
    sentence: str


def week_start_ms(week: int) -> int:
    """The Monday on which it begins, UTC."""
    return week * WEEK_MS + MONDAY_MS - WEEK_MS


def week_of(at_ms: int) -> int:
    """The number of the week."""
    return (at_ms + WEEK_MS - MONDAY_MS) // WEEK_MS


def namespaces(connection: Connection, from_ms: int, to_ms: int) -> list[str]:
    """Those that have rows in this time."""
    its = WOULD.c
    found = select(its.namespace).where(its.at_ms >= from_ms, its.at_ms < to_ms).distinct()
    return list(connection.scalars(found.order_by(its.namespace)))


def groups(connection: Connection, asked: WouldQuery, limit: int) -> list[WouldGroup]:
    """The newest week first, then by namespace, verdict and rule."""
    after = None if asked.after is None else (-asked.after[0], *asked.after[1:])
    counted = (row for some in _portions(asked.namespaces) for row in _groups(connection, asked, some))
    placed = sorted(((_place(row), row) for row in counted), key=lambda each: each[0])
    found = [row for place, row in placed if after is None or place > after][:limit]
    judged = _judged(connection, asked, sorted({row.namespace for row in found}))
    newest = _newest(connection, [row.newest for row in found])
    return [
        WouldGroup(
            *(row.week, row.namespace, row.verdict, row.rule, row.pods),
            judged.get((row.week, row.namespace), 0),
            row.late,
            *newest[row.newest],
        )
        for row in found
    ]


def _place(row: Any) -> tuple[int, str, str, str]:
    return -row.week, row.namespace, row.verdict, row.rule


def _portions(names: Sequence[str]) -> Iterable[Sequence[str]]:
    return (names[at : at + _EACH_QUERY] for at in range(0, len(names), _EACH_QUERY))


def _groups(connection: Connection, asked: WouldQuery, names: Sequence[str]) -> Sequence[Any]:
    its = WOULD.c
    keys = its.namespace, its.verdict, its.rule
    late = func.sum(case((its.judged_ms - its.at_ms > LATE_MS, 1), else_=0))
    counted = func.count().label("pods"), late.label("late"), func.max(its.id).label("newest")
    found: Select[Any] = _within(select(_WEEK.label("week"), *keys, *counted), asked, names)
    return connection.execute(found.group_by(_WEEK, *keys)).all()


def _within(found: Select[Any], asked: WouldQuery, names: Sequence[str]) -> Select[Any]:
    its = WOULD.c
    return found.where(its.namespace.in_(names), its.at_ms >= asked.from_ms, its.at_ms < asked.to_ms)


def _judged(connection: Connection, asked: WouldQuery, names: Sequence[str]) -> dict[tuple[int, str], int]:
    its = WOULD.c
    found: dict[tuple[int, str], int] = {}
    for some in _portions(names):
        counted = select(_WEEK.label("week"), its.namespace, func.count().label("pods"))
        counted = _within(counted, asked, some).where(its.verdict != "evicted")
        rows = connection.execute(counted.group_by(_WEEK, its.namespace))
        found |= {(row.week, row.namespace): row.pods for row in rows}
    return found


def _newest(connection: Connection, ids: Sequence[int]) -> dict[int, tuple[str, str]]:
    found: dict[int, tuple[str, str]] = {}
    for at in range(0, len(ids), _EACH_QUERY):
        its = WOULD.c
        rows = select(its.id, its.pod, its.sentence).where(its.id.in_(ids[at : at + _EACH_QUERY]))
        found |= {row.id: (row.pod, row.sentence) for row in connection.execute(rows)}
    return found
