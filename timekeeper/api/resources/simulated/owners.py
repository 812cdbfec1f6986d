"""The pods of simulated owners, as the webhook admits the owners: with ``gangs: auto`` it writes into their
templates how many pods start together, and it refuses a number that contradicts the owner."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from timekeeper.api.http.services import Services
from timekeeper.api.resources.simulated.bodies import MAX_PODS, SimulationRequest, simulated_pod
from timekeeper.core.kube.owned_pods import as_started, owned_pods
from timekeeper.runtime.auth.gate import Caller
from timekeeper.runtime.http.problem_details import bad

Json = Mapping[str, Any]
Place = tuple[str, Json, str]  # in the body, a pod, and why its owner is refused, or ""


@dataclass(frozen=True, slots=True)
class WithOwned:
    """``asked`` with the pods of its owners; ``refused``: UIDs of those whose owner is refused, with the
    sentence; ``note``: what the manifests of owners do not say, or ""."""

    asked: SimulationRequest
    refused: Mapping[str, str]
    note: str


def with_owned(services: Services, asked: SimulationRequest, standings: Json, caller: Caller) -> WithOwned:
    """Raises a Problem where these are more pods than are simulated, or none."""
    notes: list[str] = []
    places = [each for place in _places(services, asked, standings, caller, notes) for each in place]
    count, note = len(asked.pods) + len(places), "; ".join(notes)
    if count > MAX_PODS:
        raise bad("owners", f"at most {MAX_PODS} pods are simulated; with those of the owners they are more")
    if not count:
        raise bad("owners", note or "they have no pods")
    pods, refused = list(asked.pods), {}
    for where, raw, refusal in places:
        pod = simulated_pod(raw, len(pods), asked.namespace, asked.created, where)
        pods.append(pod)
        if refusal:
            refused[pod["metadata"]["uid"]] = refusal
    return WithOwned(replace(asked, pods=tuple(pods)), refused, note)


def _places(
    services: Services, asked: SimulationRequest, standings: Json, caller: Caller, notes: list[str]
) -> Iterator[list[Place]]:
    for at, raw in enumerate(asked.owners):
        owner, note = as_started(raw)
        notes += [note] if note else []
        answer = _reviewed(services, owner, asked.namespace, standings, caller)
        admitted, refusal = answer["object"] or owner, answer["refusal"]
        yield [(f"owners[{at}]", pod, refusal) for pod in owned_pods(admitted, MAX_PODS + 1)]


def _reviewed(services: Services, owner: Json, namespace: str, standings: Json, caller: Caller) -> Json:
    group, _, version = owner["apiVersion"].partition("/")
    review = review_of(owner, owner["metadata"]["name"], namespace, caller)
    kind = {"group": group, "version": version, "kind": owner["kind"]}
    request = {**review["request"], "uid": "simulated", "kind": kind}
    body = {"owner": {**review, "request": request}, "standings": standings}
    return services.peers.webhook.ask("/simulate", body)


def review_of(simulated: Json, name: str, namespace: str, caller: Caller) -> dict[str, Any]:
    """The review of an object's creation, as the API server would send it."""
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "namespace": namespace,
            "name": name,
            "operation": "CREATE",
            "userInfo": {"username": caller.username, "groups": list(caller.groups)},
            "object": simulated,
            "dryRun": True,
        },
    }
