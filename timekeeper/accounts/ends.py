"""Ends of holds: as extenders report them, which saw the removal of a pod also while no settler ran; and what
is not charged of a pod that was evicted because the start of its gang came to nothing. Pure.

The extender notes on such a pod until when it is not charged (`names.GANG_FORGIVEN`), and then evicts it. The
session then begins at that time: what was posted before is taken back, by a correction. A tenant can make
starts fail, under as many owners as it likes. So an account is forgiven once an hour, all starts of one
minute together: at most a deadline of the extender an hour, for each card that it pays.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from timekeeper.accounts.pods import LedgerPod
from timekeeper.accounts.session import Session
from timekeeper.core.ledger.hold import PodHold
from timekeeper.core.values import GPURequest

MOST_MS = 600_000  # of one pod: the longest deadline of a start
TOGETHER_MS, AGAIN_MS = 60_000, 3_600_000


@dataclass(frozen=True, slots=True)
class ReportedEnd:
    """A bound pod whose object an extender saw removed. Times in milliseconds since 1970."""

    uid: str
    namespace: str
    name: str
    node: str
    hold: PodHold  # what its object said, the last version and those before
    removed_ms: int  # when the removal was seen
    left_ms: int | None = None  # when its node's agent ceased to list it; None: not known


def pod_of(end: ReportedEnd) -> LedgerPod:
    """The pod as its last object was, as far as its hold goes; what it requests is not reported."""
    return LedgerPod(
        end.uid,
        end.namespace,
        end.name,
        owner="",
        node=end.node,
        created_ms=end.hold.bound_ms or end.removed_ms,
        request=GPURequest(dialect="", asks=()),
        standing="",
        devices="",
        started_ms=None,
        hold=end.hold,
        others_ended=False,
    )


def forgiven(session: Session, hold: PodHold, others_ms: Iterable[int]) -> Session:
    """The session without what is forgiven; the same if nothing is. ``hold``: by the last version of its pod;
    ``others_ms``: until when other sessions of its namespace were forgiven. Of a pod to which Bursar gave no
    cards nothing is: its session has no placement."""
    if hold.forgiven_ms is None or hold.deletion_ms is None or not (session.is_over and session.devices):
        return session
    until_ms = min(hold.forgiven_ms, session.bound_ms + MOST_MS)
    is_again = any(TOGETHER_MS < abs(until_ms - other_ms) < AGAIN_MS for other_ms in others_ms)
    if session.forgiven_ms is not None or until_ms <= session.bound_ms or is_again:
        return session
    forgiven_ms = until_ms - session.bound_ms
    return replace(session, bound_ms=until_ms, forgiven_ms=forgiven_ms, settled_ms=None)
