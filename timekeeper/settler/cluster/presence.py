"""Which pods have left their nodes, as reported by node agents: a force-deleted pod may end before its grace
period does."""

from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from timekeeper.core.kube.holders import NodeHolders

MOST_LEFT = 100_000  # departed pods not written yet: a limit on memory while the database is unreachable
MOST_BOOTS = 100_000  # nodes, including deleted ones: a node may come back after a reboot


class RebootReport(NamedTuple):
    """The first complete report of a node's agent after a reboot."""

    at_ms: int  # when the report arrived
    booted_ms: int  # when the boot was first observed
    pods: frozenset[str]  # UIDs listed then or since; their later departures are reported one by one


class NodeBoot(NamedTuple):
    id: str  # the boot ID
    at_ms: int  # when it was first observed; 0 if no other boot was known before
    # UIDs in its first complete report that have not departed since; None before that report
    pods: frozenset[str] | None = None


UNKNOWN_BOOT = NodeBoot("", 0)


@dataclass(slots=True)
class Presence:
    """The pods that agents list, and the departures since the last written tick."""

    # node -> UIDs listed last, and those of which a restarted agent cannot tell yet
    pods_by_node: dict[str, frozenset[str]] = field(default_factory=dict)
    boots: dict[str, NodeBoot] = field(default_factory=dict)  # node -> its boot
    # UID of a pod that is no longer listed -> when that was observed
    departed: dict[str, int] = field(default_factory=dict)
    # nodes with a new reboot report, or whose pods from then departed; each costs a pass over all sessions
    reboots: dict[str, RebootReport] = field(default_factory=dict)
    most_left: int = MOST_LEFT
    most_boots: int = MOST_BOOTS

    def update(self, node: str, present: NodeHolders | None, boot: str, at_ms: int) -> None:
        """Apply an agent's report; ``present`` None: there is none; ``boot`` "": unknown."""
        self._update_boot(node, boot, at_ms)
        if present is None:
            self.pods_by_node.pop(node, None)
            return
        before, now = self.pods_by_node.get(node, frozenset()), frozenset(present.pods)
        for uid in now:
            self.departed.pop(uid, None)
        if not present.known:
            self.pods_by_node[node] = before | now
            return
        self.pods_by_node[node] = now
        room = self.most_left - len(self.departed)  # a pod beyond the limit is charged for its grace period
        self.departed.update(dict.fromkeys(islice(before - now, room), at_ms))
        _, booted_ms, pods = self.boots.get(node, UNKNOWN_BOOT)
        if booted_ms and (pods is None or pods - now):
            report = self.reboots.get(node)
            if report is None or report.booted_ms != booted_ms:
                report = RebootReport(at_ms, booted_ms, now)
            self.reboots[node] = report._replace(pods=report.pods | now)
        else:
            self.reboots.pop(node, None)

    def _update_boot(self, node: str, boot: str, at_ms: int) -> None:
        known = self.boots.get(node, UNKNOWN_BOOT).id
        if boot and boot != known:
            self.boots[node] = NodeBoot(boot, at_ms if known else 0)
            if len(self.boots) > self.most_boots:
                del self.boots[next(iter(self.boots))]  # if it returns, it counts as a new node

    def mark_written(self) -> None:
        """Everything so far is written to the ledger."""
        for node, report in self.reboots.items():
            boot = self.boots.get(node, UNKNOWN_BOOT)
            if boot.at_ms == report.booted_ms:
                pods = report.pods if boot.pods is None else boot.pods & report.pods
                self.boots[node] = boot._replace(pods=pods)
        self.departed.clear()
        self.reboots.clear()
