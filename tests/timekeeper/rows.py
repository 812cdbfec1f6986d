"""A valid row of each table, for tests that write to the database directly."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Executable, select

from timekeeper.accounts.card_use.figures import UsageTotals
from timekeeper.store import heartbeats
from timekeeper.store.engine.engine import Connection, Store, commit_together, read_together
from timekeeper.store.engine.schema import FIGURES, METADATA
from timekeeper.store.node_usage import TENANT

Row = dict[str, object]
Changes = list[tuple[Executable, Any]]

DAY = 86_400_000

SESSION: Row = {
    "uid": "u",
    "namespace": "a",
    "name": "p",
    "owner": "",
    "node": "n",
    "models": "",
    "devices": "",
    "rate_milli": 1,
    "admitted_in_budget": True,
    "bound_ms": 1,
    "opened_ms": 1,
    "grace_ms": 0,
    "others_ended": False,
    "labels": "{}",
    "requested_milli": 0,
    "requested_mib": 0,
    "was_unseen": False,
    "kind": "pod",
    "consumers": "",
    "users": "",
}
POSTING: Row = {
    "session_uid": "u",
    "sequence": 0,
    "namespace": "a",
    "from_ms": 1,
    "to_ms": 3,
    "rate_milli": 5,
    "amount": 10,
    "kind": "settled",
    "reason": "r",
    "created_ms": 1,
}
GRANT: Row = {
    "subject": "a",
    "period_start_ms": 0,
    "period_end_ms": 1,
    "amount": 1,
    "kind": "period",
    "reason": "r",
    "actor": "x",
    "idempotency_key": "k",
    "created_ms": 1,
}
BEAT: Row = {"session_uid": "u", "boot": "b", "sequence": 0, "beat_ms": 1, "received_ms": 1}
GOOD: dict[str, Row] = {
    "entries": {"key": "a", "text": "t", "from_ms": 1},
    "grants": GRANT,
    "sessions": SESSION,
    "nodes": {"name": "n", "watermark_ms": 1},
    "heartbeats": BEAT,
    "postings": POSTING,
    "days": {"namespace": "b", "day_ms": 0, "amount": 1},
    "folded": {
        **dict.fromkeys(("owner", "models"), ""),
        **{"session_uid": "v", "namespace": "a", "name": "p", "node": "n", "labels": "{}"},
        **{"from_ms": 1, "to_ms": 3, "rate_milli": 5, "amount": 10},
        **{"requested_milli": 5, "requested_mib": 1, "created_ms": 1, "kind": "pod", "devices": ""},
    },
    "figures": {
        **{"session_uid": "u", "hour_ms": 0, "source": "node"},
        **{"covered_ms": 1, "used_milli_ms": 1, "memory_mib_ms": 1},
    },
    "card_hours": {"hour_ms": 0, "model": "", "known_ms": 1, "held": 0, "free": 0, "waiting": 0},
    "node_uses": {
        **{"name": "n", "runs": '{"b":1}', "use_ms": 1, "received_ms": 1},
        **{"cards": "{}", "overuse": "{}", "idle": "{}"},
    },
    "accounts": {
        **{"subject": "a", "start_ms": 0, "end_ms": 1, "granted": None, "carried": 0, "received": 0},
        **{"posted": 0, "pending": 0, "reserved": 0, "declared": 0, "reserving_milli": 0},
        **{"running_milli": 0, "waiting_milli": 0, "standing": "UNLIMITED", "as_of_ms": 0, "term": 0},
        "format": 1,
    },
    "bindings": {
        **{"uid": "w", "namespace": "a", "name": "p", "node": "n", "bound_ms": 1, "request": "{}"},
        **{"devices": "", "grace_ms": 0, "received_ms": 1},
    },
    "ends": {
        **{"uid": "w", "namespace": "a", "name": "p", "node": "n", "bound_ms": 1, "is_over": True},
        **{"ended_ms": 1, "reported_ms": None, "witnessed_ms": 1, "grace_ms": 0, "deletion_ms": None},
        **{"removed_ms": 1, "left_ms": None, "received_ms": 1},
    },
    "decisions": {
        **{"source": "webhook", "kind": "refused", "reason": "TooLarge", "namespace": "a", "owner": ""},
        **{"subject": "p-", "is_generated": True, "uid": "", "budget": "", "figures": "{}"},
        **{"count": 1, "first_ms": 1, "last_ms": 2},
    },
    "notified": {"destination": "https://x", "decision_id": 1},
    "map_nodes": {
        **{"name": "n", "models": "A100", "cards": 1, "unhealthy": 0, "is_closed": False, "used_milli": 0},
        **{"memory_mib": 1, "used_mib": 0, "body": "{}", "received_ms": 1},
    },
    "map_waiting": {"id": 1, "total": 0, "body": "[]", "received_ms": 1, "more": "{}"},
    "map_posts": {"id": 1, "received_ms": 1, "term": "", "earlier": "[]"},
    "findings": {"role": "extender", "body": "{}", "received_ms": 1},
    "map_hours": {"hour_ms": 0, "known_ms": 1},
    "stranded": {"namespace": "a", "hour_ms": 0, "amount": 1},
    "would": {
        **{"uid": "u", "verdict": "refused", "namespace": "a", "pod": "p", "rule": "amount", "sentence": ""},
        **{"at_ms": 1, "judged_ms": 1},
    },
    "closed_months": {
        **{"month": "2026-10", "from_ms": 1, "to_ms": 10, "sessions": 1, "amount": 1, "grants": 1},
        **{"charges_sha256": "a", "grants_sha256": "b", "prices_sha256": "c", "closed_ms": 10},
    },
    "charge_corrections": {
        **{"namespace": "a", "pod": "", "at_ms": 1, "amount": -1, "reason": "r", "actor": "p"},
        **{"idempotency_key": "k", "created_ms": 2},
    },
    "would_since": {"id": 1, "since_ms": 1, "only_meter": False},
    "logins": {"digest": "d", "username": "oidc:ada", "groups": "[]", "began_ms": 1, "until_ms": 2},
    "terms": {"id": 1, "term": 0, "holder": "h", "since_ms": 0},
    "waiting": {"namespace": "a", "rate_milli": 1},
    "held_pods": {
        "uid": "u",
        "namespace": "a",
        "name": "p",
        "priority": 0,
        "created_ms": 1,
        "rate_milli": 0,
        "needs_budget": True,
        "length_ms": 0,
        "gang": "",
    },
    "declared_pods": {
        **{"uid": "u", "namespace": "a", "name": "p"},
        **{"rate_milli": 1, "length_ms": 1, "reserved_ms": 1},
    },
    "standings": {"id": 1, "revision": "r", "body": "{}"},
    "pulse": {"id": 1, "tick_ms": 1, "decided_ms": 1, "state": "", "device_claims": "", "watches": ""},
}


def insert(store: Store, table: str, **row: object) -> None:
    with store.writing() as connection:
        connection.execute(METADATA.tables[table].insert(), {**GOOD[table], **row})


def days(store: Store) -> dict[tuple[str, int], int]:
    """The table of daily sums."""
    with store.reading() as connection:
        rows = connection.execute(METADATA.tables["days"].select())
        return {(row.namespace, row.day_ms): row.amount for row in rows}


def hours(connection: Connection, uid: str, source: str = TENANT) -> dict[int, UsageTotals]:
    """A session's use by the hour, as the database has it."""
    columns = (FIGURES.c.hour_ms, FIGURES.c.covered_ms, FIGURES.c.used_milli_ms, FIGURES.c.memory_mib_ms)
    mine = select(*columns).where(FIGURES.c.session_uid == uid, FIGURES.c.source == source)
    return {hour_ms: UsageTotals(*figures) for hour_ms, *figures in connection.execute(mine)}


def decided(
    connection: Connection, posts: Sequence[heartbeats.HeartbeatPost], interval_ms: int = 5_000
) -> tuple[list[heartbeats.PostResult], Changes]:
    """What becomes of these posts, and what is to be written."""
    sessions, runs = read_together(connection, *heartbeats.questions(connection, posts))
    return heartbeats.decide(posts, sessions, runs, interval_ms)


def beat(connection: Connection, posts: Sequence[heartbeats.HeartbeatPost], interval_ms: int = 5_000) -> None:
    """Write these posts."""
    commit_together(connection, decided(connection, posts, interval_ms)[1])
