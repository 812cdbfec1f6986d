# ruff: noqa: S608 -- numbers of the tests' own
"""The audit: on a ledger that nobody touched it finds nothing, and it names each kind of damage."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.postgresql import fresh_postgresql
from tests.timekeeper.past import MIDNIGHT, live
from tests.timekeeper.worlds import DAY, HOUR, MINUTE, T0, Town
from timekeeper.__main__ import main
from timekeeper.operations.audit.audit import Checked, audit
from timekeeper.operations.audit.finding import Finding
from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.upgrade import snapshot

BOTH_DATABASES = "the audit's reads are SQL, and what it finds is written by SQL of the test"
GPU_HOUR = 3_600_000_000
RUNNING = "session uid-running (team-b/running)"
LONG = "session uid-long (team-a/long)"
LEFT = "session uid-left (team-b/left)"
MONTH_A = "balance of team-a for 2026-11-01T00:00:00.000Z to 2026-12-01T00:00:00.000Z"
DAY_B = "balance of team-b for 2026-11-20T00:00:00.000Z to 2026-11-21T00:00:00.000Z"
LAST_DAY_B = "balance of team-b for 2026-11-24T00:00:00.000Z to 2026-11-25T00:00:00.000Z"

# one more posting: the columns that a test names, and good values for the rest
POSTING = {
    "id": 90,
    "session_uid": "'uid-running'",
    "sequence": 0,
    "namespace": "'team-b'",
    "from_ms": T0,
    "to_ms": T0 + HOUR,
    "rate_milli": 1000,
    "amount": GPU_HOUR,
    "kind": "'settled'",
    "reason": "''",
    "created_ms": T0 + 4 * DAY,
}


def posting(**given: object) -> str:
    row = POSTING | given
    if "amount" not in given:
        row["amount"] = f"{row['rate_milli']} * ({row['to_ms']} - {row['from_ms']})"
    values = ", ".join(str(value) for value in row.values())
    return f"INSERT INTO postings ({', '.join(row)}) VALUES ({values})"


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def past(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """A ledger with a past, which no test changes."""
    if request.param == "sqlite":
        town = Town(tmp_path_factory.mktemp("past"))
        live(town)
        yield town
        town.close()
        return
    with fresh_postgresql() as url:
        town = Town(url)
        live(town)
        yield town
        town.close()


@contextmanager
def damaged(town: Town, *statements: str) -> Iterator[Connection]:
    """The ledger after somebody with every right has done this to it; it is taken back."""
    with town.store.engine.connect() as connection:
        if connection.dialect.name == "sqlite":
            raw: Any = connection.connection.driver_connection
            raw.execute("PRAGMA foreign_keys = OFF")
            raw.execute("PRAGMA ignore_check_constraints = ON")
            named = "SELECT 'DROP TRIGGER ' || name FROM sqlite_master WHERE type = 'trigger'"
        else:
            named = (
                "SELECT format('ALTER TABLE %%s DROP CONSTRAINT %%I', conrelid::regclass, conname)"
                " FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND contype IN ('c', 'f')"
                " UNION ALL SELECT format('DROP TRIGGER %%I ON %%s', tgname, tgrelid::regclass)"
                " FROM pg_trigger WHERE NOT tgisinternal"
            )
        for (guard,) in connection.exec_driver_sql(named).all():
            connection.exec_driver_sql(guard)
        for statement in statements:
            connection.exec_driver_sql(statement)
        yield connection
        connection.rollback()
        connection.invalidate()


def found(connection: Connection, town: Town) -> list[tuple[str, str, int | None]]:
    findings: list[Finding] = []
    audit(connection, town.clock(), findings.append)
    return [(each.subject, each.what, each.amount) for each in findings]


def test_on_an_untouched_ledger_nothing_differs(past: Town) -> None:
    with snapshot(past.store) as connection:
        findings: list[Finding] = []
        checked = audit(connection, past.clock(), findings.append)

    assert findings == []
    assert checked == Checked(sessions=6, postings=11, folded=0, days=7, grants=4, nodes=1)


DAMAGES: dict[str, tuple[tuple[str, ...], list[tuple[str, str, int | None]]]] = {
    "a posting is gone": (
        ("DELETE FROM postings WHERE session_uid = 'uid-long' AND sequence = 1",),
        [
            (LONG, "law", None),
            (LONG, "law", None),
            (LONG, "posted (settled)", -24 * GPU_HOUR),
            (MONTH_A, "posted", -24 * GPU_HOUR),
            ("total of team-a for 2026-11-21", "charges", 24 * GPU_HOUR),
        ],
    ),
    "a posting is there twice": (
        (
            posting(
                session_uid="'uid-long'",
                sequence=4,
                namespace="'team-a'",
                from_ms=MIDNIGHT + DAY,
                to_ms=MIDNIGHT + 2 * DAY,
                kind="'correction'",
            ),
        ),
        [
            (LONG, "posted (settled)", 24 * GPU_HOUR),
            (MONTH_A, "posted", 24 * GPU_HOUR),
            ("total of team-a for 2026-11-21", "charges", -24 * GPU_HOUR),
        ],
    ),
    "an amount is another": (
        ("UPDATE postings SET amount = amount - 1 WHERE session_uid = 'uid-left'",),
        [
            (f"posting 0 of {LEFT}", "amount", -1),
            ("total of team-b for 2026-11-20", "charges", 1),
        ],
    ),
    "a rate is another, and the amount and the total with it": (
        (
            "UPDATE postings SET rate_milli = 331, amount = 331 * (to_ms - from_ms)"
            " WHERE session_uid = 'uid-left'",
            f"UPDATE days SET amount = amount + 17430000 WHERE namespace = 'team-b' AND day_ms = {MIDNIGHT}",
        ),
        [
            (f"posting 0 of {LEFT}", "rate", 17_430_000),
            (LEFT, "posted (settled)", 17_430_000),
            (DAY_B, "posted", 17_430_000),
        ],
    ),
    "the same amount is charged for another time": (
        (
            "UPDATE postings SET from_ms = from_ms - 60000, to_ms = to_ms - 60000"
            " WHERE session_uid = 'uid-left'",
        ),
        [(LEFT, "law", None), (LEFT, "posted (settled)", 0)],
    ),
    "a correction that takes nothing back": (
        (
            "UPDATE postings SET rate_milli = 500, amount = 1800000000 WHERE session_uid = 'uid-corrected'"
            " AND sequence = 1",
        ),
        [
            ("session uid-corrected (team-a/corrected)", "posted (settled)", GPU_HOUR),
            (MONTH_A, "posted", GPU_HOUR),
            ("total of team-a for 2026-11-20", "charges", -GPU_HOUR),
        ],
    ),
    "a settled posting that takes": (
        ("UPDATE postings SET kind = 'settled' WHERE session_uid = 'uid-corrected' AND sequence = 1",),
        [
            ("session uid-corrected (team-a/corrected)", "law", None),
            ("posting 1 of session uid-corrected (team-a/corrected)", "rate", -GPU_HOUR),
        ],
    ),
    "a kind that nobody knows": (
        ("UPDATE postings SET kind = 'gift' WHERE session_uid = 'uid-left'",),
        [(LEFT, "law", None)],
    ),
    "a posting of another namespace": (
        ("UPDATE postings SET namespace = 'team-x' WHERE session_uid = 'uid-left'",),
        [
            (LEFT, "law", None),
            ("total of team-b for 2026-11-20", "charges", 5_751_900_000),
            ("total of team-x for 2026-11-20", "charges", -5_751_900_000),
        ],
    ),
    "a posting without a session": (
        ("UPDATE postings SET session_uid = 'uid-nobody' WHERE session_uid = 'uid-left'",),
        [
            (LEFT, "posted (settled)", -5_751_900_000),
            ("session uid-nobody", "row", 5_751_900_000),
            (DAY_B, "posted", -5_751_900_000),
        ],
    ),
    "a posting over the end of its account": (
        (
            "UPDATE postings SET to_ms = to_ms + 86400000 WHERE session_uid = 'uid-left'",
            "UPDATE postings SET amount = 330 * (to_ms - from_ms) WHERE session_uid = 'uid-left'",
            "UPDATE sessions SET grace_ms = grace_ms + 86400000 WHERE uid = 'uid-left'",
        ),
        [
            (f"posting 0 of {LEFT}", "account", None),
            ("total of team-b for 2026-11-20", "charges", -330 * DAY),
        ],
    ),
    "a posting of no time": (
        ("UPDATE postings SET to_ms = from_ms, amount = 0 WHERE session_uid = 'uid-left'",),
        [
            (LEFT, "law", None),
            (LEFT, "posted (settled)", -5_751_900_000),
            (DAY_B, "posted", -5_751_900_000),
            ("total of team-b for 2026-11-20", "charges", 5_751_900_000),
        ],
    ),
    "an end that the kubelet did not tell": (
        ("UPDATE sessions SET ended_ms = ended_ms - 3600000 WHERE uid = 'uid-long'",),
        [(LONG, "posted (settled)", GPU_HOUR), (MONTH_A, "posted", GPU_HOUR)],
    ),
    "a binding that nobody made": (
        ("UPDATE sessions SET bound_ms = bound_ms - 1 WHERE uid = 'uid-long'",),
        [(LONG, "posted (settled)", -1000), (MONTH_A, "posted", -1000)],
    ),
    "a session at another rate": (
        ("UPDATE sessions SET rate_milli = 900 WHERE uid = 'uid-left'",),
        [
            (f"posting 0 of {LEFT}", "rate", -9_935_100_000),
            (LEFT, "posted (settled)", -9_935_100_000),
            (DAY_B, "posted", -9_935_100_000),
        ],
    ),
    "a session that is settled and goes on": (
        (f"UPDATE sessions SET settled_ms = {T0} WHERE uid = 'uid-running'",),
        [(RUNNING, "law", None)],
    ),
    "a session that ended twice": (
        ("UPDATE sessions SET ended_ms = vanished_ms + 30000 WHERE uid = 'uid-left'",),
        [(LEFT, "law", None)],
    ),
    "a session that is gone": (
        ("DELETE FROM sessions WHERE uid = 'uid-long'",),
        [("session uid-long", "row", 1000 * (3 * DAY - MINUTE + 11))],
    ),
    "more is posted of a running session than is known of it": (
        tuple(
            posting(
                id=90 + day,
                sequence=day,
                from_ms=max(T0, MIDNIGHT + day * DAY),
                to_ms=min(T0 + 4 * DAY + MINUTE, MIDNIGHT + (day + 1) * DAY),
            )
            for day in range(5)
        ),
        [
            (RUNNING, "posted (not settled yet)", MINUTE * 1000),
            (LAST_DAY_B, "posted", MINUTE * 1000),
            ("total of team-b for 2026-11-20", "charges", -14 * GPU_HOUR),
            ("total of team-b for 2026-11-21", "charges", -24 * GPU_HOUR),
            ("total of team-b for 2026-11-22", "charges", -24 * GPU_HOUR),
            ("total of team-b for 2026-11-23", "charges", -24 * GPU_HOUR),
            ("total of team-b for 2026-11-24", "charges", -10 * GPU_HOUR - MINUTE * 1000),
        ],
    ),
    "a running session is posted for two times": (
        (
            posting(from_ms=T0, to_ms=T0 + HOUR),
            posting(id=91, sequence=1, from_ms=T0 + 2 * HOUR, to_ms=T0 + 3 * HOUR),
            f"UPDATE days SET amount = amount + 2 * {GPU_HOUR} WHERE day_ms = {MIDNIGHT}"
            " AND namespace = 'team-b'",
        ),
        [(RUNNING, "posted (not settled yet)", -GPU_HOUR), (DAY_B, "posted", -GPU_HOUR)],
    ),
    "a total by day is another": (
        (f"UPDATE days SET amount = amount + 1 WHERE namespace = 'team-a' AND day_ms = {MIDNIGHT}",),
        [("account of team-a", "law", None), ("total of team-a for 2026-11-20", "charges", 1)],
    ),
    "a total by day is gone": (
        ("DELETE FROM days WHERE namespace = 'team-b'",),
        [("total of team-b for 2026-11-20", "charges", -5_751_900_000)],
    ),
    "a grant is another": (
        ("UPDATE grants SET amount = amount + 3600000000 WHERE id = 1",),
        [
            (
                "grant 1 (period) to team-a for 2026-11-01T00:00:00.000Z to 2026-12-01T00:00:00.000Z",
                "granted",
                GPU_HOUR,
            )
        ],
    ),
    "a grant is there twice": (
        (
            "INSERT INTO grants SELECT 99, subject, period_start_ms, period_end_ms, amount, kind, reason,"
            " actor, 'another', created_ms, NULL, NULL, NULL FROM grants WHERE id = 1",
        ),
        [
            (
                "grant 99 (period) to team-a for 2026-11-01T00:00:00.000Z to 2026-12-01T00:00:00.000Z",
                what,
                100 * GPU_HOUR,
            )
            for what in ("kind", "granted")
        ],
    ),
    "a grant by hand that takes": (
        ("UPDATE grants SET amount = -5 WHERE kind = 'manual'",),
        [
            (
                "grant 4 (manual) to team-b for 2026-11-24T00:00:00.000Z to 2026-11-25T00:00:00.000Z",
                "amount",
                -5,
            )
        ],
    ),
    "an entry that was changed behind the ledger's back": (
        ("UPDATE entries SET text = 'gpuHours: 90' WHERE key = 'team-a'",),
        [
            (
                "grant 1 (period) to team-a for 2026-11-01T00:00:00.000Z to 2026-12-01T00:00:00.000Z",
                "granted",
                10 * GPU_HOUR,
            )
        ],
    ),
    "an entry that nobody can read": (
        ("UPDATE entries SET text = 'gpuHours: lots', from_ms = from_ms + 1 WHERE key = 'team-a'",),
        [
            ("entry team-a", "text", None),
            (
                "grant 1 (period) to team-a for 2026-11-01T00:00:00.000Z to 2026-12-01T00:00:00.000Z",
                "granted",
                100 * GPU_HOUR,
            ),
        ],
    ),
    "an account that states what is not posted": (
        ("UPDATE accounts SET posted = posted + 1 WHERE subject = 'team-a'",),
        [("account of team-a", "law", None)],
    ),
    "a node that was heard tomorrow": (
        (f"UPDATE nodes SET watermark_ms = {T0 + 5 * DAY + 1}",),
        [("node n1", "heard until", None)],
    ),
    "a heartbeat from the future": (
        ("UPDATE heartbeats SET beat_ms = received_ms + 1 WHERE session_uid = 'uid-long'",),
        [],
    ),
    "a heartbeat that came before it was sent": (
        ("UPDATE heartbeats SET beat_ms = received_ms + 1 WHERE session_uid = 'uid-running'",),
        [("session uid-running", "heartbeats", None)],
    ),
    "heartbeats of nobody": (
        ("UPDATE heartbeats SET session_uid = 'uid-nobody' WHERE session_uid = 'uid-running'",),
        [("session uid-nobody", "heartbeats", None)],
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damage_is_named_with_its_subject_and_its_size(past: Town, damage: str) -> None:
    statements, expected = DAMAGES[damage]

    with damaged(past, *statements) as connection:
        assert found(connection, past) == expected


def test_folded_rows_are_held_against_each_other_and_the_totals(past: Town) -> None:
    folded = (
        "INSERT INTO folded (id, session_uid, namespace, name, owner, node, models, labels, requested_milli,"
        " requested_mib, created_ms, kind, devices, from_ms, to_ms, rate_milli, amount)"
        " VALUES ({id}, 'uid-gone', '{namespace}', 'gone', '', 'n1', 'A100', '{{}}', 1000, 0, 1, 'pod', '',"
        " {times})"
    )
    first = folded.format(id=1, namespace="team-a", times="3600000, 7200000, 10, 36000000")
    second = folded.format(id=2, namespace="team-b", times="7100000, 7300000, 10, 2000001")

    with damaged(past, first, second) as connection:
        differs = found(connection, past)

    row = "folded row 1970-01-01T01:58:20.000Z of session uid-gone (team-b)"
    assert differs == [
        (row, "amount", 1),
        (row, "time", 1_000_000),
        (row, "namespace", 2_000_001),
        ("total of team-a for 1970-01-01", "charges", -36_000_000),
        ("total of team-b for 1970-01-01", "charges", -2_000_001),
    ]


def test_a_session_is_folded_or_there_and_not_both(past: Town) -> None:
    with damaged(past, "UPDATE sessions SET folded_ms = 1 WHERE uid = 'uid-left'") as connection:
        assert found(connection, past) == [(LEFT, "folding", None)]


def test_the_command_prints_line_by_line_and_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    town = Town(tmp_path)
    live(town)
    with town.store.writing() as connection:
        connection.exec_driver_sql("UPDATE sessions SET ended_ms = ended_ms - 3600000 WHERE uid = 'uid-long'")
    town.close()
    capsys.readouterr()

    assert main(["audit", "--database", town.url]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "session uid-long (team-a/long): posted (settled): stored 71.983336388889 GPU-hours"
        " (2026-11-20T10:01:00.000Z to 2026-11-23T10:00:00.011Z at 1000 milli-GPU), by the evidence"
        " 70.983336388889 GPU-hours (2026-11-20T10:01:00.000Z to 2026-11-23T09:00:00.011Z at 1000 milli-GPU),"
        " difference +1 GPU-hours",
        "balance of team-a for 2026-11-01T00:00:00.000Z to 2026-12-01T00:00:00.000Z: posted: stored"
        " 90.683335416667 GPU-hours, by the evidence 89.683335416667 GPU-hours, difference +1 GPU-hours",
        "2 differences: 6 sessions, 11 postings, 0 folded, 7 days, 4 grants, 1 nodes",
    ]
    assert main(["audit", "--database", town.url, "-o", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [each["gpuHours"] for each in document["differences"]] == ["1", "1"]
    assert document["checked"]["sessions"] == 6


def test_the_command_ends_with_0_where_nothing_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    town = Town(tmp_path)
    live(town)
    town.close()
    capsys.readouterr()

    assert main(["audit", "--database", town.url]) == 0
    assert capsys.readouterr().out == (
        "nothing differs: 6 sessions, 11 postings, 0 folded, 7 days, 4 grants, 1 nodes\n"
    )
    assert main(["audit", "--database", town.url, "--output=json"]) == 0
    assert json.loads(capsys.readouterr().out)["differences"] == []


@pytest.mark.parametrize(
    "what", ["nothing", "another program's", "no database", "an older release's", "empty"]
)
def test_what_cannot_be_audited_ends_with_2_and_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    file = tmp_path / "ledger.db"
    if what == "another program's":
        file.touch()
    elif what == "no database":
        file.write_text("not a database" * 100)
    elif what == "an older release's":
        town = Town(tmp_path)
        with town.store.writing() as connection:
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0002'")
        town.close()

    elif what == "empty":
        assert main(["migrate", "--database", f"sqlite:///{file}"]) == 0

    assert main(["audit", "--database", f"sqlite:///{file}"]) == 2

    sentence = {
        "nothing": f"there is no file {file}",
        "another program's": "it holds no ledger",
        "no database": "file is not a database",
        "an older release's": "it has the schema 0002",
        "empty": "it is empty: no settler and no import has ever written to it",
    }[what]
    assert sentence in capsys.readouterr().err
    assert file.exists() == (what != "nothing")
