"""A town for each test, on each database."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgresql import EMPTY, fresh_postgresql
from tests.timekeeper.statements import open_shared
from tests.timekeeper.worlds import Town, new_ledger
from timekeeper.store.engine.engine import Store, open_store
from timekeeper.store.engine.upgrade import upgrade

SQLITE = "sqlite"
# the same lines of ours again
POSTGRESQL = pytest.param("postgresql", marks=pytest.mark.untraced)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes a database runs on both, for their SQL differs: types, locks, upserts, errors.

    A module whose subject is no SQL says why in ONE_DATABASE, and runs on SQLite, which needs no server.
    """
    named = any("database_url" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "database_url" in metafunc.fixturenames and not named:
        kinds = [SQLITE] if hasattr(metafunc.module, "ONE_DATABASE") else [SQLITE, POSTGRESQL]
        metafunc.parametrize("database_url", kinds, indirect=True)


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


@pytest.fixture(params=["sqlite", "postgresql"])
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
