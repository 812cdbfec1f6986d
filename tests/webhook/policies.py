"""A real API server with the policies of this checkout."""

import subprocess
from typing import Any

from deploy.local.cluster import ControlPlane
from tests.support.control_plane import answer, apply_files
from tests.support.waiting import eventually
from tests.webhook.cases import a_pod
from tests.webhook.servers import ROOT
from tests.webhook.worlds import plain
from tests.worlds import Json
from timekeeper.core.admission.rules.size import MAX_ENTRIES

MANIFESTS = ROOT / "deploy" / "manifests"


class Policies:
    """A cluster with our policies and nothing else of ours: no webhook is installed."""

    def __init__(self, cp: ControlPlane) -> None:
        self.cp = cp
        for namespace in ("bursar-system", "team-a"):
            self.namespace(namespace)
        apply_files(cp, sorted(MANIFESTS.glob("admission-*.yaml")))
        large = a_pod(plain("main"), annotations={f"a{number}": "" for number in range(MAX_ENTRIES + 1)})
        bad = (large, a_pod(plain("main"), hostPID=True))
        eventually(lambda: all("denied" in self.refusal(pod) for pod in bad), "the policies to be in force")

    def namespace(self, name: str, **labels: str) -> None:
        """Makes a namespace that takes pods; labels are Bursar's."""
        metadata = {"name": name, "labels": {f"bursar.dev/{key}": value for key, value in labels.items()}}
        self.cp.api.call("POST", "/api/v1/namespaces", {"metadata": metadata})
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        eventually(lambda: self.cp.api.answers(account), "the namespace's account")

    def kubectl(self, *arguments: str, input: str | None = None) -> "subprocess.CompletedProcess[str]":
        """kubectl, which must succeed."""
        done = self.cp.kubectl(*arguments, input=input)
        assert done.returncode == 0, done.stderr
        return done

    def refusal(self, pod: Json, namespace: str = "team-a") -> str:
        """What a creation that stores nothing is refused with; empty where it is not."""
        return self.said("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)

    def said(self, method: str, path: str, body: object = None) -> str:
        """What a call is refused with; empty where it is not."""
        return answer(self.cp, method, path, body).refusal

    def get(self, path: str) -> Any:
        """An object."""
        return self.cp.api.call("GET", path)
