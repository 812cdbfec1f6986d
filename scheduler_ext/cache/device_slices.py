"""ResourceSlices: which GPUs drivers publish of each node. Every slice that exists counts, also one of an
older generation, so that no node opens while a driver writes a pool anew."""

import threading
from collections.abc import Callable, Iterable

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.cache.informers import Kind
from scheduler_ext.model.published_gpus import PublishedGPU, gpus_of
from timekeeper.core.claims.devices import DeviceSlice, read_slice
from timekeeper.core.claims.drivers import DriverRule, rules_of

API = "/apis/resource.k8s.io/v1"
PATH = f"{API}/resourceslices"


class DeviceSlices:
    """Keeps what ``cache`` knows of published GPUs current. ``drivers``: an administrator's rules."""

    def __init__(self, cache: ClusterCache, drivers: Callable[[], tuple[DriverRule, ...]]) -> None:
        self._cache, self._drivers = cache, drivers
        self._lock = threading.Lock()
        self._slices: dict[str, DeviceSlice] = {}
        self._gpus: dict[str, dict[str, list[PublishedGPU]]] = {}  # node -> slice -> what is in it
        self._judged_by: tuple[DriverRule, ...] = ()
        self._rules = rules_of(())

    def kind(self) -> Kind[DeviceSlice]:
        """The slices."""
        return Kind(PATH, read_slice, self._listed, self._seen, self._gone)

    def unserved(self) -> None:
        """The API server has no slices."""
        self._cache.gpus_published({}, is_whole=True)

    def judge_again(self) -> None:
        """After a change of the rules other devices may be GPUs."""
        drivers = self._drivers()
        if drivers is self._judged_by:
            return
        with self._lock:
            is_same = drivers == self._judged_by
            self._judged_by = drivers
            if not is_same:
                self._rules = rules_of(drivers)
                self._publish(self._put(list(self._slices.values())))

    def _listed(self, slices: list[DeviceSlice]) -> None:
        with self._lock:
            there = {each.name for each in slices}
            changed = self._drop([name for name in self._slices if name not in there])
            self._publish(changed | self._put(slices), is_whole=True)

    def _seen(self, each: DeviceSlice) -> None:
        with self._lock:
            self._publish(self._put([each]))

    def _gone(self, each: DeviceSlice) -> None:
        with self._lock:
            self._publish(self._drop([each.name]))

    def _put(self, slices: Iterable[DeviceSlice]) -> set[str]:
        """The slices as they are now; returns the nodes that they are or were of."""
        changed: set[str] = set()
        for each in slices:
            changed |= self._drop([each.name])
            self._slices[each.name] = each
            for node, gpu in gpus_of(each, self._rules):
                self._gpus.setdefault(node, {}).setdefault(each.name, []).append(gpu)
                changed.add(node)
        return changed

    def _drop(self, names: Iterable[str]) -> set[str]:
        changed: set[str] = set()
        for name in names:
            known = self._slices.pop(name, None)
            for node in {each.node for each in known.devices.values()} if known else ():
                if self._gpus.get(node, {}).pop(name, None) is not None:
                    changed.add(node)
        return changed

    def _publish(self, nodes: set[str], is_whole: bool = False) -> None:
        found = {name: _sorted(self._gpus.get(name, {}).values()) for name in nodes}
        for name in [name for name, gpus in found.items() if not gpus]:
            self._gpus.pop(name, None)
        self._cache.gpus_published(found, is_whole)


def _sorted(by_slice: Iterable[list[PublishedGPU]]) -> tuple[PublishedGPU, ...]:
    return tuple(sorted({gpu for gpus in by_slice for gpu in gpus}))
