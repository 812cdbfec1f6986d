"""The schema: made by migrations, the same as the code's, and refusing what must never be."""

from typing import Any

import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from tests.timekeeper.rows import DAY, GOOD, Row, days, insert
from timekeeper.store.engine.engine import ConflictError, Store, insert_all, open_store
from timekeeper.store.engine.schema import METADATA
from timekeeper.store.engine.upgrade import MIGRATIONS, upgrade

BOTH_DATABASES = "a schema is its database's"

# For each CHECK, by its name: a row that it refuses.
BAD: list[tuple[str, str, dict[str, Any]]] = [
    ("ck_entries_key_is_named", "entries", {"key": ""}),
    ("ck_entries_from_is_a_time", "entries", {"from_ms": -1}),
    ("ck_grants_period_is_not_empty", "grants", {"period_end_ms": 0}),
    ("ck_grants_kind_is_known", "grants", {"kind": "gift"}),
    ("ck_grants_only_corrections_take", "grants", {"kind": "manual", "amount": -1}),
    ("ck_grants_amount_is_not_nothing", "grants", {"kind": "manual", "amount": 0}),
    ("ck_grants_is_signed", "grants", {"actor": ""}),
    ("ck_grants_passed_on_by_an_account", "grants", {"group_key": "_group.g"}),
    ("ck_sessions_is_named", "sessions", {"node": ""}),
    ("ck_sessions_rate_is_not_negative", "sessions", {"rate_milli": -1}),
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
    ("ck_postings_lies_in_one_day", "postings", {"to_ms": DAY + 1, "amount": 5 * DAY}),
    ("ck_postings_kind_is_known", "postings", {"kind": "guess"}),
    ("ck_postings_only_corrections_take", "postings", {"rate_milli": -5, "amount": -10}),
    ("ck_postings_amount_is_not_nothing", "postings", {"kind": "correction", "rate_milli": 0, "amount": 0}),
    ("ck_days_begins_at_midnight", "days", {"day_ms": 1}),
    ("ck_folded_lies_in_one_day", "folded", {"to_ms": 86_400_001, "amount": 5 * 86_400_000}),
    ("ck_folded_amount_is_rate_times_time", "folded", {"amount": 11}),
    ("ck_figures_source_is_known", "figures", {"source": "rumour"}),
    ("ck_figures_is_not_negative", "figures", {"covered_ms": -1}),
    ("ck_card_hours_is_of_an_hour", "card_hours", {"known_ms": 3_600_001}),
    ("ck_card_hours_is_of_an_hour", "card_hours", {"hour_ms": 1}),
    ("ck_card_hours_is_not_negative", "card_hours", {"free": -1}),
    ("ck_node_uses_is_named", "node_uses", {"name": ""}),
    ("ck_accounts_subject_is_named", "accounts", {"subject": ""}),
    ("ck_bindings_is_named", "bindings", {"node": ""}),
    ("ck_bindings_is_past", "bindings", {"bound_ms": 2}),
    ("ck_ends_is_named", "ends", {"node": ""}),
    ("ck_ends_is_past", "ends", {"removed_ms": 2}),
    ("ck_decisions_is_named", "decisions", {"namespace": ""}),
    ("ck_decisions_counts", "decisions", {"count": 0}),
    ("ck_notified_is_a_place", "notified", {"destination": ""}),
    ("ck_node_uses_no_use_from_the_future", "node_uses", {"use_ms": 2}),
    ("ck_held_pods_rate_is_no_debt", "held_pods", {"rate_milli": -1}),
    ("ck_declared_pods_is_an_amount", "declared_pods", {"length_ms": 0}),
    ("ck_waiting_rate_is_positive", "waiting", {"rate_milli": 0}),
    ("ck_standings_there_is_one", "standings", {"id": 2}),
    ("ck_pulse_there_is_one", "pulse", {"id": 2}),
    ("ck_map_nodes_is_named", "map_nodes", {"name": ""}),
    ("ck_map_waiting_there_is_one", "map_waiting", {"id": 2}),
    ("ck_map_posts_there_is_one", "map_posts", {"id": 2}),
    ("ck_findings_is_named", "findings", {"role": ""}),
    ("ck_map_hours_is_of_an_hour", "map_hours", {"known_ms": 3_600_001}),
    ("ck_stranded_is_of_an_hour", "stranded", {"hour_ms": 1}),
    ("ck_would_is_of_a_pod", "would", {"namespace": ""}),
    ("ck_would_verdict_is_known", "would", {"verdict": "guessed", "rule": ""}),
    ("ck_would_rules_refuse", "would", {"verdict": "held"}),
    ("ck_would_since_there_is_one", "would_since", {"id": 2}),
    ("ck_closed_months_closed_after_its_end", "closed_months", {"closed_ms": 9}),
    ("ck_charge_corrections_is_signed", "charge_corrections", {"actor": ""}),
    ("ck_charge_corrections_is_of_a_past_time", "charge_corrections", {"amount": 0}),
    ("ck_would_since_is_a_time", "would_since", {"since_ms": -1}),
    ("ck_logins_is_a_persons", "logins", {"username": "system:admin"}),
    ("ck_logins_ends", "logins", {"until_ms": 1}),
    ("ck_terms_there_is_one", "terms", {"id": 2}),
    ("ck_terms_counts", "terms", {"id": 1, "term": -1}),
]


def test_from_empty_the_migrations_make_what_the_code_expects(empty: Store) -> None:
    upgrade(empty)

    with empty.reading() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []


def test_good_rows_are_taken(store: Store) -> None:
    for table in [name for name in GOOD if name != "terms"]:  # whose one row is there from the first
        insert(store, table)


def test_each_check_refuses_a_bad_row(store: Store) -> None:
    insert(store, "sessions", uid="u")

    for name, table, changes in BAD:
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

    with pytest.raises(ConflictError, match=r"(?i)unique"):
        insert(store, table, **changes)


def test_no_posting_and_no_beat_without_a_session(store: Store) -> None:
    for table in ("postings", "heartbeats"):
        with pytest.raises(ConflictError, match=r"(?i)foreign key"):
            insert(store, table)


@pytest.mark.parametrize("table", ["entries", "postings", "grants", "folded"])
def test_what_is_written_once_cannot_be_changed(store: Store, table: str) -> None:
    insert(store, "sessions")
    insert(store, table)
    changed = {"text": "gpuHours: 90"} if table == "entries" else {"created_ms": 2}

    with pytest.raises(ConflictError, match="written once"), store.writing() as connection:
        connection.execute(METADATA.tables[table].update().values(**changed))


@pytest.mark.parametrize("table", ["entries", "postings", "grants", "folded"])
def test_what_was_charged_granted_or_in_force_cannot_be_deleted(store: Store, table: str) -> None:
    insert(store, "sessions")
    insert(store, table)

    with pytest.raises(ConflictError, match="deleted"), store.writing() as connection:
        connection.execute(METADATA.tables[table].delete())


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_entries_are_not_truncated(store: Store) -> None:
    with pytest.raises(ConflictError, match="never deleted"), store.writing() as connection:
        connection.exec_driver_sql("TRUNCATE entries")


def test_only_the_postings_of_a_folded_session_go_and_its_days_stay(store: Store) -> None:
    insert(store, "sessions", folded_ms=9, ended_ms=3, settled_ms=4)
    insert(store, "postings")

    with store.writing() as connection:
        connection.execute(METADATA.tables["postings"].delete())

    assert days(store) == {("a", 0): 10}


def test_the_database_adds_up_the_charges_of_each_day(store: Store) -> None:
    insert(store, "sessions")
    whole: Row = {"from_ms": DAY, "to_ms": 2 * DAY, "amount": 5 * DAY}
    back: Row = {"from_ms": DAY, "to_ms": DAY + 1, "rate_milli": -5, "amount": -5, "kind": "correction"}
    rows: tuple[Row, ...] = ({}, {"from_ms": 3, "to_ms": 4, "amount": 5}, whole, back)
    for number, row in enumerate(rows):
        insert(store, "postings", sequence=number, **row)
    insert(store, "postings", sequence=9, namespace="b", from_ms=7, to_ms=8, amount=5)

    assert days(store) == {("a", 0): 15, ("a", DAY): 5 * DAY - 5, ("b", 0): 5}


def test_charges_that_come_at_once_are_added_up_as_if_they_came_one_by_one(store: Store) -> None:
    insert(store, "sessions")
    insert(store, "postings", sequence=0)
    rows = [
        {
            **GOOD["postings"],
            **{"sequence": number, "namespace": "ab"[number % 2], "from_ms": start, "to_ms": start + 7},
            **{"amount": 35},
        }
        for number in range(1, 301)
        for start in (number % 3 * DAY + 10 * number,)
    ]
    expected: dict[tuple[str, int], int] = {("a", 0): 10}
    for row in rows:
        day = (str(row["namespace"]), int(str(row["from_ms"])) // DAY * DAY)
        expected[day] = expected.get(day, 0) + 35

    with store.writing() as connection:
        insert_all(connection, METADATA.tables["postings"], rows)

    assert days(store) == expected
    with store.reading() as connection:
        assert len(connection.execute(METADATA.tables["postings"].select()).all()) == 301


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_rows_that_come_at_once_are_one_statement(store: Store) -> None:
    """Else the totals by day are written once for each row, which takes ever longer within a transaction."""
    insert(store, "sessions")
    rows = [{**GOOD["postings"], "sequence": at, "from_ms": 1 + at, "amount": 5} for at in range(9)]
    rows = [{**row, "to_ms": 2 + at} for at, row in enumerate(rows)]
    sent: list[str] = []

    def see(*given: Any) -> None:
        for _, text, rows in given[4].execution_options.get("bursar_before", ()):
            sent.append(f"{text} many={isinstance(rows, list)}")

    sqlalchemy.event.listen(store.engine, "before_cursor_execute", see)

    with store.writing() as connection:
        insert_all(connection, METADATA.tables["postings"], rows)

    assert len([each for each in sent if "INSERT INTO postings" in each]) == 1
    assert all(each.endswith("many=False") for each in sent)
    assert days(store) == {("a", 0): 45}


def test_no_rows_are_nothing_to_do(store: Store) -> None:
    with store.writing() as connection:
        insert_all(connection, METADATA.tables["postings"], [])

    assert days(store) == {}


def test_there_is_one_line_of_revisions_and_each_says_what_it_is() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    scripts = ScriptDirectory.from_config(config)

    assert len(scripts.get_heads()) == 1
    assert all(script.doc for script in scripts.walk_revisions())
    assert "release before this one goes on running" in (MIGRATIONS / "script.py.mako").read_text()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_sqlite_is_set_up_for_one_writer_many_readers_and_power_cuts(store: Store) -> None:
    with store.reading() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 5000}


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("nonsense", "not a database URL; "),
        ("nosuch://db", "not a supported database URL: nosuch is not supported; "),
        ("postgresql+nodriver://x/y", "not a supported database URL: the driver of postgresql"),
    ],
)
def test_a_url_that_names_no_database_is_a_sentence(url: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        open_store(url)
