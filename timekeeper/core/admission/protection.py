"""The standing of a pod that its namespace's ``protect`` selects: in budget, while the floor allows it by
the table and by what was admitted since."""

from dataclasses import replace

from timekeeper.core.admission.policy import Standing
from timekeeper.core.dialects.moments import most_at_once
from timekeeper.core.dialects.others.claims import is_known
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.object_names import own_labels, owner_of
from timekeeper.core.protected import Published
from timekeeper.core.values import GPURequest

_NO_LOOKAHEAD_MS = 5_000  # what is counted where the table has no lookahead


def cost(request: GPURequest, lookahead_ms: int | None) -> int:
    """The amount that the pod takes from the budget until the table includes it, in milli-GPU x ms.

    It is what the timekeeper reserves while the card is unknown: the compute share at weight 1,
    over the lookahead; without a lookahead in the table, over five seconds.
    """
    return share_milli(request) * (_NO_LOOKAHEAD_MS if lookahead_ms is None else lookahead_ms)


def share_milli(request: GPURequest) -> int:
    """The most compute that the pod requests at one time, in thousandths of a card."""
    return most_at_once(request.asks, lambda each: each.ask.devices * each.ask.share_milli)


def takes_of(published: Published, request: GPURequest, lookahead_ms: int | None) -> int:
    """What the pod takes of the floor, in its unit, while its cards are unknown: at least 1, so that pods
    without a known amount end the floor, too."""
    is_hours = published.protection.amount is not None
    return max(1, cost(request, lookahead_ms) if is_hours else share_milli(request))


def protected(
    now: Standing,
    published: Published | None,
    pod: Json,
    request: GPURequest,
    taken: int,
    lookahead_ms: int | None,
) -> Standing:
    """The pod's standing, where ``now`` is its namespace's. ``taken``: what of the floor was given out since
    the table, in its unit. A pod that is not in budget only because nothing is known gets nothing."""
    is_spent = now.status == "OVER_BUDGET" or (now.status == "IN_BUDGET" and now.hold == "budget")
    metadata = mapping(pod.get("metadata"))
    if published is None or not is_spent:
        return now
    if not published.protection.selects(owner_of(metadata), own_labels(metadata)):
        return now
    if not is_known(request) or taken + takes_of(published, request, lookahead_ms) > published.left:
        return now
    hold = "turn" if published.has_turns else "" if now.hold == "budget" else now.hold
    return replace(now, status="IN_BUDGET", hold=hold, is_protected=True)
