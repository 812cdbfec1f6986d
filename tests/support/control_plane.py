"""What tests of several roles do to a real control plane, as its admin."""

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from deploy.local.api import ApiError
from deploy.local.cluster import ControlPlane
from tests.deploy.reading import loaded
from tests.support.waiting import eventually
from tests.worlds import Json
from timekeeper.runtime.api_server import APPLY

MERGE = "application/merge-patch+json"  # what a PATCH may be

# Kinds without a namespace.
_OF_THE_CLUSTER = {
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "DeviceClass",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "MutatingWebhookConfiguration",
    "Namespace",
    "Node",
    "PriorityClass",
    "RuntimeClass",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ValidatingWebhookConfiguration",
}


def kubectl(cp: ControlPlane, *arguments: str, input: str | None = None) -> str:
    """kubectl's output. Fails, with what it says, where kubectl fails."""
    done = cp.kubectl(*arguments, input=input)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Answer(NamedTuple):
    """What the API server says to a call: what it refuses it with, empty where it is done, and what kubectl
    would print as warnings."""

    refusal: str
    warnings: list[str]


def answer(
    cp: ControlPlane, method: str, path: str, body: object = None, user: str = "", kind: str = ""
) -> Answer:
    """Of a call with this user's rights where one is named, by a connection that is kept: kubectl takes ten
    times the processor time. A PATCH without a content type is a JSON patch where it is a list, a strategic
    one where it is of containers, so that it changes the named one, and merges otherwise."""
    if method == "PATCH" and not kind:
        is_strategic = "containers" in json.dumps(body).lower()
        kind = f"application/{'strategic-merge' if is_strategic else 'merge'}-patch+json"
        kind = "application/json-patch+json" if isinstance(body, list) else kind
    warnings: list[str] = []
    try:
        api = replace(cp.api, user=user, on_warning=warnings.append)
        api.call(method, path, body, kind or "application/json")
    except ApiError as error:
        return Answer(str(error), warnings)
    return Answer("", warnings)


def apply(cp: ControlPlane, *objects: Json, namespace: str = "default") -> None:
    """What `kubectl apply --server-side --force-conflicts` does, for a tenth of its processor time. Raises
    ApiError."""
    for each in objects:
        cp.api.call("PATCH", _applied_at(each, namespace), each, APPLY)


def applied(
    cp: ControlPlane, raw: Json, namespace: str = "default", user: str = "", dry: bool = False
) -> Answer:
    """What the API server says to the same, of one object."""
    path = _applied_at(raw, namespace) + ("&dryRun=All" if dry else "")
    return answer(cp, "PATCH", path, raw, user, APPLY)


def _applied_at(raw: Json, namespace: str) -> str:
    return f"{collection(raw, namespace)}/{raw['metadata']['name']}?fieldManager=kubectl&force=true"


def apply_files(cp: ControlPlane, files: Iterable[Path]) -> None:
    """The same, for each object of these files."""
    for file in files:
        apply(cp, *_objects(file))


@cache
def _objects(file: Path) -> tuple[Json, ...]:
    return tuple(loaded(file.read_text()))


def refused(cp: ControlPlane, method: str, path: str, body: Json, user: str = "") -> str:
    """What a call is refused with; empty where it is done."""
    return answer(cp, method, path.removesuffix("/"), body, user).refusal


def collection(raw: Json, namespace: str = "default") -> str:
    """The path of the API where objects of this one's kind are, in its namespace or, if it names none, in
    this one."""
    version, kind = raw["apiVersion"], raw["kind"]
    plural = kind.lower() + ("es" if kind.endswith("s") else "s")
    plural = plural[:-2] + "ies" if kind.endswith("y") else plural
    where = raw["metadata"].get("namespace") or namespace
    inside = "" if kind in _OF_THE_CLUSTER else f"/namespaces/{where}"
    return f"/{'apis' if '/' in version else 'api'}/{version}{inside}/{plural}"


def create_namespace(cp: ControlPlane, name: str, **labels: str) -> str:
    """A namespace that is ready for pods: its account is there. Returns the path of its pods."""
    cp.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    path = f"/api/v1/namespaces/{name}"
    eventually(lambda: cp.api.answers(f"{path}/serviceaccounts/default"), f"the account of {name}")
    return f"{path}/pods"


def bind_role(cp: ControlPlane, role: str, *users: str) -> None:
    """Gives users the rights of a ClusterRole in the whole cluster."""
    group = "rbac.authorization.k8s.io"
    subjects = [{"apiGroup": group, "kind": "User", "name": user} for user in users]
    ref = {"apiGroup": group, "kind": "ClusterRole", "name": role}
    body = {"metadata": {"generateName": f"{role}-"}, "roleRef": ref, "subjects": subjects}
    cp.api.call("POST", f"/apis/{group}/v1/clusterrolebindings", body)


def offer_volume(cp: ControlPlane, folder: Path) -> None:
    """A volume in this folder, that the ledger's claim finds."""
    spec = {
        "capacity": {"storage": "10Gi"},
        "accessModes": ["ReadWriteOncePod"],
        "hostPath": {"path": str(folder)},
    }
    cp.api.call("POST", "/api/v1/persistentvolumes", {"metadata": {"name": "ledger"}, "spec": spec})
