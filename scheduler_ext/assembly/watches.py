"""The kinds of objects that the extender follows, each in a thread of its own."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from scheduler_ext.background import Work
from scheduler_ext.cache import device_slices, pdb_cache, pod_groups
from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.cache.device_slices import DeviceSlices
from scheduler_ext.cache.informers import Hearing, Kind, follow, kinds, namespaces
from scheduler_ext.cache.pdb_cache import PDBCache
from scheduler_ext.cache.pod_groups import PodGroups
from scheduler_ext.cache.unhealthy_lists import UnhealthyLists
from scheduler_ext.log import Log
from scheduler_ext.model.leader_mark import LeaderMark
from scheduler_ext.model.pod import NonGPUPod, Pod
from scheduler_ext.settings import ExtenderSettings
from timekeeper.edge.clock import now_ms
from timekeeper.edge.source_health import SourceHealth
from timekeeper.runtime.api_server import Api, await_served

V = TypeVar("V")


class Watches:
    """Keeps ``cache``, ``pdbs``, ``slices`` and ``groups`` up to date. ``hearing`` gets the replicas' leader
    marks; ``pod_seen`` is called with each GPU pod that was created or changed, or is listed anew, once the
    cache has it."""

    def __init__(
        self,
        settings: ExtenderSettings,
        api: Api,
        cache: ClusterCache,
        pdbs: PDBCache,
        slices: DeviceSlices,
        groups: PodGroups,
        hearing: Hearing,
        pod_seen: Callable[[Pod], None],
        log: Log,
    ) -> None:
        self._settings, self._api, self._log = settings, api, log
        self._cache, self._pdbs, self._slices, self._groups = cache, pdbs, slices, groups
        self._hearing, self._pod_seen = hearing, pod_seen
        self.health: dict[str, SourceHealth] = {}  # by watched path
        self._last_sign: dict[str, float] = {}  # watched path -> monotonic second of the last event

    def work(self) -> dict[str, Work]:
        """The threads, by name."""
        followed = {name: self._followed(kind) for name, kind in self.kinds().items()}
        devices = self._served(device_slices.API, self._slices.kind(), self._slices.unserved)
        groups = self._served(pod_groups.API, self._groups.kind(), self._groups.unserved)
        return {**followed, "devices": devices, "pod-groups": groups}

    def kinds(self) -> dict[str, Kind[Any]]:
        """The kinds that every API server has, by the names of their threads."""
        wanted = self._settings
        namespace, _ = wanted.election.pod
        pods, nodes = kinds(
            self._cache,
            wanted.max_grace_period_ms,
            self._hearing,
            namespace,
            wanted.lock_nodes,
            wanted.model_names,
        )
        followed: dict[str, Kind[Any]] = {
            "pods": replace(pods, seen=self._observed(pods.seen), listed=self._listed(pods.listed)),
            "disruption": pdb_cache.kind(self._pdbs),
            "namespaces": namespaces(self._cache),
        }
        if not wanted.unhealthy_lists:
            return {**followed, "nodes": nodes}
        lists = UnhealthyLists(self._cache, self._log)
        unhealthy = lists.kind(wanted.unhealthy_lists)
        return {**followed, "nodes": lists.of_nodes(nodes), "unhealthy": unhealthy}

    def follow(self, kind: Kind[V], wait_ms: Callable[[int], object]) -> Iterator[None]:
        """Follows one kind until ``wait_ms`` is true, an event at each step."""

        def heard() -> None:
            self._last_sign[kind.path] = time.monotonic()

        health = SourceHealth(kind.path.rpartition("/")[2], self._log, now_ms)
        self.health[kind.path] = health
        return follow(self._api, kind, heard, self._log, wait_ms, health)

    def _served(self, api: str, kind: Kind[Any], unserved: Callable[[], None]) -> Work:
        """Follows the kind once the API server serves it; before, there are none."""

        def unheard(sentence: str) -> None:
            self._log("unheard", level="warning", path=api, error=sentence)

        def work(stop: threading.Event) -> None:
            if await_served(self._api.call, api, lambda ms: stop.wait(ms / 1000), unheard, unserved):
                self._followed(kind)(stop)

        return work

    def sources(self) -> tuple[SourceHealth, ...]:
        """What is wrong with each kind that is followed."""
        return tuple(self.health.values())

    def silent_s(self) -> dict[str, float]:
        """Seconds since the API server's last sign of life, by kind."""
        now = time.monotonic()
        return {path.rpartition("/")[2]: now - sign for path, sign in self._last_sign.items()}

    def _followed(self, kind: Kind[V]) -> Work:
        def work(stop: threading.Event) -> None:
            for _ in self.follow(kind, lambda ms: stop.wait(ms / 1000)):
                if stop.is_set():
                    return

        return work

    def _observed(
        self, seen: Callable[[Pod | NonGPUPod | LeaderMark], None]
    ) -> Callable[[Pod | NonGPUPod | LeaderMark], None]:
        def observed(value: Pod | NonGPUPod | LeaderMark) -> None:
            seen(value)
            if isinstance(value, Pod):
                self._pod_seen(value)

        return observed

    def _listed(
        self, listed: Callable[[list[Pod | NonGPUPod | LeaderMark]], None]
    ) -> Callable[[list[Pod | NonGPUPod | LeaderMark]], None]:
        def observed(values: list[Pod | NonGPUPod | LeaderMark]) -> None:
            is_anew = self._cache.complete
            listed(values)
            for value in values if is_anew else ():
                if isinstance(value, Pod):
                    self._pod_seen(value)

        return observed
