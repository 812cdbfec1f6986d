"""What the preemptor remembers of what it has begun: whom it has asked, when to ask again, how it ended."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from scheduler_ext.model.pod import Pod
from scheduler_ext.model.reservation import Kind, Reservation
from scheduler_ext.snapshot.snapshot import Snapshot

SEEN_LEAVING_WITHIN_S = 10.0  # whoever was asked and does not go by then is asked again

Result = Literal["bound", "elsewhere", "gone", "withdrawn", "observed"]
RESULTS: tuple[Result, ...] = ("bound", "elsewhere", "gone", "withdrawn", "observed")
HOW = ("evicted", "deleted")
KINDS: tuple[Kind, ...] = ("fragmentation", "reclaim")


class PreemptionCounts:
    """How often what happened: ``results`` by kind and how a preemption ended, ``victims`` by kind and how
    they were made to leave, ``protected``: how often a PodDisruptionBudget refused."""

    def __init__(self) -> None:
        self.results: Counter[tuple[str, str]] = Counter({(k, r): 0 for k in KINDS for r in RESULTS})
        self.victims: Counter[tuple[str, str]] = Counter({(k, h): 0 for k in KINDS for h in HOW})
        self.protected = 0

    def ended(self, kind: Kind, result: Result) -> None:
        """A preemption ended so."""
        self.results[kind, result] += 1

    def left(self, kind: Kind, how: str) -> None:
        """A pod was asked to leave, and will."""
        self.victims[kind, how] += 1


@dataclass(slots=True)
class ActivePreemption:
    """One pod's reservation under way. Times are of a monotonic clock, in seconds."""

    pod: Pod
    node: str
    kind: Kind
    since_ms: int
    _asked: dict[str, float] = field(default_factory=dict)
    _ask_at: float = 0.0
    _no_way_since: float | None = None
    _woken_at: float | None = None

    def ask(self, victim: Pod, now_s: float) -> None:
        """The victim has been asked to leave."""
        self._asked[victim.uid] = now_s

    def asked(self, now_s: float) -> list[str]:
        """The UIDs of those who have been asked, and may still be on their way."""
        return [uid for uid, at in self._asked.items() if now_s - at < SEEN_LEAVING_WITHIN_S]

    def waits_for(self, snapshot: Snapshot) -> bool:
        """True while any of those who have been asked holds its cards."""
        pods = (snapshot.pods.get(uid) for uid in self._asked)
        return any(pod is not None and pod.holding for pod in pods)

    def put_off(self, until_s: float) -> None:
        """Nothing is asked of the API server before."""
        self._ask_at = until_s

    def may_ask(self, now_s: float) -> bool:
        """True when something may be asked of the API server again."""
        return now_s >= self._ask_at

    def no_way(self, now_s: float) -> float:
        """There is no way now; for how long there has been none, in seconds."""
        if self._no_way_since is None:
            self._no_way_since = now_s
        return now_s - self._no_way_since

    def way(self) -> None:
        """There is a way."""
        self._no_way_since = None

    def may_wake(self, now_s: float, every_s: float) -> bool:
        """True the second time that the cards are found free and the pod not bound, and then so often."""
        if self._woken_at is None:
            self._woken_at = now_s
            return False
        if now_s - self._woken_at < every_s:
            return False
        self._woken_at = now_s
        return True


class ActivePreemptions:
    """Those under way, by the UID of the pod that cards are held for."""

    def __init__(self) -> None:
        self._by_uid: dict[str, ActivePreemption] = {}

    def of(self, pod: Pod, reservation: Reservation) -> ActivePreemption | None:
        """The course of this very reservation."""
        preemption = self._by_uid.get(pod.uid)
        return preemption if preemption is not None and preemption.since_ms == reservation.since_ms else None

    def begin(self, pod: Pod, reservation: Reservation) -> ActivePreemption:
        """A reservation that the watch shows for the first time."""
        preemption = ActivePreemption(pod, reservation.node, reservation.kind, reservation.since_ms)
        self._by_uid[pod.uid] = preemption
        return preemption

    def ended(self, snapshot: Snapshot) -> Iterator[tuple[ActivePreemption, Result]]:
        """Those that the snapshot shows ended, and how; each is told once."""
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
