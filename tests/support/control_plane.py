"""What tests of several roles do to a real control plane, as its admin."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from deploy.local.api import ApiError
from deploy.local.cluster import ControlPlane
from tests.deploy.reading import loaded
from tests.support.waiting import eventually
from timekeeper.runtime.api_server import APPLY

Json = dict[str, Any]

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


def apply(cp: ControlPlane, *objects: Json, namespace: str = "default") -> None:
    """What `kubectl apply --server-side --force-conflicts` does, for a tenth of its processor time. Raises
    ApiError."""
    for each in objects:
        path = f"{collection(each, namespace)}/{each['metadata']['name']}?fieldManager=kubectl&force=true"
        cp.api.call("PATCH", path, each, APPLY)


def apply_files(cp: ControlPlane, files: Iterable[Path]) -> None:
    """The same, for each object of these files."""
    for file in files:
        apply(cp, *_objects(file))


@cache
def _objects(file: Path) -> tuple[Json, ...]:
    return tuple(loaded(file.read_text()))


def refused(cp: ControlPlane, method: str, path: str, body: Json, user: str = "") -> str:
    """What a call, with this user's rights where one is named, is refused with; empty where it is done. A
    PATCH merges."""
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    try:
        replace(cp.api, user=user).call(method, path.removesuffix("/"), body, kind)
    except ApiError as error:
        return str(error)
    return ""


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
