"""What should have been charged, worked out a second time and in another way. Imports nothing of ours.

It is told what got through to the timekeeper, and answers for each moment of a pod's life whether it counts.
"""

from dataclasses import dataclass, field

START_GRACE_MS = 600_000
SILENT_MS = 60_000
MOST_GRACE_MS = 600_000


@dataclass
class Seen:
    """One pod as far as it was told. ``left``: seen to vanish at this moment, with this grace, when the
    node's Lease was so old and the node heard until then. ``last_ms``: where a session without proof ends for
    good."""

    namespace: str
    node: str
    rate: int
    bound: int
    start: int | None = None
    end: int | None = None
    beat: int = 0
    sequences: dict[str, int] = field(default_factory=dict)
    left: tuple[int, int] | None = None
    lease_then: int | None = None
    mark_then: int = 0
    missed: bool = False
    last_ms: int | None = None

    @property
    def over(self) -> bool:
        """Nothing more can come."""
        return self.end is not None or self.last_ms is not None


@dataclass
class Oracle:
    """Evidence by pod UID and node; all times in milliseconds."""

    pods: dict[str, Seen] = field(default_factory=dict)
    leases: dict[str, int] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    heard: int = 0

    def hears(self, now: int) -> None:
        """The watch of pods brings something, or shows that it is alive."""
        self.heard = max(self.heard, now)

    def status(self, uid: str, started: int | None, ended: int | None) -> None:
        """The kubelet's word on a pod."""
        pod = self.pods[uid]
        if started is not None:
            pod.start = started if pod.start is None else min(pod.start, started)
        if ended is not None:
            pod.end = ended

    def beats(self, uid: str, run: str, sequence: int, age: int, now: int) -> None:
        """A post of heartbeats arrives."""
        pod = self.pods[uid]
        if sequence > pod.sequences.get(run, -1):
            pod.sequences[run] = sequence
            pod.beat = max(pod.beat, min(now, max(pod.bound, now - age)))

    def leaves(self, uid: str, now: int, grace: int) -> None:
        """A pod's object is seen to go, without proof of its end."""
        self._note(uid)
        self.pods[uid].left = (now, min(grace, MOST_GRACE_MS))

    def missing(self, uid: str) -> None:
        """A pod is found missing from a list."""
        self._note(uid)
        self.pods[uid].missed = True

    def _note(self, uid: str) -> None:
        pod = self.pods[uid]
        pod.lease_then = self.leases.get(pod.node)
        pod.mark_then = min(pod.lease_then or 0, self.heard)

    def tick(self) -> None:
        """What is known now is taken down: who left for good, and until when nodes were heard."""
        for pod in self.pods.values():
            if not pod.over and (pod.left or pod.missed):
                self._close(pod)
        for node in {pod.node for pod in self.pods.values() if not pod.over}:
            if node in self.leases:
                self.marks[node] = max(self.marks.get(node, 0), min(self.leases[node], self.heard))

    def _close(self, pod: Seen) -> None:
        is_heard = pod.left and pod.lease_then is not None and pod.left[0] - pod.lease_then <= SILENT_MS
        if pod.left and is_heard:
            pod.last_ms = sum(pod.left)
        else:
            marks = (pod.mark_then, self.marks.get(pod.node, 0))
            pod.last_ms = max(pod.bound, pod.start or 0, pod.beat, *marks)

    def killed(self, now: "Oracle") -> None:
        """Go on from here, as of the last tick, with the heartbeats that others have written since."""
        for uid, pod in self.pods.items():
            pod.beat, pod.sequences = now.pods[uid].beat, now.pods[uid].sequences
        self.leases.clear()
        self.heard = 0

    def counts(self, uid: str, now: int) -> tuple[int, int]:
        """The interval of a pod that counts at this moment; empty where both ends are the same."""
        pod = self.pods[uid]
        latest = pod.bound + START_GRACE_MS
        if pod.start is None and now < latest:
            return 0, 0
        start = latest if pod.start is None else min(pod.start, latest)
        if pod.end is not None:
            end = pod.end
        elif pod.last_ms is not None:
            end = min(now, pod.last_ms)
        else:
            end = min(now, max(pod.beat, self.marks.get(pod.node, 0)))
        return start, max(start, end)

    def charge(self, namespace: str, now: int, since: int, until: int) -> int:
        """What a namespace owes for the time between two moments."""
        total = 0
        for uid, pod in self.pods.items():
            if pod.namespace == namespace:
                start, end = self.counts(uid, now)
                total += pod.rate * max(0, min(end, until) - max(start, since))
        return total
