"""Which waiting pod may preempt next, and when each is tried again."""

from collections import Counter
from collections.abc import Iterator

from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import NamespaceStandings, as_if_enforced
from scheduler_ext.preemption.plan import PreemptibleNodes, PreemptionLimits, may_begin
from scheduler_ext.preemption.victims import PreemptionContext
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.node_info import NodeInfo
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.waiting.order import WaitingPod
from timekeeper.core.ledger.reservation import Reservation

SETTLES_S = 1.0  # a pod waits at least this long: by then it shows what kube-scheduler does by itself
TRIED_WITHIN_S = 3.0  # within this time after a node changed kube-scheduler has tried the waiting pods
SEEN_WITHIN_S = 5.0  # a reservation that the watch does not show by then was not written
LOOKS_AGAIN_S = 2.0  # after a search without result
AGAIN_AFTER = 10  # times the duration of the last search: most of the time belongs to the verbs
RESTS_S = 60.0  # after cards were held for a pod without success
REPORTS_AGAIN_S = 300.0
MAX_TRIED = 8  # searches in one step


class PreemptionQueue:
    """The waiting pods, kept beside the snapshot's pods. Times are of a monotonic clock, in seconds."""

    def __init__(self, limits: PreemptionLimits) -> None:
        self._limits = limits
        self._pods: Map[Pod] = Map()
        self._nodes: Map[NodeInfo] = Map()
        self._changed_at: dict[str, float] = {}
        self._held: set[str] = set()  # of them those for which cards are held
        self._nominated: set[str] = set()  # of them those that kube-scheduler has nominated for a node
        self._since: dict[str, float] = {}
        self._look_at: dict[str, float] = {}
        # UID of an unbound pod that kube-scheduler could not place -> number of its shape
        self._shapes: dict[str, int] = {}
        self._numbers: dict[object, int] = {}  # shape -> number: the hash of a shape takes long
        self._next_number = 0
        self._none_until: dict[int, float] = {}  # by number of the shape
        self._looked_at: dict[int, float] = {}  # last search without result, by number of the shape
        self._report_at: dict[str, float] = {}
        self._looks = 0
        self._awaited, self._awaited_until = "", 0.0
        self._preemptible = PreemptibleNodes()

    def follow(self, snapshot: Snapshot, now_s: float) -> None:
        """Updates to this snapshot."""
        self._changed_at = {name: at for name, at in self._changed_at.items() if now_s - at < TRIED_WITHIN_S}
        self._changed_at |= dict.fromkeys(snapshot.nodes.changed_since(self._nodes), now_s)
        self._nodes = snapshot.nodes
        for uid in snapshot.pods.changed_since(self._pods):
            pod = snapshot.pods.get(uid)
            for uids in (self._held, self._nominated):
                uids.discard(uid)
            self._shapes.pop(uid, None)
            if pod is not None and not pod.node:
                if pod.nominated:
                    self._nominated.add(uid)
                if pod.unschedulable:
                    self._shapes[uid] = self._number(_shape(pod))
                if pod.reserved is not None:
                    self._held.add(uid)
                continue
            for times in (self._since, self._look_at, self._report_at):
                times.pop(uid, None)
        self._pods = snapshot.pods
        self._preemptible.follow(snapshot)
        if len(self._numbers) > 2 * len(self._shapes):
            used = set(self._shapes.values())
            self._numbers = {shape: number for shape, number in self._numbers.items() if number in used}

    def _number(self, shape: object) -> int:
        found = self._numbers.get(shape)
        if found is None:
            found = self._numbers[shape] = self._next_number
            self._next_number += 1
        return found

    def held(self, snapshot: Snapshot) -> list[tuple[Pod, Reservation]]:
        """The pods for which cards are held, the oldest reservation first."""
        found = [
            (pod, pod.reserved)
            for uid in self._held
            if (pod := snapshot.pods.get(uid)) is not None and pod.reserved is not None
        ]
        return sorted(found, key=lambda each: (each[1].since_ms, each[0].uid))

    def next(self, snapshot: Snapshot, context: PreemptionContext, now_s: float) -> list[Pod]:
        """The pods that may preempt, of each shape the first, in order: by priority, then the longest since a
        search without result, then age. Every second one is the one of all whose last search is longest ago,
        so that no pod starves behind pods that cannot be helped. A search without result holds for every pod
        with the same request and rank: they are tried later."""
        self._none_until = {shape: at for shape, at in self._none_until.items() if at > now_s}
        waiting = self._with_a_share(snapshot, self._waiting(snapshot, context))
        there = {self._shapes[pod.uid] for pod in waiting}
        self._looked_at = {shape: at for shape, at in self._looked_at.items() if shape in there}
        ready = [
            pod
            for pod in waiting
            if now_s - self._since.setdefault(pod.uid, now_s) >= SETTLES_S
            and self._look_at.get(pod.uid, 0.0) <= now_s
            and self._shapes[pod.uid] not in self._none_until
        ]
        return self._by_turns(ready)

    def _by_turns(self, ready: list[Pod]) -> list[Pod]:
        looked = {pod.uid: self._looked_at.get(self._shapes[pod.uid], 0.0) for pod in ready}
        by_rank = sorted(ready, key=lambda pod: (-pod.priority, looked[pod.uid], pod.asked_ms, pod.uid))
        longest = sorted(by_rank, key=lambda pod: looked[pod.uid])
        orders = iter(by_rank), iter(longest)
        found: dict[int, Pod] = {}  # by number of the shape
        while len(found) < MAX_TRIED:
            order = orders[(self._looks + len(found)) % 2]
            pod = next((each for each in order if self._shapes[each.uid] not in found), None)
            if pod is None:
                break
            found[self._shapes[pod.uid]] = pod
        return list(found.values())

    def _waiting(self, snapshot: Snapshot, context: PreemptionContext) -> list[Pod]:
        if not self._shapes:
            return []
        supposed = as_if_enforced(context.standings)
        standings = {id(each): each for each in (context.standings, supposed)}.values()
        pods = (pod for uid in self._shapes if (pod := snapshot.pods.get(uid)) is not None)
        return [
            pod
            for pod in pods
            if any(may_begin(pod, self._limits, each) for each in standings)
            and not context.cooldown.refuses(pod, context.now_ms)
            and not context.is_capped(pod, "")
        ]

    def _with_a_share(self, snapshot: Snapshot, waiting: list[Pod]) -> list[Pod]:
        """Without pods of namespaces that already have their share of reservations while another namespace
        waits."""
        if not self._held or len({pod.namespace for pod in waiting}) < 2:
            return waiting
        held = Counter(pod.namespace for pod, _ in self.held(snapshot))
        share = max(1, self._limits.most // 2)
        return [pod for pod in waiting if held[pod.namespace] < share]

    def claimed(self, snapshot: Snapshot, pod: Pod) -> set[str]:
        """The nodes that kube-scheduler has nominated for pods other than this one."""
        others = (snapshot.pods.get(uid) for uid in self._nominated if uid != pod.uid)
        return {each.nominated for each in others if each is not None and each.reserved is None}

    def worth(self, snapshot: Snapshot, pod: Pod, standings: NamespaceStandings) -> Iterator[NodeInfo]:
        """The nodes that have a possible victim for the pod."""
        names = self._preemptible.worth(pod, standings)
        return (node for name in names if (node := snapshot.nodes.get(name)) is not None)

    def is_worth(self, pod: Pod, context: PreemptionContext) -> bool:
        """Whether any node has a possible victim for the pod, and the cluster takes part in preemption."""
        is_ours = self._limits.most > 0 and pod.scheduler == self._limits.scheduler
        return is_ours and self._preemptible.is_worth(pod, context.standings)

    def that_may_take(self, snapshot: Snapshot, waiting_pod: WaitingPod) -> Iterator[NodeInfo]:
        """The nodes where kube-scheduler tries the pod now or soon: those that it offered (all if unknown),
        and those that changed since."""
        everywhere = (name for name, _ in snapshot.nodes.items())
        names = everywhere if waiting_pod.offered is None else waiting_pod.offered | self._changed_at.keys()
        return (node for name in names if (node := snapshot.nodes.get(name)) is not None)

    def found_none(self, pod: Pod, now_s: float, took_s: float) -> None:
        """No set of victims helps this pod now; the search took ``took_s``."""
        shape = self._shapes[pod.uid]
        self._none_until[shape] = now_s + max(LOOKS_AGAIN_S, AGAIN_AFTER * took_s)
        self._looked_at[shape] = now_s
        self._looks += 1

    def rests(self, uid: str, now_s: float) -> None:
        """Cards were held for this pod without success."""
        self._look_at[uid] = now_s + RESTS_S

    def may_report(self, uid: str, now_s: float) -> bool:
        """True if what would be done for the pod was not reported recently; it counts as reported now."""
        if self._report_at.get(uid, 0.0) > now_s:
            return False
        self._report_at[uid] = now_s + REPORTS_AGAIN_S
        return True

    def await_held(self, uid: str, now_s: float) -> None:
        """Cards are, or may be, held for this pod: no other preemption begins until the watch shows it."""
        self._awaited, self._awaited_until = uid, now_s + SEEN_WITHIN_S

    def awaits(self, snapshot: Snapshot, now_s: float) -> bool:
        """True until the watch shows it, or until it is too late for that."""
        pod = snapshot.pods.get(self._awaited)
        waits = pod is not None and pod.reserved is None and not pod.node and now_s < self._awaited_until
        self._awaited = self._awaited if waits else ""
        return waits


def _shape(pod: Pod) -> object:
    """All that the answer for a waiting pod depends on."""
    return (
        pod.namespace,
        pod.owner,
        pod.priority,
        pod.request,
        pod.amounts,
        pod.cpu_milli,
        pod.others,
        pod.node_constraints,
        pod.uid if pod.constrained else "",  # its nodes are those that kube-scheduler passed for it alone
    )
