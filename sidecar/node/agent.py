"""What the agent makes of what it hears: the book of its cards, what shall stand on the node, and whom to
tell. It waits for nothing; ``Ports`` are its edges, and every moment is an argument.
"""

from __future__ import annotations

from sidecar.node.kube.api import Unreached
from sidecar.node.state import card_events as telling
from sidecar.node.state import health, mps
from sidecar.node.state import node_patch as advertise
from sidecar.node.state.api_objects import read_node
from sidecar.node.state.node_patch import Wanted
from sidecar.node.values import Broke, Look
from sidecar.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sidecar.node.kube.api import Answer
    from sidecar.node.state.card_events import Told
    from sidecar.node.state.health import Book
    from sidecar.node.state.mps import Through
    from sidecar.node.state.overuse import Notice
    from sidecar.node.values import Card, NodeSeen, PodSeen
    from sidecar.reporter import Say

HUNG_MS = 10_000  # beyond the time between two looks: so long NVML may take for one
GAP_MS = 1_000  # between two writes, also where somebody undoes each
LONGEST_PAUSE_MS = 30_000


@value
class Ports:
    """The edges. ``write`` sends a merge patch of the node's status and raises Unreached; ``tell`` takes an
    Event on its way."""

    write: Callable[[dict[str, Any]], Answer]
    tell: Callable[[Notice], None]
    say: Say


class Agent:
    """The state. Give it what is heard, then call ``write_if_due``."""

    def __init__(self, ports: Ports, boot: str, look_every_ms: int, now_ms: int) -> None:
        """``boot``: the kernel's name of this boot."""
        self._ports, self._boot, self._silence_ms = ports, boot, look_every_ms + HUNG_MS
        self._looked_at = now_ms
        self._look: Look | None = None
        self._book: Book | None = None
        self._through: Through = mps.begun(())
        self._known: dict[str, str] = {}
        self._told: dict[str, Told] = {}
        self._rebooted = False
        self._told_error = ""
        self._paused_until = self._pause_ms = 0
        self._refusal = ""
        self.node: NodeSeen | None = None
        self.pods: tuple[PodSeen, ...] | None = None
        self.holders: str | None = None
        self.written_ms: int | None = None
        self.writes = {"written": 0, "refused": 0, "failed": 0}
        self.looks = 0

    @property
    def cards(self) -> tuple[Card, ...]:
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

    def saw_node(self, node: NodeSeen | None, now_ms: int) -> None:
        """The node as it stands now; None: there is no such node (yet, or any more)."""
        if node and self.node and node.uid == self.node.uid and _is_older(node, self.node):
            return  # the watch is behind the answer to our own write
        self.node = node
        if node and self._book is None:
            self._book = health.begun(advertise.read_inventory(node.inventory))
            self._through = mps.begun(advertise.read_mps(node.inventory))
            self._known = {card.uuid: card.fault for card in self._book.cards if card.fault}
            self._rebooted = advertise.boot_in(node.holders) not in ("", self._boot)
            if self._look:
                self._learn(self._look, now_ms)

    def looked(self, look: Look, now_ms: int) -> None:
        """NVML was read."""
        self._looked_at, self._look = now_ms, look
        self.looks += 1
        self._say_error(look.error)
        self._learn(look, now_ms)
        self._through = mps.after(self._through, (card.uuid for card in look.cards), look.mps, now_ms)

    def broke(self, broke: Broke, now_ms: int) -> None:
        """An event of the driver told against cards."""
        if self._book:
            self._turn_to(health.after_event(self._book, broke, now_ms), now_ms)

    def tick(self, now_ms: int) -> None:
        """See whether NVML hangs, and tell the pods what they have not been told yet."""
        if now_ms - self._looked_at >= self._silence_ms:
            self._look = Look((), (), (), (), (), (), (), "it does not answer")
            self._say_error(self._look.error)
            self._learn(self._look, now_ms)
        self._tell_pods(now_ms)

    def write_if_due(self, now_ms: int) -> None:
        """Write what differs from what stands on the node, if anything does and it is time."""
        if self.node is None or now_ms < self._paused_until:
            return
        patch = advertise.change(self.node, self._wanted())
        if not patch:
            return
        try:
            self._judge(self._ports.write(patch), now_ms)
        except Unreached as error:
            self._rest("failed", str(error), now_ms)

    def _learn(self, look: Look, now_ms: int) -> None:
        if self._book is None:
            return
        held = self._held()
        after = health.after_look(self._book, look, held, self._rebooted, now_ms)
        if not look.error and held is not None:
            self._rebooted = False
        self._turn_to(after, now_ms)

    def _turn_to(self, after: Book, now_ms: int) -> None:
        before, self._book = self._book or health.begun(()), after
        for card in health.new_faults(before, after):
            self._ports.say("card-unhealthy", uuid=card.uuid, index=card.index, reason=card.fault)
        for card in health.recovered(before, after):
            self._ports.say("card-healthy-again", uuid=card.uuid, index=card.index)
        self._tell_pods(now_ms)

    def _tell_pods(self, now_ms: int) -> None:
        if self.pods is None:
            return
        self._told, notices = telling.tell(self._told, self._known, self.cards, self.pods, now_ms)
        ill = {card.uuid for card in self.cards if card.fault}
        self._known = {uuid: fault for uuid, fault in self._known.items() if uuid in ill}
        for notice in notices:
            self._ports.tell(notice)

    def _held(self) -> frozenset[str] | None:
        if self.pods is None:
            return None
        return frozenset(uuid for pod in self.pods for uuid in pod.cards)

    def _wanted(self) -> Wanted:
        cards = self.cards
        if not cards and not self.nvml_answers:
            return Wanted(None, frozenset(), self.holders, True)  # nothing was ever known of them
        return Wanted(cards, self._through.told, self.holders, self._held() != frozenset())

    def _judge(self, answer: Answer, now_ms: int) -> None:
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
            self._ports.say("not-written", reason=reason)

    def _say_error(self, error: str) -> None:
        if error == self._told_error:
            return
        self._told_error = error
        if error:
            self._ports.say("nvml-silent", reason=error)
        else:
            self._ports.say("nvml-back")


def _is_older(one: NodeSeen, other: NodeSeen) -> bool:
    """By the numbers that resource versions are."""
    return one.version.isdigit() and other.version.isdigit() and int(one.version) < int(other.version)
