"""Which pods are no longer on their nodes, as the nodes' agents tell: a pod that was deleted by force may end
before its grace period does."""

from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from timekeeper.core.kube.holders import NodeHolders

MOST_LEFT = 100_000  # pods that left and could not be written yet: what a database that is away may cost
MOST_BOOTS = 100_000  # nodes, those that are gone among them: one may come back after a reboot


class RebootReport(NamedTuple):
    """A node's agent has seen everything once since the node booted anew: when that was heard, when the boot
    was, and which pods were there then or have been since: who left later is told by that."""

    at_ms: int
    booted_ms: int
    there: frozenset[str]


class NodeBoot(NamedTuple):
    """A node's boot: its ID, and when it was first heard of, 0 where no other was known before it. ``there``:
    who was there as it was first looked at, and has not been seen gone since; None before."""

    id: str
    at_ms: int
    there: frozenset[str] | None = None


FIRST = NodeBoot("", 0)


@dataclass(slots=True)
class Presence:
    """``listed``: node -> the pods that its agent listed last, with those of which it cannot say yet since it
    began anew; ``boots``: that of each node. ``left``: pods that were listed and are no longer, and when that
    was heard; ``looked``: nodes that were seen after a reboot, for the first time, or without one who was
    there then: each look costs a walk over all sessions. Both of them since the last tick that was
    written."""

    listed: dict[str, frozenset[str]] = field(default_factory=dict)
    boots: dict[str, NodeBoot] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    looked: dict[str, RebootReport] = field(default_factory=dict)
    most_left: int = MOST_LEFT
    most_boots: int = MOST_BOOTS

    def hear(self, node: str, present: NodeHolders | None, boot: str, at_ms: int) -> None:
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
        _, booted_ms, there = self.boots.get(node, FIRST)
        if booted_ms and (there is None or there - now):
            look = self.looked.get(node)
            if look is None or look.booted_ms != booted_ms:
                look = RebootReport(at_ms, booted_ms, now)
            self.looked[node] = look._replace(there=look.there | now)
        else:
            self.looked.pop(node, None)

    def _note_boot(self, node: str, boot: str, at_ms: int) -> None:
        known = self.boots.get(node, FIRST).id
        if boot and boot != known:
            self.boots[node] = NodeBoot(boot, at_ms if known else 0)
            if len(self.boots) > self.most_boots:
                del self.boots[next(iter(self.boots))]  # heard of again, it is as one that is new

    def written(self) -> None:
        """What is told so far stands in the ledger now."""
        for node, look in self.looked.items():
            boot = self.boots.get(node, FIRST)
            if boot.at_ms == look.booted_ms:
                there = look.there if boot.there is None else boot.there & look.there
                self.boots[node] = boot._replace(there=there)
        self.left.clear()
        self.looked.clear()
