"""Bindings that the extender reported, kept for a day."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import bindparam, delete, select, text

from timekeeper.accounts.pods import (
    ReportedBinding,
    decode_request,
    encode_request,
)
from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import BINDINGS, FOLDED, SESSIONS

KEPT_MS = 86_400_000

# The same SQL on both databases. The first report of a pod counts; rows come in one order.
_ADD = text(
    "INSERT INTO bindings (uid, namespace, name, node, bound_ms, request, devices, grace_ms, received_ms)"
    " VALUES (:uid, :namespace, :name, :node, :bound_ms, :request, :devices, :grace_ms, :received_ms)"
    " ON CONFLICT (uid) DO NOTHING"
)


def record(connection: Connection, bindings: Iterable[ReportedBinding], received_ms: int) -> None:
    """Keep these, and drop what is older than `KEPT_MS`. A repeated report changes nothing."""
    rows = [
        {
            "uid": each.uid,
            "namespace": each.namespace,
            "name": each.name,
            "node": each.node,
            "bound_ms": each.bound_ms,
            "request": encode_request(each.request),
            "devices": each.devices,
            "grace_ms": each.grace_ms,
            "received_ms": received_ms,
        }
        for each in sorted(bindings, key=lambda each: each.uid)
    ]
    connection.execute(_ADD, rows)
    connection.execute(
        delete(BINDINGS).where(BINDINGS.c.received_ms < bindparam("before")),
        {"before": received_ms - KEPT_MS},
    )


_COLUMNS = [
    BINDINGS.c[name]
    for name in ("uid", "namespace", "name", "node", "bound_ms", "request", "devices", "grace_ms")
]
# those that were received in a span, and whose pods have no session
UNOPENED = select(*_COLUMNS).where(
    BINDINGS.c.received_ms.between(bindparam("from_ms"), bindparam("to_ms")),
    ~select(SESSIONS.c.uid).where(SESSIONS.c.uid == BINDINGS.c.uid).exists(),
    ~select(FOLDED.c.session_uid).where(FOLDED.c.session_uid == BINDINGS.c.uid).exists(),
)


def reported(rows: Iterable[Any]) -> list[ReportedBinding]:
    """The rows of `UNOPENED`."""
    return [
        ReportedBinding(uid, namespace, name, node, bound_ms, decode_request(request), devices, grace_ms)
        for uid, namespace, name, node, bound_ms, request, devices, grace_ms in rows
    ]
