"""Wakes the waiting pods, one by one, as cards free.

For each node whose cards freed there is a round: the pod whose turn it is is woken, and when it has been
tried (or has not within two seconds) the next one that still fits. Within a round nobody is woken twice, so a
pod that something else keeps off the node costs one try for each time that cards really freed.

kube-scheduler hears of many a freed card by itself and then tries every waiting pod, by priority: it knows
nothing of standings. So for a second, at most, a pod is kept off the node as long as another whose turn comes
before its own fits there and has not been tried. Then it is the turn of those who were kept off. Of very many
freed nodes, or with very many waiting before a pod, not all are looked at while kube-scheduler waits: beyond
that nothing is kept back.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice

from scheduler_ext.cache.cluster_cache import ClusterCache, roomier_nodes
from scheduler_ext.clients.pod_patches import pod_path, wake_patch
from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import UNHEARD, NamespaceStandings
from scheduler_ext.scoring.policy import Policy
from scheduler_ext.snapshot.node_info import NodeInfo
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.waiting.order import ANYWHERE, WaitingPod, first_that_fits, next_to_wake, queue_key
from scheduler_ext.waiting.waiting_queue import WaitingQueue
from timekeeper.runtime.api_server import STRATEGIC_MERGE, Answered, Api
from timekeeper.runtime.clock import now_ms
from timekeeper.runtime.log import Log

# kube-scheduler often hears of a freed card when we do, and tries by itself: let it
FIRST_LOOK_S = 0.03
TRIED_WITHIN_S = 2.0
PATCH_S = 2.0
IDLE_S = 0.5
KEEPS_S = 1.0
# limits of one call of `held_back`
MOST_NODES = 128
MOST_AHEAD = 128  # of those whose turn comes before the pod's
MOST_LOOKS = 192  # whether one of them fits one of the nodes
TOGETHER = 256  # waiters that are taken from the order at a time


@dataclass(slots=True)
class _Round:
    """One node's: when to look at it, until when it keeps others off, who has been woken, who of them has not
    been tried yet, and who was kept off."""

    look_at: float
    keeps_until: float
    woken: set[str] = field(default_factory=set)
    awaited: str = ""
    kept: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Who may take a node's cards in its round: of those already woken only the one who has not been tried,
    and nobody who is just being tried for another node. ``woken`` goes on growing, which does no harm."""

    current: _Round
    woken: Collection[str]
    awaited: str
    awaited_anywhere: Counter[str]

    def may(self, uid: str) -> bool:
        its = uid == self.awaited
        return self.awaited_anywhere[uid] == its and (its or uid not in self.woken)


class Requeuer:
    """``scheduler``: the schedulerName of the pods that are woken. `freed`, `refused`, `tried` and `kept` may
    be called from any thread; `run` does the work in one."""

    def __init__(
        self,
        api: Api,
        cache: ClusterCache,
        scheduler: str,
        log: Log,
        standings: Callable[[], NamespaceStandings] = lambda: UNHEARD,
    ) -> None:
        self._api, self._cache, self._scheduler, self._log = api, cache, scheduler, log
        self._standings = standings
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._version = 0  # of who waits, and who of them is kept off
        self._waiting_queue = WaitingQueue()
        self._rounds: dict[str, _Round] = {}

    def freed(self, nodes: Iterable[str]) -> None:
        """These nodes have become roomier."""
        now = time.monotonic()
        with self._lock:
            self._rounds |= {name: _Round(now + FIRST_LOOK_S, now + KEEPS_S) for name in nodes}
        self._changed.set()

    def refused(self, waiting: WaitingPod, by: Snapshot) -> None:
        """A pod was refused everywhere, as that snapshot was. What has freed since is looked at once more."""
        with self._lock:
            self._enlist(waiting)
            self._was_tried(waiting.pod.uid)
        now = self._cache.snapshot
        roomier = roomier_nodes(now, by) if now.nodes is not by.nodes else []
        if roomier:
            self.freed(roomier)

    def tried(self, uid: str) -> None:
        """A bind of the pod has ended. It waits on where that did not bind it."""
        with self._lock:
            self._was_tried(uid)

    def held_back(self, waiting: Callable[[], WaitingPod], fits: Sequence[str]) -> set[str]:
        """Of the nodes that fit the pod those that are kept for another, whose turn comes first. Where that
        is all of them, the pod waits from this moment on: no round ends between the two."""
        if not self._rounds:
            return set()
        mine, standings = waiting(), self._standings()
        with self._lock:
            rounds = self._that_keep(fits)
            own = queue_key(mine.pod, ANYWHERE, standings)
            ahead = self._waiting_queue.some(standings, MOST_AHEAD, before=own) if rounds else []
        names = self._another_fits(mine, rounds, self._as_now(ahead), standings) if rounds else []
        if not names:
            return set()
        with self._lock:
            kept = {name for name in names if self._rounds.get(name) is rounds[name].current}
            for current in [rounds[name].current for name in kept]:
                current.kept.add(mine.pod.uid)
                current.look_at = min(current.look_at, current.keeps_until)
            self._version += 1
            if kept and len(kept) == len(fits):
                self._enlist(mine)
        return kept

    def seen(self, pod: Pod, policy: Callable[[Pod], Policy]) -> None:
        """The watch tells of a pod. kube-scheduler may have found by itself that it fits nowhere: then nobody
        asks us, and yet it waits."""
        if not pod.unschedulable or pod.node or pod.request is None or pod.uid in self._waiting_queue:
            return
        with self._lock:
            self._enlist(WaitingPod(pod, policy(pod), None, asked=False))

    def seed(self, waiting_pods: Iterable[WaitingPod]) -> None:
        """At a start: pods that may have been refused before. No round begins by this."""
        with self._lock:
            for each in waiting_pods:
                if each.pod.uid not in self._waiting_queue:
                    self._enlist(each)

    def waiting(self) -> list[WaitingPod]:
        """Those who wait now; pods that are gone, bound or gated are forgotten."""
        with self._lock:
            everyone = self._waiting_queue.all()
        return self._as_now(everyone)

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
            current, version = self._rounds[name], self._version
            current.awaited = ""
            candidates = self._candidates(current, self._awaited())
            kept = [each for each in map(self._waiting_queue.get, current.kept) if each is not None]
        chosen = self._choose(name, candidates, kept)
        with self._lock:
            if self._rounds[name] is not current:
                return  # it has become roomier once more
            if chosen is None:
                if self._version == version:
                    del self._rounds[name]
                return  # or somebody has come meanwhile: look again
            current.woken.add(chosen.pod.uid)
            current.awaited, current.look_at = chosen.pod.uid, time.monotonic() + TRIED_WITHIN_S
        self._wake(chosen.pod, name)

    def _choose(self, name: str, candidates: _Candidates, kept: Iterable[WaitingPod]) -> WaitingPod | None:
        node, standings = self._cache.snapshot.node(name), self._standings()
        if time.monotonic() >= candidates.current.keeps_until:
            may = [each for each in self._as_now(kept) if self._is_candidate(each, candidates)]
            chosen = next_to_wake(node, may, standings)
            if chosen is not None:
                return chosen
        in_turn = chain(self._held_for(node), self._in_turn(standings))
        return first_that_fits(node, (each for each in in_turn if self._is_candidate(each, candidates)))

    def _that_keep(self, fits: Iterable[str]) -> dict[str, _Candidates]:
        """Of these nodes the first few that are still kept for somebody."""
        now = time.monotonic()
        there = ((name, self._rounds[name]) for name in fits if name in self._rounds)
        keep = dict(islice((each for each in there if now < each[1].keeps_until), MOST_NODES))
        awaited = self._awaited() if keep else Counter()
        return {name: self._candidates(current, awaited) for name, current in keep.items()}

    def _another_fits(
        self,
        mine: WaitingPod,
        rounds: dict[str, _Candidates],
        ahead: list[WaitingPod],
        standings: NamespaceStandings,
    ) -> list[str]:
        """The nodes where somebody fits whose turn there comes before this pod's. Without the lock: to find
        that out takes a while."""
        snapshot, looks = self._cache.snapshot, iter(range(MOST_LOOKS))

        def before(name: str, candidates: _Candidates) -> Iterator[WaitingPod]:
            own = queue_key(mine.pod, name, standings)
            for each in (*self._held_for(snapshot.node(name)), *ahead):
                if not self._is_candidate(each, candidates) or queue_key(each.pod, name, standings) >= own:
                    continue
                if next(looks, None) is None:
                    return
                yield each

        return [
            name
            for name, candidates in rounds.items()
            if first_that_fits(snapshot.node(name), before(name, candidates)) is not None
        ]

    def _candidates(self, current: _Round, awaited: Counter[str]) -> _Candidates:
        return _Candidates(current, current.woken, current.awaited, awaited)

    def _awaited(self) -> Counter[str]:
        return Counter(each.awaited for each in self._rounds.values() if each.awaited)

    def _is_candidate(self, each: WaitingPod, candidates: _Candidates) -> bool:
        return each.pod.scheduler == self._scheduler and candidates.may(each.pod.uid)

    def _held_for(self, node: NodeInfo) -> list[WaitingPod]:
        """Those who wait and have cards of the node held for them."""
        there = [
            self._waiting_queue.get(uid)
            for uid, allocation in node.allocations.items()
            if allocation.state == "reserved"
        ]
        return self._as_now(each for each in there if each is not None)

    def _in_turn(self, standings: NamespaceStandings) -> Iterator[WaitingPod]:
        """Everybody who waits, some at a time, so that the lock is held for moments."""
        after = None
        while True:
            with self._lock:
                some = self._waiting_queue.some(standings, TOGETHER, after)
            if not some:
                return
            after = queue_key(some[-1].pod, ANYWHERE, standings)
            yield from self._as_now(some)

    def _as_now(self, waiting_pods: Iterable[WaitingPod]) -> list[WaitingPod]:
        """Those of them who still wait, as the snapshot has them; the others are forgotten."""
        snapshot, there, changed, over = self._cache.snapshot, [], [], []
        for each in waiting_pods:
            pod = snapshot.pods.get(each.pod.uid)
            if pod is None or not _waits(snapshot, pod.uid):
                over.append(each.pod.uid)
                continue
            if pod is not each.pod:
                each = replace(each, pod=pod)
                changed.append(each)
            there.append(each)
        if changed or over:
            with self._lock:
                self._waiting_queue.discard(uid for uid in over if not _waits(self._cache.snapshot, uid))
                for each in changed:
                    if each.pod.uid in self._waiting_queue:
                        self._waiting_queue.put(each)
        return there

    def _enlist(self, waiting: WaitingPod) -> None:
        if self._waiting_queue.get(waiting.pod.uid) != waiting:
            self._waiting_queue.put(waiting)
            self._version += 1

    def _was_tried(self, uid: str) -> None:
        for each in self._rounds.values():
            if each.awaited == uid:
                each.awaited, each.look_at = "", time.monotonic()
                self._changed.set()

    def _wake(self, pod: Pod, node: str) -> None:
        patch = wake_patch(pod.uid, "CardFreed", f"cards were freed on node {node}", now_ms())
        path = f"{pod_path(pod.namespace, pod.name)}/status"
        reply = self._api.call("PATCH", path, patch, content_type=STRATEGIC_MERGE, timeout_s=PATCH_S)
        said = reply.status if isinstance(reply, Answered) else reply.message
        self._log("woken", pod=pod.full_name, uid=pod.uid, node=node, answer=said)


def _waits(snapshot: Snapshot, uid: str) -> bool:
    pod, allocation = snapshot.pods.get(uid), snapshot.allocation(uid)
    if pod is None or (allocation is not None and allocation.state != "reserved"):
        return False
    return not (pod.node or pod.gated or pod.deleting or pod.terminal)
