"""The parts of a simulation's answer."""

from collections.abc import Mapping
from typing import Any

from timekeeper.accounts.decisions.forecasts import DAY_MS
from timekeeper.accounts.usage import cost, gpu_hours
from timekeeper.api.http.routes import may
from timekeeper.api.http.services import Services
from timekeeper.api.resources.decisions import READ
from timekeeper.api.resources.simulated.pods import ReviewedPod
from timekeeper.core.json_values import mapping, sequence


def visibility(services: Services, namespace: str) -> dict[str, bool]:
    """Namespace -> whether the caller may read who its pods are; asked when it is needed."""

    class Visible(dict[str, bool]):
        def __missing__(self, other: str) -> bool:
            self[other] = may(services, READ, other)
            return self[other]

    return Visible({namespace: True})


def pod_answer(
    pod: ReviewedPod, placed: Mapping[str, Any] | None, visible: Mapping[str, bool]
) -> dict[str, Any]:
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
        "victims": [_victim(each, visible) for each in sequence(found.get("victims"))],
        "awaited": found.get("awaited", 0),
        "reasons": sequence(found.get("reasons")),
        "hasUnreadConstraints": found.get("hasUnreadConstraints", False),
    }


def _not_placed(review: Mapping[str, Any]) -> str:
    """Why the extender is not asked about a pod; "" if it is."""
    if review["refusal"]:
        return "refused"
    return "" if review["standing"] else "not-governed"


def _victim(raw: Mapping[str, Any], visible: Mapping[str, bool]) -> dict[str, Any]:
    hidden = {} if visible[raw["namespace"]] else dict.fromkeys(("namespace", "name", "uid"))
    return {**raw, **hidden}


def cost_answer(rate_milli: int, price: tuple[str, str]) -> dict[str, Any]:
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
