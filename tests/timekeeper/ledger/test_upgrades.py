"""Upgrades: from nothing and from each former release with data in it, by one process or by several at once,
beside the release before, and by hand."""

from threading import Barrier, Thread

import pytest
import sqlalchemy
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.util import CommandError

from tests.postgresql import EMPTY, fresh_postgresql
from tests.timekeeper.rows import BEAT, DAY, GOOD, GRANT, POSTING, SESSION, Row, days, insert
from timekeeper.store import ledger as reading
from timekeeper.store.engine.engine import Store, UnavailableError, open_store
from timekeeper.store.engine.schema import METADATA
from timekeeper.store.engine.upgrade import MIGRATIONS, lock, upgrade

Rows = dict[str, list[Row]]


def config_of(url: str) -> Config:
    config = Config(cmd_opts=None)
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("sqlalchemy.url", url)
    return config


# Of each table, the rows that the releases up to a revision wrote, by the columns that there were then.
OLD_SESSION = SESSION | {
    **{"ended_ms": 4 * DAY, "settled_ms": 4 * DAY},
    **{"charge_from": "bound", "start_grace_ms": 0},
}
OLD_ROWS: Rows = {
    "sessions": [OLD_SESSION, OLD_SESSION | {"uid": "v", "namespace": "b"}],
    "postings": [
        POSTING,
        POSTING | {"sequence": 1, "from_ms": DAY - 5, "to_ms": 3 * DAY, "amount": 5 * (2 * DAY + 5)},
        POSTING | {"sequence": 2, "kind": "correction", "rate_milli": -5, "amount": -10},
        POSTING | {"session_uid": "v", "namespace": "b", "from_ms": DAY, "to_ms": 2 * DAY, "amount": 5 * DAY},
    ],
    "grants": [
        GRANT | {"period_end_ms": 30 * DAY},
        GRANT | {"kind": "correction", "amount": -7, "idempotency_key": "l", "period_end_ms": 30 * DAY},
        GRANT | {"kind": "manual", "amount": 9, "idempotency_key": "m", "period_end_ms": 30 * DAY},
    ],
    "heartbeats": [BEAT, BEAT | {"session_uid": "v", "sequence": 7}],
    "entries": [GOOD["entries"], {"key": "a", "text": None, "from_ms": 2}],
    "nodes": [GOOD["nodes"]],
    "waiting": [GOOD["waiting"]],
    "standings": [GOOD["standings"]],
    "pulse": [GOOD["pulse"]],
}


def write_as_then(store: Store, rows: Rows) -> None:
    """Insert as a release does that knows these columns alone."""
    with store.writing() as connection:
        for name, each in rows.items():
            for row in each:
                table = sqlalchemy.table(name, *map(sqlalchemy.column, row))
                connection.execute(sqlalchemy.insert(table), row)


def read_as_then(store: Store, rows: Rows) -> dict[str, list[tuple[object, ...]]]:
    """Read them all with the columns of then."""
    found = {}
    with store.reading() as connection:
        for name, each in rows.items():
            table = sqlalchemy.table(name, *map(sqlalchemy.column, each[0]))
            found[name] = sorted(map(tuple, connection.execute(sqlalchemy.select(table))), key=repr)
    return found


def in_order(rows: Rows) -> dict[str, list[tuple[object, ...]]]:
    return {name: sorted((tuple(row.values()) for row in each), key=repr) for name, each in rows.items()}


@pytest.mark.parametrize("revision", ["0001", "0002"])
def test_an_upgrade_keeps_every_row_and_sum_of_a_former_release(
    empty: Store, empty_url: str, revision: str
) -> None:
    command.upgrade(config_of(empty_url), revision)
    write_as_then(empty, OLD_ROWS)

    upgrade(empty)

    assert read_as_then(empty, OLD_ROWS) == in_order(OLD_ROWS)
    with empty.reading() as connection:
        keys = [(name, start * DAY, (start + 1) * DAY) for name in "ab" for start in range(4)]
        posted = reading.posted_of(connection, keys)
        sums = {(name, start // DAY): posted[name, start, end] for name, start, end in keys}
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []
        made = sqlalchemy.inspect(connection).get_check_constraints("grants")
    assert {key: amount for key, amount in sums.items() if amount} == {
        ("a", 0): 25,
        ("a", 1): 5 * DAY,
        ("a", 2): 5 * DAY,
        ("b", 1): 5 * DAY,
    }
    assert days(empty) == {("a", 0): 0, ("b", DAY): 5 * DAY}
    assert {str(check["name"]) for check in made} == {
        str(each.name)
        for each in METADATA.tables["grants"].constraints
        if isinstance(each, sqlalchemy.CheckConstraint)
    }


@pytest.mark.parametrize("revision", ["0001", "0002"])
def test_the_release_before_goes_on_beside_this_one(empty: Store, empty_url: str, revision: str) -> None:
    """It writes and reads what it always did, also charges that span days, and they count."""
    command.upgrade(config_of(empty_url), revision)
    upgrade(empty)

    write_as_then(empty, OLD_ROWS)

    assert read_as_then(empty, OLD_ROWS) == in_order(OLD_ROWS)
    assert days(empty) == {("a", 0): 0, ("b", DAY): 5 * DAY}
    with empty.writing() as connection:
        for name in ("waiting", "standings", "pulse"):  # which it deletes and writes anew
            connection.execute(METADATA.tables[name].delete())
        connection.execute(sqlalchemy.text("UPDATE sessions SET ended_ms = 5, settled_ms = 5"))
        connection.execute(sqlalchemy.text("DELETE FROM heartbeats WHERE boot = 'b'"))
        found = reading.sessions_of(connection, ["u", "v"]).sessions
    assert {uid: session.others_ended for uid, session in found.items()} == {"u": False, "v": False}


def test_two_that_start_at_once_take_turns(empty_url: str) -> None:
    stores = [open_store(empty_url) for _ in range(3)]
    begin, told = Barrier(len(stores)), []

    def migrate(store: Store) -> None:
        begin.wait()
        told.append(upgrade(store))

    threads = [Thread(target=migrate, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert told == [(), (), ()]
    with stores[0].reading() as connection:
        assert set(METADATA.tables) <= set(sqlalchemy.inspect(connection).get_table_names())
    for store in stores:
        store.close()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_wait_for_anothers_migrations_ends_with_an_error(store: Store, database_url: str) -> None:
    second = open_store(database_url)
    with store.writing() as connection:
        lock(connection)
        with pytest.raises(UnavailableError, match="lock timeout"):
            upgrade(second, turn_ms=50)

    assert upgrade(second) == ()
    second.close()


def test_a_table_in_use_ends_the_migration_whole_and_blocks_no_reader() -> None:
    with fresh_postgresql(EMPTY) as url:
        store, reader = open_store(url), open_store(url)
        command.upgrade(config_of(url), "0002")
        write_as_then(store, OLD_ROWS)
        with reader.reading() as connection:
            connection.execute(sqlalchemy.text("SELECT * FROM sessions"))
            with pytest.raises(UnavailableError, match="lock timeout"):
                upgrade(store, table_ms=50)

        with store.reading() as connection:
            assert MigrationContext.configure(connection).get_current_heads() == ("0002",)
        assert upgrade(store) == ()
        assert read_as_then(store, OLD_ROWS) == in_order(OLD_ROWS)
        store.close()
        reader.close()


def test_upgrading_again_does_nothing(store: Store) -> None:
    insert(store, "sessions")

    assert upgrade(store) == ()
    with store.reading() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM sessions").scalar_one() == 1


def test_a_database_of_a_later_release_is_left_alone_and_reported(store: Store) -> None:
    with store.writing() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")

    assert upgrade(store) == ("9999",)
    insert(store, "sessions")


def test_a_migration_that_fails_leaves_nothing(empty: Store) -> None:
    """All revisions are one transaction."""
    with empty.writing() as connection:
        connection.exec_driver_sql("CREATE TABLE postings (in_the_way INTEGER)")

    with pytest.raises(UnavailableError, match="already exists"):
        upgrade(empty)

    with empty.reading() as connection:
        assert sqlalchemy.inspect(connection).get_table_names() == ["postings"]


def test_by_hand_with_alembics_own_command(empty_url: str, empty: Store) -> None:
    config = config_of(empty_url)

    command.upgrade(config, "head")
    command.downgrade(config, "base")
    command.upgrade(config, "head")

    with empty.reading() as connection:
        assert set(METADATA.tables) <= set(sqlalchemy.inspect(connection).get_table_names())


def test_by_hand_a_database_must_be_named() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))

    with pytest.raises(CommandError, match="say -x database=URL"):
        command.upgrade(config, "head")
