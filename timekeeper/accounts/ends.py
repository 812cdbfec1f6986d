"""Ends of holds, as extenders report them, which saw the removal of a pod also while no settler ran. Pure."""

from dataclasses import dataclass

from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.ledger.hold import PodHold
from timekeeper.core.values import GPURequest


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
