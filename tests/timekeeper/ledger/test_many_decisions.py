"""Ten million decisions in one ledger, beside 40,000 running pods on 5,000 nodes: explaining a pod, an owner
or a CronJob is answered whole, and so is recording.

What it takes is not asserted: `pytest -s` prints it with the machine's load. On SQLite, which runs in this
process, it is the 99th percentile of CPU time, and on PostgreSQL the median of wall time.
"""

import os
import time
from collections.abc import Callable
from random import Random

import pytest
from sqlalchemy import text

from tests.timekeeper.worlds import HOUR, T0, Town
from timekeeper.core.decisions import Decision, DecisionRun
from timekeeper.store import decisions
from timekeeper.store.engine.engine import Store
from timekeeper.store.engine.schema import DECISIONS

BOTH_DATABASES = "what many rows cost differs by database"
pytestmark = [pytest.mark.soak, pytest.mark.timeout(3_600)]

KEPT = 10_000_000
EACH = 1_000_000  # rows of one statement
A_POD, AN_OWNER = 20, 200  # decisions of each
NAMESPACES, NODES, OPEN = 1_000, 5_000, 40_000
JOBS = 1_000  # of a CronJob

# a tenth of the pods was in one large namespace; the decisions of a pod, and the pods of an owner, are as far
# apart as they can be; figures are as long as those of a waiting pod
_ROWS = """
INSERT INTO decisions (source, kind, reason, namespace, owner, subject, is_generated, uid, budget, figures,
                       count, first_ms, last_ms)
SELECT 'extender', CASE n % 4 WHEN 0 THEN 'placed' WHEN 1 THEN 'refused' ELSE 'waiting' END, 'Reason',
       'team-' || (CASE WHEN n % 10 = 0 THEN 0 ELSE n % {namespaces} END),
       'Deployment/web-' || (n % {owners}),
       'pod-' || (n % {pods}), {no}, 'uid-' || (n % {pods}), 'team-1@0',
       '{{"cardsNeeded":1,"largestHoleMib":4096,"largestHoleMilli":500,"largestHoleNode":"gpu-3",'
       || '"memoryNeededMib":8192,"podsAhead":4,"reasons":"3 nodes: no card has 8192 MiB free"}}',
       1, {at} + n, {at} + n
FROM ({numbers}) AS numbers
"""
# a pod's session: the last of them still run, on 5,000 nodes, and each posts heartbeats
_SESSIONS = """
INSERT INTO sessions (uid, namespace, name, owner, node, models, devices, rate_milli, admitted_in_budget,
                      bound_ms, opened_ms, started_ms, ended_ms, grace_ms,
                      settled_ms, others_ended, labels, requested_milli, requested_mib,
                      was_unseen, kind, consumers, users)
SELECT 'uid-' || n,
       'team-' || (CASE WHEN n % 10 = 0 AND {ended} IS NOT NULL THEN 0 ELSE n % {namespaces} END),
       'pod-' || n, 'Deployment/web-' || (n % {owners}), 'gpu-' || (n % {nodes}), 'A100', '', 1000,
       true,
       {at} + n, {at} + n, {at} + n, {ended}, 0, {ended}, {no}, '{{}}', 1000, 0, {no},
       'pod', '', ''
FROM ({numbers}) AS numbers
"""
_POSTINGS = """
INSERT INTO postings (session_uid, sequence, namespace, from_ms, to_ms, rate_milli, amount, kind, reason,
                      created_ms)
SELECT uid, 0, namespace, bound_ms, ended_ms, 1000, 1000 * (ended_ms - bound_ms), 'settled', '', ended_ms
FROM sessions WHERE settled_ms IS NOT NULL
"""
_HEARTBEATS = """
INSERT INTO heartbeats (session_uid, boot, sequence, beat_ms, received_ms)
SELECT uid, 'run-1', 1, {at}, {at} FROM sessions WHERE settled_ms IS NULL
"""
_NODES = "INSERT INTO nodes (name, watermark_ms) SELECT 'gpu-' || n, {at} FROM ({numbers}) AS numbers"
_NUMBERS = {
    "sqlite": "WITH RECURSIVE c(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM c WHERE n < {last})"
    " SELECT n FROM c",
    "postgresql": "SELECT generate_series({first}, {last}) AS n",
}


def fill(store: Store, kept: int) -> None:
    """Add the decisions and the sessions of their pods. The indexes of decisions are built afterwards,
    because building one is quicker than growing it."""
    pods = kept // A_POD
    sizes = {"pods": pods, "namespaces": NAMESPACES, "owners": kept // AN_OWNER, "nodes": NODES}
    with store.writing() as connection:
        for index in DECISIONS.indexes:
            index.drop(connection)
    for first in range(0, kept, EACH):
        _write(store, _ROWS, first, min(kept, first + EACH), **sizes, at=T0 - kept)
    ended, still_open = max(0, pods - OPEN), {**sizes, "at": T0 - pods - HOUR}
    _write(store, _SESSIONS, 0, ended, **still_open, ended=T0)
    _write(store, _SESSIONS, ended, pods, **still_open, ended="NULL")
    _write(store, _POSTINGS)
    _write(store, _HEARTBEATS, at=T0)
    _write(store, _NODES, 0, NODES, at=T0)
    for index in DECISIONS.indexes:
        with store.writing() as connection:
            index.create(connection)


def _write(store: Store, statement: str, first: int = 0, end: int = 0, **values: object) -> None:
    """Run it for the numbers from ``first`` to before ``end``."""
    with store.writing() as connection:
        name = connection.dialect.name
        numbers = _NUMBERS[name].format(first=first, last=end - 1)
        no = "0" if name == "sqlite" else "false"
        rows = statement.format(numbers=numbers, no=no, **values)
        connection.execute(text(rows.replace(":", "\\:")))  # no parameters: colons of JSON


def _of_a_job(job: str) -> dict[str, object]:
    named = {"source": "extender", "kind": "placed", "reason": "Bound", "namespace": "team-0"}
    pod = {"owner": f"Job/{job}", "subject": f"{job}-x", "uid": f"uid-{job}", "is_generated": False}
    return {**named, **pod, "budget": "", "figures": "{}", "count": 1, "first_ms": T0, "last_ms": T0}


def quantile_ms(call: Callable[[int], None], times: int, is_shared: bool) -> float:
    """Of calls with different numbers: the 99th percentile of CPU time on SQLite, the median of wall time on
    a server."""
    random, took = Random(1), list[float]()
    clock = time.perf_counter if is_shared else time.thread_time
    for _ in range(times):
        n = random.randrange(KEPT)
        began = clock()
        call(n)
        took.append(1000 * (clock() - began))
    return sorted(took)[len(took) * (50 if is_shared else 99) // 100]


def test_ten_million_decisions_are_explained_and_recorded(town: Town) -> None:
    town.begin()
    fill(town.store, KEPT)
    pods, owners = KEPT // A_POD, KEPT // AN_OWNER
    with town.store.writing() as connection:
        for at in range(JOBS):
            connection.execute(DECISIONS.insert(), _of_a_job(f"nightly-{29_400_000 + at}"))
        connection.execute(text("ANALYZE"))

    def get(path: str, steps: int) -> None:
        answer = town.get(f"/v1/explain/{path}")
        assert answer.status_code == 200, answer.text
        assert len(answer.get_json()["steps"]) == steps

    def pod(n: int) -> None:
        get(f"team-{_namespace(n % pods)}/pod-{n % pods}", A_POD)

    def owner(n: int) -> None:
        get(f"team-{_namespace(n % owners)}/deployment/web-{n % owners}", AN_OWNER)

    def cron_job(_: int) -> None:
        get("team-0/cronjob/nightly", 100)

    def batch(n: int) -> None:
        made = [
            Decision(
                at_ms=T0,
                kind="placed",
                reason="Bound",
                namespace=f"team-{(n + at) % 100}",
                figures={"node": "n1"},
                name=f"pod-{n + at}",
            )
            for at in range(500)
        ]
        with town.store.writing() as connection:
            decisions.record(connection, "extender", [DecisionRun(each, 1, each.at_ms) for each in made])

    is_shared = town.store.is_shared
    asked = {"pod": (pod, 1_000), "owner": (owner, 300), "cron job": (cron_job, 200)}
    found = {name: quantile_ms(*call, is_shared) for name, call in asked.items()}
    began = time.perf_counter()
    for number in range(20):
        batch(500 * number)
    rate = 20 * 500 / (time.perf_counter() - began)

    print(f"\nexplain ms: {found}; decisions recorded a second: {rate:.0f}; load {os.getloadavg()}")


def _namespace(n: int) -> int:
    return 0 if n % 10 == 0 else n % NAMESPACES
