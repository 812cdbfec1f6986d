"""Up to which decision each destination has been notified."""

from sqlalchemy import delete, func, select

from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import DECISIONS, NOTIFIED


def newest(connection: Connection) -> int:
    """The number of the newest decision; 0 if there is none."""
    return int(connection.execute(select(func.max(DECISIONS.c.id))).scalar() or 0)


def all_places(connection: Connection) -> dict[str, int]:
    """URL -> the number of the last decision that was sent there, or needed not to be."""
    return {row.url: row.decision_id for row in connection.execute(select(NOTIFIED))}


def move(connection: Connection, url: str, number: int) -> None:
    """Decisions up to this number need not be sent to the URL again."""
    forget(connection, url)
    connection.execute(NOTIFIED.insert(), {"url": url, "decision_id": number})


def forget(connection: Connection, url: str) -> None:
    """No budget names the URL any more."""
    connection.execute(delete(NOTIFIED).where(NOTIFIED.c.url == url))
