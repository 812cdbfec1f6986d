"""The schema: made by migrations, the same as the code's, and refusing what must never be."""

from pathlib import Path

import pytest
import sqlalchemy
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError

from timekeeper.store import reading
from timekeeper.store.engine import ConflictError, Store, UnavailableError, open_store
from timekeeper.store.schema import METADATA
from timekeeper.store.upgrade import MIGRATIONS, upgrade

# For each CHECK and unique constraint, by its name: a row that it refuses.
SESSION = {
    "uid": "u",
    "namespace": "a",
    "name": "p",
    "owner": "",
    "node": "n",
    "models": "",
    "devices": "",
    "rate_milli": 1,
    "admitted_in_budget": True,
    "charge_from": "running",
    "start_grace_ms": 0,
    "bound_ms": 1,
    "opened_ms": 1,
    "grace_ms": 0,
}
POSTING = {
    "session_uid": "u",
    "sequence": 0,
    "namespace": "a",
    "from_ms": 1,
    "to_ms": 3,
    "rate_milli": 5,
    "amount": 10,
    "kind": "settled",
    "reason": "r",
    "created_ms": 1,
}
GRANT = {
    "subject": "a",
    "period_start_ms": 0,
    "period_end_ms": 1,
    "amount": 1,
    "kind": "period",
    "reason": "r",
    "actor": "x",
    "idempotency_key": "k",
    "created_ms": 1,
}
BEAT = {"session_uid": "u", "boot": "b", "sequence": 0, "beat_ms": 1, "received_ms": 1}
GOOD = {
    "entries": {"key": "a", "text": "t", "from_ms": 1},
    "grants": GRANT,
    "sessions": SESSION,
    "nodes": {"name": "n", "watermark_ms": 1},
    "heartbeats": BEAT,
    "postings": POSTING,
    "days": {"namespace": "b", "day_ms": 0, "amount": 1},
    "folded": {
        **dict.fromkeys(("owner", "models"), ""),
        **{"session_uid": "v", "namespace": "a", "name": "p", "node": "n", "labels": "{}"},
        **{"from_ms": 1, "to_ms": 3, "rate_milli": 5, "amount": 10},
        **{"requested_milli": 5, "requested_mib": 1, "created_ms": 1},
    },
    "figures": {
        **{"session_uid": "u", "hour_ms": 0, "source": "node"},
        **{"covered_ms": 1, "used_milli_ms": 1, "memory_mib_ms": 1},
    },
    "terms": {"id": 1, "term": 0, "holder": "h", "since_ms": 0},
    "waiting": {"namespace": "a", "rate_milli": 1},
    "standings": {"id": 1, "revision": "r", "body": "{}"},
    "pulse": {"id": 1, "tick_ms": 1, "decided_ms": 1, "state": ""},
}
BAD = [
    ("ck_entries_key_is_named", "entries", {"key": ""}),
    ("ck_entries_from_is_a_time", "entries", {"from_ms": -1}),
    ("ck_grants_period_is_not_empty", "grants", {"period_end_ms": 0}),
    ("ck_grants_kind_is_known", "grants", {"kind": "gift"}),
    ("ck_grants_only_corrections_take", "grants", {"kind": "manual", "amount": -1}),
    ("ck_grants_amount_is_not_nothing", "grants", {"kind": "manual", "amount": 0}),
    ("ck_grants_is_signed", "grants", {"actor": ""}),
    ("ck_sessions_is_named", "sessions", {"node": ""}),
    ("ck_sessions_rate_is_not_negative", "sessions", {"rate_milli": -1}),
    ("ck_sessions_charge_from_is_known", "sessions", {"charge_from": "birth"}),
    ("ck_sessions_times_are_not_negative", "sessions", {"grace_ms": -1}),
    ("ck_sessions_no_start_in_1970", "sessions", {"started_ms": 0}),
    ("ck_sessions_one_end", "sessions", {"ended_ms": 1, "vanished_ms": 1}),
    ("ck_sessions_settled_after_its_end", "sessions", {"settled_ms": 1}),
    ("ck_nodes_is_a_time_of_a_node", "nodes", {"watermark_ms": -1}),
    ("ck_heartbeats_sequence_counts", "heartbeats", {"sequence": -1}),
    ("ck_heartbeats_no_beat_from_the_future", "heartbeats", {"beat_ms": 2}),
    ("ck_postings_sequence_counts", "postings", {"sequence": -1}),
    ("ck_postings_interval_is_not_empty", "postings", {"to_ms": 1, "amount": 0}),
    ("ck_postings_amount_is_rate_times_time", "postings", {"amount": 11}),
    ("ck_postings_kind_is_known", "postings", {"kind": "guess"}),
    ("ck_postings_only_corrections_take", "postings", {"rate_milli": -5, "amount": -10}),
    ("ck_postings_amount_is_not_nothing", "postings", {"kind": "correction", "rate_milli": 0, "amount": 0}),
    ("ck_days_begins_at_midnight", "days", {"day_ms": 1}),
    ("ck_folded_lies_in_one_day", "folded", {"to_ms": 86_400_001, "amount": 5 * 86_400_000}),
    ("ck_folded_amount_is_rate_times_time", "folded", {"amount": 11}),
    ("ck_figures_source_is_known", "figures", {"source": "rumour"}),
    ("ck_figures_is_not_negative", "figures", {"covered_ms": -1}),
    ("ck_waiting_rate_is_positive", "waiting", {"rate_milli": 0}),
    ("ck_standings_there_is_one", "standings", {"id": 2}),
    ("ck_pulse_there_is_one", "pulse", {"id": 2}),
    ("ck_terms_there_is_one", "terms", {"id": 2}),
    ("ck_terms_counts", "terms", {"id": 1, "term": -1}),
]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = open_store(f"sqlite:///{tmp_path}/ledger.db")
    upgrade(made)
    return made


def insert(store: Store, table: str, **row: object) -> None:
    with store.writing() as connection:
        connection.execute(METADATA.tables[table].insert(), {**GOOD[table], **row})


def test_from_empty_the_migrations_make_what_the_code_expects(store: Store) -> None:
    with store.reading() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []


def test_good_rows_are_taken(store: Store) -> None:
    for table in [name for name in GOOD if name != "terms"]:  # whose one row is there from the first
        insert(store, table)


@pytest.mark.parametrize(("name", "table", "changes"), BAD, ids=[name for name, _, _ in BAD])
def test_each_check_refuses_a_bad_row(
    store: Store, name: str, table: str, changes: dict[str, object]
) -> None:
    insert(store, "sessions", uid="u")

    with pytest.raises(ConflictError, match=name):
        insert(store, table, **({"uid": "v"} if table == "sessions" else {}), **changes)


def test_every_check_has_its_bad_row_here(store: Store) -> None:
    with store.reading() as connection:
        inspected = sqlalchemy.inspect(connection)
        made = {
            str(check["name"])
            for table in METADATA.tables
            for check in inspected.get_check_constraints(table)
        }
    declared = {
        str(check.name)
        for table in METADATA.tables.values()
        for check in table.constraints
        if isinstance(check, sqlalchemy.CheckConstraint)
    }

    assert made == declared == {name for name, _, _ in BAD}


@pytest.mark.parametrize(
    ("table", "changes"),
    [
        ("entries", {}),
        ("grants", {"amount": 2}),
        ("sessions", {}),
        ("heartbeats", {}),
        ("postings", {"from_ms": 2, "amount": 5}),
        ("postings", {"sequence": 1}),
    ],
    ids=["entry", "grant", "session", "beat", "posting's number", "posting's moment"],
)
def test_nothing_is_written_twice(store: Store, table: str, changes: dict[str, object]) -> None:
    insert(store, "sessions", uid="u")
    if table != "sessions":
        insert(store, table)

    with pytest.raises(ConflictError, match="UNIQUE"):
        insert(store, table, **changes)


def test_no_posting_and_no_beat_without_a_session(store: Store) -> None:
    for table in ("postings", "heartbeats"):
        with pytest.raises(ConflictError, match="FOREIGN KEY"):
            insert(store, table)


@pytest.mark.parametrize("table", ["postings", "grants"])
def test_what_is_written_once_cannot_be_changed(store: Store, table: str) -> None:
    insert(store, "sessions")
    insert(store, table)

    with pytest.raises(ConflictError, match="written once"), store.writing() as connection:
        connection.execute(METADATA.tables[table].update().values(reason="another"))


def test_upgrading_again_does_nothing(store: Store) -> None:
    insert(store, "sessions")

    assert upgrade(store) == ()
    with store.reading() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM sessions").scalar_one() == 1


def test_a_database_of_a_later_release_is_left_alone_and_told(store: Store) -> None:
    with store.writing() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")

    assert upgrade(store) == ("9999",)
    insert(store, "sessions")


def test_a_migration_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """All revisions are one transaction."""
    made = open_store(f"sqlite:///{tmp_path}/ledger.db")
    with made.writing() as connection:
        connection.exec_driver_sql("CREATE TABLE postings (in_the_way INTEGER)")

    with pytest.raises(UnavailableError, match="already exists"):
        upgrade(made)

    with made.reading() as connection:
        assert sqlalchemy.inspect(connection).get_table_names() == ["postings"]


def config_of(url: str) -> Config:
    config = Config(cmd_opts=None)
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("sqlalchemy.url", url)
    return config


def test_the_release_before_writes_beside_this_one_and_an_upgrade_keeps_its_rows(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    command.upgrade(config_of(url), "0001")
    made = open_store(url)
    before = sqlalchemy.insert(sqlalchemy.table("sessions", *map(sqlalchemy.column, SESSION)))
    with made.writing() as connection:
        connection.execute(before, SESSION)

    upgrade(made)
    with made.writing() as connection:
        connection.execute(before, {**SESSION, "uid": "v"})
        found = reading.sessions_of(connection, ["u", "v"]).sessions

    assert {uid: session.others_ended for uid, session in found.items()} == {"u": False, "v": False}
    made.close()


def test_by_hand_with_alembics_own_command(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/by-hand.db"
    config = config_of(url)

    command.upgrade(config, "head")
    command.downgrade(config, "base")
    command.upgrade(config, "head")

    with open_store(url).reading() as connection:
        assert set(METADATA.tables) <= set(sqlalchemy.inspect(connection).get_table_names())


def test_by_hand_a_database_must_be_named() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))

    with pytest.raises(CommandError, match="say -x database=URL"):
        command.upgrade(config, "head")


def test_there_is_one_line_of_revisions_and_each_says_what_it_is() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    scripts = ScriptDirectory.from_config(config)

    assert len(scripts.get_heads()) == 1
    assert all(script.doc for script in scripts.walk_revisions())
    assert "release before this one goes on running" in (MIGRATIONS / "script.py.mako").read_text()


def test_sqlite_is_set_up_for_one_writer_many_readers_and_power_cuts(store: Store) -> None:
    with store.reading() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 5000}


@pytest.mark.parametrize("url", ["nonsense", "nosuch://db", "postgresql+nodriver://x/y"])
def test_a_url_that_names_no_database_is_a_sentence(url: str) -> None:
    with pytest.raises(ValueError, match="not a database URL"):
        open_store(url)
