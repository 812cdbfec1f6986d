"""Who may ask the webhook, by the commands and files of docs/certificates.md on a real control plane."""

import http.client
import json
import os
import re
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.local.api import ApiError
from deploy.local.cluster import ControlPlane
from deploy.local.commands import Options
from deploy.local.limits import LONGEST_S
from tests.support.waiting import eventually
from tests.webhook.replicas import (
    BY_ENDPOINTS,
    PODS,
    Certificates,
    Replica,
    asking_nobody,
    gpu_pod,
    prepared,
    service,
)
from tests.webhook.servers import ROOT
from tests.worlds import Json

PAGE = (ROOT / "docs" / "certificates.md").read_text()
NODE_FOLDER = "/etc/kubernetes/bursar"
SAMPLE = "deploy/samples/network-policies.yaml"


def chapter(title: str) -> str:
    """The text of a chapter of the page."""
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def commands(title: str) -> str:
    """The chapter's block of commands."""
    (found,) = re.findall(r"^```console\n(.*?)^```", chapter(title), re.DOTALL | re.MULTILINE)
    return str(found)


def written(folder: Path) -> None:
    """The certificates and files of the page, in a folder of this machine."""
    subprocess.run(["bash", "-ec", commands("Only the API server may ask")], cwd=folder, check=True)
    blocks = re.findall(
        rf"^   ```yaml\n   # {NODE_FOLDER}/(\S+)\n(.*?)^   ```", PAGE, re.DOTALL | re.MULTILINE
    )
    for name, text in blocks:
        (folder / name).write_text(
            re.sub(r"^   ", "", text, flags=re.MULTILINE).replace(NODE_FOLDER, str(folder))
        )
    assert [name for name, _ in blocks] == ["admission.yaml", "webhooks.kubeconfig"]


@dataclass
class World:
    """A control plane that shows its certificate, and a webhook that requires one."""

    cp: ControlPlane
    replica: Replica
    folder: Path

    def posts(self, path: str, *certificate: str) -> int:
        """The status of a review that is posted to the webhook directly."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if certificate:
            shown, key = (self.folder / name for name in certificate)
            context.load_cert_chain(shown, key)
        connection = http.client.HTTPSConnection(
            self.replica.host, self.replica.port, timeout=LONGEST_S, context=context
        )
        try:
            connection.request("POST", path, json.dumps(review()), {"Content-Type": "application/json"})
            return connection.getresponse().status
        finally:
            connection.close()


def created(cp: ControlPlane) -> bool:
    """Whether a GPU pod is admitted."""
    try:
        cp.api.call("POST", PODS, gpu_pod("p"))
    except ApiError:
        return False
    return True


def review() -> Json:
    """A forged review of a pod of team-a."""
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    request = {
        "uid": "forged",
        "kind": kind,
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": "team-a",
        "userInfo": {"username": "system:admin"},
        "object": gpu_pod("p"),
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("callers")
    written(folder)
    flags = (*BY_ENDPOINTS.api_flags, f"--admission-control-config-file={folder / 'admission.yaml'}")
    with ExitStack() as stack:
        cp = stack.enter_context(ControlPlane(Options(api_flags=flags)))
        prepared(cp, "priority-classes", "webhook-configurations")
        service(cp)
        process = stack.enter_context(Certificates(cp, folder, "one", "--every", "1"))
        eventually(lambda: "event=written" in process.log(), "the certificates")
        required = ("--client-ca", str(folder / "ca.crt"))
        replica = Replica(cp, folder, "first", process.tls / "webhook", *required, *asking_nobody(folder))
        yield World(cp, stack.enter_context(replica), folder)


def test_the_api_server_is_answered_and_a_client_without_its_certificate_is_not(world: World) -> None:
    account = "/api/v1/namespaces/team-a/serviceaccounts/default"
    eventually(lambda: world.cp.api.answers(account), "the account")
    eventually(lambda: created(world.cp), "the API server to reach the webhook")
    pod = world.cp.api.call("GET", f"{PODS}/p")
    assert pod["metadata"]["labels"]["bursar.dev/governed"] == "true"
    reviews = world.replica.reviews()
    assert reviews >= 2

    for path in ("/mutate", "/validate", "/templates", "/budgets"):
        assert world.posts(path) == 403, path
    assert world.posts("/%6dutate") == 404
    assert world.replica.reviews() == reviews
    assert "event=unverified-caller peer=" in world.replica.log()
    assert world.posts("/mutate", "client.crt", "client.key") == 200
    assert [world.replica.status(path) for path in ("/livez", "/readyz")] == [200] * 2
    assert world.replica.status("/metrics") == 503  # it was given no way to the API server


def test_a_client_with_a_certificate_of_another_ca_gets_no_connection(world: World) -> None:
    own = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=kube-apiserver"
    subprocess.run([*own.split(), "-keyout", "own.key", "-out", "own.crt"], cwd=world.folder, check=True)

    with pytest.raises((ssl.SSLError, OSError)):
        world.posts("/mutate", "own.crt", "own.key")


def api_servers(cp: ControlPlane, name: str, family: str, *addresses: str) -> None:
    """The EndpointSlice of several API servers; this machine's own, on loopback, writes none."""
    body = {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": family,
        "endpoints": [{"addresses": [each]} for each in addresses],
        "ports": [{"name": "https", "port": 6443}],
    }
    cp.api.call("POST", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", body)


def test_network_policies_are_refused_unfilled_and_name_the_api_servers_once_filled(world: World) -> None:
    policies = "/apis/networking.k8s.io/v1/networkpolicies"
    assert world.cp.kubectl("apply", "--server-side", "-f", str(ROOT / SAMPLE)).returncode != 0
    assert world.cp.api.call("GET", policies)["items"] == []
    api_servers(world.cp, "kubernetes", "IPv4", "192.0.2.1", "192.0.2.2")
    api_servers(world.cp, "kubernetes-6", "IPv6", "2001:db8::1")

    environment = os.environ | {
        "KUBECONFIG": str(world.cp.admin_kubeconfig),
        "PATH": f"{world.cp.kubectl_path.parent}:{os.environ['PATH']}",
    }
    subprocess.run(["bash", "-ec", commands("NetworkPolicies")], cwd=ROOT, env=environment, check=True)

    made = {each["metadata"]["name"]: each for each in world.cp.api.call("GET", policies)["items"]}
    assert made.keys() == {"bursar-webhook", "bursar-node", "bursar-timekeeper", "bursar-scheduler"}
    reviews, simulations, metrics = made["bursar-webhook"]["spec"]["ingress"]
    assert [each["ipBlock"]["cidr"] for each in reviews["from"]] == [
        "192.0.2.1/32",
        "192.0.2.2/32",
        "2001:db8::1/128",
    ]
    timekeeper = {"app.kubernetes.io/name": "bursar", "app.kubernetes.io/component": "timekeeper"}
    assert simulations["from"] == [{"podSelector": {"matchLabels": timekeeper}}]
    selector = {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}
    assert metrics["from"] == [{"namespaceSelector": selector}]
