"""How long usage reports over a month take.

``python -m tests.bench.reports [--postings N] [--open N] [--database URL] [--json FILE]``. The ledger is made
for it: ten postings to a session, 500 namespaces, 30 days, a figure of use for each posting. Without a
database: a fresh SQLite file, then a fresh PostgreSQL. Asked over WSGI, without a network.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from sqlalchemy import text

from tests.bench.command import TO_STDOUT, figures, timekeeper, write
from tests.postgresql import end, fresh_postgresql
from tests.timekeeper.books import Books

Json = dict[str, Any]

DAY = 86_400_000
BEGIN = 1_793_491_200_000  # 2026-11-01T00:00:00Z
DAYS, NAMESPACES, POSTINGS_EACH, RUNS = 30, 500, 10, 5
AT_ONCE = 100_000

QUESTIONS = {
    "by namespace, the month": "",
    "by namespace, the month less a second at each end": "cut",
    "by namespace and day": "by=day",
    "by group": "group=group",
    "one namespace by pod": "namespace=t7&group=pod",
    "by owner": "group=owner",
    "by node": "group=node",
    "by model": "group=model",
    "by label": "group=label:team",
    "by namespace with use": "use=true",
    "by model and hour, four days": "group=model&by=hour",
    "by pod, first page of 1000": "group=pod&limit=1000",
    "by pod, all of it": "group=pod",
    "FOCUS rows, first page of 1000": "format=focus&limit=1000",
    "FOCUS rows, all of it": "format=focus-csv",
}

_COUNT = (
    "WITH RECURSIVE n(n) AS (SELECT CAST({first} AS BIGINT)"
    " UNION ALL SELECT n + 1 FROM n WHERE n + 1 < {last})"
)
_SESSIONS = """ INSERT INTO sessions (uid, namespace, name, owner, node, models, devices, rate_milli,
 admitted_in_budget, bound_ms, opened_ms, started_ms, ended_ms, grace_ms,
 settled_ms, others_ended, labels, requested_milli, requested_mib, was_unseen, kind,
 consumers, users)
 SELECT 'uid-' || n, 't' || (n % {namespaces}), 'pod-' || n, 'Job/job-' || (n % 1000),
 'node-' || (n % 200), CASE n % 3 WHEN 0 THEN 'A100' ELSE 'H100' END, '', 1000, true,
 {at}, {at}, {at}, {ended}, 0, {ended}, false, '{{"team":"x' || (n % 50) || '"}}', 1000, 0, false,
 'pod', '', ''
 FROM n"""
_POSTINGS = """ INSERT INTO postings (session_uid, sequence, namespace, from_ms, to_ms, rate_milli, amount,
 kind, reason, created_ms)
 SELECT 'uid-' || (n / {each}), n % {each}, 't' || (n / {each} % {namespaces}), {at}, {at} + 3600000,
 1000, 3600000000, 'settled', '', {at} FROM n"""
_FIGURES = """ INSERT INTO figures (session_uid, hour_ms, source, covered_ms, used_milli_ms, memory_mib_ms)
 SELECT 'uid-' || (n / {each}), {at}, 'node', 3600000, 1800000000, 0 FROM n"""


def fill(books: Books, postings: int, still_open: int) -> None:
    """A month of sessions: posting k of session s lies on day (s + k) % 30, in one of its 23 first hours."""
    sessions = postings // POSTINGS_EACH
    shared = {"namespaces": NAMESPACES, "each": POSTINGS_EACH}
    done = f"{BEGIN + DAYS * DAY}"
    runs = [
        (_SESSIONS, 0, sessions, str(BEGIN), done),
        (_SESSIONS, sessions, sessions + still_open, done, "NULL"),
    ]
    at = f"{BEGIN} + (n / {POSTINGS_EACH} + n % {POSTINGS_EACH}) % {DAYS} * {DAY} + n % 23 * 3600000"
    runs += [
        (table, first, min(first + AT_ONCE, postings), at, "")
        for table in (_POSTINGS, _FIGURES)
        for first in range(0, postings, AT_ONCE)
    ]
    for statement, first, last, begins, ended in runs:
        if first < last:
            filled = (_COUNT + statement).format(first=first, last=last, at=begins, ended=ended, **shared)
            with books.store.writing() as connection:
                connection.execute(text(filled.replace(":", "\\:")))
    with books.store.engine.begin() as connection:
        connection.exec_driver_sql("ANALYZE")  # as PostgreSQL does by itself after a while


def ask(books: Books, name: str, query: str) -> Json:
    """A report's times in milliseconds, and how large it is."""
    cut = 1_000 if query == "cut" else 0
    end = BEGIN + (4 if "four days" in name else DAYS) * DAY - cut
    path = f"/v1/usage?from={BEGIN + cut}&to={end}&{'' if cut else query}".rstrip("&")
    times, size = [], 0
    for _ in range(RUNS):
        began = time.perf_counter()
        answer = books.get(path)
        if answer.status_code != 200:
            raise SystemExit(f"{path}: {answer.status_code} {answer.get_data(as_text=True)}")
        size = sum(len(piece) for piece in answer.response)
        answer.close()
        times.append(1000 * (time.perf_counter() - began))
        if sum(times) > 10_000:
            break
    return {"ms": round(sorted(times)[len(times) // 2], 1), "bytes": size}


def measure(url: str, postings: int, still_open: int) -> Json:
    """Every question's time on one database."""
    books = Books(url)
    books.clock.at_ms = BEGIN + DAYS * DAY + DAY
    books.entries(("_defaults", "gpuHours: 1000\ngroup: all\nprice: 2.5", 0))
    began = time.perf_counter()
    fill(books, postings, still_open)
    books.state()
    books.states = False
    print(
        f"\n{url.partition(':')[0]}: {postings} postings made in {time.perf_counter() - began:.0f} s",
        file=sys.stderr,
    )
    print(f"{'report':<52}{'ms':>9}{'bytes':>12}", file=sys.stderr)
    rows = {}
    for name, query in QUESTIONS.items():
        rows[name] = ask(books, name, query)
        print(f"{name:<52}{rows[name]['ms']:>9}{rows[name]['bytes']:>12}", file=sys.stderr)
    books.close()
    return rows


def main() -> None:
    """Prints the tables and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postings", type=int, default=1_000_000, help="in the month (%(default)s)")
    parser.add_argument("--open", type=int, default=1_000, help="sessions that are not settled (%(default)s)")
    parser.add_argument("--database", help="an empty one, by its URL")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    found: Json = {"postings": arguments.postings, "open": arguments.open}
    if arguments.database:
        found["given"] = measure(arguments.database, arguments.postings, arguments.open)
    else:
        numbers = ("--postings", str(arguments.postings), "--open", str(arguments.open))
        with timekeeper() as (here, sqlite), fresh_postgresql() as postgresql:
            for url in (sqlite, postgresql):
                found[url.partition(":")[0].partition("+")[0]] = figures(
                    here, "reports", "--database", url, *numbers, TO_STDOUT
                )["given"]
        end()
    write(arguments.json, found)


if __name__ == "__main__":
    main()
