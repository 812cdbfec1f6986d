"""The standing of a pod that its namespace's ``protect`` selects: in budget, as long as the floor has room by
the table and by what this worker admitted since."""

from dataclasses import replace

from timekeeper.core.json_values import mapping
from timekeeper.core.object_names import own_labels, owner_of
from timekeeper.core.protected import Published
from timekeeper.core.request.request import parse
from timekeeper.core.values import GPURequest
from webhook.policy import Standing
from webhook.standings.burst import cost, share_milli
from webhook.wire.pod_review import PodReview


def takes_of(published: Published, request: GPURequest, lookahead_ms: int | None) -> int:
    """What the pod takes of the floor, in its unit, while its cards are unknown."""
    is_hours = published.protection.amount is not None
    return cost(request, lookahead_ms) if is_hours else share_milli(request)


def protected(
    now: Standing, published: Published | None, review: PodReview, taken: int, lookahead_ms: int | None
) -> Standing:
    """The pod's standing, where ``now`` is its namespace's. ``taken``: what of the floor this worker gave out
    since the table, in its unit. A pod that is not in budget only because nothing is known gets nothing."""
    if published is None or not _matters(now) or not _selects(published, review):
        return now
    request = parse(review.pod).request
    if request is None or taken + max(1, takes_of(published, request, lookahead_ms)) > published.left:
        return now
    hold = "turn" if published.has_turns else "" if now.hold == "budget" else now.hold
    return replace(now, status="IN_BUDGET", hold=hold, is_protected=True)


def _matters(now: Standing) -> bool:
    return now.status == "OVER_BUDGET" or (now.status == "IN_BUDGET" and now.hold == "budget")


def _selects(published: Published, review: PodReview) -> bool:
    metadata = mapping(review.pod.get("metadata"))
    return published.protection.selects(owner_of(metadata), own_labels(metadata))
