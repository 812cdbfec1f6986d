"""What the table of mutants allows."""

from pathlib import Path

from tests.mutants.__main__ import lost, sources
from tests.mutants.table import TABLE, Row, idle, in_doubt, read, summary, write
from tests.support.compositions import ROOT

PLAIN, GUARDED = "webhook/wire/a.py:f:not:1", "timekeeper/accounts/a.py:f:not:1"
A, B, C = "tests/a.py::test_a", "tests/b.py::test_b", "tests/c.py::test_c"


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    table = {PLAIN: Row("1", (A, B)), GUARDED: Row("2", ()), "x:f:not:1": Row("3", (), unpassed=True)}

    write(tmp_path / "table", table)

    assert read(tmp_path / "table") == table
    assert read(tmp_path / "none") == {}
    assert summary(table).startswith(
        "3 mutants: 0 noticed by three files of tests or more, 1 by two, 0 by one, 1 s"
    )


def test_a_mutant_is_in_doubt_where_its_last_killer_leaves() -> None:
    table = {PLAIN: Row("1", (A, B))}

    assert in_doubt(table, {A}.__contains__) == set()
    assert in_doubt(table, {A, B}.__contains__) == {PLAIN}
    assert in_doubt(table, {C}.__contains__) == set()


def test_the_ledger_keeps_two_killers() -> None:
    table = {GUARDED: Row("1", (A, B)), GUARDED + "1": Row("1", (A, B, C)), GUARDED + "2": Row("1", (B,))}

    assert in_doubt(table, {A}.__contains__) == {GUARDED}


def test_who_is_alone_is_not_idle() -> None:
    table = {PLAIN: Row("1", (A,)), PLAIN + "1": Row("1", (A, B)), GUARDED: Row("1", (B, C))}

    assert idle(table) == set()
    assert idle(table | {GUARDED: Row("1", (A, B, C))}) == {B, C}


def test_each_row_is_of_a_function_that_is_there() -> None:
    assert lost(read(ROOT / TABLE), sources()) == [], "python -m tests.mutants --prune removes these rows"
