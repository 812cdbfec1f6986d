"""The parts of a simulation's answer."""

from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from timekeeper.accounts.decisions.forecasts import DAY_MS
from timekeeper.accounts.usage import cost, gpu_hours
from timekeeper.api.resources.simulated.pods import ReviewedPod
from timekeeper.core.json_values import mapping, sequence


class VictimAnswer(TypedDict):
    """A pod that would leave. `namespace`, `name` and `uid`: null if the caller may not read decisions
    there."""

    namespace: str | None
    name: str | None
    uid: str | None
    priority: int
    standing: str


class CostAnswer(TypedDict):
    """`rateMilli`: in thousandths of a weighted GPU; `perDay`: milli-GPU x milliseconds; `price`: of a day,
    null without a price."""

    rateMilli: int
    perDay: int
    gpuHoursPerDay: str
    price: str | None
    currency: str


class SimulatedPodAnswer(TypedDict):
    """A pod. `outcome`: `refused` (at admission), `not-governed` (it requests no GPU), `fits`, `preempts`
    (once `victims` have left), `waits`, or `unknown` (no extender was asked). `held`: what it is held for
    until its release, or empty; its placement is then as of its release. `protected`: its budget is spent and
    protects it. `reasons`: why nodes refuse it."""

    name: str
    outcome: str
    refusal: str
    warnings: list[str]
    standing: str
    held: str
    protected: bool
    priorityClass: str
    priority: int
    scheduler: str
    node: str
    nodesThatFit: int
    cards: list[dict[str, Any]]
    kind: str
    victims: list[VictimAnswer]
    awaited: int
    reasons: list[dict[str, Any]]
    hasUnreadConstraints: bool
    cost: CostAnswer


def pod_answer(
    pod: ReviewedPod, placed: Mapping[str, Any] | None, may_read: Callable[[str], bool], cost: CostAnswer
) -> SimulatedPodAnswer:
    """The pod's review, and what the extender says; None if it was not asked."""
    review = pod.review
    spec = mapping(mapping(review["pod"]).get("spec"))
    found = placed or {}
    return {
        "name": pod.raw["metadata"]["name"],
        "outcome": found.get("outcome", "unknown") if not _not_placed(review) else _not_placed(review),
        "refusal": review["refusal"],
        "warnings": review["warnings"],
        "standing": review["standing"],
        "held": review["held"],
        "protected": review["protected"],
        "priorityClass": spec.get("priorityClassName", ""),
        "priority": spec.get("priority", 0),
        "scheduler": spec.get("schedulerName", ""),
        "node": found.get("node", ""),
        "nodesThatFit": found.get("nodesThatFit", 0),
        "cards": sequence(found.get("cards")),
        "kind": found.get("kind", ""),
        "victims": [_victim(each, may_read) for each in sequence(found.get("victims"))],
        "awaited": found.get("awaited", 0),
        "reasons": sequence(found.get("reasons")),
        "hasUnreadConstraints": found.get("hasUnreadConstraints", False),
        "cost": cost,
    }


def _not_placed(review: Mapping[str, Any]) -> str:
    """Why the extender is not asked about a pod; "" if it is."""
    if review["refusal"]:
        return "refused"
    return "" if review["standing"] else "not-governed"


def _victim(raw: Mapping[str, Any], may_read: Callable[[str], bool]) -> Any:
    hidden = {} if may_read(raw["namespace"]) else dict.fromkeys(("namespace", "name", "uid"))
    return {**raw, **hidden}


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
