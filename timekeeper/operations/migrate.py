"""``bursar-timekeeper migrate``: brings the database to this release's schema, and its rows."""

import os

from timekeeper.log import log
from timekeeper.settings import TimekeeperSettings, UnusableError
from timekeeper.store.engine import kinds
from timekeeper.store.engine.damage import damage_at_start
from timekeeper.store.engine.engine import Store, UnavailableError, open_store
from timekeeper.store.engine.former import refuse_former
from timekeeper.store.engine.upgrade import upgrade


def migrate(settings: TimekeeperSettings) -> None:
    """Run the missing migrations. Raises UnusableError with a sentence for the operator."""
    store = open_store(settings.database, connections=settings.database_connections)
    try:
        if damage := damage_at_start(store):
            raise UnusableError(f"--database: {store.shown}: {damage}")
        refuse_former(store)
        later = upgrade(store)
        kinds.fill(store)
    except UnavailableError as error:
        raise UnusableError(f"--database: {store.shown}: {error}; {_allowed(store)}") from error
    finally:
        store.close()
    if later:
        log("database-newer", level="warning", revisions=", ".join(later))


def _allowed(store: Store) -> str:
    if store.is_shared:
        return "the database must exist and be running, and allow this user to connect and to create tables"
    return (
        "it must be a ledger's file or a new one, in an existing folder that this user"
        f" (id {os.getuid()}) may write"
    )
