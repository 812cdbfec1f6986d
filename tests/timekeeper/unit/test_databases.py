"""`make all` runs half of the ledger's tests on PostgreSQL too, `make soak` the others."""

from tests.timekeeper.databases import is_chosen

NAMES = [f"tests/timekeeper/ledger/test_sums.py::test_{at}[postgresql-{at % 7}]" for at in range(400)]


def test_about_half_of_the_tests_are_chosen_and_the_same_in_each_run() -> None:
    chosen = [name for name in NAMES if is_chosen(name)]

    assert 150 < len(chosen) < 250
    assert [name.partition("::")[2] for name in chosen[:3]] == [
        "test_1[postgresql-1]",
        "test_2[postgresql-2]",
        "test_4[postgresql-4]",
    ]
