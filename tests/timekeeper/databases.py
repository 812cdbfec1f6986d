"""Which tests of the ledger `make all` runs on PostgreSQL too; `make soak` runs the others there."""

import zlib

import pytest

SQLITE, POSTGRESQL = "sqlite", "postgresql"
KINDS = (SQLITE, POSTGRESQL)

# for the one test of a statement, in a module whose other tests have one database each
ON_BOTH = pytest.mark.parametrize(
    "database_url",
    [SQLITE, pytest.param(POSTGRESQL, marks=pytest.mark.untraced)],
    indirect=True,
)


def is_chosen(nodeid: str) -> bool:
    """Whether `make all` runs this test on PostgreSQL: by its name, so it is the same in each run, and for
    half of the tests."""
    return bool(zlib.crc32(nodeid.encode()) & 1)
