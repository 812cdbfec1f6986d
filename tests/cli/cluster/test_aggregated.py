"""The aggregated API on a real API server: users with a certificate, or with a login at an identity provider,
read what RBAC allows, forged identities are worth nothing, and a stopped timekeeper keeps namespaces only
while the APIService exists."""

import base64
import http.client
import json
import ssl
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from deploy.local.cluster import ControlPlane
from deploy.local.commands import FRONT_PROXY
from deploy.local.identity import LocalAuthority, new_authority
from deploy.local.limits import LONGEST_S
from deploy.local.stack import Stack
from tests.deploy.reading import NAMESPACE, SAMPLES
from tests.docs.shell import run
from tests.support.control_plane import kubectl
from tests.support.oidc_issuer import CLIENT, Issuer, new_key
from tests.support.worker_control_plane import Lender
from tests.webhook.replicas import own_address
from tests.worlds import Json
from timekeeper.core.names import API_SERVICE

pytestmark = pytest.mark.make_test("answers its API, reports and forecasts")

LOGIN = "client.authentication.k8s.io/v1"
PATH = "/apis/timekeeper.bursar.dev/v1"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"  # as kubectl sends it, but for --raw
BUDGETS = {
    "metadata": {"name": "bursar-budgets"},
    "data": {"team-a": "gpuHours: 10\nperiod: month", "team-b": "gpuHours: 3\nperiod: month"},
}
CONDITION = "-o=jsonpath={.status.conditions[?(@.type=='Available')].status}"


@dataclass(frozen=True)
class World:
    """Bursar, with the timekeeper's port for the API server."""

    stack: Stack
    port: int
    issuer: Issuer

    def install(self) -> None:
        """The sample, and a Service whose endpoint is this machine's address."""
        documents = list(yaml.safe_load_all((SAMPLES / "api-service.yaml").read_text()))
        documents[0]["spec"]["service"]["port"] = self.port
        name, port = "bursar-timekeeper", {"name": "https", "port": self.port}
        metadata = {"name": name, "namespace": NAMESPACE}
        service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [port]}}
        endpoints = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": metadata | {"labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [own_address()], "conditions": {"ready": True}}],
            "ports": [port],
        }
        text = yaml.safe_dump_all([service, endpoints, *documents])
        kubectl(self.stack.cp, "apply", "--server-side", "-f", "-", input=text)
        self.stack.certify()
        self.stack.wait("the APIService", lambda: self.available() == "True")

    def available(self) -> str:
        return kubectl(self.stack.cp, "get", "apiservice", API_SERVICE, CONDITION)


def login(issuer: Issuer) -> Json:
    """How the API server accepts the issuer's tokens."""
    ca = Path(issuer.ca_file).read_text()
    return {
        "issuer": {"url": issuer.url, "audiences": [CLIENT], "certificateAuthority": ca},
        "claimMappings": {
            "username": {"claim": "sub", "prefix": "oidc:"},
            "groups": {"claim": "groups", "prefix": "oidc:"},
        },
    }


@pytest.fixture(scope="module")
def world(lender: Lender, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with Issuer(tmp_path_factory.mktemp("issuer")) as issuer, lender.stack() as stack:
        cp = stack.cp
        lender.accept_logins(login(issuer))
        for name in ("team-a", "team-b"):
            cp.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        cp.api.call("POST", "/api/v1/namespaces/bursar-system/configmaps", BUDGETS)
        kubectl(cp, "create", "rolebinding", "alice", "-n", "team-a", "--clusterrole=view", "--user=alice")
        made = World(stack, lender.aggregated_port, issuer)
        made.install()
        yield made


def kubeconfig_of(cp: ControlPlane, user: str, folder: Path) -> Path:
    """The kubeconfig of a user who has a certificate of the cluster, and no token."""
    certificate, key = cp.clients.leaf([user], client=True)
    credentials = {
        "client-certificate-data": base64.b64encode(certificate).decode(),
        "client-key-data": base64.b64encode(key).decode(),
    }
    return kubeconfig_with(cp, credentials, folder / f"{user}.kubeconfig")


def kubeconfig_with(cp: ControlPlane, credentials: Mapping[str, object], path: Path) -> Path:
    """The administrator's kubeconfig with other credentials."""
    content = yaml.safe_load(cp.admin_kubeconfig.read_text())
    content["users"][0]["user"] = credentials
    path.write_text(yaml.safe_dump(content))
    path.chmod(0o600)
    return path


def kubeconfig_after_login(cp: ControlPlane, token: str, folder: Path) -> Path:
    """The kubeconfig of a user whose login plugin has this ID token: a command, as kubelogin is one."""
    status = {"apiVersion": LOGIN, "kind": "ExecCredential", "status": {"token": token}}
    (folder / "login.json").write_text(json.dumps(status))
    plugin = {"apiVersion": LOGIN, "command": "cat", "args": [str(folder / "login.json")]}
    return kubeconfig_with(cp, {"exec": plugin | {"interactiveMode": "Never"}}, folder / "login.kubeconfig")


def test_a_user_with_a_certificate_reads_what_rbac_allows_and_nothing_else(
    world: World, tmp_path: Path
) -> None:
    cp = world.stack.cp
    alice = kubeconfig_of(cp, "alice", tmp_path)
    world.stack.wait(
        "the budget",
        lambda: cp.kubectl("get", "--raw", f"{PATH}/budgets/team-a", kubeconfig=alice).returncode == 0,
    )
    own = json.loads(cp.kubectl("get", "--raw", f"{PATH}/budgets/team-a", kubeconfig=alice).stdout)
    assert own["namespace"] == "team-a"

    status, body = raw(cp, alice, f"{PATH}/budgets/team-a", (f"Accept: {TABLE}",))
    table = json.loads(body)
    columns = [(column["key"], column["type"]) for column in table["columnDefinitions"]]
    (shown,) = (dict(zip((key for key, _ in columns), row["cells"], strict=True)) for row in table["rows"])
    assert (status, table["apiVersion"], table["kind"]) == (200, "meta.k8s.io/v1", "Table")
    assert columns[:2] == [("namespace", "string"), ("mode", "string")]
    assert {name: shown[name] for name in ("namespace", "standing", "granted", "remaining")} == {
        **{"namespace": "team-a", "standing": "IN_BUDGET", "granted": "10.00", "remaining": "10.00"}
    }

    for path in ("budgets/team-b", "usage", "budgets", "sessions?namespace=team-b"):
        refused = cp.kubectl("get", "--raw", f"{PATH}/{path}", kubeconfig=alice)
        assert (refused.returncode, refused.stdout) == (1, ""), path
        assert "Forbidden" in refused.stderr
        status, body = raw(cp, alice, f"{PATH}/{path}", ())
        assert (status, json.loads(body)["detail"].startswith("alice may not get")) == (403, True), body
    # as a pod or an administrator by a header: the API server takes no word of a caller's for it
    forged = "X-Remote-User: admin", "X-Remote-Group: system:masters", "X_Remote_Group: system:masters"
    status, body = raw(cp, alice, f"{PATH}/budgets/team-b", forged)
    assert (status, "alice may not get" in body) == (403, True)


def raw(cp: ControlPlane, kubeconfig: Path, path: str, lines: tuple[str, ...]) -> tuple[int, str]:
    """The answer to a request to the API server with these header lines and the kubeconfig's certificate."""
    user = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]
    pem = kubeconfig.with_suffix(".pem")
    pem.write_bytes(b"".join(base64.b64decode(each) for each in user.values()))
    context = ssl.create_default_context(cafile=str(cp.ca_file))
    context.load_cert_chain(pem)
    return asked(cp.url.removeprefix("https://"), context, path, lines)


def asked(address: str, context: ssl.SSLContext, path: str, lines: tuple[str, ...]) -> tuple[int, str]:
    """Status and body. Raises OSError."""
    connection = http.client.HTTPSConnection(address, context=context, timeout=LONGEST_S)
    try:
        connection.putrequest("GET", path)
        for line in lines:
            name, _, value = line.partition(": ")
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def plugin(folder: Path) -> Path:
    """The folder, with the plugin of this checkout on the PATH of what is typed there."""
    (folder / "bin").mkdir()
    script = folder / "bin" / "kubectl-bursar"
    script.write_text(
        f'#!/bin/sh\ncd {SAMPLES.parents[1]} && exec {sys.executable} -m timekeeper.cli.main "$@"\n'
    )
    script.chmod(0o755)
    return folder


def test_the_plugin_goes_through_the_api_server_as_the_user(world: World, tmp_path: Path) -> None:
    cp = world.stack.cp
    alice = kubeconfig_of(cp, "alice", tmp_path)
    plugin(tmp_path)
    shown = run(cp, "kubectl bursar budget -n team-a --aggregated -o json", tmp_path, alice)
    refused = run(cp, "kubectl bursar budget -n team-b --aggregated 2>&1 || echo code $?", tmp_path, alice)
    both = run(cp, "kubectl bursar budget --aggregated --account=x 2>&1 || echo code $?", tmp_path, alice)

    assert json.loads(shown)["namespace"] == "team-a"
    assert "alice may not get" in refused
    assert refused.split()[-2:] == ["code", "1"]
    assert "leave out --account" in both


def test_a_login_at_an_identity_provider_reads_and_grants_what_rbac_allows_and_nothing_else(
    world: World, tmp_path: Path
) -> None:
    cp, issuer = world.stack.cp, world.issuer
    plugin(tmp_path)
    kubectl(cp, "create", "rolebinding", "leads", "-n", "team-b", "--clusterrole=view", "--group=oidc:leads")

    def typed(arguments: str, token: str) -> str:
        user = kubeconfig_after_login(cp, token, tmp_path)
        return run(cp, f"kubectl bursar {arguments} --aggregated 2>&1 || echo code $?", tmp_path, user)

    dana = issuer.token("dana", "leads")
    world.stack.wait("the rights", lambda: "code" not in typed("budget -n team-b", dana))
    assert json.loads(typed("budget -n team-b -o json", dana))["namespace"] == "team-b"
    for other in ("budget -n team-a", "budget -A", "usage -A", "grant team-a 1 --reason x"):
        said = typed(other, dana)
        assert "oidc:dana may not" in said, said
        assert said.split()[-2:] == ["code", "1"]
    assert "oidc:erin may not get" in typed("budget -n team-b", issuer.token("erin", "others"))

    kubectl(
        cp, "create", "rolebinding", "dana", "-n", "team-b", "--clusterrole=bursar-grants", "--user=oidc:dana"
    )
    world.stack.wait("the right to grant", lambda: "code" not in typed("grant team-b 1 --reason first", dana))
    granted = json.loads(typed("grant team-b 2 --reason sprint -o json", dana))["items"]
    assert [(each["actor"], each["gpuHours"]) for each in granted] == [("oidc:dana", "2")]

    for forged in (
        issuer.token("dana", "leads", key=new_key()),
        issuer.token("dana", "leads", aud="other"),
        issuer.token("dana", "leads", exp=int(time.time()) - 60),
        issuer.token("dana", "leads", iss="https://other.example"),
    ):
        said = typed("budget -n team-b", forged)
        assert "answered 401: Unauthorized" in said, said
        assert "log in again" in said
        assert said.split()[-2:] == ["code", "1"]


IDENTITY = ("X-Remote-User: admin", "X-Remote-Group: system:masters")


def test_an_identity_is_believed_of_the_front_proxy_alone(world: World, tmp_path: Path) -> None:
    cp, address = world.stack.cp, f"127.0.0.1:{world.port}"

    def with_certificate(of: LocalAuthority, name: str) -> ssl.SSLContext:
        context = world.stack.tls_context()
        certificate, key = of.leaf([name], client=True)
        (tmp_path / "shown.pem").write_bytes(certificate + key)
        context.load_cert_chain(tmp_path / "shown.pem")
        return context

    path = f"{PATH}/budgets"
    assert asked(address, with_certificate(cp.front_proxy, FRONT_PROXY), path, IDENTITY)[0] == 200
    assert asked(address, with_certificate(cp.front_proxy, FRONT_PROXY), path, ())[0] == 401
    assert asked(address, with_certificate(cp.front_proxy, "other"), path, IDENTITY)[0] == 403
    for context in (
        world.stack.tls_context(),
        with_certificate(cp.clients, FRONT_PROXY),
        with_certificate(new_authority("front-proxy"), FRONT_PROXY),
    ):
        with pytest.raises(OSError):
            asked(address, context, path, IDENTITY)
    ordinary = world.stack.timekeeper_url.removeprefix("https://")
    assert asked(ordinary, world.stack.tls_context(), "/v1/budgets", IDENTITY)[0] == 401
    assert asked(ordinary, world.stack.tls_context(), path, IDENTITY)[0] == 404


def test_a_stopped_timekeeper_keeps_a_namespace_only_while_the_api_is_installed(
    world: World, tmp_path: Path
) -> None:
    stack, cp = world.stack, world.stack.cp
    assert "timekeeper.bursar.dev" in kubectl(cp, "get", "--raw", "/apis")
    for name in ("ends-with-it", "ends-without-it"):
        kubectl(cp, "create", "namespace", name)
    stack.stop("timekeeper")
    stack.wait("the API server to notice", lambda: world.available() == "False")

    kubectl(cp, "delete", "namespace", "ends-with-it", "--wait=false")
    failure = "-o=jsonpath={.status.conditions[?(@.type=='NamespaceDeletionDiscoveryFailure')].message}"
    stack.wait(
        "the failed discovery",
        lambda: "timekeeper.bursar.dev" in cp.kubectl("get", "namespace", "ends-with-it", failure).stdout,
    )
    said = run(cp, "kubectl bursar doctor -o json || true", plugin(tmp_path))
    (found,) = [each for each in json.loads(said)["items"] if each["subject"] == "aggregated APIs"]
    assert (found["level"], API_SERVICE in found["sentence"]) == ("error", True)
    assert "no namespace can be deleted" in found["sentence"]
    mends = found["command"].partition("or give it up: ")[2]

    run(cp, mends, tmp_path)
    kubectl(cp, "delete", "namespace", "ends-without-it", "--wait=false")
    for name in ("ends-with-it", "ends-without-it"):
        stack.wait(name, lambda name=name: not stack.exists(f"/api/v1/namespaces/{name}"))  # type: ignore[misc]
    stack.start("timekeeper")
