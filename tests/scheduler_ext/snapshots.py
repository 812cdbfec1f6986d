"""What a test reads of a snapshot: why it refuses a pod, and what is free."""

from typing import Any

from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.snapshot.snapshot import Snapshot
from tests.scheduler_ext.worlds import request_of

Json = dict[str, Any]


def why(snapshot: Snapshot, raw: Json, where: str = "n") -> str:
    """The sentence that refuses the pod this node."""
    answer = fit(request_of(raw), snapshot.node(where))
    assert isinstance(answer, Refusal)
    return answer.sentence


def shares(snapshot: Snapshot, where: str = "n") -> list[int]:
    return [room.share_milli for room in snapshot.node(where).free_by_card if room]
