"""Another webhook that refuses evictions, as KubeVirt's does for virtual machines."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.local.cluster import ControlPlane
from tests.support.control_plane import refused
from tests.support.http_server import JsonHandler, Served
from tests.support.tls import Tls
from tests.support.waiting import eventually
from tests.worlds import Json

NAME = "evictions.example.com"
SENTENCE = f'admission webhook "{NAME}" denied the request: the virtual machine is evacuated first'
_PATH = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
_RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/eviction"]}


class EvictionVeto(Served):
    """Answers each review with ``code``; ``asked``: the pods of those that were no trials."""

    def __init__(self, tls: Tls, code: int) -> None:
        self.code = code
        self.asked: list[str] = []
        outer = self

        class Handler(JsonHandler):
            def do_POST(self) -> None:
                request = self.body()["request"]
                if not request.get("dryRun"):
                    outer.asked.append(request["name"])
                status = {"code": outer.code, "message": "the virtual machine is evacuated first"}
                response = {"uid": request["uid"], "allowed": False, "status": status}
                kind = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
                self.answer(200, kind | {"response": response})

        super().__init__(Handler, tls.server())


@contextmanager
def vetoed(cluster: ControlPlane, folder: Path, code: int, pods: str) -> Iterator[EvictionVeto]:
    """While the context lasts, evictions of this namespace's pods are refused with this code. ``pods``: the
    path of the namespace's pods, of which one is there."""
    tls = Tls(folder)
    with EvictionVeto(tls, code) as veto:
        namespace = {"kubernetes.io/metadata.name": pods.split("/")[4]}
        webhook: Json = {
            "name": NAME,
            "rules": [_RULE],
            "clientConfig": {"url": veto.url, "caBundle": base64.b64encode(tls.ca.bundle).decode()},
            "namespaceSelector": {"matchLabels": namespace},
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
        }
        cluster.api.call("POST", _PATH, {"metadata": {"name": NAME}, "webhooks": [webhook]})
        try:
            eventually(lambda: SENTENCE in _trial(cluster, pods), "the webhook to be asked")
            yield veto
        finally:
            cluster.api.call("DELETE", f"{_PATH}/{NAME}")


def _trial(cluster: ControlPlane, pods: str) -> str:
    (pod, *_) = cluster.api.call("GET", pods)["items"]
    name = pod["metadata"]["name"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    return refused(cluster, "POST", f"{pods}/{name}/eviction?dryRun=All", body)
