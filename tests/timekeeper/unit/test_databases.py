"""Each test of the ledger has one of two databases in `make test`."""

import re

from tests.timekeeper.databases import KINDS, POSTGRESQL, SQLITE, chosen

NAMES = [f"tests/timekeeper/ledger/test_sqlite.py::test_{at}[KIND-{at % 7}]" for at in range(400)]


def name(text: str, kind: str) -> str:
    return re.sub("KIND", kind, text)


def test_a_test_runs_on_exactly_one_of_both_databases() -> None:
    for text in [*NAMES, "a.py::test_b[KIND]", "a.py::test_b[1-KIND-sq-lite]"]:
        runs = [kind for kind in KINDS if chosen(name(text, kind), kind) == kind]
        assert len(runs) == 1, text


def test_each_database_has_about_half_of_the_tests() -> None:
    kinds = [chosen(name(text, SQLITE), SQLITE) for text in NAMES]

    assert 150 < kinds.count(POSTGRESQL) < 250
