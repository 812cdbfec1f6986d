"""The agent's state: the cards over time, the patch of the node, and Events about cards. It waits for
nothing. Its effects go through `AgentPorts`, and every moment is an argument.
"""

from __future__ import annotations

from sidecar.node.state import card_events, health, holders, mps, node_patch
from sidecar.node.state.api_objects import read_node
from sidecar.node.state.node_patch import DesiredNode
from sidecar.node.values import NO_VENDOR, CardFailed, DeviceReading, Vendor
from timekeeper.edge.reflector import UnreachableError
from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from sidecar.log_events import Log
    from sidecar.node.kube.api import ApiAnswer
    from sidecar.node.state.card_events import NotifiedFaults
    from sidecar.node.state.health import CardHistory
    from sidecar.node.state.mps import MpsCards
    from sidecar.node.state.overuse import AgentEvent
    from sidecar.node.values import NodeCard, NodeState, NriState, PodState

HUNG_MS = 10_000  # the reader hangs if a reading takes this much longer than the interval
GAP_MS = 1_000  # between two writes, also if another client reverts each
LONGEST_PAUSE_MS = 30_000  # after failed writes


@value
class AgentPorts:
    """The effects."""

    write: Callable[[dict[str, Any]], ApiAnswer]  # a merge patch of the status; raises UnreachableError
    post: Callable[[AgentEvent], None]  # queues an Event
    log: Log


class Agent:
    """The state. Pass it each event (``on_...``), then call `write_if_due`."""

    def __init__(
        self,
        ports: AgentPorts,
        boot: str,
        look_every_ms: int,
        now_ms: int,
        remove_taint: Callable[[dict[str, Any]], ApiAnswer] | None = None,
        vendor: Vendor = NO_VENDOR,
    ) -> None:
        """``boot``: the kernel's ID of this boot. ``remove_taint``: a merge patch of the node, raises
        UnreachableError; None: the startup taint stays. ``vendor``: of the cards."""
        self._remove_taint = remove_taint
        self.vendor = vendor
        self._ports, self._boot, self._silence_ms = ports, boot, look_every_ms + HUNG_MS
        self._read_at = now_ms  # when the cards were read last
        self._reading: DeviceReading | None = None  # the last one
        self._history: CardHistory | None = None  # None until the node was seen
        self._mps: MpsCards = mps.initial(())
        self._known: dict[str, str] = {}  # faults by card that the previous agent has reported to the pods
        self._notified: dict[str, NotifiedFaults] = {}  # by pod UID
        self._rebooted = False  # the inventory was written before the last boot
        self._logged_error = ""  # of the reader as a whole
        self._paused_until = self._pause_ms = 0  # no write before
        self._refusal = ""  # the reason of the last failed write, which is logged
        self.node: NodeState | None = None  # None: there is no such Node object
        self._written: NodeState | None = None  # as our last write left it, until the watch shows that
        self.pods: tuple[PodState, ...] | None = None  # None until they were listed
        self.holders: str | None = None  # the annotation that `holder_survey` wants
        # what that annotation says, by pod UID; None: not known yet
        self.held: Mapping[str, tuple[str, ...]] | None = None
        self.nri: NriState | None = None  # None: not known, what the node says stays
        self.written_ms: int | None = None  # the last successful write
        self.writes = {"written": 0, "refused": 0, "failed": 0}
        self.looks = 0  # readings of the cards

    @property
    def cards(self) -> tuple[NodeCard, ...]:
        """The cards of the inventory."""
        return self._history.cards if self._history else ()

    @property
    def nvml_answers(self) -> bool:
        """Whether the last reading had a result."""
        return self._reading is not None and not self._reading.error

    @property
    def picks(self) -> bool:
        """Whether a device plugin picks the cards, as far as is known."""
        return self.node is None or holders.picked_by_plugin(self.node, self.vendor.resources)

    @property
    def pods_on_cards(self) -> tuple[PodState, ...] | None:
        """The pods with the cards that they are on: of their placement, or, where a plugin picks the cards,
        those that it gave, none while that is not known. None until the pods were listed."""
        if self.pods is None or not self.picks:
            return self.pods
        held = self.held or {}
        return tuple(pod.on(held.get(pod.uid, ())) for pod in self.pods)

    @property
    def on_mps(self) -> tuple[str, ...]:
        """The cards on which processes computed through MPS at the last reading."""
        return self._reading.mps if self._reading else ()

    def on_node(self, node: NodeState | None, now_ms: int) -> None:
        """The Node object was read; None: there is none."""
        written = self._written
        if node and written and node.uid == written.uid and _is_older(node, written):
            return  # the watch is behind the answer to our own write
        self.node, self._written = node, None
        if node and self._history is None:
            self._history = health.initial(node_patch.read_inventory(node.inventory))
            self._mps = mps.initial(node_patch.read_mps(node.inventory))
            self._known = {card.uuid: card.fault for card in self._history.cards if card.fault}
            self._rebooted = node_patch.boot_in(node.holders) not in ("", self._boot)
            if self._reading:
                self._update(self._reading, now_ms)

    def on_reading(self, reading: DeviceReading, now_ms: int) -> None:
        """The cards were read."""
        self._read_at, self._reading = now_ms, reading
        self.looks += 1
        self._log_error(reading.error)
        self._update(reading, now_ms)
        self._mps = mps.after(self._mps, (card.uuid for card in reading.cards), reading.mps, now_ms)

    def on_card_failed(self, event: CardFailed, now_ms: int) -> None:
        """The driver reported a fault."""
        if self._history:
            self._replace(health.after_event(self._history, event, now_ms), now_ms)

    def tick(self, now_ms: int) -> None:
        """Check whether the reader hangs, and post the Events that are due."""
        if now_ms - self._read_at >= self._silence_ms:
            self._reading = DeviceReading((), (), (), (), (), (), (), "it does not answer")
            self._log_error(self._reading.error)
            self._update(self._reading, now_ms)
        self._notify_pods(now_ms)

    def write_if_due(self, now_ms: int) -> None:
        """Write the difference between the wanted and the present node, if there is one and it is time."""
        if self.node is None or now_ms < self._paused_until:
            return
        patch, write = node_patch.change(self.node, self._wanted()), self._ports.write
        if not patch and self._remove_taint is not None and self.nvml_answers:
            patch, write = node_patch.without_startup_taint(self.node), self._remove_taint
        if not patch:
            return
        try:
            self._judge(write(patch), now_ms)
        except UnreachableError as error:
            self._rest("failed", str(error), now_ms)

    def _update(self, reading: DeviceReading, now_ms: int) -> None:
        if self._history is None:
            return
        held = self._held()
        after = health.after_reading(self._history, reading, held, self._rebooted, now_ms)
        if not reading.error and held is not None:
            self._rebooted = False
        self._replace(after, now_ms)

    def _replace(self, after: CardHistory, now_ms: int) -> None:
        before, self._history = self._history or health.initial(()), after
        for card in health.new_faults(before, after):
            self._ports.log(
                "card-unhealthy", level="warning", uuid=card.uuid, index=card.index, reason=card.fault
            )
        for card in health.recovered(before, after):
            self._ports.log("card-healthy-again", uuid=card.uuid, index=card.index)
        self._notify_pods(now_ms)

    def _notify_pods(self, now_ms: int) -> None:
        pods = self.pods_on_cards
        if pods is None:
            return
        self._notified, due = card_events.notify(self._notified, self._known, self.cards, pods, now_ms)
        faulty = {card.uuid for card in self.cards if card.fault}
        self._known = {uuid: fault for uuid, fault in self._known.items() if uuid in faulty}
        for event in due:
            self._ports.post(event)

    def _held(self) -> frozenset[str] | None:
        """The cards that pods hold; None if that is unknown."""
        pods = self.pods_on_cards
        if self.pods is None or pods is None or (self.picks and self.held is None):
            return None
        if any(placed.cards and not pod.cards for placed, pod in zip(self.pods, pods, strict=True)):
            return None
        return frozenset(uuid for pod in pods for uuid in pod.cards)

    def _wanted(self) -> DesiredNode:
        cards = self.cards
        if not cards and not self.nvml_answers:
            return DesiredNode(None, frozenset(), self.holders, None, True, ())  # no card was ever seen
        is_held = self.pods is None or any(pod.cards for pod in self.pods)
        return DesiredNode(
            cards, self._mps.advertised, self.holders, self.nri, is_held, self.vendor.resources
        )

    def _judge(self, answer: ApiAnswer, now_ms: int) -> None:
        if answer.status == 200:
            self.node = self._written = read_node(answer.body)
            self.written_ms = now_ms
            self.writes["written"] += 1
            self._refusal, self._pause_ms = "", 0
            self._paused_until = now_ms + GAP_MS
        else:
            self._rest("refused", f"{answer.status} {answer.message}", now_ms)

    def _rest(self, result: str, reason: str, now_ms: int) -> None:
        self.writes[result] += 1
        self._pause_ms = min(max(GAP_MS, 2 * self._pause_ms), LONGEST_PAUSE_MS)
        self._paused_until = now_ms + self._pause_ms
        if reason != self._refusal:
            self._refusal = reason
            self._ports.log("not-written", level="warning", reason=reason)

    def _log_error(self, error: str) -> None:
        if error == self._logged_error:
            return
        self._logged_error = error
        if error:
            self._ports.log("reader-silent", level="warning", reason=error)
        else:
            self._ports.log("reader-back")


def _is_older(one: NodeState, other: NodeState) -> bool:
    """Compares the resource versions, which are numbers."""
    return one.version.isdigit() and other.version.isdigit() and int(one.version) < int(other.version)
