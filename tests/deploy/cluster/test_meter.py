"""The chart in mode meter on a cluster as it is: pods of other schedulers are charged, and nothing but
Bursar's own objects differs from what was there."""

import json
import ssl
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from deploy import rendered
from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from deploy.local.ports import free_port
from tests.deploy.cluster.test_in_cluster import KUBELETS, MOVED, moved, started
from tests.deploy.reading import NAMESPACE, ROOT
from tests.support.control_plane import create_namespace, kubectl
from tests.support.waiting import eventually

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
PRODUCT, COUNT, MEMORY = f"{GPU}.product", f"{GPU}.count", f"{GPU}.memory"
A100 = {PRODUCT: "NVIDIA-A100-SXM4-40GB", COUNT: "2", MEMORY: "40960"}
MIG = {PRODUCT: "NVIDIA-A100-SXM4-40GB-MIG-2g.10gb", "nvidia.com/mig.strategy": "single", COUNT: "6"}
NODES = {
    "whole": ({GPU: "2"}, A100),
    "shared": ({GPU: "8"}, A100 | {f"{GPU}.replicas": "4", PRODUCT: "Tesla-T4-SHARED"}),
    "instances": ({GPU: "6"}, A100 | MIG),
    "amd": ({"amd.com/gpu": "8"}, {}),
    "unknown": ({GPU: "1"}, {}),
}
# node, limits, annotations, scheduler
PODS: dict[str, tuple[str, Json, Json, str]] = {
    "one-card": ("whole", {GPU: "1"}, {}, "default-scheduler"),
    "replica": ("shared", {GPU: "1"}, {}, "volcano"),
    "instance": ("instances", {GPU: "1"}, {}, "default-scheduler"),
    "radeons": ("amd", {"amd.com/gpu": "2"}, {}, "default-scheduler"),
    "fraction": ("whole", {}, {"gpu-fraction": "0.5"}, "kai-scheduler"),
    "forger": ("whole", {GPU: "1"}, {"bursar.dev/standing": "UNLIMITED"}, "default-scheduler"),
    "guessed": ("unknown", {GPU: "1"}, {}, "default-scheduler"),
    "plain": ("whole", {}, {}, "default-scheduler"),
}
RATES = {
    "guessed": 1000,
    "one-card": 1000,
    "replica": 250,
    "instance": 286,
    "radeons": 2000,
    "fraction": 500,
    "forger": 1000,
}
CLOCKED = ("nodes", "leases", "events", "endpointslices")  # they change by themselves


@dataclass(frozen=True, slots=True)
class Installed:
    """What the cluster had before and after, and what the account may do there."""

    before: dict[str, Json]
    after: dict[str, Json]
    rights: set[tuple[str, str, str, str]]
    sessions: dict[str, Json]
    doubts: Json
    would: list[Json]


@pytest.fixture(scope="module")
def installed(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    folder = tmp_path_factory.mktemp("meter")
    populate(control_plane)
    before = objects(control_plane)
    texts = rendered.rendered(rendered.helm(), "--set=mode=meter")
    for name in sorted(texts):
        kubectl(control_plane, "apply", "--server-side", "-f", "-", input=texts[name])
    command, variables = in_pod(control_plane, folder)
    port = free_port()
    places = (r"0\.0\.0\.0:8444", f"127.0.0.1:{port}"), ("/var/lib/bursar", str(folder))
    with started(moved(command, *places), variables, folder):
        assert eventually(lambda: (folder / "tls/ca.crt").exists() and is_up(port, folder))
        assert eventually(lambda: len(sessions(control_plane, port, folder)) == len(RATES))
        name = f"/api/v1/namespaces/{NAMESPACE}/configmaps/bursar-ca"
        assert eventually(lambda: control_plane.api.answers(name))
        published = control_plane.api.call("GET", name)["data"]["ca.crt"]
        assert published == (folder / "tls/ca.crt").read_text()
        found = sessions(control_plane, port, folder)
        doubts = read(control_plane, port, folder, "/v1/doubts")
        after, may = objects(control_plane), rights(control_plane)
        judged = would(control_plane, port, folder)
        yield Installed(before, after, may, found, doubts, judged)


def would(cp: ControlPlane, port: int, folder: Path) -> list[Json]:
    """What the API says of pods that are created now, in namespaces that have used their budgets."""
    entries = {"would-hold": "gpuHours: 0\nonExhausted: hold", "would-lower": "gpuHours: 0"}
    config = {"metadata": {"name": "budgets", "labels": {"bursar.dev/budgets": "true"}}, "data": entries}
    cp.api.call("POST", f"/api/v1/namespaces/{NAMESPACE}/configmaps", config)
    container = {"name": "main", "image": "app", "resources": {"limits": {GPU: "1"}}}
    paths = {name: create_namespace(cp, name) for name in ("would-hold", "would-lower", "would-fit")}
    for name in entries:
        spent = f"/v1/budgets/{name}"
        assert eventually(lambda at=spent: read(cp, port, folder, at)["standing"] == "OVER_BUDGET")  # type: ignore[misc]
    for namespace, name, more in (
        ("would-hold", "held", {}),
        ("would-lower", "lower", {}),
        ("would-lower", "refused", {"terminationGracePeriodSeconds": 3_000}),
        ("would-fit", "fits", {}),
    ):
        spec = {"containers": [container], **more}
        cp.api.call("POST", paths[namespace], {"metadata": {"name": name}, "spec": spec})
    assert eventually(lambda: sum(each["pods"] for each in read(cp, port, folder, "/v1/would")["rows"]) == 4)
    rows: list[Json] = read(cp, port, folder, "/v1/would")["rows"]
    return rows


def populate(cp: ControlPlane) -> None:
    """The Operator's labels and resources on nodes, and a pod of each kind bound by somebody else."""
    for name, (capacity, labels) in NODES.items():
        cp.api.call("POST", "/api/v1/nodes", kwok_node(name, capacity=capacity, labels=labels))
    path = create_namespace(cp, "team-a")
    for name, (node, limits, annotations, scheduler) in PODS.items():
        container = {"name": "main", "image": "app", "resources": {"limits": limits}}
        spec = {"containers": [container], "schedulerName": scheduler}
        cp.api.call("POST", path, {"metadata": {"name": name, "annotations": annotations}, "spec": spec})
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        cp.api.call("POST", f"{path}/{name}/binding", {"metadata": {"name": name}, "target": target})
    claim = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}
    claims = "/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaims"
    cp.api.call("POST", claims, {"metadata": {"name": "one"}, "spec": claim})
    cp.api.call(
        "POST",
        path,
        {
            "metadata": {"name": "claiming"},
            "spec": {
                "containers": [{"name": "main", "image": "app", "resources": {"claims": [{"name": "gpu"}]}}],
                "resourceClaims": [{"name": "gpu", "resourceClaimName": "one"}],
            },
        },
    )
    target = {"apiVersion": "v1", "kind": "Node", "name": "whole"}
    cp.api.call("POST", f"{path}/claiming/binding", {"metadata": {"name": "claiming"}, "target": target})
    running = {"plain", *RATES}
    assert eventually(lambda: running <= {each for each in running if phase(cp, path, each) == "Running"})


def phase(cp: ControlPlane, path: str, name: str) -> str:
    return str(cp.api.call("GET", f"{path}/{name}")["status"]["phase"])


def in_pod(cp: ControlPlane, folder: Path) -> tuple[list[str], dict[str, str]]:
    """The command and the environment of the installed StatefulSet's container."""
    there = cp.api.call("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets/bursar-timekeeper")
    (container,) = there["spec"]["template"]["spec"]["containers"]
    (folder / "token").write_text(token(cp, "bursar-timekeeper", {}))
    (folder / "ca.crt").write_bytes(cp.ca_file.read_bytes())
    (folder / "sitecustomize.py").write_text(MOVED.format(KUBELETS=KUBELETS, folder=folder))
    address = urlsplit(cp.url)
    variables = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": f"{folder}:{ROOT}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "KUBERNETES_SERVICE_HOST": str(address.hostname),
        "KUBERNETES_SERVICE_PORT": str(address.port),
    }
    return [str(ROOT / ".venv/bin/python"), "-m", "timekeeper", *container["args"]], variables


def token(cp: ControlPlane, account: str, spec: Json) -> str:
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
    return str(cp.api.call("POST", path, {"spec": {"expirationSeconds": 3600} | spec})["status"]["token"])


def url(port: int) -> str:
    return f"https://127.0.0.1:{port}"


def trusted(folder: Path) -> ssl.SSLContext:
    """The timekeeper's own CA; the test reaches it by an address that its certificate does not name."""
    context = ssl.create_default_context(cafile=str(folder / "tls/ca.crt"))
    context.check_hostname = False
    return context


def is_up(port: int, folder: Path) -> bool:
    try:
        with urllib.request.urlopen(f"{url(port)}/readyz", timeout=5, context=trusted(folder)) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def sessions(cp: ControlPlane, port: int, folder: Path) -> dict[str, Json]:
    """By pod."""
    return {each["pod"]: each for each in read(cp, port, folder, "/v1/sessions?namespace=team-a")["sessions"]}


def read(cp: ControlPlane, port: int, folder: Path, path: str) -> Json:
    """As a viewer of all namespaces reads it."""
    request = urllib.request.Request(f"{url(port)}{path}")
    request.add_header("Authorization", f"Bearer {viewer(cp)}")
    with urllib.request.urlopen(request, timeout=20, context=trusted(folder)) as answer:
        loaded: Json = json.load(answer)
    return loaded


def viewer(cp: ControlPlane) -> str:
    """A token of an account of Bursar's namespace that may read everything."""
    if not cp.api.answers(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/reader"):
        kubectl(cp, "create", "serviceaccount", "reader", "-n", NAMESPACE)
        flags = "--clusterrole=bursar-viewer", f"--serviceaccount={NAMESPACE}:reader"
        kubectl(cp, "create", "clusterrolebinding", "bursar-reader", *flags)
    return token(cp, "reader", {"audiences": ["bursar"]})


def objects(cp: ControlPlane) -> dict[str, Json]:
    """Every object of the cluster by its path; of those that change by themselves, who has written them."""
    found: dict[str, Json] = {}
    groups = [each["preferredVersion"]["groupVersion"] for each in cp.api.call("GET", "/apis")["groups"]]
    for root in ("/api/v1", *(f"/apis/{each}" for each in groups)):
        for resource in cp.api.call("GET", root)["resources"]:
            if "list" not in resource["verbs"] or "/" in resource["name"]:
                continue
            for item in cp.api.call("GET", f"{root}/{resource['name']}")["items"]:
                metadata = item["metadata"]
                path = f"{root}/{resource['name']}/{metadata.get('namespace', '')}/{metadata['name']}"
                found[path] = writers(item) if resource["name"] in CLOCKED else item
    return found


def writers(item: Json) -> Json:
    fields = item["metadata"].get("managedFields", [])
    return {"by": sorted({each["manager"] for each in fields}), "labels": item["metadata"].get("labels")}


def rights(cp: ControlPlane) -> set[tuple[str, str, str, str]]:
    """(namespace, group, resource, verb) of all that the account may do, by the API server's own list; what
    holds everywhere has an empty namespace. What every account may is left out."""
    found: dict[str, set[tuple[str, str, str]]] = {}
    for namespace in ("default", NAMESPACE, "kube-node-lease"):
        review = {"spec": {"namespace": namespace}}
        answer = ask(cp, "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review)
        found[namespace] = {
            (group, "/".join((resource, *rule.get("resourceNames", []))), verb)
            for rule in answer["status"]["resourceRules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
            if not resource.startswith("selfsubject")
        }
    everywhere = found["default"]
    inside = {(name, *each) for name, those in found.items() for each in those - everywhere}
    return inside | {("", *each) for each in everywhere}


def ask(cp: ControlPlane, path: str, body: Json) -> Json:
    context = ssl.create_default_context(cafile=str(cp.ca_file))
    headers = {
        "Authorization": f"Bearer {token(cp, 'bursar-timekeeper', {})}",
        "Content-Type": "application/json",
    }
    request = urllib.request.Request(f"{cp.url}{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=20, context=context) as answer:
        loaded: Json = json.load(answer)
    return loaded


def test_pods_of_every_kind_are_charged(installed: Installed) -> None:
    assert {name: each["rateMilli"] for name, each in installed.sessions.items()} == RATES


def test_what_is_not_certain_and_what_is_not_charged_is_named(installed: Installed) -> None:
    doubts = {name: each["doubt"] for name, each in installed.sessions.items() if each["doubt"]}

    assert doubts.keys() == {"guessed"}
    assert installed.doubts["doubts"] == [{"doubt": doubts["guessed"], "sessions": 1}]
    assert installed.doubts["claims"] == [{"namespace": "team-a", "pods": 1}]


def test_new_pods_have_the_verdict_that_enforcement_would_give(installed: Installed) -> None:
    found = [(each["namespace"], each["pod"], each["verdict"], each["rule"]) for each in installed.would]

    assert found == [
        ("would-fit", "fits", "admitted", ""),
        ("would-hold", "held", "held", ""),
        ("would-lower", "lower", "demoted", ""),
        ("would-lower", "refused", "refused", "grace-period"),
    ]


def is_ours(path: str, item: Json) -> bool:
    """Whether Bursar is installed by it, or it is in Bursar's namespace."""
    labels = item.get("metadata", item).get("labels") or {}
    served = item.get("spec", {}).get("parentRef", {}).get("namespace")  # of the address of a Service
    in_ours = f"/{NAMESPACE}/" in path or path.endswith(f"//{NAMESPACE}") or served == NAMESPACE
    return in_ours or labels.get("app.kubernetes.io/part-of") == "bursar" or path.endswith("//bursar-reader")


def test_only_objects_of_bursar_differ(installed: Installed) -> None:
    before, after = installed.before, installed.after
    differ = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}

    assert {path for path in differ if not is_ours(path, after.get(path) or before[path])} == set()
    assert any(path.endswith("/bursar-timekeeper") for path in differ)


def test_the_account_has_the_rights_that_are_stated(installed: Installed) -> None:
    read = {
        "": ("pods", "nodes", "namespaces"),
        "resource.k8s.io": ("resourceclaims", "resourceslices"),
    }
    stated = {("", group, each, verb) for group in read for each in read[group] for verb in ("list", "watch")}
    stated |= {
        ("", "authentication.k8s.io", "tokenreviews", "create"),
        ("", "authorization.k8s.io", "subjectaccessreviews", "create"),
        *(("kube-node-lease", "coordination.k8s.io", "leases", verb) for verb in ("list", "watch")),
        *((NAMESPACE, "", "configmaps", verb) for verb in ("list", "watch")),
        *((NAMESPACE, "", "configmaps/bursar-ca", verb) for verb in ("get", "create", "patch")),
        (NAMESPACE, "events.k8s.io", "events", "create"),
    }

    assert installed.rights == stated
