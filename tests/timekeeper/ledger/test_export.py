"""The whole ledger written out and read in again, from either database into either, or not at all."""

import hashlib
import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, insert, select

from tests.postgresql import fresh_postgresql
from tests.timekeeper.listed import write_accounts
from tests.timekeeper.past import differences, live
from tests.timekeeper.rows import GOOD
from tests.timekeeper.worlds import DAY, SECOND, T0, Town
from timekeeper.__main__ import main
from timekeeper.store.engine.engine import open_store
from timekeeper.store.engine.former import FORMER
from timekeeper.store.engine.schema import ENDED, ENTRIES, FOLDED, GRANTS, METADATA, POSTINGS, TERMS
from timekeeper.store.engine.upgrade import snapshot
from timekeeper.store.retention import roll_up_all
from timekeeper.store.transfer.exporter import LEFT_OUT, TABLES, export

BOTH_DATABASES = "each database is read and written in its own way"
REPORTS = tuple(
    f"/v1/{path}"
    for path in (
        f"usage?from=0&to={T0 + 9 * DAY}",
        f"usage?from={T0 + 7}&to={T0 + 2 * DAY + 11}&group=pod",
        "budgets/team-a",
        "budgets/team-b",
    )
)


@contextmanager
def database(kind: str, folder: Path) -> Iterator[str]:
    """A new database without a row in it."""
    if kind == "postgresql":
        with fresh_postgresql() as url:
            yield url
    else:
        folder.mkdir(exist_ok=True)
        yield f"sqlite:///{folder}/ledger.db"


def exported(town: Town) -> bytes:
    with snapshot(town.store) as connection:
        return b"".join(export(connection))


def reports(town: Town) -> list[bytes]:
    return [report(town, path) for path in REPORTS]


def report(town: Town, path: str) -> bytes:
    write_accounts(town.store, town.clock())
    with town.get(path) as answer:  # whole reports are streamed, and each keeps a connection until it is read
        data: bytes = answer.data
    assert answer.status_code == 200, data
    return data


def import_(url: str, data: bytes, folder: Path) -> int:
    file = folder / "in.jsonl"
    file.write_bytes(data)
    return main(["import", str(file), "--database", url])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A ledger with a past, part of it folded, as it is exported."""
    town = Town(tmp_path_factory.mktemp("written"))
    live(town)
    roll_up_all(town.store, town.clock, 3 * DAY)
    data = exported(town)
    town.close()
    return data


def rewritten(data: bytes, change: Any) -> bytes:
    """The file after somebody has changed its lines, and its trailer so that it fits."""
    lines = [json.loads(line) for line in data.splitlines()[:-1]]
    changed = change(lines) or lines
    text = b"".join(json.dumps(line).encode() + b"\n" for line in changed)
    trailer = {"lines": len(changed), "sha256": hashlib.sha256(text).hexdigest()}
    return text + json.dumps(trailer).encode() + b"\n"


def at(lines: list[Any], table: str, **row: object) -> int:
    """The index of the first line of a table whose row has these values."""
    return next(
        index
        for index, line in enumerate(lines)
        if line.get("table") == table and row.items() <= line["row"].items()
    )


def test_every_table_is_exported_or_left_out_for_a_reason() -> None:
    assert {*TABLES, *LEFT_OUT} == set(METADATA.tables.values())


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("source", "target"),
    [("sqlite", "postgresql"), ("postgresql", "sqlite"), ("sqlite", "sqlite"), ("postgresql", "postgresql")],
)
def test_a_ledger_moves_to_another_database_and_back_without_a_change(
    source: str, target: str, tmp_path: Path
) -> None:
    with database(source, tmp_path / "a") as from_url, database(target, tmp_path / "b") as to_url:
        old = Town(from_url)
        live(old)
        roll_up_all(old.store, old.clock, 3 * DAY)
        data, told = exported(old), reports(old)

        assert import_(to_url, data, tmp_path) == 0

        new = Town(to_url, old.clock)
        assert exported(new) == data
        assert reports(new) == told
        assert differences(new) == []
        with database(source, tmp_path / "c") as back_url:
            assert import_(back_url, exported(new), tmp_path) == 0
            back = Town(back_url, old.clock)
            assert exported(back) == data
            assert reports(back) == told
            back.close()
        new.close()
        old.close()


def test_a_ledger_goes_on_where_it_was_brought_to(database_url: str, written: bytes, tmp_path: Path) -> None:
    assert import_(database_url, written, tmp_path) == 0

    town = Town(database_url)
    town.clock.turn(4 * DAY)
    with town.store.writing() as connection:
        for table in (ENTRIES, GRANTS, POSTINGS, FOLDED):
            row = connection.execute(select(table).order_by(table.c.id.desc()).limit(1)).one()._asdict()
            highest = row.pop("id")
            new = row | {name: f"{row[name]}+" for name in ("key", "idempotency_key") if name in row}
            new |= {name: row[name] + 1 for name in ("sequence",) if name in row}
            if "to_ms" in row:
                new |= {"to_ms": row["to_ms"] - 1, "amount": row["amount"] - row["rate_milli"]}
                new |= {"from_ms": row["from_ms"] + 1, "amount": new["amount"] - row["rate_milli"]}
            key = connection.execute(insert(table).values(new).returning(table.c.id)).scalar_one()
            assert key == highest + 1
    town.close()


def test_rows_of_tables_that_have_ended_are_left_out(
    database_url: str, written: bytes, tmp_path: Path
) -> None:
    """The release before exports them."""

    def with_ended(lines: list[Any]) -> list[Any]:
        there = at(lines, "days")
        ended = [{"table": table.name, "row": GOOD[table.name]} for table in ENDED]
        return [*lines[:there], *ended, *lines[there:]]

    assert import_(database_url, rewritten(written, with_ended), tmp_path) == 0

    town = Town(database_url)
    assert exported(town) == written
    town.close()


def test_what_is_exported_is_one_moment_while_others_write(town: Town) -> None:
    live(town)
    before = exported(town)

    with snapshot(town.store) as connection:
        lines = export(connection)
        first = next(lines)
        town.advance(SECOND, heard=False)
        with town.store.writing() as writer:
            writer.execute(insert(ENTRIES).values(key="team-z", text=None, from_ms=town.clock()))
        assert first + b"".join(lines) == before

    assert exported(town) != before


def test_equal_ledgers_give_equal_bytes_whatever_the_order_they_were_written_in(
    town: Town, tmp_path: Path
) -> None:
    live(town)

    names = [json.loads(line)["row"]["uid"] for line in exported(town).splitlines() if b'"sessions"' in line]

    assert names == sorted(names)
    assert exported(town) == exported(town)


def test_an_import_stops_the_settler_that_still_runs_there(
    database_url: str, written: bytes, tmp_path: Path
) -> None:
    Town(database_url).close()
    store = open_store(database_url)
    with store.reading() as connection:
        before = connection.execute(select(TERMS.c.term)).scalar_one()
    import_(database_url, written, tmp_path)

    with store.reading() as connection:
        assert connection.execute(select(TERMS.c.term)).scalar_one() > before
    store.close()


def test_a_ledger_is_never_written_into_another(
    database_url: str, written: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    town = Town(database_url)
    live(town)
    before = exported(town)

    assert import_(database_url, written, tmp_path) == 2
    assert "it holds a ledger already (table entries is not empty)" in capsys.readouterr().err
    assert exported(town) == before
    town.close()


def _spoil(table: str, row: dict[str, object], **values: object) -> Any:
    def change(lines: list[Any]) -> None:
        lines[at(lines, table, **row)]["row"] |= values

    return change


def _drop(table: str, **row: object) -> Any:
    def change(lines: list[Any]) -> None:
        del lines[at(lines, table, **row)]

    return change


def _double(table: str, **row: object) -> Any:
    def change(lines: list[Any]) -> None:
        index = at(lines, table, **row)
        lines.insert(index, lines[index])

    return change


def _no_column(lines: list[Any]) -> None:
    del lines[at(lines, "sessions")]["row"]["labels"]


def _former_column(lines: list[Any]) -> None:
    lines[at(lines, "sessions")]["row"]["charge_from"] = "bound"


def _strange_table(lines: list[Any]) -> None:
    lines[1]["table"] = "terms"


def _out_of_order(lines: list[Any]) -> list[Any]:
    return [lines[0], *reversed(lines[1:])]


def _of_another_release(lines: list[Any]) -> None:
    lines[0]["revision"] = "0002"


def _of_the_former(lines: list[Any]) -> None:
    lines[0]["revision"] = FORMER


def _of_another_program(lines: list[Any]) -> None:
    del lines[0]["bursar"]


RUNNING: dict[str, object] = {"uid": "uid-running"}
LEFT: dict[str, object] = {"session_uid": "uid-long"}
FORGED: dict[str, tuple[Any, str]] = {
    "an amount that is not rate x time": (_spoil("postings", LEFT, amount=7), "amount_is_rate_times_time"),
    "a longer posting": (
        _spoil("postings", LEFT, to_ms=T0 + 2 * 60_000, amount=1000 * 60_000),
        "and the postings of team-a on that day come to",
    ),
    "a posting less": (_drop("postings", **LEFT), "and the postings of team-a on that day come to"),
    "a posting twice": (_double("postings", **LEFT), "the database refuses it"),
    "a posting of no session": (_spoil("postings", LEFT, session_uid="x"), "the database refuses it"),
    "a settled session that goes on": (_spoil("sessions", RUNNING, settled_ms=5), "settled_after_its_end"),
    "a total more": (_spoil("days", {}, amount=3), "its amount is 3, and the postings of"),
    "a total less": (_drop("days"), "totals by day came before"),
    "a negative period's grant": (_spoil("grants", {}, amount=-1), "only_corrections_take"),
    "text for a number": (_spoil("sessions", RUNNING, bound_ms="1"), "sessions.bound_ms has the wrong type"),
    "true for a number": (_spoil("sessions", RUNNING, bound_ms=True), "sessions.bound_ms has the wrong type"),
    "a number that is too large": (_spoil("sessions", RUNNING, bound_ms=2**63), "line"),
    "a number for text": (_spoil("sessions", RUNNING, node=1), "sessions.node has the wrong type"),
    "a NUL in a text": (_spoil("sessions", RUNNING, name="a\0b"), "sessions.name has the wrong type"),
    "nothing where something must be": (
        _spoil("sessions", RUNNING, node=None),
        "sessions.node has the wrong type",
    ),
    "a column less": (_no_column, "sessions.labels: it is missing"),
    "a column more": (_former_column, "sessions.charge_from: there is no such column"),
    "a table that is none": (_strange_table, "line 2: it is not a row"),
    "another order": (_out_of_order, "must come earlier in the file"),
    "another release's": (_of_another_release, "line 1: the ledger was exported at schema 0002"),
    "the former schema's, by its header alone": (_of_the_former, "sessions.charge_from: it is missing"),
    "another program's": (_of_another_program, "line 1: it is not the header of an exported ledger"),
}


def test_a_forged_file_is_refused_by_line_and_nothing_is_written(
    database_url: str, written: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for forged, (change, sentence) in FORGED.items():
        assert import_(database_url, rewritten(written, change), tmp_path) == 2, forged

        said = capsys.readouterr().err
        assert sentence in said, forged
        assert "in.jsonl: line " in said, forged
        assert is_empty(database_url), forged


def is_empty(url: str) -> bool:
    if url.startswith("sqlite") and not Path(url.removeprefix("sqlite:///")).exists():
        return True
    store = open_store(url)
    with store.reading() as connection:
        rows = [
            connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in METADATA.tables.values()
            if table is not TERMS
        ]
    store.close()
    return not any(rows)


def cut(data: bytes, part: int) -> bytes:
    return data[: len(data) * part // 10]


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda data: b"", "line 1: the file ends without its trailer"),
        (lambda data: cut(data, 4), "it is cut off"),
        (lambda data: cut(data, 9), "it is cut off"),
        (lambda data: data[:-1], "it is cut off"),
        (lambda data: b"".join(data.splitlines(keepends=True)[:-1]), "the file ends without its trailer"),
        (lambda data: b"".join(data.splitlines(keepends=True)[:9]), "line 10: the file ends without"),
        (lambda data: data + b"{}\n", "nothing may follow it"),
        (lambda data: data.replace(b"a deadline", b"a birthday"), "their sha256 differs"),
        (lambda data: data.replace(b'{"lines":', b'{"lines":1'), "lines were exported"),
        (lambda data: b"[1]\n" + data, "line 1: it is not a JSON object"),
        (lambda data: b"\x80\n" + data, "line 1: it is not JSON"),
        (lambda data: data.replace(b'{"table":"grants"', b'{"table":"grants', 1), "it is not JSON"),
    ],
)
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_file_that_is_not_whole_is_refused_by_line_and_nothing_is_written(
    database_url: str,
    written: bytes,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    spoil: Any,
    sentence: str,
) -> None:
    assert import_(database_url, spoil(written), tmp_path) == 2

    assert sentence in capsys.readouterr().err
    assert is_empty(database_url)


def test_an_import_that_fails_leaves_no_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, url = tmp_path / "new.db", f"sqlite:///{tmp_path}/new.db"

    assert main(["import", f"{tmp_path}/missing.jsonl", "--database", url]) == 2
    assert f"FILE: {tmp_path}/missing.jsonl cannot be read: No such file" in capsys.readouterr().err
    assert import_(url, b"no ledger\n", tmp_path) == 2
    assert "nothing was written" in capsys.readouterr().err

    assert [*tmp_path.glob(f"{file.name}*")] == []


def test_a_ledger_goes_through_a_pipe(
    tmp_path: Path, written: bytes, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any
) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(written)))

    assert main(["import", "-", "--database", url]) == 0
    capfdbinary.readouterr()
    assert main(["export", "-", "--database", url]) == 0

    assert capfdbinary.readouterr().out == written


def test_an_export_writes_a_new_file_or_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    town = Town(tmp_path)
    live(town)
    file = tmp_path / "ledger.jsonl"

    assert main(["export", str(file), "--database", town.url]) == 0
    assert file.read_bytes() == exported(town)
    assert main(["export", str(file), "--database", town.url]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["export", f"{tmp_path}/no/file", "--database", town.url]) == 2
    assert "cannot be written: No such file" in capsys.readouterr().err
    assert main(["import", f"{tmp_path}/no/file", "--database", town.url]) == 2
    assert "cannot be read: No such file" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.glob("*.jsonl*")) == ["ledger.jsonl"]
    town.close()
