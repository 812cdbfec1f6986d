"""What the agent does as a plugin of the container runtime: it tells the plugin of cards and pods, and the
inventory of the plugin."""

from __future__ import annotations

import threading

from sidecar.log import log
from sidecar.node.nri import plugin
from sidecar.node.nri.cdi import Specifications
from sidecar.node.nri.host import node_devices
from sidecar.node.state.node_patch import is_served_by_another, read_nri
from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from sidecar.node.agent import Agent
    from sidecar.node.devices import DeviceReader
    from sidecar.node.kube.api import NodeApi
    from sidecar.node.settings import AgentSettings
    from sidecar.node.state.api_objects import NodePods


class NriTasks:
    """`on_pods` may be called by another thread."""

    def __init__(self, settings: AgentSettings, server: NodeApi, reader: DeviceReader) -> None:
        self._settings, self._reader = settings, reader
        self._plugin = plugin.Plugin(plugin.finder(server), settings.trusted_namespaces)
        self._cdi = Specifications(settings.cdi)
        self._unread: tuple[str, ...] = ()  # specifications, as logged last

    def start(self) -> None:
        """Connect to the runtime, in a thread of its own."""
        work = threading.Thread(
            target=plugin.follow, args=(self._plugin, self._settings.nri_socket), name="nri", daemon=True
        )
        work.start()

    def on_pods(self, read: NodePods, objects: Mapping[str, Mapping[str, Any]]) -> None:
        """The node's pods were read. ``objects``: their metadata, by UID."""
        self._plugin.pods = {
            pod.uid: (pod, objects[pod.uid]["metadata"]["annotations"]) for pod in read.pods if pod.containers
        }

    def on_reading(self, agent: Agent, runtime_open: str) -> None:
        """The cards were read. ``runtime_open``: why the default runtime gives all cards to each container;
        empty: it does not."""
        if agent.node is None or not agent.cards:
            return
        is_another = is_served_by_another(agent.node, agent.vendor.resources)
        leave = "a device plugin gives out the cards" if is_another else runtime_open
        cards, paths, told = (card.uuid for card in agent.cards), self._reader.paths, self._settings
        self._plugin.devices = node_devices(cards, paths, self._cdi, told.dev, told.driver_libraries, leave)
        if self._cdi.errors != self._unread:
            self._unread = self._cdi.errors
            if self._unread:
                log("cdi-unreadable", reason="; ".join(self._unread))

    def tick(self, agent: Agent, now_ms: int) -> None:
        """Have the inventory say what there is now."""
        if agent.node is not None:
            agent.nri = self._plugin.state(agent.nri or read_nri(agent.node.inventory), now_ms)

    def page(self) -> str:
        """The metrics."""
        return self._plugin.page()
