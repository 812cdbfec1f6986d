"""The present PodDisruptionBudgets: one value, replaced as a whole."""

import threading
from collections.abc import Iterable

from scheduler_ext.cache.informers import Kind
from scheduler_ext.model.pdb import NONE, PDB, PDBs, read_pdb
from scheduler_ext.snapshot.immutable_map import Map

PATH = "/apis/policy/v1/poddisruptionbudgets"


class PDBCache:
    """Empty before the first list; the Eviction API enforces budgets all the same."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: Map[PDB] = Map()
        self._now = NONE

    def now(self) -> PDBs:
        """All of them at this moment."""
        return self._now

    def listed(self, budgets: Iterable[PDB]) -> None:
        """These exist, and no others."""
        with self._lock:
            self._set(Map({_key(each): each for each in budgets}))

    def seen(self, budget: PDB) -> None:
        """This one is now as given."""
        with self._lock:
            self._set(self._all.set(_key(budget), budget))

    def gone(self, budget: PDB) -> None:
        """This one is gone."""
        with self._lock:
            self._set(self._all.without(_key(budget)))

    def _set(self, budgets: Map[PDB]) -> None:
        self._all = budgets
        grouped: dict[str, list[PDB]] = {}
        for each in budgets.values():
            grouped.setdefault(each.namespace, []).append(each)
        self._now = PDBs({namespace: tuple(each) for namespace, each in grouped.items()})


def kind(cache: PDBCache) -> Kind[PDB]:
    """How they are followed."""
    return Kind(PATH, read_pdb, cache.listed, cache.seen, cache.gone)


def _key(budget: PDB) -> str:
    return f"{budget.namespace}/{budget.name}"
