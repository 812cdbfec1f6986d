"""A town for each test, on a database of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgresql import EMPTY, fresh_postgresql
from tests.timekeeper.databases import KINDS, POSTGRESQL, SQLITE, is_chosen
from tests.timekeeper.statements import open_shared
from tests.timekeeper.worlds import Town, new_ledger
from timekeeper.store.engine.engine import Store, open_store
from timekeeper.store.engine.upgrade import upgrade


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of the ledger run on SQLite. `make all` runs half of them, by their name (see `is_chosen`), on
    PostgreSQL as well, and `make soak` the other half.

    A module says why it differs. BOTH_DATABASES: its subject is SQL, which differs in types, locks, upserts
    and errors, so `make all` runs all of it on both. ONE_DATABASE: its subject is no SQL, and it runs on
    SQLite alone. Each statement of the store is run on both by some test of `make all`.
    """
    if _is_given_a_database(metafunc.definition):
        kinds = [SQLITE] if hasattr(metafunc.module, "ONE_DATABASE") else KINDS
        metafunc.parametrize("database_url", kinds, indirect=True)


def pytest_itemcollected(item: pytest.Item) -> None:
    """A test on PostgreSQL is not for `make test`. What runs on both passes the same lines of ours again, so
    it isn't traced."""
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return
    if POSTGRESQL not in item.callspec.params.values():
        return
    item.add_marker("make_all")
    if not _is_given_a_database(item):
        return
    if hasattr(item.module, "BOTH_DATABASES"):
        item.add_marker("untraced")
    elif not is_chosen(item.nodeid):
        item.add_marker("soak")


def _is_given_a_database(test: pytest.Function) -> bool:
    """Whether it takes a database and doesn't name the kinds itself."""
    named = any("database_url" in mark.args[0] for mark in test.iter_markers("parametrize"))
    return "database_url" in test.fixturenames and not named


@pytest.fixture
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of the test's own with this release's schema and without a row.

    A test that concerns one kind alone says so:
    ``@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)``.
    """
    if request.param == "sqlite":
        (tmp_path / "ledger.db").write_bytes(new_ledger())
        yield f"sqlite:///{tmp_path}/ledger.db"
    else:
        with fresh_postgresql() as url:
            yield url


@pytest.fixture
def town(database_url: str) -> Iterator[Town]:
    built = Town(database_url)
    yield built
    built.close()


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    made = open_shared(database_url)
    upgrade(made)
    yield made
    made.close()


@pytest.fixture(params=KINDS)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without a table."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/ledger.db"
    else:
        with fresh_postgresql(EMPTY) as url:
            yield url


@pytest.fixture
def empty(empty_url: str) -> Iterator[Store]:
    made = open_store(empty_url)
    yield made
    made.close()
