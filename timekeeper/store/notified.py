"""Up to which decision each destination has been notified."""

from sqlalchemy import delete, func, select

from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import DECISIONS, NOTIFIED


def newest(connection: Connection) -> int:
    """The number of the newest decision; 0 if there is none."""
    return int(connection.execute(select(func.max(DECISIONS.c.id))).scalar() or 0)


def all_places(connection: Connection) -> dict[str, int]:
    """Destination -> the number of the last decision that was sent there, or needed not to be."""
    return {row.destination: row.decision_id for row in connection.execute(select(NOTIFIED))}


def move(connection: Connection, destination: str, number: int) -> None:
    """Decisions up to this number need not be sent there again."""
    forget(connection, destination)
    connection.execute(NOTIFIED.insert(), {"destination": destination, "decision_id": number})


def forget(connection: Connection, destination: str) -> None:
    """No budget names it any more."""
    connection.execute(delete(NOTIFIED).where(NOTIFIED.c.destination == destination))
