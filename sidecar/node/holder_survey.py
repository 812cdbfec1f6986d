"""Who really holds what, look by look: joins cgroups, the kubelet's books and the runtime's configuration to
the pure parts that judge them. Used by one thread; each call takes at most the kubelet's two seconds."""

from __future__ import annotations

from pathlib import Path

from sidecar.node.host import cgroups, runtimes
from sidecar.node.kubelet import podresources
from sidecar.node.kubelet.grpc import CallFailed
from sidecar.node.state import holders, plugin_devices, unauthorized_use
from sidecar.node.state.exporter import metric
from sidecar.node.state.holders import Observation
from sidecar.node.state.overuse import AgentEvent
from sidecar.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sidecar.node.state.holders import HoldersRecord
    from sidecar.node.state.plugin_devices import PluginDevices
    from sidecar.node.values import NodeState, NvmlReading, PodState, ProcessOwner
    from sidecar.reporter import LogEvent

KUBELET_S = 2.0
KUBELET_AGAIN_MS = 10_000  # a kubelet that does not answer holds up no more than a fifth of the looks
RUNTIME_AGAIN_MS = 60_000
STRANGER, OPEN_RUNTIME = "GPUStranger", "GPURuntimeOpen"


@value
class SurveyPaths:
    """Where to look: the node's ``/proc`` and ``/sys/fs/cgroup``, the PodResources socket, the runtime's
    configuration files. ``closes``: strangers and open runtimes close the node; else they are only told of.
    ``trusted``: namespaces whose pods may use any card."""

    proc: str
    cgroups: str
    pod_resources: str
    runtime_configs: tuple[str, ...]
    closes: bool
    trusted: frozenset[str]


class HolderSurvey:
    """The state. ``tell`` takes an Event on its way."""

    def __init__(
        self, places: SurveyPaths, boot: str, log: LogEvent, tell: Callable[[AgentEvent], None]
    ) -> None:
        """``boot``: the kernel's name of this boot."""
        self._places, self._boot, self._log, self._tell = places, boot, log, tell
        self._held: HoldersRecord | None = None
        self._picks = False
        self._watch = unauthorized_use.NOBODY
        self._judged = False
        self._open = ""
        self._kubelet_at = self._runtime_at = 0
        self._failing: dict[str, str] = {}

    def saw_node(self, node: NodeState) -> None:
        """The node as it stands: the first time, what the agent before this one said; each time, whether a
        plugin picks its cards."""
        if self._held is None:
            self._held = holders.begun(node.holders, self._boot)
        self._picks = holders.picked_by_plugin(node.capacity)

    def looked(
        self,
        look: NvmlReading,
        seats: Mapping[int, ProcessOwner | None] | None,
        pods: tuple[PodState, ...] | None,
        cards: frozenset[str],
        now_ms: int,
    ) -> str | None:
        """The annotation after a look; None before the node was seen.

        ``seats``: whose the look's processes are, None where nobody is to be judged by them; ``pods``: all of
        the node's that have not ended, None before they were listed; ``cards``: the UUIDs of the inventory.
        """
        if self._held is None:
            return None
        given = self._given(pods, cards, now_ms) if self._picks else {}
        self._held = holders.after(self._held, Observation(pods, self._populated(), given, self._picks))
        self._read_runtime(now_ms)
        if not (look.error or seats is None or pods is None or given is None):
            self._judge(look, seats, pods, now_ms)
        self._held = holders.closed(self._held, self._why_closed())
        return holders.text(self._held)

    def page(self) -> str:
        """The metrics."""
        held = self._held
        labelled = [
            ({"uuid": each.uuid, "namespace": each.namespace, "pod": each.name, "uid": each.pod_uid}, 1)
            for each in dict.fromkeys(_nameless(stranger) for stranger, _ in self._watch.strangers)
        ]
        gauges = (
            ("bursar_node_holders", "Pods that are on the node's cards.", len(held.pods) if held else 0),
            ("bursar_node_holders_known", "Whether all of them are known.", int(held.known) if held else 0),
            ("bursar_node_closed", "Whether the node gives out no cards.", int(bool(held and held.closed))),
            ("bursar_node_runtime_open", "Whether the runtime gives cards unasked.", int(bool(self._open))),
        )
        told = [metric(name, "gauge", about, [({}, number)]) for name, about, number in gauges]
        return "".join(told) + metric(
            "bursar_node_stranger", "gauge", "A card that somebody uses who was not given it.", labelled
        )

    def _populated(self) -> dict[str, bool] | None:
        try:
            found = cgroups.populated(Path(self._places.cgroups))
        except OSError as error:
            self._fails("cgroups", f"{self._places.cgroups}: {error.strerror}")
            return None
        self._works("cgroups")
        return found

    def _given(
        self, pods: tuple[PodState, ...] | None, cards: frozenset[str], now_ms: int
    ) -> dict[str, tuple[str, ...]] | None:
        if now_ms < self._kubelet_at or pods is None:
            return None
        try:
            listed = podresources.listed(self._places.pod_resources, KUBELET_S)
        except (CallFailed, podresources.MalformedAnswer) as error:
            self._kubelet_at = now_ms + KUBELET_AGAIN_MS
            self._fails("pod-resources", f"{self._places.pod_resources}: {error}")
            return None
        self._works("pod-resources")
        self._log_unknown(listed, cards)
        return holders.by_uid(listed, pods, cards)

    def _log_unknown(self, listed: tuple[PluginDevices, ...], cards: frozenset[str]) -> None:
        odd = [
            f"{each.namespace}/{each.name} has {device}"
            for each in listed
            for device in plugin_devices.unknown_cards(each, cards)
        ]
        if odd:
            self._fails("devices", f"not in the inventory: {', '.join(odd[:3])}")
        else:
            self._works("devices")

    def _read_runtime(self, now_ms: int) -> None:
        if now_ms < self._runtime_at:
            return
        self._runtime_at = now_ms + RUNTIME_AGAIN_MS
        before = self._open
        self._open, wrong = runtimes.hands_out_all(self._places.runtime_configs)
        if wrong:
            self._fails("runtime-configs", "; ".join(wrong))
        else:
            self._works("runtime-configs")
        if self._open and self._open != before:
            self._log("runtime-open", reason=self._open)
            self._tell(AgentEvent("", "", "", "Warning", OPEN_RUNTIME, self._open))

    def _judge(
        self,
        look: NvmlReading,
        seats: Mapping[int, ProcessOwner | None],
        pods: tuple[PodState, ...],
        now_ms: int,
    ) -> None:
        held = self._held.pods if self._held else {}
        proc = Path(self._places.proc)
        try:
            seen = unauthorized_use.found(
                look.processes,
                seats,
                pods,
                held,
                self._places.trusted,
                lambda pid: cgroups.name_of(proc, pid),
            )
        except OSError as error:
            self._fails("processes", f"{proc}: {error.strerror}")
            return
        self._works("processes")
        if not self._judged and self._held and self._held.closed:
            # The agent before this one has closed the node: who is there still was seen before.
            self._watch = unauthorized_use.after(self._watch, seen, now_ms)
        self._judged = True
        before, self._watch = self._watch, unauthorized_use.after(self._watch, seen, now_ms)
        for each in unauthorized_use.new(before, self._watch):
            self._tell_of(each)

    def _tell_of(self, stranger: unauthorized_use.UnauthorizedUse) -> None:
        note = unauthorized_use.about(stranger)
        self._log("stranger", uuid=stranger.uuid, pod_uid=stranger.pod_uid, reason=note)
        pod = (stranger.pod_uid, stranger.namespace, stranger.name)
        self._tell(AgentEvent(*pod, "Warning", STRANGER, note))

    def _why_closed(self) -> str:
        if not self._places.closes:
            return ""
        why = unauthorized_use.sentence(self._watch) or self._open
        kept = self._held.closed if self._held and not self._judged else ""
        return why or kept

    def _fails(self, what: str, reason: str) -> None:
        if self._failing.get(what) != reason:
            self._failing[what] = reason
            self._log("not-seen", what=what, reason=reason)

    def _works(self, what: str) -> None:
        if self._failing.pop(what, ""):
            self._log("seen-again", what=what)


def _nameless(stranger: unauthorized_use.UnauthorizedUse) -> unauthorized_use.UnauthorizedUse:
    """Without the program's name, which anybody can choose: no label of ours."""
    return unauthorized_use.UnauthorizedUse(
        stranger.uuid, stranger.pod_uid, stranger.namespace, stranger.name, ""
    )
