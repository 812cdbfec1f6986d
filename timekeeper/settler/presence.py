"""Which pods are no longer on their nodes, as the nodes' agents tell: a pod that was deleted by force may end
before its grace period does."""

from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from timekeeper.core.holders import Present

MOST_LEFT = 100_000  # pods that left and could not be written yet: what a database that is away may cost
MOST_BOOTS = 100_000  # nodes, those that are gone among them: one may come back after a reboot


class Looked(NamedTuple):
    """A node's agent has seen everything once since the node booted anew: when that was heard, when the boot
    was, and which pods are there."""

    at_ms: int
    booted_ms: int
    there: frozenset[str]


@dataclass(slots=True)
class Presence:
    """``listed``: node -> the pods that its agent listed last, with those of which it cannot say yet since it
    began anew; ``boots``: node -> its boot ID, and when that was first heard, 0 where it was the first or has
    been looked at.
    ``left``: pods that were listed and are no longer, and when that was heard; ``looked``: nodes that were
    seen for the first time after a reboot. Both of them since the last tick that was written."""

    listed: dict[str, frozenset[str]] = field(default_factory=dict)
    boots: dict[str, tuple[str, int]] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    looked: dict[str, Looked] = field(default_factory=dict)
    most_left: int = MOST_LEFT
    most_boots: int = MOST_BOOTS

    def hear(self, node: str, present: Present | None, boot: str, at_ms: int) -> None:
        """The node's agent tells this of it, None: nobody tells anything; in this boot, "" where that is not
        known."""
        self._note_boot(node, boot, at_ms)
        if present is None:
            self.listed.pop(node, None)
            return
        before, now = self.listed.get(node, frozenset()), frozenset(present.pods)
        for uid in now:
            self.left.pop(uid, None)
        if not present.known:
            self.listed[node] = before | now
            return
        self.listed[node] = now
        room = self.most_left - len(self.left)  # who finds none is charged for his grace period
        self.left.update(dict.fromkeys(islice(before - now, room), at_ms))
        booted_ms = self.boots.get(node, ("", 0))[1]
        if booted_ms:
            self.looked[node] = Looked(at_ms, booted_ms, now)

    def _note_boot(self, node: str, boot: str, at_ms: int) -> None:
        known, _ = self.boots.get(node, ("", 0))
        if boot and boot != known:
            self.boots[node] = boot, at_ms if known else 0
            if len(self.boots) > self.most_boots:
                del self.boots[next(iter(self.boots))]  # heard of again, it is as one that is new

    def written(self) -> None:
        """What is told so far stands in the ledger now. Whoever was there at a first look is listed, and leaves
        as any other."""
        for node, look in self.looked.items():
            boot, booted_ms = self.boots.get(node, ("", 0))
            if booted_ms == look.booted_ms:
                self.boots[node] = boot, 0
        self.left.clear()
        self.looked.clear()
