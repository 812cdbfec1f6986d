"""Requeues waiting pods, one by one, as cards become free.

Each node with freed cards gets a round: the pod that is first in turn is requeued; once it was tried (or not
within two seconds) the next one that still fits. Within a round each pod is requeued once, so a pod that
something else keeps off the node costs one attempt each time cards really become free.

kube-scheduler notices many freed cards by itself and then tries every waiting pod by priority, without
knowing standings. So for at most a second a pod is held back from the node while another pod, earlier in
turn, fits there and has not been tried. Afterwards the held-back pods get their turn. With very many freed
nodes, or very many pods ahead, only some are examined while kube-scheduler waits; beyond that nothing is held
back (`hold_backs` has one more limit).
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice

from scheduler_ext.cache.cluster_cache import ClusterCache, emptier_nodes
from scheduler_ext.clients.pod_patches import pod_path, wake_patch
from scheduler_ext.fit.caps import CapChecks
from scheduler_ext.fit.card_sets import Steps
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.log import Log
from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import UNHEARD, NamespaceStandings
from scheduler_ext.scoring.policy import Policy
from scheduler_ext.snapshot.node_info import NodeInfo
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.waiting.denied_pods import WOKEN, DeniedPods
from scheduler_ext.waiting.order import (
    ANYWHERE,
    QueueKey,
    WaitingPod,
    WaitingQueue,
    first_that_fits,
    next_to_wake,
    queue_key,
)
from scheduler_ext.waiting.rounds import Candidates, HoldBacks, Rounds
from timekeeper.edge.clock import now_ms
from timekeeper.runtime.api_server import STRATEGIC_MERGE, Answered, Api

PATCH_S = 2.0
IDLE_S = 0.5
# limits of one call of `held_back`
MAX_NODES = 128
MAX_AHEAD = 128  # pods that are earlier in turn
MAX_LOOKS = 192  # fits computed: one pod on one node
HELD_BACK_STEPS = 2_000  # of all these searches together, about 0.03 s
MAX_PREEMPTIBLE = 1_000  # nodes remembered of a call of preempt
TOGETHER = 256  # waiting pods read from the queue at a time


class Requeuer:
    """``scheduler``: the schedulerName of the pods to requeue. `freed`, `refused`, `tried` and `held_back`
    may be called from any thread; `run` does the work in one."""

    def __init__(
        self,
        api: Api,
        cache: ClusterCache,
        scheduler: str,
        log: Log,
        standings: Callable[[], NamespaceStandings] = lambda: UNHEARD,
        caps: CapChecks | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._cache, self._scheduler, self._log = api, cache, scheduler, log
        self._standings, self._caps, self._now_s = standings, caps or CapChecks(standings), now_s
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._version = 0  # changes when a pod starts waiting or is held back
        self._waiting_queue = WaitingQueue()
        self._rounds = Rounds()
        self._hold_backs = HoldBacks()
        self._denied = DeniedPods(self._caps)

    def freed(self, nodes: Iterable[str]) -> None:
        """These nodes have more free than before."""
        with self._lock:
            self._rounds.begin(nodes, self._now_s())
        self._changed.set()

    def refused(self, waiting: WaitingPod, by: Snapshot) -> None:
        """The pod was refused everywhere, based on that snapshot. Nodes with cards freed since are looked at
        again."""
        with self._lock:
            self._add(replace(waiting, refused_s=self._now_s()))
            self._was_tried(waiting.pod.uid)
        now = self._cache.snapshot
        emptier = emptier_nodes(now, by) if now.nodes is not by.nodes else []
        if emptier:
            self.freed(emptier)

    def denied(self, waiting: WaitingPod, why: Refusal) -> None:
        """The pod was refused because its namespace has spent its budget, or for a cap. It is woken when
        neither refuses it any more."""
        with self._lock:
            self._add(waiting)
            self._was_tried(waiting.pod.uid)
            self._denied.add(waiting.pod.uid, why.kind)

    def capped(self, pod: Pod, why: Refusal) -> None:
        """A cap keeps a waiting pod from preempting others. It is woken when the cap allows it."""
        with self._lock:
            self._denied.add(pod.uid, why.kind)

    def asked_to_preempt(self, pod: Pod, policy: Policy, nodes: Iterable[str]) -> None:
        """kube-scheduler has passed these nodes to preempt: only pods on them keep the pod off."""
        with self._lock:
            known = self._waiting_queue.get(pod.uid) or WaitingPod(pod, policy, None, asked=False)
            self._add(replace(known, preemptible=frozenset(islice(nodes, MAX_PREEMPTIBLE))))

    def tried(self, uid: str) -> None:
        """A bind of the pod has ended. If it is not bound it keeps waiting."""
        with self._lock:
            self._was_tried(uid)

    def held_back(
        self, waiting: Callable[[], WaitingPod], fits: Sequence[str], snapshot: Snapshot
    ) -> set[str]:
        """The nodes, of those that fit by this snapshot, held back for pods earlier in turn. If that is all
        of them, the pod waits from this moment on: no round ends in between."""
        if not self._rounds:
            return set()
        mine, standings = waiting(), self._standings()
        with self._lock:
            rounds = self._rounds.holding_back(fits, self._now_s(), MAX_NODES)
            own = queue_key(mine.pod, ANYWHERE, standings)
            ahead = self._waiting_queue.some(standings, MAX_AHEAD, before=own) if rounds else []
        found = (
            self._another_fits(mine, rounds, self._refreshed(ahead), standings, snapshot) if rounds else {}
        )
        if not found:
            return set()
        with self._lock:
            kept = {name for name in found if self._rounds.get(name) is rounds[name].current}
            self._hold_backs.note(((name, found[name].pod.namespace) for name in kept), self._now_s())
            for current in [rounds[name].current for name in kept]:
                current.keep(mine.pod.uid)
            self._version += 1
            if kept and len(kept) == len(fits):
                self._add(mine)
        return kept

    def seen(self, pod: Pod, policy: Callable[[Pod], Policy]) -> None:
        """The watch shows a pod. kube-scheduler may have found without the extender that it fits nowhere; it
        waits all the same, unless it waits for devices of claims."""
        if not pod.unschedulable or pod.node or pod.request is None or pod.uid in self._waiting_queue:
            return
        if pod.waits_for_devices:
            return
        with self._lock:
            self._add(WaitingPod(pod, policy(pod), None, asked=False))

    def seed(self, waiting_pods: Iterable[WaitingPod]) -> None:
        """At start: pods that may have been refused before. This starts no round."""
        with self._lock:
            for each in waiting_pods:
                if each.pod.uid not in self._waiting_queue:
                    self._add(each)

    def waiting(self) -> list[WaitingPod]:
        """The waiting pods. Pods that are deleted, bound or gated, or wait for devices of claims, are
        dropped."""
        with self._lock:
            everyone = self._waiting_queue.all()
        return self._refreshed(everyone)

    def first(self, most: int, before: QueueKey) -> list[Pod]:
        """The first waiting pods, in turn, that come before this place."""
        with self._lock:
            some = self._waiting_queue.some(self._standings(), most, before=before)
        return [each.pod for each in self._refreshed(some)]

    def run(self, stop: threading.Event) -> None:
        """Requeue pods until ``stop``."""
        while not stop.is_set():
            with self._lock:
                look_at = self._rounds.next_look()
            wait_s = IDLE_S if look_at is None else min(IDLE_S, look_at - self._now_s())
            if wait_s > 0:
                self._changed.wait(wait_s)
                self._changed.clear()
            self.step()

    def step(self) -> None:
        """Requeue a pod for each node that is due, and those that nothing denies any more."""
        with self._lock:
            due = self._rounds.due(self._now_s())
        for name in due:
            self._look(name)
        self._wake_undenied()

    def _wake_undenied(self) -> None:
        """Wake the first denied pods that neither budget nor cap refuses any more."""
        now, snapshot, standings = self._now_s(), self._cache.snapshot, self._standings()
        with self._lock:
            if not self._denied.may_have_changed(snapshot, standings, now):
                return
            waiting = {uid: self._waiting_queue.get(uid) for uid in self._denied.uids}
        there = self._refreshed(each for each in waiting.values() if each is not None)
        back = self._denied.no_longer([each.pod for each in there], snapshot, standings)
        with self._lock:
            self._denied.discard(waiting.keys() - {each.pod.uid for each in there})
            self._denied.wake(back, now)
        for pod, why in back:
            if not self._wake(pod, *WOKEN[why]):
                with self._lock:
                    self._denied.add(pod.uid, why)

    def _look(self, name: str) -> None:
        """Requeue the next pod for this node; without one the round is over."""
        with self._lock:
            candidates, version = self._rounds.look(name), self._version
            current = candidates.current
            kept = [each for each in map(self._waiting_queue.get, current.kept) if each is not None]
        chosen = self._choose(name, candidates, kept)
        with self._lock:
            if self._rounds.get(name) is not current:
                return  # more cards were freed meanwhile
            if chosen is None:
                if self._version == version:
                    self._rounds.end(name)
                return  # or a pod was added meanwhile: look again
            current.woke(chosen.pod.uid, self._now_s())
            if self._denied.is_woken(chosen.pod.uid):
                return  # kube-scheduler is about to try it
            why = self._denied.uids.get(chosen.pod.uid)
            if why is not None:
                self._denied.wake([(chosen.pod, why)], self._now_s())
        self._wake(chosen.pod, "CardFreed", f"cards were freed on node {name}")

    def _choose(self, name: str, candidates: Candidates, kept: Iterable[WaitingPod]) -> WaitingPod | None:
        snapshot, standings = self._cache.snapshot, self._standings()
        node = snapshot.node(name)
        left: defaultdict[str, Steps] = defaultdict(Steps)  # by namespace: none uses up those of another

        def steps_of(each: WaitingPod) -> Steps:
            return left[each.pod.namespace]

        if self._now_s() >= candidates.current.holds_until:
            again = self._refreshed(kept)
            may = [each for each in again if self._is_candidate(each, candidates, standings, snapshot)]
            chosen = next_to_wake(node, may, steps_of, standings, now_ms())
            if chosen is not None:
                return chosen
        in_turn = chain(self._held_for(node), self._in_turn(standings))
        may_take = (each for each in in_turn if self._is_candidate(each, candidates, standings, snapshot))
        return first_that_fits(node, may_take, steps_of, now_ms())

    def _another_fits(
        self,
        mine: WaitingPod,
        rounds: dict[str, Candidates],
        ahead: list[WaitingPod],
        standings: NamespaceStandings,
        snapshot: Snapshot,
    ) -> dict[str, WaitingPod]:
        """The nodes where a pod earlier in turn fits, with the first such pod. Computed without the lock,
        because it takes a while."""
        looks = iter(range(MAX_LOOKS))
        left = Steps(HELD_BACK_STEPS)

        def before(name: str, candidates: Candidates) -> Iterator[WaitingPod]:
            own = queue_key(mine.pod, name, standings)
            for each in (*self._held_for(snapshot.node(name)), *ahead):
                if queue_key(each.pod, name, standings) >= own:
                    continue
                if not self._is_candidate(each, candidates, standings, snapshot):
                    continue
                if not self._hold_backs.may(name, each.pod.namespace, self._now_s()):
                    continue
                if next(looks, None) is None:
                    return
                yield each

        found = {
            name: first_that_fits(snapshot.node(name), before(name, candidates), lambda _: left)
            for name, candidates in rounds.items()
        }
        return {name: each for name, each in found.items() if each is not None}

    def _is_candidate(
        self, each: WaitingPod, candidates: Candidates, standings: NamespaceStandings, snapshot: Snapshot
    ) -> bool:
        if standings.of_pod(each.pod).refuses:
            return False
        if each.pod.scheduler != self._scheduler or not candidates.may(each.pod.uid):
            return False
        capped = self._caps.refusal(each.pod, snapshot, self._denied.ahead())
        if capped is not None and each.pod.uid not in self._denied.uids:
            self.capped(each.pod, capped)
        return capped is None

    def _held_for(self, node: NodeInfo) -> list[WaitingPod]:
        """Waiting pods for which cards of the node are reserved."""
        there = [
            self._waiting_queue.get(uid)
            for uid, allocation in node.allocations.items()
            if allocation.state == "reserved"
        ]
        return self._refreshed(each for each in there if each is not None)

    def _in_turn(self, standings: NamespaceStandings) -> Iterator[WaitingPod]:
        """All waiting pods in order, a few at a time, so that the lock is held only briefly."""
        after = None
        while True:
            with self._lock:
                some = self._waiting_queue.some(standings, TOGETHER, after)
            if not some:
                return
            after = queue_key(some[-1].pod, ANYWHERE, standings)
            yield from self._refreshed(some)

    def _refreshed(self, waiting_pods: Iterable[WaitingPod]) -> list[WaitingPod]:
        """The pods among these that still wait, as the snapshot has them; the others are dropped."""
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

    def _add(self, waiting: WaitingPod) -> None:
        if self._waiting_queue.get(waiting.pod.uid) != waiting:
            self._waiting_queue.put(waiting)
            self._version += 1

    def _was_tried(self, uid: str) -> None:
        self._denied.tried(uid)
        if self._rounds.tried(uid, self._now_s()):
            self._changed.set()

    def _wake(self, pod: Pod, reason: str, message: str) -> bool:
        """Makes kube-scheduler try the pod again. False if the API server did not answer."""
        patch = wake_patch(pod.uid, reason, message, now_ms())
        path = f"{pod_path(pod.namespace, pod.name)}/status"
        reply = self._api.call("PATCH", path, patch, content_type=STRATEGIC_MERGE, timeout_s=PATCH_S)
        said = reply.status if isinstance(reply, Answered) else reply.message
        self._log("woken", pod=pod.full_name, uid=pod.uid, why=message, answer=said)
        return isinstance(reply, Answered) and reply.status < 500


def _waits(snapshot: Snapshot, uid: str) -> bool:
    pod, allocation = snapshot.pods.get(uid), snapshot.allocation(uid)
    if pod is None or (allocation is not None and allocation.state != "reserved"):
        return False
    return pod.waits and not pod.gated and not pod.waits_for_devices
