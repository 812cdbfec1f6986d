"""What the agent makes of what it hears: the book of its cards, what shall stand on the node, and whom to
tell. It waits for nothing; ``AgentPorts`` are its edges, and every moment is an argument.
"""

from __future__ import annotations

from sidecar.node.kube.api import ApiUnreachable
from sidecar.node.state import card_events, health, mps, node_patch
from sidecar.node.state.api_objects import read_node
from sidecar.node.state.node_patch import DesiredNode
from sidecar.node.values import CardFailed, NvmlReading
from sidecar.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sidecar.node.kube.api import ApiAnswer
    from sidecar.node.state.card_events import NotifiedFaults
    from sidecar.node.state.health import CardHistory
    from sidecar.node.state.mps import MpsCards
    from sidecar.node.state.overuse import AgentEvent
    from sidecar.node.values import NodeCard, NodeState, PodState
    from sidecar.reporter import LogEvent

HUNG_MS = 10_000  # beyond the time between two looks: so long NVML may take for one
GAP_MS = 1_000  # between two writes, also where somebody undoes each
LONGEST_PAUSE_MS = 30_000


@value
class AgentPorts:
    """The edges. ``write`` sends a merge patch of the node's status and raises Unreached; ``tell`` takes an
    Event on its way."""

    write: Callable[[dict[str, Any]], ApiAnswer]
    tell: Callable[[AgentEvent], None]
    log: LogEvent


class Agent:
    """The state. Give it what is heard, then call ``write_if_due``."""

    def __init__(self, ports: AgentPorts, boot: str, look_every_ms: int, now_ms: int) -> None:
        """``boot``: the kernel's name of this boot."""
        self._ports, self._boot, self._silence_ms = ports, boot, look_every_ms + HUNG_MS
        self._looked_at = now_ms
        self._look: NvmlReading | None = None
        self._book: CardHistory | None = None
        self._through: MpsCards = mps.begun(())
        self._known: dict[str, str] = {}
        self._told: dict[str, NotifiedFaults] = {}
        self._rebooted = False
        self._told_error = ""
        self._paused_until = self._pause_ms = 0
        self._refusal = ""
        self.node: NodeState | None = None
        self.pods: tuple[PodState, ...] | None = None
        self.holders: str | None = None
        self.written_ms: int | None = None
        self.writes = {"written": 0, "refused": 0, "failed": 0}
        self.looks = 0

    @property
    def cards(self) -> tuple[NodeCard, ...]:
        """The cards as they are advertised."""
        return self._book.cards if self._book else ()

    @property
    def nvml_answers(self) -> bool:
        """Whether the last look told anything."""
        return self._look is not None and not self._look.error

    @property
    def on_mps(self) -> tuple[str, ...]:
        """The cards on which processes computed through MPS at the last look."""
        return self._look.mps if self._look else ()

    def saw_node(self, node: NodeState | None, now_ms: int) -> None:
        """The node as it stands now; None: there is no such node (yet, or any more)."""
        if node and self.node and node.uid == self.node.uid and _is_older(node, self.node):
            return  # the watch is behind the answer to our own write
        self.node = node
        if node and self._book is None:
            self._book = health.begun(node_patch.read_inventory(node.inventory))
            self._through = mps.begun(node_patch.read_mps(node.inventory))
            self._known = {card.uuid: card.fault for card in self._book.cards if card.fault}
            self._rebooted = node_patch.boot_in(node.holders) not in ("", self._boot)
            if self._look:
                self._learn(self._look, now_ms)

    def looked(self, look: NvmlReading, now_ms: int) -> None:
        """NVML was read."""
        self._looked_at, self._look = now_ms, look
        self.looks += 1
        self._log_error(look.error)
        self._learn(look, now_ms)
        self._through = mps.after(self._through, (card.uuid for card in look.cards), look.mps, now_ms)

    def broke(self, broke: CardFailed, now_ms: int) -> None:
        """An event of the driver told against cards."""
        if self._book:
            self._turn_to(health.after_event(self._book, broke, now_ms), now_ms)

    def tick(self, now_ms: int) -> None:
        """See whether NVML hangs, and tell the pods what they have not been told yet."""
        if now_ms - self._looked_at >= self._silence_ms:
            self._look = NvmlReading((), (), (), (), (), (), (), "it does not answer")
            self._log_error(self._look.error)
            self._learn(self._look, now_ms)
        self._tell_pods(now_ms)

    def write_if_due(self, now_ms: int) -> None:
        """Write what differs from what stands on the node, if anything does and it is time."""
        if self.node is None or now_ms < self._paused_until:
            return
        patch = node_patch.change(self.node, self._wanted())
        if not patch:
            return
        try:
            self._judge(self._ports.write(patch), now_ms)
        except ApiUnreachable as error:
            self._rest("failed", str(error), now_ms)

    def _learn(self, look: NvmlReading, now_ms: int) -> None:
        if self._book is None:
            return
        held = self._held()
        after = health.after_look(self._book, look, held, self._rebooted, now_ms)
        if not look.error and held is not None:
            self._rebooted = False
        self._turn_to(after, now_ms)

    def _turn_to(self, after: CardHistory, now_ms: int) -> None:
        before, self._book = self._book or health.begun(()), after
        for card in health.new_faults(before, after):
            self._ports.log("card-unhealthy", uuid=card.uuid, index=card.index, reason=card.fault)
        for card in health.recovered(before, after):
            self._ports.log("card-healthy-again", uuid=card.uuid, index=card.index)
        self._tell_pods(now_ms)

    def _tell_pods(self, now_ms: int) -> None:
        if self.pods is None:
            return
        self._told, notices = card_events.tell(self._told, self._known, self.cards, self.pods, now_ms)
        ill = {card.uuid for card in self.cards if card.fault}
        self._known = {uuid: fault for uuid, fault in self._known.items() if uuid in ill}
        for notice in notices:
            self._ports.tell(notice)

    def _held(self) -> frozenset[str] | None:
        if self.pods is None:
            return None
        return frozenset(uuid for pod in self.pods for uuid in pod.cards)

    def _wanted(self) -> DesiredNode:
        cards = self.cards
        if not cards and not self.nvml_answers:
            return DesiredNode(None, frozenset(), self.holders, True)  # nothing was ever known of them
        return DesiredNode(cards, self._through.told, self.holders, self._held() != frozenset())

    def _judge(self, answer: ApiAnswer, now_ms: int) -> None:
        if answer.status == 200:
            self.node = read_node(answer.body)
            self.written_ms = now_ms
            self.writes["written"] += 1
            self._refusal, self._pause_ms = "", 0
            self._paused_until = now_ms + GAP_MS
        else:
            self._rest("refused", f"{answer.status} {answer.said}", now_ms)

    def _rest(self, result: str, reason: str, now_ms: int) -> None:
        self.writes[result] += 1
        self._pause_ms = min(max(GAP_MS, 2 * self._pause_ms), LONGEST_PAUSE_MS)
        self._paused_until = now_ms + self._pause_ms
        if reason != self._refusal:
            self._refusal = reason
            self._ports.log("not-written", reason=reason)

    def _log_error(self, error: str) -> None:
        if error == self._told_error:
            return
        self._told_error = error
        if error:
            self._ports.log("nvml-silent", reason=error)
        else:
            self._ports.log("nvml-back")


def _is_older(one: NodeState, other: NodeState) -> bool:
    """By the numbers that resource versions are."""
    return one.version.isdigit() and other.version.isdigit() and int(one.version) < int(other.version)
