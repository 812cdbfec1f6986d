"""How a database would run the statements that a call sends: which tables it would read as a whole."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Engine, event

from timekeeper.store.engine.schema import METADATA

# They hold few of their table's rows, so all of such an index may be read.
_PARTIAL = {
    index.name
    for table in METADATA.tables.values()
    for index in table.indexes
    if index.dialect_options["postgresql"]["where"] is not None
}


class Statements:
    """The SELECTs that an engine runs, from now until `end`, with their parameters."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._run: dict[str, Any] = {}  # text -> the parameters of its last run
        self.all = 0  # how many were run, equal ones too
        self.texts: list[str] = []  # of each that was run
        event.listen(engine, "before_cursor_execute", self._note)

    @property
    def count(self) -> int:
        """How many different ones were run."""
        return len(self._run)

    def end(self) -> None:
        """Note no more."""
        event.remove(self._engine, "before_cursor_execute", self._note)

    def _note(self, _c: Any, _k: Any, statement: str, given: Any, _x: Any, _many: bool) -> None:
        if statement.lstrip().upper().startswith(("SELECT", "WITH")):
            self._run[statement] = given
            self.all += 1
            self.texts.append(statement)

    def scans(self, tables: Sequence[str], if_cheap: bool = True) -> Iterator[str]:
        """For each statement that reads one of these tables row by row: the table and the statement.

        ``if_cheap`` False: only where no index could be used instead. PostgreSQL reads small tables as a
        whole, because that is cheaper.
        """
        read = _SCANS[self._engine.dialect.name]
        with self._engine.connect() as connection:
            cursor = connection.connection.cursor()
            if not if_cheap and self._engine.dialect.name == "postgresql":
                cursor.execute("SET LOCAL enable_seqscan = off")
            for statement, given in self._run.items():
                for name in read(cursor, statement, given):
                    if name in tables:
                        yield f"{name}: {' '.join(statement.split())[:200]}"
            cursor.close()


def _of_sqlite(cursor: Any, statement: str, given: Any) -> Iterator[str]:
    """``SCAN table`` reads every row, also if it is by an index; ``SEARCH`` does not."""
    cursor.execute(f"EXPLAIN QUERY PLAN {statement}", given)
    for *_, detail in cursor.fetchall():
        words = detail.split()
        if words[0] == "SCAN" and words[-1] not in _PARTIAL:
            yield words[1]


def _of_postgresql(cursor: Any, statement: str, given: Any) -> Iterator[str]:
    cursor.execute(f"EXPLAIN (FORMAT JSON) {statement}", given)
    (found,) = cursor.fetchone()
    plans = [each["Plan"] for each in (json.loads(found) if isinstance(found, str) else found)]
    while plans:
        plan = plans.pop()
        plans += plan.get("Plans", [])
        by_index = "Index Cond" in plan or plan.get("Index Name") in _PARTIAL
        if "Relation Name" in plan and not by_index and plan["Node Type"] != "Bitmap Heap Scan":
            yield plan["Relation Name"]


_SCANS = {"sqlite": _of_sqlite, "postgresql": _of_postgresql}
