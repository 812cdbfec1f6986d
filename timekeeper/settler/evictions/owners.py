"""Who creates an idle pod again once it has left, and how that owner is scaled to zero with its user's
consent.

The timekeeper may read and scale owners only where the chart gives it the rights (`idleScaling`); without
them it names the pod's own controller."""

from dataclasses import dataclass, field
from urllib.parse import urlencode

from timekeeper.accounts.pods import LedgerPod
from timekeeper.core import names
from timekeeper.core.json_values import Json, annotations_of, mapping
from timekeeper.core.object_names import controller_of, timestamp
from timekeeper.runtime.api_server import ANSWER_S, MERGE, Answered, Api, Reply
from timekeeper.settler.evictions.disruptions import items

# those that can be scaled to zero, and those between them and a pod
_RESOURCES = {
    ("apps", "ReplicaSet"): "replicasets",
    ("apps", "Deployment"): "deployments",
    ("apps", "StatefulSet"): "statefulsets",
    ("kubeflow.org", "Notebook"): "notebooks",
}
STOPPED = "kubeflow-resource-stopped"  # by this annotation Kubeflow's controller stops a notebook
# labels and annotations of what Argo CD, Flux and Config Sync write again from a repository
_REPOSITORIES = (
    *("argocd.argoproj.io/", "kustomize.toolkit.fluxcd.io/", "helm.toolkit.fluxcd.io/"),
    *("configmanagement.gke.io/", "configsync.gke.io/"),
)
_MOST = 5  # owners of owners


@dataclass(frozen=True, slots=True)
class TopmostOwner:
    """``path``: of its object in the API server; "": it was not read."""

    namespace: str
    kind: str
    name: str
    path: str = ""
    raw: Json = field(default_factory=dict)

    def help(self, is_stopped: bool = False) -> str:
        """What frees its cards; ``is_stopped``: the command that starts it again."""
        named = f"{self.kind.lower()} {self.name} -n {self.namespace}"
        if self.kind == "Notebook":
            value = "-" if is_stopped else '="$(date -u +%FT%TZ)"'
            return f"kubectl annotate {named} {STOPPED}{value}"
        if self.kind in [kind for _, kind in _RESOURCES]:
            replicas = mapping(self.raw.get("spec")).get("replicas", 1) if is_stopped else 0
            return f"kubectl scale {named} --replicas={replicas}"
        return f"kubectl delete {named}" if self.kind == "Job" else f"stop {self.kind} {self.name}"


def topmost(api: Api, pod: LedgerPod) -> TopmostOwner | None:
    """The last of the controllers from the pod on, as far as they can be read; None: it has none."""
    kind, _, name = pod.owner.partition("/")
    if not name:
        return None
    owner, there = TopmostOwner(pod.namespace, kind, name), f"namespaces/{pod.namespace}"
    found = items(api, f"/api/v1/{there}/pods?{urlencode({'fieldSelector': f'metadata.name={pod.name}'})}")
    pods = {mapping(raw.get("metadata")).get("uid"): raw for raw in found if not isinstance(raw, str)}
    raw = pods.get(pod.uid, {})
    for depth in range(_MOST):
        reference = controller_of(mapping(raw.get("metadata")))
        if not reference:
            break
        version, kind, name, uid = reference
        if depth:
            owner = TopmostOwner(pod.namespace, kind, name)
        resource = _RESOURCES.get((version.rpartition("/")[0], kind))
        path = f"/apis/{version}/{there}/{resource}/{name}"
        reply = api.call("GET", path, timeout_s=ANSWER_S) if resource else None
        if not isinstance(reply, Answered) or reply.status >= 300:
            break
        raw = reply.body
        if mapping(raw.get("metadata")).get("uid") != uid:
            break
        owner = TopmostOwner(pod.namespace, kind, name, path, raw)
    return owner


def obstacle(api: Api, owner: TopmostOwner) -> str:
    """Why it is not scaled to zero; "": nothing is against it."""
    if not owner.path:
        return "Bursar cannot read it, or cannot scale its kind"
    annotations, labels = annotations_of(owner.raw), mapping(mapping(owner.raw.get("metadata")).get("labels"))
    if annotations.get(names.IDLE) != "scale":
        return f"it has no annotation {names.IDLE}: scale"
    if any(key.startswith(_REPOSITORIES) for key in (*annotations, *labels)):
        return "a repository keeps it as it is"
    scalers = items(api, f"/apis/autoscaling/v2/namespaces/{owner.namespace}/horizontalpodautoscalers")
    if isinstance(scalers, str):
        return f"it is not known whether an autoscaler keeps it: {scalers}"
    targets = [mapping(mapping(scaler.get("spec")).get("scaleTargetRef")) for scaler in scalers]
    if any((target.get("kind"), target.get("name")) == (owner.kind, owner.name) for target in targets):
        return "an autoscaler keeps it"
    return ""


def scale_to_zero(api: Api, owner: TopmostOwner, now_ms: int) -> Reply:
    """Scale it, unless it has changed since it was read; a Notebook is stopped by its annotation."""
    metadata = {"resourceVersion": mapping(owner.raw.get("metadata")).get("resourceVersion")}
    path, body = f"{owner.path}/scale", {"metadata": metadata, "spec": {"replicas": 0}}
    if owner.kind == "Notebook":
        path, body = owner.path, {"metadata": {**metadata, "annotations": {STOPPED: timestamp(now_ms)}}}
    return api.call("PATCH", path, body, content_type=MERGE, timeout_s=ANSWER_S)
