"""How Alembic reaches the ledger: at the timekeeper's start over its own connection, or by hand over a URL.

By hand: ``alembic -x database=sqlite:////var/lib/bursar/bursar.db upgrade head``.
"""

from alembic import context
from alembic.util import CommandError
from sqlalchemy import Connection

from timekeeper.store.engine.engine import open_store
from timekeeper.store.engine.schema import METADATA
from timekeeper.store.engine.upgrade import lock


def migrate(connection: Connection) -> None:
    """Runs what was asked for inside the connection's transaction, so that a revision is there whole or not
    at all."""
    context.configure(connection=connection, target_metadata=METADATA, render_as_batch=True)
    context.run_migrations()


def by_hand() -> None:
    """Opens the database that ``-x database=URL`` names."""
    url = context.get_x_argument(as_dictionary=True).get("database") or context.config.get_main_option(
        "sqlalchemy.url"
    )
    if not url:
        raise CommandError("which database? say -x database=URL")
    store = open_store(url)
    try:
        with store.writing() as connection:
            lock(connection)
            migrate(connection)
    finally:
        store.close()


given = context.config.attributes.get("connection")
if given is None:
    by_hand()
else:
    migrate(given)
