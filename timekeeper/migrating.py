"""``bursar-timekeeper migrate``: the database brought to this release's schema."""

import os

from timekeeper.log import say
from timekeeper.settings import Settings, UnusableError
from timekeeper.store.engine import Store, UnavailableError, open_store
from timekeeper.store.upgrade import upgrade


def migrate(settings: Settings) -> None:
    """Run the migrations that are missing. Raises UnusableError with a sentence for the operator."""
    store = open_store(settings.database)
    try:
        later = upgrade(store)
    except UnavailableError as error:
        raise UnusableError(f"--database: {shown(settings.database)}: {error}; {_allowed(store)}") from error
    finally:
        store.close()
    if later:
        say("database is of a later release", revisions=", ".join(later))


def _allowed(store: Store) -> str:
    if store.engine.dialect.name != "sqlite":
        return "the database must be up, and let this user in"
    return (
        "it must be a ledger's file or a new one, in a folder that is there and that this user"
        f" (id {os.getuid()}) may write"
    )


def shown(url: str) -> str:
    """A database's URL without user and password."""
    head, at, tail = url.rpartition("@")
    return f"{head.partition('://')[0]}://...@{tail}" if at else url
