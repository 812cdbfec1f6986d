"""The PodGroups of Kubernetes: with how many pods each starts."""

import threading
from collections.abc import Iterable

from scheduler_ext.cache.informers import Kind
from scheduler_ext.snapshot.immutable_map import Map
from timekeeper.core.json_values import Json, mapping

API = "/apis/scheduling.k8s.io/v1beta1"
PATH = f"{API}/podgroups"

Group = tuple[str, int]  # namespace and name; its minimum, 0: its pods start one by one


class PodGroups:
    """Nothing is known before the first list."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: Map[int] = Map()
        self._is_served = True

    def kind(self) -> Kind[Group]:
        """How they are followed."""
        return Kind(PATH, read_group, self._listed, self._seen, self._gone)

    def unserved(self) -> None:
        """The API server has none: no pod waits for one."""
        self._is_served = False

    def minimum(self, name: str) -> int | None:
        """Of the group of this namespace and name; None: it is not there."""
        return self._known.get(name) if self._is_served else 0

    def _listed(self, groups: Iterable[Group]) -> None:
        with self._lock:
            self._known, self._is_served = Map(dict(groups)), True

    def _seen(self, group: Group) -> None:
        with self._lock:
            self._known = self._known.set(*group)

    def _gone(self, group: Group) -> None:
        with self._lock:
            self._known = self._known.without(group[0])


def read_group(raw: Json) -> Group:
    """Never raises."""
    metadata, spec = mapping(raw.get("metadata")), mapping(raw.get("spec"))
    least = mapping(mapping(spec.get("schedulingPolicy")).get("gang")).get("minCount")
    return f"{metadata.get('namespace')}/{metadata.get('name')}", least if type(least) is int else 0
