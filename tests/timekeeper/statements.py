"""Compiled SQL that all tests of a process share.

An engine keeps the SQL of the statements that it has run. Each test has a database and an engine of its own,
so each would compile the same statements again: a fifth of the ledger tests' processor time.
"""

from typing import Any

from sqlalchemy.util import LRUCache

from timekeeper.store.engine.engine import PATIENCE_MS, Store, open_store

_MOST = 2_000  # statements of one dialect; more means that a statement holds a value


class CompiledStatements(LRUCache[Any, Any]):
    """SQLAlchemy's cache for the engines of one dialect. Its keys begin with an engine's own dialect, and
    these are alike."""

    def get(self, key: Any, default: Any = None) -> Any:
        """The compiled statement, whichever engine had it compiled."""
        return super().get(key[1:], default)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key[1:], value)


_SHARED = {"sqlite": CompiledStatements(_MOST), "postgresql": CompiledStatements(_MOST)}


def open_shared(url: str, patience_ms: int = PATIENCE_MS) -> Store:
    """As `open_store`, but what other tests had compiled is not compiled again."""
    engine = open_store(url, patience_ms).engine
    engine.update_execution_options(compiled_cache=_SHARED[engine.dialect.name])
    return Store(engine)
