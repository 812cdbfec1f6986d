"""``bursar-timekeeper migrate``: the database brought to this release's schema."""

from timekeeper.log import say
from timekeeper.settings import Settings
from timekeeper.store.engine import UnavailableError, open_store
from timekeeper.store.upgrade import upgrade


def migrate(settings: Settings) -> None:
    """Run the migrations that are missing. Raises ValueError with a sentence for the operator."""
    store = open_store(settings.database)
    try:
        later = upgrade(store)
    except UnavailableError as error:
        raise ValueError(f"database {shown(settings.database)}: {error}") from error
    finally:
        store.close()
    if later:
        say("database is of a later release", revisions=", ".join(later))


def shown(url: str) -> str:
    """A database's URL without user and password."""
    head, at, tail = url.rpartition("@")
    return f"{head.partition('://')[0]}://...@{tail}" if at else url
