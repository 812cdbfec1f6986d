"""Writes an exported ledger into an empty database: all of it, or nothing."""

import hashlib
import hmac
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import Any, NamedTuple

import orjson
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Table,
    Text,
    delete,
    exc,
    func,
    select,
    tuple_,
    update,
)

from timekeeper.settings import UnusableError
from timekeeper.store.engine import kinds
from timekeeper.store.engine.engine import Connection, insert_all
from timekeeper.store.engine.former import ADDED, BEFORE, DROPPED, FORMER
from timekeeper.store.engine.schema import (
    ACCOUNTS,
    BINDINGS,
    CARD_HOURS,
    DAYS,
    DECISIONS,
    DECLARED_PODS,
    ENDED,
    ENDS,
    ENTRY_ERRORS,
    FOLDED,
    HELD_PODS,
    NODE_USES,
    PULSE,
    STANDINGS,
    TERMS,
    WAITING,
    WOULD,
    WOULD_SINCE,
)
from timekeeper.store.engine.upgrade import newest_revision, take_time
from timekeeper.store.postings import add_all_rollups
from timekeeper.store.transfer.exporter import TABLES, VERSION

_BATCH = 500

# Rows that a timekeeper writes before the first charge. All but decisions are recreated at every start.
_PASSING = (
    *(ACCOUNTS, ENTRY_ERRORS, WAITING, HELD_PODS, DECLARED_PODS, STANDINGS, PULSE, NODE_USES, BINDINGS, ENDS),
    *(DECISIONS, WOULD, WOULD_SINCE, CARD_HOURS),
)

# Rows that an earlier release exported, and that are left out.
_ENDED = tuple(table.name for table in ENDED)

_INT64 = 2**63


class ImportRefusedError(ValueError):
    """The file cannot be taken in; the text names the line and what is wrong with it."""

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(f"line {number}: {problem}")


class _Row(NamedTuple):
    number: int
    table: Table
    values: dict[str, Any]


def load(connection: Connection, lines: Iterable[bytes], now_ms: int) -> int:
    """Write an exported ledger; returns the number of rows written.

    Every CHECK, key and trigger of the database applies to each row. Raises UnusableError if the database
    holds a ledger, and the import error if the file is truncated, changed, or holds forbidden values: the
    caller must then roll back. A settler that still runs on this database stops.
    """
    take_time(connection)
    # First of all: two concurrent imports take turns, and the second finds a ledger.
    connection.execute(update(TERMS).values(term=TERMS.c.term + 1, holder="import", since_ms=now_ms))
    _check_empty(connection)
    for table in _PASSING:
        connection.execute(delete(table))
    count = totals = 0
    last = 1  # the line of the last row, or of the header
    for table, rows in groupby(_rows(connection, lines), key=lambda row: row.table):
        while batch := list(islice(rows, _BATCH)):
            count += len(batch)
            last = batch[-1].number
            if table is DAYS:
                totals += len(batch)
                _take_days(connection, batch)
            else:
                _insert(connection, table, batch)
        if table is FOLDED:
            add_all_rollups(connection)
    _check_days(connection, last, totals)
    _count_on(connection)
    while kinds.fill_some(connection):
        pass
    return count


def _check_empty(connection: Connection) -> None:
    for table in TABLES:
        if table not in _PASSING and connection.execute(select(table).limit(1)).first() is not None:
            raise UnusableError(
                f"--database: it holds a ledger already (table {table.name} is not empty);"
                " import needs an empty database, or a new file"
            )


def _rows(connection: Connection, lines: Iterable[bytes]) -> Iterator[_Row]:
    """The rows of a complete file, as written, without those of tables that have ended. It stays the
    ledger of the cluster that the header names."""
    digest, number, done, last = hashlib.sha256(), 0, False, 0
    revision = ""
    for number, line in enumerate(lines, start=1):
        document = _document(number, line)
        if done:
            raise ImportRefusedError(number, "the trailer was the line before; nothing may follow it")
        if number == 1:
            _check_header(document)
            revision = document["revision"]
            connection.execute(update(TERMS).values(cluster=document.get("cluster")))
        elif "sha256" in document:
            _check_trailer(number, document, digest.hexdigest())
            done = True
        elif document.get("table") not in _ENDED:
            row = _row(number, document, revision)
            if TABLES.index(row.table) < last:
                raise ImportRefusedError(number, f"rows of {row.table.name} must come earlier in the file")
            last = TABLES.index(row.table)
            yield row
        digest.update(line)
    if not done:
        raise ImportRefusedError(number + 1, "the file ends without its trailer: it is cut off")


def _document(number: int, line: bytes) -> dict[str, Any]:
    if not line.endswith(b"\n"):
        raise ImportRefusedError(number, "it is cut off")
    try:
        document = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ImportRefusedError(number, f"it is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ImportRefusedError(number, "it is not a JSON object")
    return document


def _check_header(document: dict[str, Any]) -> None:
    is_ours = document.get("bursar") == "ledger" and isinstance(document.get("cluster"), str | None)
    if not is_ours or document.get("version") != VERSION:
        wanted = f'"bursar": "ledger", "version": {VERSION}'
        raise ImportRefusedError(1, f"it is not the header of an exported ledger; it must have {wanted}")
    if document.get("revision") not in (newest_revision(), BEFORE, FORMER):
        raise ImportRefusedError(
            1,
            f"the ledger was exported at schema {document.get('revision')}, and this release reads"
            f" {newest_revision()}, {BEFORE} and {FORMER} alone: import with the release that exported",
        )


def _check_trailer(number: int, document: dict[str, Any], digest: str) -> None:
    if document.get("lines") != number - 1:
        raise ImportRefusedError(
            number, f"{document.get('lines')} lines were exported, {number - 1} are here"
        )
    if not hmac.compare_digest(str(document["sha256"]).encode(), digest.encode()):
        raise ImportRefusedError(
            number, "the lines before this one differ from those that were exported: their sha256 differs"
        )


def _row(number: int, document: dict[str, Any], revision: str) -> _Row:
    table = next((table for table in TABLES if table.name == document.get("table")), None)
    values = document.get("row")
    if table is None or not isinstance(values, dict):
        raise ImportRefusedError(number, "it is not a row: it must have a table of the ledger, and a row")
    gone = DROPPED.get(table.name, ()) if revision == FORMER else ()
    new = ADDED.get(table.name, ()) if revision != newest_revision() else ()
    values = {**dict.fromkeys(new), **values}
    for name in sorted(values.keys() ^ {*table.c.keys(), *gone}):
        problem = "there is no such column" if name in values else "it is missing"
        raise ImportRefusedError(number, f"{table.name}.{name}: {problem}")
    values = {name: value for name, value in values.items() if name not in gone}
    if values.get("folded_ms") is not None:
        raise ImportRefusedError(
            number, "sessions.folded_ms: it must be null, a rolled-up session has no row here"
        )
    for column in table.c:
        if not _fits(column, values[column.name]):
            raise ImportRefusedError(number, f"{table.name}.{column.name} has the wrong type")
    return _Row(number, table, values)


def _fits(column: Column[Any], value: object) -> bool:
    """Checks the type: SQLite would accept any type in any column."""
    if value is None:
        return bool(column.nullable)
    if isinstance(column.type, Boolean):
        return isinstance(value, bool)
    if isinstance(column.type, Text):
        return isinstance(value, str) and "\0" not in value
    return isinstance(value, int) and not isinstance(value, bool) and -_INT64 <= value < _INT64


def _insert(connection: Connection, table: Table, rows: list[_Row]) -> None:
    if not rows:
        return
    try:
        with connection.begin_nested():
            insert_all(connection, table, [row.values for row in rows])
    except (exc.IntegrityError, exc.DataError) as error:
        if len(rows) == 1:
            problem = " ".join(str(error.orig).split())
            raise ImportRefusedError(rows[0].number, f"the database refuses it: {problem}") from error
        # Bisects the batch until the offending row is known.
        middle = len(rows) // 2
        _insert(connection, table, rows[:middle])
        _insert(connection, table, rows[middle:])


def _take_days(connection: Connection, rows: list[_Row]) -> None:
    """Day totals are checked, not copied: they must equal the sums that the triggers computed from the
    imported postings."""
    keys = [(row.values["namespace"], row.values["day_ms"]) for row in rows]
    key = tuple_(DAYS.c.namespace, DAYS.c.day_ms)
    found = select(DAYS.c.namespace, DAYS.c.day_ms, DAYS.c.amount).where(key.in_(keys))
    summed = {(row.namespace, row.day_ms): row.amount for row in connection.execute(found)}
    for row, at in zip(rows, keys, strict=True):
        if row.values["amount"] != summed.get(at, 0):
            problem = f"the postings of {at[0]} on that day come to {summed.get(at, 0)}"
            raise ImportRefusedError(row.number, f"its amount is {row.values['amount']}, and {problem}")
    _insert(connection, DAYS, [row for row, at in zip(rows, keys, strict=True) if at not in summed])


def _check_days(connection: Connection, last: int, totals: int) -> None:
    """The file, whose last row is on this line, must have the total of every day that has one."""
    summed = connection.execute(select(func.count()).select_from(DAYS)).scalar_one()
    if summed != totals:
        raise ImportRefusedError(
            last + 1, f"{totals} totals by day came before, and the postings make {summed}"
        )


def _count_on(connection: Connection) -> None:
    """PostgreSQL's key sequences do not count explicitly given keys; SQLite does."""
    if connection.dialect.name != "postgresql":
        return
    for table in TABLES:
        key = table.primary_key.columns.values()[0]
        if key.name != "id" or not isinstance(key.type, BigInteger):
            continue
        sequence = func.pg_get_serial_sequence(table.name, key.name)
        connection.execute(select(func.setval(sequence, func.max(key))).having(func.max(key).is_not(None)))
