"""Compares the sessions with the API server's pods: seconds that are held and not charged, and the reverse;
and those of claims with its claims.

Some seconds are usual, so a difference here is no fault of the ledger: cards are held until now, and charged
up to the last evidence, which is older on a silent node. After a pod's end its report and posting take a
moment.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from timekeeper.accounts.budget_history import History
from timekeeper.accounts.pods import read_pod
from timekeeper.accounts.posting import runs, steps
from timekeeper.core import names
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.ledger.hold import PodHold, ends_ms, pod_hold
from timekeeper.operations.audit.claims import ClaimComparison
from timekeeper.operations.audit.evidence import bounds
from timekeeper.operations.audit.finding import NotCompared
from timekeeper.store.audit_rows import PodRows, StoredSession

Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ComparedPod:
    """A bound pod that requests GPUs. ``excuse``: why it may have no session; "": it must have one."""

    uid: str
    name: str  # with its namespace
    hold: PodHold
    excuse: str


@dataclass(frozen=True, slots=True)
class HoldDifference:
    """A pod whose cards are not charged for exactly the time that they are held; in milliseconds."""

    uid: str
    pod: str
    held_ms: int
    not_charged_ms: int  # held, but not charged
    not_held_ms: int  # charged, but not held

    def sentence(self) -> str:
        """One line for people."""
        return (
            f"pod {self.uid} ({self.pod}): held {_seconds(self.held_ms)}, of which"
            f" {_seconds(self.not_charged_ms)} not charged; charged but not held {_seconds(self.not_held_ms)}"
        )

    def wire(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "uid": self.uid,
            "pod": self.pod,
            "heldMs": self.held_ms,
            "notChargedMs": self.not_charged_ms,
            "notHeldMs": self.not_held_ms,
        }


def read_compared_pod(raw: Json) -> ComparedPod | None:
    """The pod; None if it requests no GPU, or is not bound. Never raises on JSON from an API server."""
    pod = read_pod(raw)
    if pod is None or pod.charge == "unknown" or not mapping(raw.get("spec")).get("nodeName"):
        return None
    excuse = ""
    if pod.charge != "cards":
        excuse = "it has no session, and is not governed"
        if pod.doubt:
            excuse = f"it has no session: its request cannot be read: {pod.doubt}"
        elif pod.is_charged_nothing:
            excuse = "it has no session: what it uses by resource claims is charged by the claims"
    elif mapping(raw.get("status")).get("extendedResourceClaimStatus"):
        excuse = "it has no session: a claim serves its extended resources"
    elif mapping(mapping(raw.get("metadata")).get("labels")).get(names.GOVERNED) != "true":
        excuse = "it has no session, and is not governed"
    return ComparedPod(pod.uid, f"{pod.namespace}/{pod.name}", pod_hold(raw), excuse)


class ClusterComparison:
    """Receives the rows of each pod, then gives what it found. ``at_ms``: when the pods were listed.
    ``clocks``: nodes with a wrong clock, and by how many milliseconds it is ahead of the API server's.
    ``claims``: None where the API server serves no claims."""

    def __init__(
        self,
        pods: Iterable[ComparedPod],
        at_ms: int,
        clocks: Mapping[str, int],
        claims: ClaimComparison | None = None,
    ) -> None:
        self._claims = claims
        self._waiting = {pod.uid: pod for pod in pods}
        self._at_ms = at_ms
        self._clocks = dict(sorted(clocks.items()))
        self.compared = 0
        self.gaps: list[HoldDifference] = []
        self.listed: list[NotCompared] = []

    def check(self, rows: PodRows, heard: dict[str, int]) -> None:
        """The rows under one UID. ``heard``: each node's watermark."""
        if self._claims is not None and rows.session is not None:
            self._claims.check(rows.session)
        if rows.session is None and not rows.folded:
            return
        pod = self._waiting.pop(rows.uid, None)
        if pod is None or rows.session is None:
            return
        if not rows.session.devices:
            self.listed.append(
                NotCompared("pod", pod.uid, pod.name, "charged by its request: it has no placement")
            )
            return
        session = rows.session
        if (
            session.ended_ms is not None
            and pod.hold.ended_ms is None
            and (pod.hold.unconfirmed or session.ended_ms)
        ):
            sentence = "its status lacks the end that was known before, or by its node's boot"
            self.listed.append(NotCompared("pod", pod.uid, pod.name, sentence))
            return
        known = (session.bound_ms, session.started_ms, session.watermark_ms, rows.beat_ms)
        last_ms = max(each or 0 for each in known)
        charged = _charged(rows, session, heard.get(session.witness), self._at_ms)
        self._compare(pod, self._held(pod, session.bound_ms, last_ms), charged)

    def end(self, history: History) -> None:
        """After the last rows: the pods without a session, and the claims."""
        if self._claims is not None:
            self._claims.end(history)
        for pod in self._waiting.values():
            if not pod.excuse:
                self._compare(pod, self._held(pod, self._at_ms, 0), [])
            elif not pod.hold.over:
                self.listed.append(NotCompared("pod", pod.uid, pod.name, pod.excuse))

    def sentences(self) -> Iterator[str]:
        """A line for each pod or claim that differs or is not compared, and the sums, for people."""
        yield from (gap.sentence() for gap in self.gaps)
        yield from (each.sentence() for each in self.listed)
        for node, ahead_ms in self._clocks.items():
            where = "ahead of" if ahead_ms > 0 else "behind"
            yield f"node {node}: its clock is {_seconds(abs(ahead_ms))} {where} the API server's"
        yield (
            f"{self.compared} pods compared with the API server: held but not charged"
            f" {_seconds(sum(gap.not_charged_ms for gap in self.gaps))}, charged but not held"
            f" {_seconds(sum(gap.not_held_ms for gap in self.gaps))}; {len(self.listed)} not compared"
        )
        if self._claims is not None:
            yield from self._claims.sentences()

    def wire(self) -> dict[str, Any]:
        """The whole, for programs."""
        return {
            "compared": self.compared,
            "notChargedMs": sum(gap.not_charged_ms for gap in self.gaps),
            "notHeldMs": sum(gap.not_held_ms for gap in self.gaps),
            "pods": [gap.wire() for gap in self.gaps],
            "notCompared": [each.wire() for each in self.listed],
            "clocks": [{"node": node, "aheadMs": ahead_ms} for node, ahead_ms in self._clocks.items()],
            "claims": None if self._claims is None else self._claims.wire(),
        }

    def _held(self, pod: ComparedPod, bound_ms: int, last_ms: int) -> Interval:
        begin = bound_ms if pod.hold.bound_ms is None else pod.hold.bound_ms
        return begin, ends_ms(pod.hold, last_ms) if pod.hold.over else self._at_ms

    def _compare(self, pod: ComparedPod, held: Interval, charged: list[Interval]) -> None:
        self.compared += 1
        held_ms = _length(held)
        both_ms = sum(_length((max(held[0], each[0]), min(held[1], each[1]))) for each in charged)
        gap = HoldDifference(
            pod.uid, pod.name, held_ms, held_ms - both_ms, sum(map(_length, charged)) - both_ms
        )
        if gap.not_charged_ms or gap.not_held_ms:
            self.gaps.append(gap)


def _charged(rows: PodRows, session: StoredSession, heard_ms: int | None, at_ms: int) -> list[Interval]:
    """Posted, or if the session is open, owed by its evidence."""
    if session.settled_ms is not None:
        posted = [(each.from_ms, each.to_ms, each.rate_milli) for each in rows.postings]
        return [(run.from_ms, run.to_ms) for run in runs(steps(posted))]
    allowed = bounds(session, rows.beat_ms, heard_ms, 0)
    return [(allowed.begin_ms, session.ended_ms or min(allowed.until_ms, at_ms))]


def _length(interval: Interval) -> int:
    return max(0, interval[1] - interval[0])


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.3f} s"
