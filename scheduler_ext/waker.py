"""Wakes the waiting pods, one by one, as cards free.

For each node whose cards freed there is a round: the pod whose turn it is is woken, and when it has been
tried (or has not within two seconds) the next one that still fits. Within a round nobody is woken twice, so a
pod that something else keeps off the node costs one try for each time that cards really freed.

kube-scheduler hears of many a freed card by itself and then tries every waiting pod, by priority: it knows
nothing of standings. So for a second, at most, a pod is kept off the node as long as another whose turn comes
before its own fits there and has not been tried. Then it is the turn of those who were kept off.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from scheduler_ext.api import STRATEGIC_MERGE, Answered, Api
from scheduler_ext.binding import pod_path, wake_patch
from scheduler_ext.books import Books, roomier_nodes
from scheduler_ext.log import Log
from scheduler_ext.nodes import Node
from scheduler_ext.pods import Pod
from scheduler_ext.policy import Policy
from scheduler_ext.snapshot import Snapshot
from scheduler_ext.standing import UNHEARD, Standings
from scheduler_ext.waiting import Waiter, next_to_wake, turn

# kube-scheduler often hears of a freed card when we do, and tries by itself: let it
FIRST_LOOK_S = 0.03
TRIED_WITHIN_S = 2.0
PATCH_S = 2.0
IDLE_S = 0.5
KEEPS_S = 1.0


@dataclass(slots=True)
class _Round:
    """One node's: when to look at it, until when it keeps others off, who has been woken, who of them has not
    been tried yet, and who was kept off. ``first``: whose turn it is, for the node and the version of who
    waits that it was found for."""

    look_at: float
    keeps_until: float
    woken: set[str] = field(default_factory=set)
    awaited: str = ""
    kept: set[str] = field(default_factory=set)
    first: tuple[tuple[Node, int, Standings], Waiter | None] | None = None


class Waker:
    """``scheduler``: the schedulerName of the pods that are woken. `freed`, `refused`, `tried` and `kept` may
    be called from any thread; `run` does the work in one."""

    def __init__(
        self,
        api: Api,
        books: Books,
        scheduler: str,
        log: Log,
        standings: Callable[[], Standings] = lambda: UNHEARD,
    ) -> None:
        self._api, self._books, self._scheduler, self._log = api, books, scheduler, log
        self._standings = standings
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._version = 0  # of who waits, and who of them has been woken
        self._waiters: dict[str, Waiter] = {}
        self._rounds: dict[str, _Round] = {}

    def freed(self, nodes: Iterable[str]) -> None:
        """These nodes have become roomier."""
        now = time.monotonic()
        with self._lock:
            self._rounds |= {name: _Round(now + FIRST_LOOK_S, now + KEEPS_S) for name in nodes}
        self._changed.set()

    def refused(self, waiting: Waiter, by: Snapshot) -> None:
        """A pod was refused everywhere, as that snapshot was. What has freed since is looked at once more."""
        with self._lock:
            self._enlist(waiting)
            self._was_tried(waiting.pod.uid)
        now = self._books.snapshot
        roomier = roomier_nodes(now, by) if now.nodes is not by.nodes else []
        if roomier:
            self.freed(roomier)

    def tried(self, uid: str) -> None:
        """A bind of the pod has ended. It waits on where that did not bind it."""
        with self._lock:
            self._was_tried(uid)

    def kept(self, waiting: Callable[[], Waiter], fits: Sequence[str]) -> set[str]:
        """Of the nodes that fit the pod those that are kept for another, whose turn comes first. Where that
        is all of them, the pod waits from this moment on: no round ends between the two."""
        if not self._rounds:
            return set()
        with self._lock:
            mine = waiting()
            kept = {name for name in fits if name in self._rounds and self._is_before(mine, name)}
            for name in kept:
                current = self._rounds[name]
                current.kept.add(mine.pod.uid)
                current.look_at = min(current.look_at, current.keeps_until)
            if kept and len(kept) == len(fits):
                self._enlist(mine)
        return kept

    def seen(self, pod: Pod, policy: Callable[[Pod], Policy]) -> None:
        """The watch tells of a pod. kube-scheduler may have found by itself that it fits nowhere: then nobody
        asks us, and yet it waits."""
        if not pod.unschedulable or pod.node or pod.request is None or pod.uid in self._waiters:
            return
        with self._lock:
            self._enlist(Waiter(pod, policy(pod), None))

    def seed(self, waiters: Iterable[Waiter]) -> None:
        """At a start: pods that may have been refused before. No round begins by this."""
        with self._lock:
            self._waiters = {each.pod.uid: each for each in waiters} | self._waiters
            self._version += 1

    def waiting(self) -> list[Waiter]:
        """Those who wait now; pods that are gone, bound or gated are forgotten."""
        with self._lock:
            return self._waiting()

    def run(self, stop: threading.Event) -> None:
        """Wakes until ``stop``."""
        while not stop.is_set():
            with self._lock:
                look_at = min((each.look_at for each in self._rounds.values()), default=None)
            wait_s = IDLE_S if look_at is None else min(IDLE_S, look_at - time.monotonic())
            if wait_s > 0:
                self._changed.wait(wait_s)
                self._changed.clear()
            with self._lock:
                now = time.monotonic()
                due = [name for name, each in self._rounds.items() if each.look_at <= now]
            for name in due:
                self._look(name)

    def _look(self, name: str) -> None:
        """Wake the next one for this node; without one the round is over."""
        with self._lock:
            current = self._rounds[name]
            current.awaited = ""
            chosen = self._choose(name, current)
            if chosen is None:
                del self._rounds[name]
                return
            current.woken.add(chosen.pod.uid)
            current.awaited, current.look_at = chosen.pod.uid, time.monotonic() + TRIED_WITHIN_S
            self._version += 1
        self._wake(chosen.pod, name)

    def _choose(self, name: str, current: _Round) -> Waiter | None:
        node, candidates, standings = (
            self._books.snapshot.node(name),
            self._candidates(name),
            self._standings(),
        )
        if time.monotonic() >= current.keeps_until:
            kept = [each for each in candidates if each.pod.uid in current.kept]
            chosen = next_to_wake(node, kept, standings)
            if chosen is not None:
                return chosen
        return next_to_wake(node, candidates, standings)

    def _is_before(self, mine: Waiter, name: str) -> bool:
        """True where the node is still kept for somebody whose turn there comes before this pod's."""
        if time.monotonic() >= self._rounds[name].keeps_until:
            return False
        standings = self._standings()
        first = self._first(name, standings)
        if first is None or first.pod.uid == mine.pod.uid:
            return False
        return turn(first.pod, name, standings) < turn(mine.pod, name, standings)

    def _first(self, name: str, standings: Standings) -> Waiter | None:
        """Whose turn it is; looked for anew where something has changed."""
        current, now = self._rounds[name], (self._books.snapshot.node(name), self._version, standings)
        if current.first is not None:
            known, first = current.first
            same = known[0] is now[0] and known[1] == now[1] and known[2] is now[2]
            if same and (first is None or _waits(self._books.snapshot, first.pod.uid)):
                return first
        found = next_to_wake(now[0], self._candidates(name), standings)
        current.first = now, found
        return found

    def _candidates(self, name: str) -> list[Waiter]:
        """Who may take the node's cards in this round: of those already woken only the one who has not been
        tried, and nobody who is just being tried for another node."""
        current = self._rounds[name]
        out = current.woken - {current.awaited}
        out |= {each.awaited for other, each in self._rounds.items() if other != name}
        ours = [each for each in self._waiting() if each.pod.scheduler == self._scheduler]
        return [each for each in ours if each.pod.uid not in out]

    def _waiting(self) -> list[Waiter]:
        snapshot = self._books.snapshot
        for uid in [uid for uid in self._waiters if not _waits(snapshot, uid)]:
            del self._waiters[uid]
        for uid, each in self._waiters.items():
            now = snapshot.pods.get(uid)
            if now is not None and now is not each.pod:
                self._waiters[uid] = replace(each, pod=now)
        return list(self._waiters.values())

    def _enlist(self, waiting: Waiter) -> None:
        if self._waiters.get(waiting.pod.uid) != waiting:
            self._waiters[waiting.pod.uid] = waiting
            self._version += 1

    def _was_tried(self, uid: str) -> None:
        for each in self._rounds.values():
            if each.awaited == uid:
                each.awaited, each.look_at = "", time.monotonic()
                self._version += 1
                self._changed.set()

    def _wake(self, pod: Pod, node: str) -> None:
        patch = wake_patch(pod.uid, "CardFreed", f"cards were freed on node {node}", time.time_ns() // 10**6)
        path = f"{pod_path(pod.namespace, pod.name)}/status"
        reply = self._api.call("PATCH", path, patch, content_type=STRATEGIC_MERGE, timeout_s=PATCH_S)
        said = reply.status if isinstance(reply, Answered) else reply.why
        self._log("woken", pod=pod.full_name, uid=pod.uid, node=node, answer=said)


def _waits(snapshot: Snapshot, uid: str) -> bool:
    pod, seat = snapshot.pods.get(uid), snapshot.seat(uid)
    if pod is None or (seat is not None and seat.held != "reserved"):
        return False
    return not (pod.node or pod.gated or pod.deleting or pod.terminal)
