"""Whether PodDisruptionBudgets allow the evictions of several pods at once. The Eviction API says it of each
alone; what is read here is exact until a budget or a pod changes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.kube.eviction import EvictionResult
from timekeeper.core.kube.selectors import read_selector
from timekeeper.runtime.api_server import ANSWER_S, Answered, Api

Over = tuple[str, EvictionResult, str]  # a pod's UID, why it may not be evicted, and a sentence


def over_budget(api: Api, pods: Sequence[LedgerPod]) -> Over | None:
    """A pod whose eviction would be the first beyond a budget, if these pods are evicted in this order; None
    if there is none. A budget that cannot be read allows nothing."""
    for namespace in dict.fromkeys(pod.namespace for pod in pods):
        over = _over_budget(api, namespace, [pod for pod in pods if pod.namespace == namespace])
        if over is not None:
            return over
    return None


def _over_budget(api: Api, namespace: str, pods: Sequence[LedgerPod]) -> Over | None:
    if len(pods) < 2:
        return None
    budgets = items(api, f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets")
    if isinstance(budgets, str):
        return pods[0].uid, "refused", budgets
    used: Counter[int] = Counter()
    for pod in pods if budgets else ():
        name = urlencode({"fieldSelector": f"metadata.name={pod.name}"})
        found = items(api, f"/api/v1/namespaces/{namespace}/pods?{name}")
        if isinstance(found, str):
            return pod.uid, "refused", found
        for place, each in enumerate(budgets):
            used[place] += any(_covers(each, raw, pod) for raw in found)
            if used[place] > _allowed(each):
                return pod.uid, "protected", "its PodDisruptionBudget allows fewer evictions than are needed"
    return None


def items(api: Api, path: str) -> Sequence[Json] | str:
    """What the API server lists there; or why that is not known."""
    reply = api.call("GET", path, timeout_s=ANSWER_S)
    if not isinstance(reply, Answered) or reply.status >= 300:
        return reply.message
    return [mapping(each) for each in sequence(reply.body.get("items"))]


def _covers(budget: Json, raw: Json, pod: LedgerPod) -> bool:
    metadata, spec = mapping(raw.get("metadata")), mapping(budget.get("spec"))
    selector = read_selector(spec.get("selector"))
    if selector is None or metadata.get("uid") != pod.uid:
        return False
    labels: Mapping[str, str] = {key: str(value) for key, value in mapping(metadata.get("labels")).items()}
    return selector.matches(labels)


def _allowed(budget: Json) -> int:
    allowed = mapping(budget.get("status")).get("disruptionsAllowed")
    return allowed if isinstance(allowed, int) else 0
