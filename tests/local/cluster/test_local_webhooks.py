"""Webhooks on this machine, registered by URL and by Service."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.local.api import ApiError
from deploy.local.cluster import ControlPlane
from deploy.local.commands import webhook_service
from deploy.local.identity import LocalAuthority, new_authority
from tests.local.worlds import NAMESPACES, namespace, pod, server, tls
from tests.support.waiting import eventually

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


def refuse(path: str, review: Any) -> Any:
    """An admission response that says by which path the review came."""
    status = {"code": 403, "message": f"refused at {path}"}
    response = {"uid": review["request"]["uid"], "allowed": False, "status": status}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


@contextmanager
def registered(
    control_plane: ControlPlane, of_namespace: str, authority: LocalAuthority, client: dict[str, Any]
) -> Iterator[None]:
    """Have the pods of one namespace reviewed by the webhook that `client` describes."""
    webhook = {
        "name": f"{of_namespace}.example.com",
        "clientConfig": {**client, "caBundle": base64.b64encode(authority.pem).decode()},
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
        ],
        "namespaceSelector": {"matchLabels": {"test": of_namespace}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    body = {"metadata": {"name": of_namespace}, "webhooks": [webhook]}
    control_plane.api.call("POST", CONFIGURATIONS, body)
    try:
        yield
    finally:
        control_plane.api.call("DELETE", f"{CONFIGURATIONS}/{of_namespace}")


def refusal(control_plane: ControlPlane, pods: str) -> str:
    """What the API server says when the webhook has come into force."""

    def refused() -> str:
        try:
            control_plane.api.call("POST", f"{pods}?dryRun=All", pod("reviewed"))
        except ApiError as error:
            return str(error)
        return ""

    return eventually(refused)


def test_a_webhook_is_reached_by_url(control_plane: ControlPlane, tmp_path: Path) -> None:
    authority = new_authority("test")
    context = tls(authority, tmp_path, "127.0.0.1")

    with namespace(control_plane.api, "by-url") as pods, server(refuse, context) as port:
        client = {"url": f"https://127.0.0.1:{port}/review"}
        with registered(control_plane, "by-url", authority, client):
            assert "refused at /review" in refusal(control_plane, pods)


def test_a_webhook_is_reached_by_service(control_plane: ControlPlane, tmp_path: Path) -> None:
    authority = new_authority("test")
    context = tls(authority, tmp_path, "reviewer.by-service.svc")

    with namespace(control_plane.api, "by-service") as pods, server(refuse, context) as port:
        service = webhook_service("by-service", "reviewer")
        control_plane.api.call("POST", f"{NAMESPACES}/by-service/services", service)
        reference = {"namespace": "by-service", "name": "reviewer", "port": port, "path": "/review"}
        with registered(control_plane, "by-service", authority, {"service": reference}):
            assert "refused at /review" in refusal(control_plane, pods)
