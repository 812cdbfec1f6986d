"""The pods of a simulated manifest, as the webhook admits them. An owner is admitted first: with ``gangs:
auto`` the webhook writes into its templates how many pods start together, and it refuses a number that
contradicts the owner."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from timekeeper.api.http.services import Services
from timekeeper.api.resources.simulated.bodies import MAX_PODS, SimulationBody, is_pod
from timekeeper.core.kube.owned_pods import as_started, may_own_gang, owned_pods
from timekeeper.core.object_names import timestamp
from timekeeper.runtime.auth.gate import Caller
from timekeeper.runtime.http.problem_details import bad

Json = Mapping[str, Any]

# the review of a pod whose owner is refused
_REFUSED: Json = {"pod": None, "standing": "", "held": "", "protected": False}


@dataclass(frozen=True, slots=True)
class ReviewedPod:
    """A pod as a scheduler would see it, and the webhook's answer about it."""

    raw: Json
    review: Json

    @property
    def uid(self) -> str:
        """Its UID in this simulation."""
        return str(self.raw["metadata"]["uid"])


def reviewed_pods(services: Services, asked: SimulationBody, caller: Caller) -> tuple[list[ReviewedPod], str]:
    """The manifest's pods, as young as now, and what of them the manifest does not say, or "". Raises a
    Problem where these are more pods than are simulated, or none."""
    manifest: Json = asked.manifest
    note = refusal = ""
    if is_pod(manifest):
        found = [manifest]
    else:
        manifest, note = as_started(manifest)
        if may_own_gang(manifest):
            answer = services.peers.webhook.ask("/simulate", {"owner": _review(manifest, asked, caller)})
            manifest, refusal = answer["object"] or manifest, answer["refusal"]
        found = list(owned_pods(manifest, MAX_PODS + 1))
    if not found:
        raise bad("manifest", note or "it has no pods")
    if len(found) > MAX_PODS:
        raise bad("manifest", f"at most {MAX_PODS} pods are simulated; it has more")
    created = timestamp(services.clock())
    pods = [_complete(pod, at, asked.namespace, created) for at, pod in enumerate(found)]
    if refusal:
        return [ReviewedPod(pod, {**_REFUSED, "refusal": refusal}) for pod in pods], note
    return [*map(ReviewedPod, pods, _answers(services, asked, pods, caller))], note


def _answers(
    services: Services, asked: SimulationBody, pods: Sequence[Json], caller: Caller
) -> Sequence[Json]:
    body = {"reviews": [_review(pod, asked, caller) for pod in pods], "claims": asked.claims}
    answers: Sequence[Json] = services.peers.webhook.ask("/simulate", body)["answers"]
    return answers


def _complete(raw: Json, at: int, namespace: str, created: str) -> Json:
    metadata, spec = raw["metadata"], raw.get("spec")
    if not isinstance(spec, dict) or not isinstance(spec.get("containers"), list):
        raise bad("manifest.spec", "it must have the spec of a Pod, with containers")
    known = {"namespace": namespace, "uid": f"simulated-{at}", "creationTimestamp": created}
    own = {name: value for name, value in metadata.items() if name != "resourceVersion"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**own, **known}, "spec": spec}


def _review(manifest: Json, asked: SimulationBody, caller: Caller) -> Json:
    """The review of an object's creation, as the API server would send it."""
    group, _, version = str(manifest["apiVersion"]).rpartition("/")
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "simulated",
            "kind": {"group": group, "version": version, "kind": manifest["kind"]},
            "namespace": asked.namespace,
            "name": manifest["metadata"]["name"],
            "operation": "CREATE",
            "userInfo": {"username": caller.username, "groups": list(caller.groups)},
            "object": manifest,
            "dryRun": True,
            **({"resource": {"group": "", "version": "v1", "resource": "pods"}} if is_pod(manifest) else {}),
        },
    }
