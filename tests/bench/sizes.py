"""How many bytes each kind of row takes, with its indexes, on SQLite and PostgreSQL.

``python -m tests.bench.sizes [--count N] [--json FILE]``. The rows are written by the product's own writers,
in portions, as it writes them. docs/databases.md has the table ("Growth").
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

from sqlalchemy import text

from tests.bench.command import arguments, write
from tests.postgresql import EMPTY, end, fresh_postgresql
from tests.timekeeper.rows import beat
from tests.timekeeper.worlds import DAY, HOUR, T0
from timekeeper.accounts.card_use.figures import UsageTotals
from timekeeper.accounts.changes import Changes
from timekeeper.accounts.posting import Posting
from timekeeper.accounts.session import Session
from timekeeper.core.decisions import Decision, DecisionRun
from timekeeper.store import cluster_map, decisions, heartbeats, node_usage, postings
from timekeeper.store.cluster_map import CardCount
from timekeeper.store.engine.engine import Connection, Store, open_store, write_all
from timekeeper.store.engine.upgrade import upgrade
from timekeeper.store.retention import roll_up_all

AT_ONCE = 2_000
MIDNIGHT = T0 - T0 % DAY
FOLDED = "folded pod-day"
DEVICES = '{"cards":[{"uuid":"GPU-UID","milli":500}]}'
POD = ("sessions", "heartbeats", "postings")
Portion = Callable[[Connection, range], None]


def uid(number: int) -> str:
    """A pod's UID; such numbers follow each other in no order, as those of pods."""
    return str(UUID(int=number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128))


def named(number: int) -> tuple[str, str, str]:
    """Namespace, owner and name of a pod."""
    owner = f"train-resnet-{number // 4:07}"
    return f"team-{number % 3_000:04}-research", f"Job/{owner}", f"{owner}-{uid(number)[:5]}"


def pods(connection: Connection, numbers: range) -> None:
    """Pods that ran for an hour of one day, with a sidecar."""
    begin = MIDNIGHT + HOUR
    sessions = tuple(
        Session(
            uid=uid(number),
            namespace=namespace,
            name=name,
            owner=owner,
            node=f"gpu-node-{number % 1_000:04}",
            models="NVIDIA-A100-SXM4-80GB",
            devices=DEVICES.replace("UID", uid(number)),
            rate_milli=500,
            admitted_in_budget=True,
            bound_ms=begin,
            opened_ms=begin,
            started_ms=begin,
            ended_ms=begin + HOUR,
            settled_ms=begin + HOUR,
            labels='{"app":"train","batch.kubernetes.io/job-name":"train-resnet"}',
            requested_milli=500,
            requested_mib=40_960,
        )
        for number in numbers
        for namespace, owner, name in (named(number),)
    )
    posted = tuple(
        Posting(
            *(each.uid, 0, each.namespace, begin, begin + HOUR, 500, "settled"),
            *("the kubelet's timestamps", begin + HOUR),
        )
        for each in sessions
    )
    write_all(connection, postings.rows_of(Changes(opened=sessions, postings=posted)))
    posts = [heartbeats.HeartbeatPost(each.uid, uid(1)[:8], 720, (0,), begin + HOUR) for each in sessions]
    beat(connection, posts, 5_000)


def hours(connection: Connection, numbers: range) -> None:
    """Hours of pods that an agent measures, as they come: all pods of an hour, then those of the next."""
    used = {
        (uid(number % AT_ONCE), MIDNIGHT + number // AT_ONCE * HOUR): UsageTotals(
            HOUR, 500 * HOUR, HOUR << 14
        )
        for number in numbers
    }
    node_usage.add(connection, used, node_usage.NODE)


def card_hours_of_models(connection: Connection, numbers: range) -> None:
    """Hours of a cluster with cards of eight models."""
    models = "", *(f"NVIDIA-A100-SXM4-{number}0GB" for number in range(1, 8))
    counts = {model: CardCount(5_000_000, 5_000_000, 500_000) for model in models}
    for number in range(numbers.start, numbers.stop, len(models)):
        hour_ms = MIDNIGHT + number // len(models) * HOUR
        for half_ms in (hour_ms, hour_ms + 30_000):
            write_all(connection, list(cluster_map.added_hours(half_ms, counts, half_ms + 30_000)))


def decided(connection: Connection, numbers: range) -> None:
    """What admission decides of pods."""
    figures: dict[str, int | str] = {"cards": 1, "gpuPercent": 50, "memoryMib": 40_960, "mode": "enforce"}
    runs = [
        DecisionRun(
            Decision(
                at_ms=T0 + number,
                kind="admitted",
                reason="InBudget",
                figures=figures,
                uid=uid(number),
                budget=namespace,
                namespace=namespace,
                owner=owner,
                name=name,
            ),
            1,
            T0 + number,
        )
        for number in numbers
        for namespace, owner, name in (named(number),)
    ]
    decisions.record(connection, "webhook", runs)


def namespace_days(connection: Connection, numbers: range) -> None:
    """One charge of each namespace a day."""
    session = Session("u", "team-0000-research", "p", "", "n", "", "{}", 1, True, 1, 1, 1, 2)
    if not numbers.start:
        write_all(connection, postings.rows_of(Changes(opened=(session,))))
    days = (
        (number, f"team-{number % 3_000:04}-research", MIDNIGHT + number // 3_000 * DAY) for number in numbers
    )
    made = tuple(Posting("u", at, name, day, day + 1, 1, "correction", "r", day) for at, name, day in days)
    write_all(connection, postings.rows_of(Changes(postings=made)))


# what is counted -> its tables, and what writes a portion
KINDS: dict[str, tuple[tuple[str, ...], Portion]] = {
    "pod": (POD, pods),
    "pod-hour": (("figures",), hours),
    "model-hour": (("card_hours",), card_hours_of_models),
    "decision": (("decisions",), decided),
    "namespace-day": (("days",), namespace_days),
    FOLDED: (("folded",), pods),
}


def size(store: Store, tables: tuple[str, ...]) -> int:
    """Bytes of these tables with their indexes."""
    pages = "SELECT sum(pgsize) FROM dbstat JOIN sqlite_schema USING (name) WHERE tbl_name = :table"
    found = text(
        "SELECT pg_total_relation_size(CAST(CAST(:table AS text) AS regclass))" if store.is_shared else pages
    )
    with store.reading() as connection:
        return sum(int(connection.execute(found, {"table": table}).scalar_one()) for table in tables)


def sizes(url: str, count: int) -> Iterator[tuple[str, int]]:
    """Each kind and its bytes."""
    store = open_store(url)
    upgrade(store)
    for kind, (tables, portion) in KINDS.items():
        if kind == FOLDED:
            roll_up_all(store, lambda: T0 + 99 * DAY, DAY, batch=AT_ONCE)
        for start in () if kind == FOLDED else range(0, count, AT_ONCE):
            with store.writing() as connection:
                portion(connection, range(start, start + AT_ONCE))
        yield kind, size(store, tables) // count
    store.close()


def main() -> None:
    """Prints the table and writes the JSON."""
    given = arguments(__doc__, count=(100_000, "units of each kind"))
    with tempfile.TemporaryDirectory(prefix="bursar-sizes-") as folder, fresh_postgresql(EMPTY) as url:
        found = [dict(sizes(each, given.count)) for each in (f"sqlite:///{Path(folder)}/ledger.db", url)]
    end()
    for kind in KINDS:
        print(f"{kind:20}" + "".join(f"{each[kind]:>10}" for each in found))
    write(given.json, found)


if __name__ == "__main__":
    main()
