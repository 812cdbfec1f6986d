"""What other roles find wrong, as each posted it last. Nothing is decided by it."""

import msgspec
from sqlalchemy import select

from timekeeper.core.json_values import Json
from timekeeper.store.engine.engine import Connection, Upsert, Written, write_all
from timekeeper.store.engine.schema import ROLE_FINDINGS
from timekeeper.wire.findings import PostedFindings

_LIST = Upsert(ROLE_FINDINGS, ("body", "received_ms"))


def replaced(role: str, findings: PostedFindings | Json, received_ms: int) -> Written:
    """What replaces the role's list. ``findings``: also as `timekeeper.core.findings.published`."""
    body = msgspec.json.encode(findings).decode()
    return _LIST, [{"role": role, "body": body, "received_ms": received_ms}]


def record(connection: Connection, role: str, findings: PostedFindings | Json, received_ms: int) -> None:
    """Replace the role's list."""
    write_all(connection, [replaced(role, findings, received_ms)])


def lists(connection: Connection, role: str = "") -> dict[str, tuple[int, PostedFindings]]:
    """Role -> when its list came, and the list; of this role, "": of all."""
    query = select(ROLE_FINDINGS).order_by(ROLE_FINDINGS.c.role)
    rows = connection.execute(query.where(ROLE_FINDINGS.c.role == role) if role else query)
    return {row.role: (row.received_ms, msgspec.json.decode(row.body, type=PostedFindings)) for row in rows}
