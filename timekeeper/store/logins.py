"""Sessions of people who logged in by OpenID Connect. A session is named by a digest of its token: who
reads the database has none."""

from collections.abc import Sequence

import orjson
from sqlalchemy import delete, insert, select

from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import LOGINS


def begin(
    connection: Connection, digest: str, username: str, groups: Sequence[str], now_ms: int, until_ms: int
) -> None:
    """A new session. Those that have ended are deleted."""
    connection.execute(delete(LOGINS).where(LOGINS.c.until_ms <= now_ms))
    named = {"username": username, "groups": orjson.dumps(list(groups)).decode()}
    connection.execute(insert(LOGINS), {"digest": digest, **named, "began_ms": now_ms, "until_ms": until_ms})


def find(connection: Connection, digest: str, now_ms: int) -> tuple[str, tuple[str, ...]] | None:
    """The user and the groups of a session; None if it has ended."""
    wanted = (LOGINS.c.digest == digest) & (LOGINS.c.until_ms > now_ms)
    row = connection.execute(select(LOGINS.c.username, LOGINS.c.groups).where(wanted)).one_or_none()
    return None if row is None else (row.username, tuple(orjson.loads(row.groups)))


def end(connection: Connection, digest: str) -> None:
    """End the session, if there is one."""
    connection.execute(delete(LOGINS).where(LOGINS.c.digest == digest))
