"""The schema before the baseline. An export and an import lead from it to this release, and no migration."""

import re
import sqlite3
from contextlib import closing

from timekeeper.settings import UnusableError
from timekeeper.store.engine.engine import Store, UnavailableError
from timekeeper.store.engine.sqlite import file_of

FORMER = "0027"  # its last revision; an export of it can be imported, and one of the release before
BEFORE = "0034"
# By table: the columns that it had beside those of today. Nothing read them.
DROPPED = {"sessions": ("charge_from", "start_grace_ms")}
# By table: the columns that it lacked, or that release, which are NULL.
ADDED = {
    "sessions": (
        *("boot", "host_cpu_milli", "host_memory_bytes", "forgiven_ms"),
        *("charge", "is_earlier", "owner_uid"),
    ),
    "folded": ("owner_uid",),
    "ends": ("forgiven_ms",),
    "nodes": ("leaseless",),
    "charge_corrections": ("uid", "parts"),
}

_REVISION = "SELECT version_num FROM alembic_version"


def refuse_former(store: Store) -> None:
    """Raises UnusableError if the ledger has the former schema; it changes nothing. A database that cannot be
    read is left to its next use."""
    try:
        found = _of_file(store) if not store.is_shared else _of_server(store)
    except (sqlite3.Error, UnavailableError):
        return
    if re.fullmatch("[0-9]{4}", found) and found <= FORMER:
        raise UnusableError(
            f"--database: {store.shown}: it has the schema {found}, which this release does not"
            " read: `export` it with the image that wrote it, and `import` the file with this one into a new"
            " database"
        )


def _of_file(store: Store) -> str:
    """Read without `Store`, which would switch a file that `backup` wrote to WAL."""
    file = file_of(store.engine.url).absolute()
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection:
        row = connection.execute(_REVISION).fetchone()
    return str(row[0]) if row else ""


def _of_server(store: Store) -> str:
    with store.reading() as connection:
        return str(connection.exec_driver_sql(_REVISION).scalar() or "")
