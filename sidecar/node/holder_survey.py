"""Finds the pods that really hold the node's cards: passes cgroups, the kubelet's PodResources and the
runtime's configuration to the pure modules that decide. One thread uses it; a call takes at most
`KUBELET_S`."""

from __future__ import annotations

from pathlib import Path

from sidecar.node.host import cgroups, runtimes
from sidecar.node.kubelet import podresources
from sidecar.node.kubelet.grpc import CallFailed
from sidecar.node.state import device_slices, holders, plugin_devices, strangers
from sidecar.node.state.exporter import metric
from sidecar.node.state.holders import Observation
from sidecar.node.state.overuse import AgentEvent
from timekeeper.edge.reflector import UnreachableError
from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    from sidecar.log_events import Log
    from sidecar.node.kube.api import ApiAnswer
    from sidecar.node.state.device_slices import ClaimedDevice
    from sidecar.node.state.holders import HoldersRecord
    from sidecar.node.state.plugin_devices import PluginDevices
    from sidecar.node.values import DeviceReading, NodeState, PodState, ProcessOwner, Vendor

    Listed = TypeVar("Listed")

KUBELET_S = 2.0
KUBELET_AGAIN_MS = 10_000  # after a failure; so a kubelet that hangs delays at most a fifth of the surveys
RUNTIME_AGAIN_MS = 60_000
SLICES_AGAIN_MS = 30_000  # while a pod with claims uses a card
STRANGER, OPEN_RUNTIME = "GPUStranger", "GPURuntimeOpen"


@value
class SurveyPaths:
    """Where to read, and what to do about unauthorized use."""

    proc: str  # the node's /proc
    cgroups: str  # the node's /sys/fs/cgroup
    pod_resources: str  # the kubelet's socket
    runtime_configs: tuple[str, ...]
    closes: bool  # unauthorized use and an open runtime close the node; else they are only reported
    trusted: frozenset[str]  # namespaces whose pods may use any card
    vendor: Vendor  # of the cards


class HolderSurvey:
    """The state. ``post`` queues an Event."""

    def __init__(
        self,
        paths: SurveyPaths,
        boot: str,
        log: Log,
        post: Callable[[AgentEvent], None],
        slices: Callable[[], ApiAnswer] | None = None,
    ) -> None:
        """``boot``: the kernel's ID of this boot; ``slices``: lists the node's ResourceSlices, raises
        UnreachableError; None: claims are not read."""
        self._slices, self._slices_at = slices, 0
        self._published: Mapping[ClaimedDevice, frozenset[str]] = {}
        self._paths, self._boot, self._log, self._post = paths, boot, log, post
        self._record: HoldersRecord | None = None  # None until the node was seen
        self._plugin = self._picks = False  # a device plugin serves the node; it picks the cards
        self._uses = strangers.NONE
        self._detected = False  # processes were compared with holders at least once
        self._open = ""  # why the container runtime is open
        self._kubelet_at = self._runtime_at = 0  # the next reading of each
        self._failing: dict[str, str] = {}  # sources that fail, with the reason that is logged

    def on_node(self, node: NodeState) -> None:
        """The Node object was read. The first time, its annotation is the memory of the previous agent."""
        if self._record is None:
            self._record = holders.initial(node.holders, self._boot)
        self._plugin = holders.is_of_plugin(node, self._paths.vendor.resources)
        self._picks = holders.picked_by_plugin(node, self._paths.vendor.resources)

    def survey(
        self,
        reading: DeviceReading,
        owners: Mapping[int, ProcessOwner | None] | None,
        pods: tuple[PodState, ...] | None,
        cards: frozenset[str],
        now_ms: int,
    ) -> str | None:
        """The holders annotation after a reading of NVML. None until the node was seen.

        ``owners``: of the reading's processes; None: unauthorized use is not judged. ``pods``: all pods of
        the node that have not ended, None until they were listed. ``cards``: the UUIDs of the inventory.
        """
        if self._record is None:
            return None
        devices = self._plugin_devices(pods, cards, now_ms) if self._plugin else {}
        observation = Observation(pods, self._populated(), devices, self._picks)
        self._record = holders.after(self._record, observation)
        self._read_runtime(now_ms)
        if not (reading.error or owners is None or pods is None or devices is None):
            self._detect(reading, owners, pods, now_ms)
        self._record = holders.closed(self._record, self._why_closed())
        return holders.text(self._record)

    @property
    def holders(self) -> Mapping[str, tuple[str, ...]] | None:
        """By pod UID the cards of each holder; None until the node was seen."""
        return self._record.pods if self._record else None

    @property
    def runtime_open(self) -> str:
        """Why the default runtime gives all cards to each container; empty: it does not."""
        return self._open

    def page(self) -> str:
        """The metrics."""
        record = self._record
        labelled = [
            ({"uuid": each.uuid, "namespace": each.namespace, "pod": each.name, "uid": each.pod_uid}, 1)
            for each in dict.fromkeys(_without_program(use) for use, _ in self._uses.proven)
        ]
        gauges = (
            ("bursar_node_holders", "Pods that hold the node's cards.", len(record.pods) if record else 0),
            ("bursar_node_holders_known", "Whether all are known.", int(record.known) if record else 0),
            ("bursar_node_closed", "Whether no card is allocated.", int(bool(record and record.closed))),
            ("bursar_node_runtime_open", "Whether images can take all cards.", int(bool(self._open))),
        )
        pages = [metric(name, "gauge", about, [({}, number)]) for name, about, number in gauges]
        return "".join(pages) + metric(
            "bursar_node_stranger", "gauge", "Use of a card that is not allocated to the pod.", labelled
        )

    def _populated(self) -> dict[str, bool] | None:
        try:
            found = cgroups.populated(Path(self._paths.cgroups))
        except OSError as error:
            self._fails("cgroups", f"{self._paths.cgroups}: {error.strerror}")
            return None
        self._works("cgroups")
        return found

    def _plugin_devices(
        self, pods: tuple[PodState, ...] | None, cards: frozenset[str], now_ms: int
    ) -> dict[str, tuple[str, ...]] | None:
        listed = None if pods is None else self._of_kubelet(podresources.listed, now_ms)
        if listed is None or pods is None:
            return None
        self._log_unknown(listed, cards)
        unplaced = pods if self._picks else tuple(pod for pod in pods if not pod.cards)
        return holders.by_uid(listed, unplaced, cards)

    def _of_kubelet(self, ask: Callable[[str, float], Listed], now_ms: int) -> Listed | None:
        """What the kubelet's service says; None while it does not answer."""
        if now_ms < self._kubelet_at:
            return None
        try:
            found = ask(self._paths.pod_resources, KUBELET_S)
        except (CallFailed, podresources.MalformedAnswer) as error:
            self._kubelet_at = now_ms + KUBELET_AGAIN_MS
            self._fails("pod-resources", f"{self._paths.pod_resources}: {error}")
            return None
        self._works("pod-resources")
        return found

    def _log_unknown(self, listed: tuple[PluginDevices, ...], cards: frozenset[str]) -> None:
        odd = [
            f"{each.namespace}/{each.name} has {device}"
            for each in listed
            for device in plugin_devices.unknown_cards(each, cards, self._paths.vendor.resources)
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
        self._open, wrong = runtimes.hands_out_all(self._paths.runtime_configs)
        if wrong:
            self._fails("runtime-configs", "; ".join(wrong))
        else:
            self._works("runtime-configs")
        if self._open and self._open != before:
            self._log("runtime-open", level="warning", reason=self._open)
            self._post(AgentEvent("", "", "", "Warning", OPEN_RUNTIME, self._open))

    def _detect(
        self,
        reading: DeviceReading,
        owners: Mapping[int, ProcessOwner | None],
        pods: tuple[PodState, ...],
        now_ms: int,
    ) -> None:
        holding = self._record.pods if self._record else {}
        proc = Path(self._paths.proc)
        try:
            seen = strangers.found(
                reading.processes,
                owners,
                pods,
                holding,
                self._paths.trusted,
                self._foreign_name,
            )
        except OSError as error:
            self._fails("processes", f"{proc}: {error.strerror}")
            return
        self._works("processes")
        seen = self._without_claimed(seen, now_ms)
        if not self._detected and self._record and self._record.closed:
            # The previous agent closed the node, so this is not the first sight of these processes.
            self._uses = strangers.after(self._uses, seen, now_ms)
        self._detected = True
        before, self._uses = self._uses, strangers.after(self._uses, seen, now_ms)
        for each in strangers.new(before, self._uses):
            note = strangers.describe(each)
            self._log("stranger", level="warning", uuid=each.uuid, pod_uid=each.pod_uid, reason=note)
            self._post(AgentEvent(each.pod_uid, each.namespace, each.name, "Warning", STRANGER, note))

    def _without_claimed(
        self, seen: frozenset[strangers.StrangerUse], now_ms: int
    ) -> frozenset[strangers.StrangerUse]:
        """Without the uses of cards that the pods have by device claims. Kubelet and API server are asked
        only where a pod uses a card that nothing else gave it."""
        if self._slices is None or not any(each.name for each in seen):
            return seen
        claims = self._of_kubelet(podresources.claims, now_ms)
        if claims is None:
            return seen
        if claims:
            self._read_slices(self._slices, now_ms)
        cards = device_slices.cards_by_pod(claims, self._published)
        return frozenset(each for each in seen if each.uuid not in cards.get((each.namespace, each.name), ()))

    def _read_slices(self, slices: Callable[[], ApiAnswer], now_ms: int) -> None:
        if now_ms < self._slices_at:
            return
        self._slices_at = now_ms + SLICES_AGAIN_MS
        try:
            answer = slices()
            if answer.status != 200:
                raise UnreachableError(f"{answer.status} {answer.message}")
            self._published = device_slices.cards_of(answer.body)
        except (UnreachableError, ValueError) as error:
            self._fails("resource-slices", str(error))
            return
        self._works("resource-slices")

    def _foreign_name(self, pid: int) -> str:
        name = cgroups.name_of(Path(self._paths.proc), pid)
        return "" if name in self._paths.vendor.programs else name

    def _why_closed(self) -> str:
        if not self._paths.closes:
            return ""
        why = strangers.sentence(self._uses) or self._open
        before = self._record.closed if self._record and not self._detected else ""
        return why or before

    def _fails(self, what: str, reason: str) -> None:
        if self._failing.get(what) != reason:
            self._failing[what] = reason
            self._log("not-seen", level="warning", what=what, reason=reason)

    def _works(self, what: str) -> None:
        if self._failing.pop(what, ""):
            self._log("seen-again", what=what)


def _without_program(use: strangers.StrangerUse) -> strangers.StrangerUse:
    """For a metric's labels: any process can choose its program's name."""
    return strangers.StrangerUse(use.uuid, use.pod_uid, use.namespace, use.name, "")
