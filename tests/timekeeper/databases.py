"""Which database a test of the ledger has in `make test`; `make soak` gives it the other one."""

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


def chosen(nodeid: str, kind: str) -> str:
    """The kind of database for a test by its name: the same in each run, and for half of the tests each.
    ``kind``: the one that this name of the test has."""
    function, _, case = nodeid.rpartition("[")
    others = [part for part in case.removesuffix("]").split("-") if part != kind]
    return KINDS[zlib.crc32("-".join([function, *others]).encode()) & 1]
