"""A ledger whose rows a test writes itself, including rows that the settler would never write, and its REST
API. Before each request the accounts are stated, as a settler does it in each tick."""

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from flask.testing import FlaskClient
from sqlalchemy import insert
from werkzeug.test import TestResponse

from tests.support.clock import Clock
from tests.support.shared_routes import SharingFlask
from tests.timekeeper.listed import write_accounts
from tests.timekeeper.rows import SESSION
from tests.timekeeper.statements import open_shared
from tests.timekeeper.worlds import ADMIN, DAY, GPU, T0, Reviews, user_status, with_schema
from timekeeper.api.create_app import app_of, create_services
from timekeeper.api.ledger.login_sessions import LoginSessions
from timekeeper.runtime.auth.gate import Gate
from timekeeper.settler.months import MonthCloser
from timekeeper.store.engine.engine import PATIENCE_MS, Connection
from timekeeper.store.engine.schema import ENTRIES, FIGURES, FOLDED, HEARTBEATS, POSTINGS, SESSIONS
from timekeeper.store.engine.upgrade import upgrade

Json = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """A session, and its postings as (from, to, factor of its rate). Without ``settled`` and ``ended_ms`` it
    is running, and its last heartbeat was at ``heard_ms``."""

    uid: str
    namespace: str = "team-a"
    name: str = ""
    owner: str = ""
    node: str = "n1"
    models: str = "A100"
    labels: tuple[tuple[str, str], ...] = ()
    rate: int = GPU
    requested: int = GPU
    started_ms: int = T0
    ended_ms: int | None = None
    heard_ms: int = T0
    settled: bool = True
    posted: tuple[tuple[int, int, int], ...] = field(default_factory=tuple)


def days(start: int, end: int) -> tuple[tuple[int, int, int], ...]:
    """The interval cut at UTC midnights, as postings are."""
    cuts = [start, *(at for at in range(start - start % DAY + DAY, end, DAY)), end]
    return tuple((a, b, 1) for a, b in itertools.pairwise(cuts) if a < b)


class Books:
    """The database at a URL, with an API of one worker. ``clock`` is a day after T0."""

    def __init__(self, url: str, patience_ms: int = PATIENCE_MS) -> None:
        self.store = open_shared(with_schema(url), patience_ms)
        upgrade(self.store)
        self.clock = Clock(T0 + DAY)
        self.states = True
        self.reviews = Reviews({ADMIN: user_status("admin")})
        self.logins = LoginSessions(self.store, self.clock)
        gate = Gate(self.reviews.post, "bursar", self.clock, logins=self.logins.caller)
        self.services = create_services(self.store, gate, self.clock, lambda: "", 5_000)
        self.app = app_of(self.services, SharingFlask)
        self.client: FlaskClient = self.app.test_client()

    def close(self) -> None:
        self.store.close()

    def state(self) -> None:
        """State the accounts anew, unless nothing changes any more (`states`)."""
        if self.states:
            write_accounts(self.store, self.clock())

    def entries(self, *given: tuple[str, str, int]) -> None:
        """Write budget entries as (key, text, from)."""
        with self.store.writing() as connection:
            rows = [{"key": key, "text": text, "from_ms": at} for key, text, at in given]
            connection.execute(insert(ENTRIES), rows)

    def write(self, *runs: Run) -> None:
        """Write sessions with their postings."""
        with self.store.writing() as connection:
            write(connection, runs)

    def close_months(self) -> None:
        """Close those that have ended and can be closed, as the settler's thread does."""
        with self.store.reading() as connection:
            history = self.services.ledger.history(connection)
        MonthCloser(self.store, self.store, lambda: history, self.clock).step()

    def roll_up(self, *runs: Run) -> None:
        """Write the rolled-up charges of sessions, net. Each posting must cover one UTC day."""
        with self.store.writing() as connection:
            for run in runs:
                connection.execute(insert(FOLDED), [_folded(run, *each) for each in run.posted])

    def used(self, uid: str, hour_ms: int, source: str, covered_ms: int, used_milli_ms: int) -> None:
        """Write measured use."""
        row = {
            "session_uid": uid,
            "hour_ms": hour_ms,
            "source": source,
            "covered_ms": covered_ms,
            "used_milli_ms": used_milli_ms,
            "memory_mib_ms": 0,
        }
        with self.store.writing() as connection:
            connection.execute(insert(FIGURES), [row])

    def get(self, path: str, bearer: str = ADMIN, **headers: str) -> TestResponse:
        self.state()
        return self.client.get(path, headers={"Authorization": f"Bearer {bearer}", **headers})

    def post(self, path: str, body: object, bearer: str = ADMIN, **headers: str) -> TestResponse:
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.state()
        return self.client.post(path, data=sent, headers={"Authorization": f"Bearer {bearer}", **headers})

    def rows(self, query: str = "") -> list[Json]:
        """The rows of a usage report."""
        answer = self.get(f"/v1/usage?{query}")
        assert answer.status_code == 200, answer.get_data(as_text=True)
        found: list[Json] = answer.get_json()["rows"]
        return found


def write(connection: Connection, runs: Iterable[Run]) -> None:
    """Write sessions with their postings, heartbeats and nodes."""
    for run in runs:
        connection.execute(insert(SESSIONS), [session_row(run)])
        rows = [posting_row(run, number, *each) for number, each in enumerate(run.posted)]
        if rows:
            connection.execute(insert(POSTINGS), rows)
        if not run.settled and run.ended_ms is None:
            beat = {"session_uid": run.uid, "boot": "b", "sequence": 1}
            connection.execute(
                insert(HEARTBEATS), [{**beat, "beat_ms": run.heard_ms, "received_ms": run.heard_ms}]
            )


def session_row(run: Run) -> Json:
    ended = run.ended_ms
    if run.settled and ended is None:
        ended = max((to for _, to, _ in run.posted), default=run.started_ms)
    return {
        **SESSION,
        "uid": run.uid,
        "namespace": run.namespace,
        "name": run.name or run.uid,
        "owner": run.owner,
        "node": run.node,
        "models": run.models,
        "devices": "",
        "rate_milli": run.rate,
        "admitted_in_budget": True,
        "bound_ms": run.started_ms,
        "opened_ms": run.started_ms,
        "started_ms": run.started_ms,
        "ended_ms": ended,
        "grace_ms": 0,
        "settled_ms": ended if run.settled else None,
        "labels": json.dumps(dict(run.labels), separators=(",", ":")),
        "requested_milli": run.requested,
    }


def posting_row(run: Run, sequence: int, start: int, end: int, times: int) -> Json:
    """A posting's row; ``times`` -1: a correction that takes it back."""
    rate = times * run.rate
    return {
        "session_uid": run.uid,
        "sequence": sequence,
        "namespace": run.namespace,
        "from_ms": start,
        "to_ms": end,
        "rate_milli": rate,
        "amount": rate * (end - start),
        "kind": "settled" if rate > 0 else "correction",
        "reason": "",
        "created_ms": end,
    }


def _folded(run: Run, start: int, end: int, times: int) -> Json:
    rate = times * run.rate
    return {
        "session_uid": run.uid,
        "namespace": run.namespace,
        "name": run.name or run.uid,
        "owner": run.owner,
        "node": run.node,
        "models": run.models,
        "labels": session_row(run)["labels"],
        "from_ms": start,
        "to_ms": end,
        "rate_milli": rate,
        "amount": rate * (end - start),
        "requested_milli": run.requested,
        "requested_mib": 0,
        "created_ms": end,
        "kind": "pod",
        "devices": "",
    }
