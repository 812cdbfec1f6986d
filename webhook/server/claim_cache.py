"""What a worker knows of namespaces, claims, templates and device classes: threads that follow them, beside
admission.

No review waits for them. What has not arrived yet is unknown to `KnownClaims`, and such a pod is held.
"""

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from threading import Event, Thread
from typing import TypeVar

from timekeeper.core.json_values import Json, annotations_of, mapping
from timekeeper.core.names import NAMESPACE
from timekeeper.core.request.claims import (
    KnownClaims,
    NamespacedName,
    Requests,
    namespaced,
    read_requests,
    read_template,
)
from timekeeper.core.request.device_classes import (
    CONFIG_MAP,
    NO_DRIVERS,
    ClassSettings,
    DeviceClass,
    gpu_resources,
    read_class,
    read_settings,
)
from timekeeper.edge.clock import now_ms
from timekeeper.edge.list_watch import inform
from timekeeper.edge.reflector import ObjectChanged, ObjectsListed, WatchFailed
from timekeeper.edge.source_health import SourceHealth
from timekeeper.runtime.api_server import Api, await_served, follow_version
from webhook.log import Log

GROUP = "/apis/resource.k8s.io/v1"
_USERS = "openshift.io/sa.scc.uid-range"  # annotation of a namespace
_LOOK_MS = 60_000  # between two looks for a group that is not served

K = TypeVar("K")
V = TypeVar("V")


class ClaimCache:
    """Keeps `known` current; ``api`` None: there is no way to the API server, and nothing is ever known.
    ``drivers``: as `KnownClaims` has them; ``found`` is called with the health of what is followed."""

    def __init__(
        self,
        api: Api | None,
        log: Log,
        drivers: Callable[[], Mapping[str, bool]] = lambda: NO_DRIVERS,
        found: Callable[[Iterable[SourceHealth]], object] = lambda _sources: None,
    ) -> None:
        self._api, self._log, self._found, self._ended = api, log, found, Event()
        self.health: tuple[SourceHealth, ...] = ()  # of what is followed
        self.has_user_range: dict[str, bool] = {}  # each namespace, and whether OpenShift chooses its users
        self._classes: dict[str, DeviceClass] = {}
        self._claims: dict[NamespacedName, Requests] = {}
        self._templates: dict[NamespacedName, Requests] = {}
        self._settings: dict[str, ClassSettings] = {}
        self.known = KnownClaims(self._classes, self._claims, self._templates, drivers=drivers)

    def start(self) -> None:
        """Starts following; in a worker, after the fork, for threads do not survive one."""
        if self._api is not None:
            Thread(target=self._begin, args=(self._api,), name="claims", daemon=True).start()

    def may_exist(self, namespace: str) -> bool:
        """False where the namespaces are known, and this is none of them."""
        return not self.has_user_range or namespace in self.has_user_range

    def end(self) -> None:
        """Ends the threads after their present call."""
        self._ended.set()

    def _begin(self, api: Api) -> None:
        self._follow(api, "/api/v1/namespaces", _namespace, self.has_user_range)

        def absent() -> None:
            self.known.is_served = False

        if not await_served(api.call, GROUP, self._wait_ms, absent=absent, again_ms=_LOOK_MS):
            return
        self.known.is_served = True
        self.known.read_version(api.version())
        one = f"/api/v1/namespaces/{NAMESPACE}/configmaps?fieldSelector=metadata.name%3D{CONFIG_MAP}"
        self._follow(api, one, _settings, self._settings, self._set, name="class-settings")
        self._follow(api, f"{GROUP}/deviceclasses", _class, self._classes, self._set)
        self._follow(api, f"{GROUP}/resourceclaimtemplates", _template, self._templates)
        self._follow(api, f"{GROUP}/resourceclaims", _claim, self._claims)
        follow_version(api.version, self.known.read_version, self._ended)

    def _set(self) -> None:
        self.known.settings = settings = self._settings.get(CONFIG_MAP, ClassSettings())
        self.known.resources = gpu_resources(tuple(self._classes.values()), settings, self.known.drivers())

    def _follow(
        self,
        api: Api,
        path: str,
        read: Callable[[Json], tuple[K, V]],
        table: MutableMapping[K, V],
        changed: Callable[[], None] = lambda: None,
        name: str = "",
    ) -> None:
        source = name or path.rpartition("/")[2]
        health = SourceHealth(source, self._log, now_ms)
        self.health = *self.health, health

        def run() -> None:
            for event in inform(api, path, read, self._wait_ms, health):
                match event:
                    case ObjectsListed(values):
                        there = dict(values)
                        for gone in [key for key in table if key not in there]:
                            del table[gone]
                        table.update(there)
                    case ObjectChanged((key, _), True):
                        table.pop(key, None)
                    case ObjectChanged((key, value), False):
                        table[key] = value
                    case WatchFailed(sentence):
                        self._log("watch-failed", level="warning", source=source, error=sentence)
                changed()
                self._found(self.health)

        Thread(target=run, name=source, daemon=True).start()

    def _wait_ms(self, ms: int) -> bool:
        return self._ended.wait(ms / 1000)


def _namespace(raw: Json) -> tuple[str, bool]:
    return namespaced(raw)[1], _USERS in annotations_of(raw)


def _class(raw: Json) -> tuple[str, DeviceClass]:
    read = read_class(raw)
    return read.name, read


def _settings(raw: Json) -> tuple[str, ClassSettings]:
    return namespaced(raw)[1], read_settings(mapping(raw.get("data")))


def _template(raw: Json) -> tuple[NamespacedName, Requests]:
    return namespaced(raw), read_template(raw)


def _claim(raw: Json) -> tuple[NamespacedName, Requests]:
    return namespaced(raw), read_requests(mapping(raw.get("spec")))
