"""Upgrades: from nothing, by one process or by several at once, and by hand; and a ledger of the former
schema, which is exported and imported."""

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest
import sqlalchemy
from alembic import command
from alembic.config import Config
from alembic.util import CommandError

from deploy.local.limits import LONGEST_S
from tests.postgresql import EMPTY, fresh_postgresql
from tests.support.clock import Clock
from tests.timekeeper.clocks import iso
from tests.timekeeper.ledger.test_holders import told
from tests.timekeeper.listed import write_accounts
from tests.timekeeper.past import differences
from tests.timekeeper.rows import insert
from tests.timekeeper.worlds import DAY, GPU, HOUR, MINUTE, SECOND, T0, Town, budgets, gpu_pod, lease
from timekeeper.__main__ import main
from timekeeper.accounts.session import kind_of
from timekeeper.store.engine.engine import Store, UnavailableError, open_store
from timekeeper.store.engine.former import ADDED, DROPPED, FORMER
from timekeeper.store.engine.schema import ENDED, METADATA, SESSIONS
from timekeeper.store.engine.upgrade import MIGRATIONS, lock, snapshot, upgrade
from timekeeper.store.transfer.exporter import TABLES, export

BOTH_DATABASES = "a schema is its database's"
RECORDED = Path(__file__).parents[1] / "recorded" / "ledger-0027.jsonl"
RECORDED_MS = T0 + 12 * DAY  # when it was exported, after November was closed
# of a release that charged for CPU and memory and forgave failed starts; and what its API said then
ENDING = RECORDED.with_name("ledger-0034.jsonl")
SAID = json.loads(ENDING.with_name("ledger-0034-answers.json").read_text())
for session in SAID["answers"]["/v1/sessions?limit=100"]["sessions"]:  # from when it is charged
    session["bound"] += session.pop("forgivenMs")


def config_of(url: str) -> Config:
    config = Config(cmd_opts=None)
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("sqlalchemy.url", url)
    return config


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
        thread.join(LONGEST_S)

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


def test_a_table_in_use_ends_the_migration_whole() -> None:
    with fresh_postgresql(EMPTY) as url:
        store, other = open_store(url), open_store(url)
        command.ensure_version(config_of(url))
        with other.writing() as connection:
            connection.exec_driver_sql("LOCK TABLE alembic_version")
            with pytest.raises(UnavailableError, match="lock timeout"):
                upgrade(store, table_ms=50)

        with store.reading() as connection:
            assert sqlalchemy.inspect(connection).get_table_names() == ["alembic_version"]
        assert upgrade(store) == ()
        store.close()
        other.close()


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
    command.upgrade(config_of(empty_url), "head")

    with empty.reading() as connection:
        assert set(METADATA.tables) <= set(sqlalchemy.inspect(connection).get_table_names())


def test_by_hand_a_database_must_be_named() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))

    with pytest.raises(CommandError, match="say -x database=URL"):
        command.upgrade(config, "head")


def rows_of(lines: list[bytes]) -> dict[str, list[Any]]:
    """Table -> its rows in order, without header and trailer."""
    rows = defaultdict(list)
    for line in map(json.loads, lines[1:-1]):
        rows[line["table"]].append(line["row"])
    return dict(rows)


def test_an_export_of_the_former_schema_is_imported_row_by_row(database_url: str) -> None:
    recorded = rows_of(RECORDED.read_bytes().splitlines())
    ended = {table.name for table in ENDED}
    later = {"card_hours"}  # tables that came after it
    assert set(recorded) == {table.name for table in TABLES} - later | ended

    assert main(["import", str(RECORDED), "--database", database_url]) == 0

    town = Town(database_url, Clock(RECORDED_MS))
    with snapshot(town.store) as connection:
        written = rows_of(list(export(connection)))
    assert written == {
        table: [
            {name: row[name] for name in row if name not in DROPPED.get(table, ())}
            | dict.fromkeys(ADDED.get(table, ()))
            | (kind_of(row["uid"])._asdict() if table == "sessions" else {})
            for row in rows
        ]
        for table, rows in recorded.items()
        if table not in ended
    }
    assert all({*DROPPED[table]} <= row.keys() for table in DROPPED for row in recorded[table])
    november = town.get("/v1/months/2026-11").get_json()
    (closed,) = recorded["closed_months"]
    assert (november["state"], november["differs"]) == ("closed", [])
    assert november["now"]["charges"] == closed["charges_sha256"]
    assert november["now"] == november["closed"]["hashes"]
    assert differences(town) == []
    town.close()


@pytest.fixture
def ended(database_url: str) -> Iterator[Town]:
    """The ledger in which all that ended is in use, where its export was imported, and its cluster."""
    assert main(["import", str(ENDING), "--database", database_url]) == 0
    town = Town(database_url, Clock(SAID["now"]))
    town.objects |= SAID["objects"]
    yield town
    town.close()


def amounts(town: Town) -> dict[str, int]:
    """What each pod costs, posted and pending."""
    rows = town.get(f"/v1/usage?from=0&to={T0 + DAY}&group=pod").get_json()["rows"]
    return {row["pod"]: row["amount"] for row in rows}


def _utc(text: str) -> str:
    """A time of a file as the earlier release wrote it: files have the zone's own times since."""
    return datetime.fromisoformat(text).astimezone(UTC).isoformat().replace("+00:00", "Z")


def test_what_an_earlier_release_charged_is_what_it_said(ended: Town) -> None:
    """Before the first tick and after it: statements, modes, prices, and which sessions were of what."""
    town = ended

    def bill() -> list[str]:
        path = f"/v1/usage?from=0&to={T0 + DAY}&group=namespace&format=csv"
        heading, *lines = town.get(path).text.splitlines()
        rows = (line.split(",", 2) for line in lines)
        return [heading, *(f"{_utc(begun)},{_utc(end)},{rest}" for begun, end, rest in rows)]

    write_accounts(town.store, town.clock())
    for path, said in SAID["answers"].items():
        answer = town.get(path).get_json()
        assert {name: answer[name] for name in said} == said, path
    assert bill() == SAID["bill"]

    town.resume()

    assert [line.partition("USD,")[0] for line in bill()] == [
        line.partition("USD,")[0] for line in SAID["bill"]
    ]
    for name in ("team-a", "team-b", "team-c"):
        before, after = SAID["answers"][f"/v1/budgets/{name}"], town.budget(name)
        assert before["posted"] + before["pending"] == after["posted"] + after["pending"]
        changed = {key for key in before if before[key] != after[key]}
        figures = {"posted", "pending", "reserved", "remaining", "deciding", "exhaustedAt", "gpuHours"}
        assert changed <= figures


def test_sessions_for_cpu_and_memory_end_at_the_upgrade(ended: Town) -> None:
    """With the evidence of their pods' cards. What they were charged stays, and their pods go on without."""
    town = ended
    before = amounts(town)

    town.resume()

    assert amounts(town) == before
    rows = town.get("/v1/sessions?limit=100").get_json()["sessions"]
    assert {row["state"] for row in rows if row["kind"] == "host"} == {"settled"}
    assert {row["pod"] for row in rows if row["kind"] == "host"} == {"hog", "grown", "done", "gone"}
    town.advance(HOUR)
    more = {pod: amount - before[pod] for pod, amount in amounts(town).items()}
    assert {pod: more[pod] for pod in ("hog", "grown", "done", "early", "free")} == {
        "hog": 10 * HOUR,
        "grown": 10 * HOUR,
        "done": 0,
        "early": 0,
        "free": 0,
    }
    assert 0 < more["gone"] < 1_000 * MINUTE


def test_what_the_release_before_did_not_charge_of_a_failed_start_stays_so(database_url: str) -> None:
    """Of a pod that had left without a proved end before the upgrade, and is settled after it."""
    town = Town(database_url, Clock(T0))
    raw = gpu_pod(started_ms=T0)
    town.begin(("nodes", told()), ("leases", lease(T0)), ("pods", raw))
    town.advance(2 * MINUTE)
    at = {"deletionTimestamp": iso(town.clock()), "deletionGracePeriodSeconds": 0}
    town.change("pods", {**raw, "metadata": raw["metadata"] | at}, deleted=True)
    with town.store.writing() as connection:
        connection.execute(sqlalchemy.update(SESSIONS).values(bound_ms=T0 + MINUTE, forgiven_ms=MINUTE))

    town.resume()
    town.advance(3 * HOUR, heard=False)

    until = T0 + 2 * MINUTE + 30 * SECOND
    assert town.postings() == [(T0 + MINUTE, until, GPU, "settled")]
    with snapshot(town.store) as connection:
        (session,) = rows_of(list(export(connection)))["sessions"]
    assert (session["bound_ms"], session["forgiven_ms"]) == (T0 + MINUTE, MINUTE)
    (shown,) = town.get("/v1/sessions?namespace=team-a").get_json()["sessions"]
    assert (shown["bound"], shown["amount"]) == (T0 + MINUTE, GPU * (until - T0 - MINUTE))
    town.change("pods", gpu_pod(started_ms=T0, ended_ms=until), deleted=True)  # its proof comes late
    town.advance(2 * MINUTE)
    assert town.postings() == [(T0 + MINUTE, until, GPU, "settled")]
    assert differences(town) == []
    town.close()


def test_fields_that_ended_are_named_at_the_upgrade_and_count_as_before(town: Town) -> None:
    """The ConfigMap is as it was: the settler names the field once, and reads all else of its entry."""
    settings = "mode: observe\ntimeZone: Europe/Berlin\nchargeBy: dominant-host\n"
    team = "gpuHours: 9\nnotify: https://hooks.example/\n"
    town.begin(("configmaps", budgets(_settings=settings, team_a=team, team_b=team)))
    named = [(notice.reason, notice.message) for notice in town.notices]
    assert [reason for reason, _ in named] == [*["IneffectiveField"] * 3, "ModeChanged"]
    for said in (
        "_settings: mode: it is of the ConfigMap bursar-mode now",
        "2 entries (team-a, team-b), as team-a: notify: it has ended: Alertmanager ",
        "_settings: chargeBy: dominant-host has ended and reads as dominant",
    ):
        assert len([message for _, message in named if said in message]) == 1
    town.tick()
    assert len(town.notices) == 4

    town.resume()

    assert [(notice.reason, notice.message) for notice in town.notices[4:]] == named[:3]
    budget = town.budget()
    assert (budget["mode"], budget["granted"]) == ("observe", 9 * HOUR * GPU)
    (warning,) = budget["warnings"]
    assert warning.startswith("notify: it has ended: ")


def make_former(url: str, revision: str) -> None:
    """A ledger as an earlier release left it, with one session. The file is as `backup` writes it: not in
    WAL mode."""
    statements = (
        "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)",
        f"INSERT INTO alembic_version VALUES ('{revision}')",  # noqa: S608 -- a number
        "CREATE TABLE sessions (uid TEXT NOT NULL, charge_from TEXT NOT NULL)",
        "INSERT INTO sessions VALUES ('u', 'running')",
    )
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
            for statement in statements:
                connection.execute(statement)
        return
    store = open_store(url)
    with store.writing() as writer:
        for statement in statements:
            writer.exec_driver_sql(statement)
    store.close()


def content(url: str) -> object:
    """All that is in the database: the file's bytes, or the rows of each table."""
    if url.startswith("sqlite"):
        file = Path(url.removeprefix("sqlite:///"))
        return {path.name: path.read_bytes() for path in file.parent.glob(f"{file.name}*")}
    store = open_store(url)
    with store.reading() as connection:
        names = sqlalchemy.inspect(connection).get_table_names()
        found = {
            name: connection.exec_driver_sql(f"SELECT xmin, * FROM {name}").all()  # noqa: S608 -- ours
            for name in names
        }
    store.close()
    return found


@pytest.mark.parametrize("revision", ["0001", "0014", FORMER])
@pytest.mark.parametrize(
    "command",
    [
        *(("migrate",), ("audit",), ("export", "-"), ("import", str(RECORDED)), ("fold", "--older-than=32d")),
        *(("backup", "copy.db"), ("settle",), ("workers",)),
    ],
    ids=lambda command: command[0],
)
def test_a_ledger_of_the_former_schema_is_refused_and_stays_as_it_was(
    empty_url: str, capsys: pytest.CaptureFixture[str], command: tuple[str, ...], revision: str
) -> None:
    make_former(empty_url, revision)
    before = content(empty_url)

    assert main([*command, "--database", empty_url]) == 2

    assert content(empty_url) == before
    shown = empty_url if empty_url.startswith("sqlite") else open_store(empty_url).shown
    assert capsys.readouterr() == (
        "",
        f"bursar-timekeeper: --database: {shown}: it has the schema {revision}, which this release does not"
        " read: `export` it with the image that wrote it, and `import` the file with this one into a new"
        " database\n",
    )
