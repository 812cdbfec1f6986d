"""A row for each node that the fit cache has seen, so that answers are arrays."""

from collections.abc import Sequence
from itertools import repeat

import numpy as np
import orjson
from numpy.typing import NDArray

from scheduler_ext.scoring.rank import places
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.node_info import NodeInfo, is_as_free


class NodeRows:
    """Each node's row, from 1 on (0 stands for unknown nodes), and when it last changed. One version of the
    map serves all columns, however long ago each was used."""

    def __init__(self) -> None:
        self.nodes: Map[NodeInfo] = Map()
        self.by_name: dict[str, int] = {}
        self.names = [""]
        self.moment = 0
        self._changed = np.zeros(1, np.int64)
        self._places = np.zeros(0, np.int64)

    def follow(self, nodes: Map[NodeInfo]) -> None:
        """Take over this version of the nodes."""
        if nodes is self.nodes:
            return
        former = self.nodes
        names = [at for at in nodes.changed_since(former) if not is_as_free(nodes.get(at), former.get(at))]
        self.nodes, self.moment = nodes, self.moment + 1
        for name in _side_by_side([name for name in names if name not in self.by_name]):
            self.by_name[name] = len(self.names)
            self.names.append(name)
        more = len(self.names) - len(self._changed)
        if more > 0:
            self._changed = np.append(self._changed, np.zeros(more + len(self.names) // 8, np.int64))
        self._changed[[self.by_name[name] for name in names]] = self.moment

    def of(self, names: Sequence[str]) -> NDArray[np.int64]:
        """The rows of these nodes."""
        return np.fromiter(map(self.by_name.get, names, repeat(0)), np.int64, len(names))

    def by_text(self) -> NDArray[np.int64]:
        """Each row's place in the order of the names."""
        if len(self._places) != len(self.names):
            self._places = places(self.names)
        return self._places

    def since(self, moment: int) -> list[str]:
        """The nodes that changed after that moment."""
        return [self.names[row] for row in np.flatnonzero(self._changed > moment).tolist()]


def _side_by_side(names: list[str]) -> list[str]:
    """Copies of the names that lie next to each other in memory. A call looks thousands of them up, and the
    originals were made together with their nodes, far from each other."""
    copied: list[str] = orjson.loads(orjson.dumps(names))
    return copied
