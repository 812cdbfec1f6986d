"""What other roles find wrong, as each posted it last. Nothing is decided by it."""

import msgspec
from sqlalchemy import delete, select

from timekeeper.core.json_values import Json
from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import ROLE_FINDINGS
from timekeeper.wire.findings import PostedFindings


def record(connection: Connection, role: str, findings: PostedFindings | Json, received_ms: int) -> None:
    """Replace the role's list. ``findings``: also as `timekeeper.core.findings.published`."""
    connection.execute(delete(ROLE_FINDINGS).where(ROLE_FINDINGS.c.role == role))
    body = msgspec.json.encode(findings).decode()
    connection.execute(ROLE_FINDINGS.insert(), {"role": role, "body": body, "received_ms": received_ms})


def lists(connection: Connection, role: str = "") -> dict[str, tuple[int, PostedFindings]]:
    """Role -> when its list came, and the list; of this role, "": of all."""
    query = select(ROLE_FINDINGS).order_by(ROLE_FINDINGS.c.role)
    rows = connection.execute(query.where(ROLE_FINDINGS.c.role == role) if role else query)
    return {row.role: (row.received_ms, msgspec.json.decode(row.body, type=PostedFindings)) for row in rows}
