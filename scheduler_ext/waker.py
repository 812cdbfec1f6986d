"""Wakes the waiting pods, one by one, as cards free.

For each node whose cards freed there is a round: the pod that should go next is woken, and when it has been
tried (or has not within two seconds) the next one that still fits. Within a round nobody is woken twice, so a
pod that something else keeps off the node costs one try for each time that cards really freed.
"""

import queue
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from scheduler_ext.api import STRATEGIC_MERGE, Answered, Api
from scheduler_ext.binding import pod_path, wake_patch
from scheduler_ext.books import Books, roomier_nodes
from scheduler_ext.log import Log
from scheduler_ext.pods import Pod
from scheduler_ext.snapshot import Snapshot
from scheduler_ext.waiting import Waiter, next_to_wake

# kube-scheduler often hears of a freed card when we do, and tries by itself: let it
FIRST_LOOK_S = 0.03
TRIED_WITHIN_S = 2.0
PATCH_S = 2.0


@dataclass(slots=True)
class _Round:
    """One node's: when to look at it, who has been woken, and who of them has not been tried yet."""

    look_at: float
    woken: set[str] = field(default_factory=set)
    awaited: str = ""


class Waker:
    """``scheduler``: the schedulerName of the pods that are woken. `freed`, `refused` and `tried` may be
    called from any thread; `run` does the work in one."""

    def __init__(self, api: Api, books: Books, scheduler: str, log: Log) -> None:
        self._api, self._books, self._scheduler, self._log = api, books, scheduler, log
        self._lock = threading.Lock()
        self._waiters: dict[str, Waiter] = {}
        self._heard: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self._rounds: dict[str, _Round] = {}

    def freed(self, nodes: Iterable[str]) -> None:
        """These nodes have become roomier."""
        for name in nodes:
            self._heard.put(("freed", name))

    def refused(self, waiting: Waiter, by: Snapshot) -> None:
        """A pod was refused everywhere, as that snapshot was. What has freed since is looked at once more."""
        with self._lock:
            self._waiters[waiting.pod.uid] = waiting
        self._heard.put(("tried", waiting.pod.uid))
        now = self._books.snapshot
        if now.nodes is not by.nodes:
            self.freed(roomier_nodes(now, by))

    def tried(self, uid: str) -> None:
        """kube-scheduler has found a node for the pod, or has come back with it."""
        with self._lock:
            self._waiters.pop(uid, None)
        self._heard.put(("tried", uid))

    def seed(self, waiters: Iterable[Waiter]) -> None:
        """At a start: pods that may have been refused before. No round begins by this."""
        with self._lock:
            self._waiters = {each.pod.uid: each for each in waiters} | self._waiters

    def waiting(self) -> list[Waiter]:
        """Those who wait now; pods that are gone, bound or gated are forgotten."""
        snapshot = self._books.snapshot
        with self._lock:
            for uid in [uid for uid in self._waiters if not _waits(snapshot, uid)]:
                del self._waiters[uid]
            return list(self._waiters.values())

    def run(self, stop: threading.Event) -> None:
        """Wakes until ``stop``."""
        while not stop.is_set():
            self._hear()
            now = time.monotonic()
            for name in [name for name, each in self._rounds.items() if each.look_at <= now]:
                self._look(name)

    def _hear(self) -> None:
        wait_s = min((each.look_at for each in self._rounds.values()), default=time.monotonic() + 0.5)
        try:
            what, name = self._heard.get(timeout=max(0.001, wait_s - time.monotonic()))
        except queue.Empty:
            return
        if what == "freed":
            self._rounds[name] = _Round(time.monotonic() + FIRST_LOOK_S)
            return
        for each in self._rounds.values():
            if each.awaited == name:
                each.look_at = time.monotonic()

    def _look(self, name: str) -> None:
        """Wake the next one for this node; without one the round is over."""
        current = self._rounds[name]
        asleep = [each for each in self.waiting() if each.pod.uid not in self._awake(current)]
        ours = [each for each in asleep if each.pod.scheduler == self._scheduler]
        chosen = next_to_wake(self._books.snapshot.node(name), ours)
        if chosen is None:
            del self._rounds[name]
            return
        current.woken.add(chosen.pod.uid)
        current.awaited, current.look_at = chosen.pod.uid, time.monotonic() + TRIED_WITHIN_S
        self._wake(chosen.pod, name)

    def _awake(self, current: _Round) -> set[str]:
        return current.woken | {each.awaited for each in self._rounds.values()}

    def _wake(self, pod: Pod, node: str) -> None:
        patch = wake_patch(pod.uid, "CardFreed", f"cards were freed on node {node}", time.time_ns() // 10**6)
        path = f"{pod_path(pod.namespace, pod.name)}/status"
        reply = self._api.call("PATCH", path, patch, content_type=STRATEGIC_MERGE, timeout_s=PATCH_S)
        said = reply.status if isinstance(reply, Answered) else reply.why
        self._log("woken", pod=pod.full_name, uid=pod.uid, node=node, answer=said)


def _waits(snapshot: Snapshot, uid: str) -> bool:
    pod = snapshot.pods.get(uid)
    if pod is None or snapshot.seated.get(uid) is not None:
        return False
    return not (pod.node or pod.gated or pod.deleting or pod.terminal)
