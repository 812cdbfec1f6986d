"""A real API server with the webhook of this checkout registered as the manifests have it."""

import base64
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from deploy.local.cluster import ControlPlane
from tests.support.control_plane import (
    Answer,
    answer,
    applied,
    apply,
    apply_files,
    collection,
    kubectl,
    refused,
)
from tests.support.simulated_timekeeper import SimulatedTimekeeper, entry, standings
from tests.support.tls import Tls
from tests.support.waiting import eventually
from tests.webhook.servers import ROOT, Webhook
from tests.worlds import Json, container
from webhook.settings.certificates import CONFIGURATION

MANIFESTS = ROOT / "deploy" / "manifests"

# name -> overhead, of the RuntimeClasses that pods of the tests' cases name
RUNTIME_CLASSES: dict[str, Json] = {
    "nvidia": {},
    "gvisor": {},
    "heavy": {"nvidia.com/gpu": "1", "cpu": "10m"},
    "light": {"cpu": "10m"},
}

# refused by the mutating and by a validating webhook
BAD_POD = {"metadata": {"name": "bad"}, "spec": {"containers": [container(gpu_percent="150")]}}
BAD_BUDGETS = {
    "kind": "ConfigMap",
    "metadata": {"name": "bad", "namespace": "bursar-system", "labels": {"bursar.dev/budgets": "true"}},
    "data": {"team-a": "gpuHours: many"},
}


class Admin:
    """A control plane, and what its admin does to it."""

    def __init__(self, cp: ControlPlane) -> None:
        self.cp = cp

    def post(self, path: str, body: Json) -> Any:
        """Creates an object."""
        return self.cp.api.call("POST", path, body)

    def post_runtime_classes(self) -> None:
        """Creates each of ``RUNTIME_CLASSES``."""
        for name, overhead in RUNTIME_CLASSES.items():
            kind: Json = {"metadata": {"name": name}, "handler": name}
            kind |= {"overhead": {"podFixed": overhead}} if overhead else {}
            self.post("/apis/node.k8s.io/v1/runtimeclasses", kind)

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        """kubectl's output; it must succeed."""
        return kubectl(self.cp, *arguments, input=input)

    def said(self, *arguments: str, input: str | None = None) -> tuple[int, str]:
        """kubectl's exit code and what it says on stderr."""
        done = self.cp.kubectl(*arguments, input=input)
        return done.returncode, str(done.stderr)

    def answer(self, method: str, path: str, body: object = None, user: str = "") -> Answer:
        """What the API server says to a call, which need not succeed."""
        return answer(self.cp, method, path, body, user)

    def patch(self, path: str, patch: Json | list[Json]) -> None:
        """Changes an object; that must succeed."""
        assert self.answer("PATCH", path, patch).refusal == ""

    def get(self, path: str) -> Any:
        """An object."""
        return self.cp.api.call("GET", path)


class Cluster(Admin):
    """A control plane with our namespaces and classes, and two of users."""

    def __init__(self, cp: ControlPlane) -> None:
        super().__init__(cp)
        for namespace in ("bursar-system", "bursar-node", "team-a", "team-b"):
            cp.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        apply_files(cp, [MANIFESTS / "priority-classes.yaml"])

    def applied(self, raw: Json, namespace: str = "team-a") -> Answer:
        """What the API server says where an object is applied."""
        return applied(self.cp, raw, namespace)

    def denies(self, *objects: Json) -> bool:
        """True where the creation of one of these is denied. Nothing is created, so it may be asked again
        and again."""
        return any(self._denies({"apiVersion": "v1", "kind": "Pod"} | each) for each in objects)

    def _denies(self, one: Json) -> bool:
        return " denied " in refused(self.cp, "POST", f"{collection(one, 'team-a')}?dryRun=All", one)


class Registered(Cluster):
    """The webhook behind an API server, which its timekeeper has told ``document``. What is applied before it
    is entered, is from before Bursar."""

    def __init__(self, cp: ControlPlane, folder: Path, *flags: str, document: Json | None = None) -> None:
        super().__init__(cp)
        self.tls, self._folder, self._flags = Tls(folder), folder, flags
        self._document = document or standings(team_a=entry("IN_BUDGET"))

    def __enter__(self) -> Self:
        self.timekeeper = SimulatedTimekeeper(self.tls, self._document)
        try:
            self.webhook = Webhook(self._folder, self.tls, self.timekeeper.url, *self._flags, workers=1)
            self.webhook.__enter__()
            eventually(lambda: "event=standings-updated" in self.webhook.log(), "the standings")
            self.register()
            eventually(lambda: self.denies(BAD_POD) and self.denies(BAD_BUDGETS), "the API server to ask us")
        except BaseException:
            self.timekeeper.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.webhook.__exit__(kind, error, trace)
        self.timekeeper.end()

    def register(self, *more: Json, at: str = "") -> None:
        """Writes the configurations of the manifests, by URL, and further webhooks that only validate."""
        documents = list(yaml.safe_load_all((MANIFESTS / "webhook-configurations.yaml").read_text()))
        documents[1]["webhooks"] += more
        bundle = base64.b64encode(self.tls.ca.bundle).decode()
        for document in documents:
            for each in document["webhooks"]:
                path = each["clientConfig"]["service"]["path"]
                each["clientConfig"] = {"url": (at or self.webhook.url) + path, "caBundle": bundle}
        apply(self.cp, *documents)

    def unregister(self) -> None:
        """Takes the configurations away, as in a cluster before Bursar."""
        for kind in ("mutating", "validating"):
            at = f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/{CONFIGURATION}"
            self.cp.api.call("DELETE", at)

    def reviews(self, webhook: str) -> int:
        """How many reviews one of the webhooks has answered."""
        return self.webhook.log().count(f"event=review webhook={webhook} ")
