"""The plugin: it answers the runtime's questions about containers, and keeps the connection.

It runs in a thread of its own. `pods` and `devices` are replaced by other threads.
"""

from __future__ import annotations

import time
from contextlib import closing
from functools import partial
from urllib.parse import quote

from sidecar.log import log
from sidecar.node.kube.api import METADATA
from sidecar.node.nri import placement
from sidecar.node.nri.connection import Broken, Failed, NriConnection
from sidecar.node.nri.messages import message, parsed
from sidecar.node.nri.placement import NodeDevices, Refused
from sidecar.node.state.api_objects import DEVICES, read_pod
from sidecar.node.state.exporter import metric
from sidecar.node.values import NriState
from timekeeper.edge.reflector import UnreachableError
from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from sidecar.node.kube.api import NodeApi
    from sidecar.node.values import PodState

    KnownPod = tuple[PodState | None, Mapping[str, str]]  # and its annotations

NAME, INDEX = "bursar", "50"
CREATE, VALIDATE = 1 << 3, 1 << 13  # the runtime's events, as bits
PART_OF_TIMEOUT = 0.5  # of the runtime's limit for an answer, for the one call of the API server
SILENT_MS = 60_000  # without a connection, until the inventory says that cards do not come by NRI
NOT_BY_NRI = NriState((), False)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0


class Plugin:
    """The answers. ``find``: reads a pod's metadata by namespace, name and a limit in seconds; None: there is
    none; raises UnreachableError."""

    def __init__(
        self,
        find: Callable[[str, str, float], Mapping[str, Any] | None],
        trusted: frozenset[str],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``trusted``: namespaces whose pods may have any card."""
        self._find, self._trusted, self._clock = find, trusted, clock
        self.pods: Mapping[str, tuple[PodState, Mapping[str, str]]] = {}  # by UID, with their annotations
        self.devices: NodeDevices | None = None  # None until the cards were read
        self.connected = False
        self.plugins: tuple[str, ...] | None = None  # the names of all, by the runtime; None: not known yet
        self.results = {"given": 0, "none": 0, "left": 0, "refused": 0}
        self.slowest_s = 0.0  # of answers about containers
        self._timeout_s = 2.0
        self._seen_ms: int | None = None  # when it was connected last, at first when it was asked first
        self._found: tuple[str, KnownPod] = ("", (None, {}))  # the last pod that was asked for: UID, and it

    def state(self, before: NriState | None, now_ms: int) -> NriState:
        """What the inventory says. ``before``: what it says now, which stays until the runtime has told which
        plugins there are, and for a minute after it fell silent."""
        if self.devices is not None and self.devices.leave:
            return NOT_BY_NRI
        if self.connected or self._seen_ms is None:
            self._seen_ms = now_ms
        if not self.connected:
            return before if before and now_ms - self._seen_ms < SILENT_MS else NOT_BY_NRI
        if self.plugins is None:
            return before if before and before.plugins else NriState((NAME,), False)
        others = placement.NVIDIAS_PLUGINS | {placement.FRACTIONING}
        needed = (NAME, *sorted(others.intersection(self.plugins)))
        return NriState(needed, placement.DEFAULT_VALIDATOR in self.plugins)

    def page(self) -> str:
        """The metrics."""
        none: dict[str, str] = {}
        connected, slowest = [(none, int(self.connected))], [(none, round(self.slowest_s, 6))]
        given = [({"result": name}, count) for name, count in self.results.items()]
        what = "Containers by what they were given."
        return (
            metric("bursar_node_nri_connected", "gauge", "Whether the runtime's NRI is answered.", connected)
            + metric("bursar_node_nri_containers_total", "counter", what, given)
            + metric("bursar_node_nri_slowest_seconds", "gauge", "The longest answer so far.", slowest)
        )

    def methods(self) -> dict[str, Callable[[bytes], bytes]]:
        """By the method's name, its answer."""
        return {
            "Configure": self._configure,
            "Synchronize": self._synchronize,
            "CreateContainer": partial(self._timed, self._create),
            "ValidateContainerAdjustment": partial(self._timed, self._validate),
            "Shutdown": lambda _: b"",
            "StateChange": lambda _: b"",
        }

    def _configure(self, raw: bytes) -> bytes:
        asked = parsed("Configure", raw)
        self._timeout_s = asked.request_timeout / 1000 or self._timeout_s
        log("nri-connected", runtime=f"{asked.runtime_name} {asked.runtime_version}")
        return _bytes(message("Configured", events=CREATE | VALIDATE))

    def _synchronize(self, raw: bytes) -> bytes:
        asked = parsed("Synchronize", raw)
        self.connected = self.connected or not asked.more
        return _bytes(message("Synchronized", more=asked.more))

    def _create(self, raw: bytes) -> bytes:
        asked = parsed("CreateContainer", raw)
        name = asked.container.name
        pod, annotations = self._pod(asked.pod)
        cards = placement.cards_of(pod, name)
        if self.devices is None:
            raise Refused("the node's cards were not read yet")
        if not cards:
            self.results["none"] += 1
            return b""
        if placement.is_left_to_others(self.devices, asked.pod.runtime_handler, annotations, name):
            self.results["left"] += 1
            return b""
        adjust = _adjustment(placement.given(self.devices, cards), asked.container.env)
        self.results["given"] += 1
        return _bytes(message("ContainerCreated", adjust=adjust))

    def _validate(self, raw: bytes) -> bytes:
        """The runtime asks after all plugins. So no container comes to be of whose making the plugin does not
        know: if it dies meanwhile, the runtime finds no answer here and refuses."""
        asked = parsed("Validate", raw)
        self.plugins = tuple(each.name for each in asked.plugins)
        if asked.pod.namespace in self._trusted or self.devices is None or self.devices.leave:
            return b""
        pod, _ = self._pod(asked.pod)
        cdi, nodes = asked.adjust.cdi_devices, asked.adjust.linux.devices
        allowed = placement.cards_of(pod, asked.container.name)
        names, paths = (each.name for each in cdi), (each.path for each in nodes)
        found = placement.strange(self.devices, allowed, names, paths)
        if not found:
            return b""
        self.results["refused"] += 1
        reason = f"a plugin gives the container card {found}, which its placement does not name"
        log("nri-refused", namespace=asked.pod.namespace, pod=asked.pod.name, reason=reason)
        return _bytes(message("Validated", reject=True, reason=reason))

    def _pod(self, sandbox: Any) -> KnownPod:
        """The pod as the API server has it, and its annotations. Raises `Refused` where it is not known and
        must be."""
        if (stands := self.pods.get(sandbox.uid)) is not None:
            return stands
        if not any(each.key == DEVICES and each.value for each in sandbox.annotations):
            return None, {}
        if self._found[0] != sandbox.uid:  # a placement never changes
            self._found = (sandbox.uid, self._asked(sandbox))
        return self._found[1]

    def _asked(self, sandbox: Any) -> KnownPod:
        """By one call of the API server."""
        try:
            found = self._find(sandbox.namespace, sandbox.name, self._timeout_s * PART_OF_TIMEOUT)
        except UnreachableError as error:
            reason = f"the pod's placement is not known, for the API server does not answer: {error}"
            raise Refused(reason) from None
        if found is None or found["metadata"]["uid"] != sandbox.uid:
            raise Refused("the sandbox names a placement, but the API server has no such pod")
        return read_pod(found), found["metadata"].get("annotations") or {}

    def _timed(self, answer: Callable[[bytes], bytes], raw: bytes) -> bytes:
        began = self._clock()
        try:
            return answer(raw)
        except Refused as error:
            self.results["refused"] += 1
            log("nri-refused", reason=error)
            raise Failed(str(error)) from None
        except Exception as error:
            # A defect of ours must refuse: without an answer the runtime makes the container without cards.
            log("fault", level="error", where="nri", reason=f"{type(error).__name__}: {error}")
            raise Failed(f"Bursar's node agent failed: {type(error).__name__}") from None
        finally:
            self.slowest_s = max(self.slowest_s, self._clock() - began)


def follow(plugin: Plugin, socket: str, pause: Callable[[float], None] = time.sleep) -> None:
    """Forever, from the first reading of the cards on: connect to the runtime's socket and answer, and again
    when the connection breaks."""
    while plugin.devices is None:
        pause(FIRST_PAUSE_S)
    pause_s, told = FIRST_PAUSE_S, ""
    while True:
        reason = ""
        try:
            with closing(NriConnection(socket)) as connection:
                connection.serve(NAME, INDEX, plugin.methods())
        except Broken as error:
            reason = str(error)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        pause_s = FIRST_PAUSE_S if plugin.connected else min(2 * pause_s, LONGEST_PAUSE_S)
        plugin.connected, plugin.plugins = False, None
        if reason != told:
            told = reason
            log("nri-lost", reason=reason)
        pause(pause_s)


def finder(api: NodeApi) -> Callable[[str, str, float], Mapping[str, Any] | None]:
    """Reads a pod's metadata at the API server."""

    def find(namespace: str, name: str, within_s: float) -> Mapping[str, Any] | None:
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"
        answer = api.call("GET", path, accept=METADATA.format(""), within_s=within_s)
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise UnreachableError(f"{answer.status} {answer.message}".strip())
        found: Mapping[str, Any] = answer.body
        return found

    return find


def _adjustment(devices: placement.ContainerDevices, env: list[str]) -> Any:
    adjust = message("Adjustment")
    for name in devices.cdi:
        adjust.cdi_devices.add(name=name)
    for node in devices.nodes:
        adjust.linux.devices.add(path=node.path, type="c", major=node.major, minor=node.minor)
    if devices.libraries:
        bind = {"type": "bind", "options": ["rbind", "ro", "nosuid", "nodev"]}
        adjust.mounts.add(destination=placement.LIBRARIES, source=devices.libraries, **bind)
        told = dict(each.partition("=")[::2] for each in env).get(placement.PATHS, "")
        paths = (f"{placement.LIBRARIES}/lib64", *filter(None, told.split(":")))
        adjust.env.add(key=placement.PATHS, value=":".join(dict.fromkeys(paths)))
    return adjust


def _bytes(made: Any) -> bytes:
    return bytes(made.SerializeToString())
