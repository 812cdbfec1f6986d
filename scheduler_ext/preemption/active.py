"""The preemptor's record of preemptions under way: which pods were evicted, when to act again, how each
ended."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import NamespaceStandings
from scheduler_ext.snapshot.snapshot import Snapshot
from timekeeper.core.ledger.reservation import Reservation, ReservationKind
from timekeeper.core.standings import payer

EVICTION_SEEN_WITHIN_S = 10.0  # a victim that does not leave by then is evicted again

Result = Literal["bound", "elsewhere", "gone", "withdrawn", "observed"]
RESULTS: tuple[Result, ...] = ("bound", "elsewhere", "gone", "withdrawn", "observed")
HOW = ("evicted", "deleted", "shortened")
RESERVATION_KINDS: tuple[ReservationKind, ...] = ("fragmentation", "reclaim")


class PreemptionCounts:
    """Counters for metrics: ``results`` by kind and result, ``victims`` by kind and how they left,
    ``protected``: refusals by a PodDisruptionBudget."""

    def __init__(self) -> None:
        self.results: Counter[tuple[str, str]] = Counter(
            {(k, r): 0 for k in RESERVATION_KINDS for r in RESULTS}
        )
        self.victims: Counter[tuple[str, str]] = Counter({(k, h): 0 for k in RESERVATION_KINDS for h in HOW})
        self.protected = 0

    def ended(self, kind: ReservationKind, result: Result) -> None:
        """One preemption ended with this result."""
        self.results[kind, result] += 1

    def left(self, kind: ReservationKind, how: str) -> None:
        """A victim was evicted or deleted."""
        self.victims[kind, how] += 1


@dataclass(slots=True)
class ActivePreemption:
    """One pod's reservation under way. Times are of a monotonic clock, in seconds."""

    pod: Pod
    node: str
    kind: ReservationKind
    since_ms: int
    _evicted_at: dict[str, float] = field(default_factory=dict)
    _deferred_until: float = 0.0
    _blocked_since: float | None = None
    _woken_at: float | None = None
    _free_since: float | None = None

    def record_eviction(self, victim: Pod, now_s: float) -> None:
        """The victim's eviction was accepted at ``now_s``, of a monotonic clock."""
        self._evicted_at[victim.uid] = now_s

    @property
    def has_evicted(self) -> bool:
        """True if this process evicted pods for it."""
        return bool(self._evicted_at)

    def recent_victims(self, now_s: float) -> list[str]:
        """UIDs of the pods evicted so recently that the watch may not show it yet."""
        return [uid for uid, at in self._evicted_at.items() if now_s - at < EVICTION_SEEN_WITHIN_S]

    def waits_for_victims(self, snapshot: Snapshot) -> bool:
        """True while any pod that was evicted from its node holds cards."""
        pods = (snapshot.pods.get(uid) for uid in self._evicted_at)
        return any(pod is not None and pod.holding and pod.node == self.node for pod in pods)

    def defer(self, until_s: float) -> None:
        """No call to the API server before ``until_s``."""
        self._deferred_until = until_s

    def may_act(self, now_s: float) -> bool:
        """True once calls to the API server are allowed again."""
        return now_s >= self._deferred_until

    def blocked_s(self, now_s: float) -> float:
        """Records that no choice of victims helps now; returns for how long that has been so, in seconds."""
        if self._blocked_since is None:
            self._blocked_since = now_s
        return now_s - self._blocked_since

    def unblocked(self) -> None:
        """Records that a choice of victims helps."""
        self._blocked_since = None

    def free_since(self, now_s: float) -> float:
        """Records that its cards are free; returns since when they have been, without interruption."""
        if self._free_since is None:
            self._free_since = now_s
        return self._free_since

    def occupied(self) -> None:
        """Records that others hold its cards."""
        self._free_since = None

    def may_wake(self, now_s: float, every_s: float) -> bool:
        """True if the pod is not bound although its cards are free: at the second look, then at most every
        ``every_s``."""
        if self._woken_at is None:
            self._woken_at = now_s
            return False
        if now_s - self._woken_at < every_s:
            return False
        self._woken_at = now_s
        return True


class ActivePreemptions:
    """The preemptions under way, by the UID of the pod that cards are held for."""

    def __init__(self) -> None:
        self._by_uid: dict[str, ActivePreemption] = {}

    def of(self, pod: Pod, reservation: Reservation) -> ActivePreemption | None:
        """The preemption for exactly this reservation."""
        preemption = self._by_uid.get(pod.uid)
        return preemption if preemption is not None and preemption.since_ms == reservation.since_ms else None

    def begin(self, pod: Pod, reservation: Reservation) -> ActivePreemption:
        """The watch shows a reservation for the first time."""
        preemption = ActivePreemption(pod, reservation.node, reservation.kind, reservation.since_ms)
        self._by_uid[pod.uid] = preemption
        return preemption

    def ended(self, snapshot: Snapshot) -> Iterator[tuple[ActivePreemption, Result]]:
        """The preemptions that ended by this snapshot, with the result; each is returned once."""
        for uid, preemption in list(self._by_uid.items()):
            result = _result(snapshot.pods.get(uid), preemption)
            if result is not None:
                del self._by_uid[uid]
                yield preemption, result


def _result(pod: Pod | None, preemption: ActivePreemption) -> Result | None:
    if pod is None or pod.deleting or pod.terminal:
        return "gone"
    if pod.node:
        return "bound" if pod.node == preemption.node else "elsewhere"
    return "withdrawn" if pod.reserved is None else None


def held_text(reservation: Reservation) -> str:
    """On the pod for which cards are reserved."""
    cards = len({each.uuid for _, slices in reservation.placement.containers for each in slices})
    on, them = ("a GPU", "it") if cards == 1 else (f"{cards} GPUs", "them")
    whose = "pods that are over budget or idle" if reservation.kind == "reclaim" else "pods of lower priority"
    return f"Reserved {on} on node {reservation.node}; evicting {whose} to free {them}."


def left_text(victim: Pod, pod: Pod, kind: str, standings: NamespaceStandings) -> str:
    """On the victim, with the reason. It names the other pod, or the gang, to its own namespace alone."""
    group = standings.of(victim.namespace).deciding_group
    over = f"{payer(victim.namespace, group)} is over its GPU budget"
    why = ("it does not use its GPUs" if victim.is_idle else over) if kind == "reclaim" else "lower priority"
    what, name = ("pod", pod.name) if pod.gang is None else ("gang", pod.gang.name)
    is_own = pod.namespace == victim.namespace
    heir = f"{what} {pod.namespace}/{name}" if is_own else f"a {what} of another namespace"
    return f"Evicted pod {victim.full_name}: {why}; its GPUs go to {heir}."
