"""The parts of a simulation's answer."""

from collections.abc import Mapping
from typing import Any, TypedDict

from timekeeper.accounts.budget_history import DAY_MS
from timekeeper.accounts.usage import cost, gpu_hours
from timekeeper.api.resources.simulated.pods import ReviewedPod
from timekeeper.core.json_values import sequence


class CostAnswer(TypedDict):
    """`rateMilli`: in thousandths of a weighted GPU; `perDay`: milli-GPU x milliseconds; `price`: of a day,
    null without a price."""

    rateMilli: int
    perDay: int
    gpuHoursPerDay: str
    price: str | None
    currency: str


class SimulatedPodAnswer(TypedDict):
    """A pod. `outcome`: `refused` (at admission), `not-governed` (it requests no GPU), `fits`, `waits`, or
    `unknown` (`note` says why). `held`: what it is held for until its release, or empty; its node is then as
    of its release. `protected`: its budget is spent and protects it. `reasons`: why nodes refuse it."""

    name: str
    outcome: str
    refusal: str
    standing: str
    held: str
    protected: bool
    node: str
    nodesThatFit: int
    reasons: list[dict[str, Any]]
    hasUnreadConstraints: bool
    cost: CostAnswer


def pod_answer(pod: ReviewedPod, placed: Mapping[str, Any], cost: CostAnswer) -> SimulatedPodAnswer:
    """The pod's review, and what the extender says; empty if it was not asked."""
    review = pod.review
    return {
        "name": pod.raw["metadata"]["name"],
        "outcome": _not_placed(review) or placed.get("outcome", "unknown"),
        "refusal": review["refusal"],
        "standing": review["standing"],
        "held": review["held"],
        "protected": review["protected"],
        "node": placed.get("node", ""),
        "nodesThatFit": placed.get("nodesThatFit", 0),
        "reasons": sequence(placed.get("reasons")),
        "hasUnreadConstraints": placed.get("hasUnreadConstraints", False),
        "cost": cost,
    }


def _not_placed(review: Mapping[str, Any]) -> str:
    """Why the extender is not asked about a pod; "" if it is."""
    if review["refusal"]:
        return "refused"
    return "" if review["standing"] else "not-governed"


def cost_answer(rate_milli: int, price: tuple[str, str]) -> CostAnswer:
    """``price``: of a weighted GPU-hour, "" for none, and its currency."""
    amount = rate_milli * DAY_MS
    each, currency = price
    return {
        "rateMilli": rate_milli,
        "perDay": amount,
        "gpuHoursPerDay": gpu_hours(amount),
        "price": cost(amount, each) if each else None,
        "currency": currency,
    }
