"""The parts of the chart that are off by default, on the real API server."""

import itertools
import json
import subprocess
import sys
from base64 import b64decode
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from deploy import rendered
from deploy.local.build import module_file
from deploy.local.cluster import ControlPlane
from deploy.local.tools import GATEWAY_API
from tests.deploy.chart_values import ADDED, EXTRA, ON, merged
from tests.deploy.installed import account_token
from tests.deploy.neighbours import NEIGHBOURS
from tests.deploy.reading import NAMESPACE, ROOT, Json, named, template
from tests.support.control_plane import kubectl
from tests.support.go_programs import GATEWAY_CRDS

SYSTEM = f"/api/v1/namespaces/{NAMESPACE}"
# of the Prometheus operator, whose own test has them
OPERATOR = {"monitors": {"enabled": False}, "prometheusRules": {"enabled": False}}


@pytest.fixture(scope="module")
def applied(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> ControlPlane:
    """All parts on at once, with the CRDs of the Gateway API."""
    cp, values = control_plane, tmp_path_factory.mktemp("values") / "on.yaml"
    names = rendered.schema()["properties"]
    extras = {
        of: {name: value for name, value in EXTRA.items() if name in names[of]["properties"]}
        for of in set(itertools.chain(*ADDED.values()))
    }
    values.write_text(yaml.safe_dump(merged([ON, extras, OPERATOR])))
    for path in GATEWAY_CRDS:
        crd = module_file(GATEWAY_API, path, print)
        kubectl(cp, "apply", "--server-side", "-f", str(crd))
    kubectl(cp, "wait", "--for=condition=Established", "crd", "--all", "--timeout=5m")
    texts = rendered.rendered(rendered.helm(), f"--values={values}")
    del texts["api-service.yaml"]  # without a timekeeper behind it, it would hinder the next borrower

    done = cp.kubectl("apply", "--server-side", "-f", "-", input="---\n".join(texts.values()))

    # no unknown field, no warning of Pod Security
    assert (done.returncode, done.stderr) == (0, "")
    return cp


def certify(cp: ControlPlane, folder: Path) -> None:
    """The certificate process with its own account and the flag that the chart gives it."""
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/bursar-certificates"
    (container,) = cp.api.call("GET", path)["spec"]["template"]["spec"]["containers"]
    user = {"token": account_token(cp, "bursar-certificates")}
    cluster = {"server": cp.url, "certificate-authority": str(cp.ca_file)}
    kubeconfig = {
        "clusters": [{"name": "it", "cluster": cluster}],
        "users": [{"name": "it", "user": user}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "current-context": "it",
    }
    (folder / "kubeconfig").write_text(json.dumps(kubeconfig))
    command = [sys.executable, "-m", "webhook", *container["args"], "--once"]
    done = subprocess.run(
        [*command, f"--kubeconfig={folder}/kubeconfig"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_gateway_can_verify_the_timekeepers_certificate_by_what_its_policy_names(
    applied: ControlPlane, tmp_path: Path
) -> None:
    cp = applied
    certify(cp, tmp_path)
    group = f"/apis/gateway.networking.k8s.io/v1/namespaces/{NAMESPACE}"
    spec = cp.api.call("GET", f"{group}/backendtlspolicies/bursar-dashboard")["spec"]
    (reference,), (target,) = spec["validation"]["caCertificateRefs"], spec["targetRefs"]
    route = cp.api.call("GET", f"{group}/httproutes/bursar-dashboard")["spec"]

    (backend,) = route["rules"][0]["backendRefs"]
    service: Json = cp.api.call("GET", f"{SYSTEM}/services/{target['name']}")
    (port,) = (each for each in service["spec"]["ports"] if each["name"] == target["sectionName"])
    assert (backend["name"], backend["port"]) == (target["name"], port["port"])
    assert route["hostnames"] == ["gpus.example"]

    (ca,) = x509.load_pem_x509_certificates(
        cp.api.call("GET", f"{SYSTEM}/configmaps/{reference['name']}")["data"]["ca.crt"].encode()
    )
    secret = cp.api.call("GET", f"{SYSTEM}/secrets/bursar-timekeeper-tls")["data"]["tls.crt"]
    served = x509.load_pem_x509_certificate(b64decode(secret))
    served.verify_directly_issued_by(ca)
    names = served.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert spec["validation"]["hostname"] in names.get_values_for_type(x509.DNSName)


def test_an_ingress_leads_to_the_https_port_of_the_timekeeper(applied: ControlPlane) -> None:
    path = f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/ingresses/bursar-dashboard"
    spec = applied.api.call("GET", path)["spec"]

    (rule,) = spec["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    ports = applied.api.call("GET", f"{SYSTEM}/services/{backend['name']}")["spec"]["ports"]
    assert backend["port"]["name"] in [each["name"] for each in ports]
    assert spec["tls"] == [{"hosts": [rule["host"]]}]


Source = tuple[str, str] | str  # namespace and component, or an address
LET_IN: list[tuple[Source, tuple[str, int]]] = [  # to which component's port
    (("bursar-system", "webhook"), ("timekeeper", 8444)),
    (("bursar-system", "scheduler"), ("timekeeper", 8444)),
    (("bursar-node", "node"), ("timekeeper", 8444)),
    (("team-a", ""), ("timekeeper", 8444)),  # sidecars
    ("10.1.2.3", ("timekeeper", 8444)),
    ("10.0.0.1", ("timekeeper", 8448)),
    (("bursar-system", "timekeeper"), ("scheduler", 8447)),
    (("monitoring", ""), ("scheduler", 8447)),
    (("monitoring", ""), ("scheduler", 10259)),
    (("bursar-system", "timekeeper"), ("webhook", 8443)),
    (("monitoring", ""), ("webhook", 8443)),
    ("10.0.0.1", ("webhook", 8443)),
    (("monitoring", ""), ("node", 8446)),
]
KEPT_OUT: list[tuple[Source, tuple[str, int]]] = [
    (("team-a", ""), ("timekeeper", 8448)),
    ("192.0.2.1", ("timekeeper", 8444)),
    (("team-a", ""), ("scheduler", 8447)),
    (("team-a", "timekeeper"), ("scheduler", 8447)),
    (("monitoring", ""), ("scheduler", 8445)),
    (("team-a", ""), ("webhook", 8443)),
    (("team-a", ""), ("node", 8446)),
]


def test_network_policies_let_in_those_who_call_and_no_other(applied: ControlPlane) -> None:
    policies = applied.api.call("GET", "/apis/networking.k8s.io/v1/networkpolicies")["items"]

    assert [flow for flow in LET_IN if not passes(policies, *flow)] == []
    assert [flow for flow in KEPT_OUT if passes(policies, *flow)] == []
    selected = {each["spec"]["podSelector"]["matchLabels"][COMPONENT] for each in policies}
    assert selected == {"timekeeper", "scheduler", "webhook", "node"}


COMPONENT = "app.kubernetes.io/component"


def passes(policies: list[Json], source: Source, target: tuple[str, int]) -> bool:
    """Whether a network that enforces these policies lets the connection pass."""
    component, number = target
    mine = [each for each in policies if each["spec"]["podSelector"]["matchLabels"][COMPONENT] == component]
    return any(
        number in [port["port"] for port in rule["ports"]]
        and any(matches(peer, source, each["metadata"]["namespace"]) for peer in rule["from"])
        for each in mine
        for rule in each["spec"]["ingress"]
    )


def matches(peer: Json, source: Source, home: str) -> bool:
    """Whether a peer of a policy in the namespace ``home`` is this source."""
    if isinstance(source, str):
        return "ipBlock" in peer and ip_address(source) in ip_network(peer["ipBlock"]["cidr"])
    if "ipBlock" in peer:
        return False
    namespace, component = source
    names = peer.get("namespaceSelector", {"matchLabels": {"kubernetes.io/metadata.name": home}})
    wanted = {**names.get("matchLabels", {}), **peer.get("podSelector", {}).get("matchLabels", {})}
    has = {"kubernetes.io/metadata.name": namespace, "app.kubernetes.io/name": "bursar", COMPONENT: component}
    return wanted.items() <= has.items()


def test_grafanas_sidecar_finds_the_dashboards(applied: ControlPlane) -> None:
    found = applied.api.call("GET", f"{SYSTEM}/configmaps?labelSelector=grafana_dashboard%3D1")["items"]

    (only,) = found
    folder = ROOT / "deploy" / "monitoring" / "dashboards"
    files = {f"bursar-{each.name}": json.loads(each.read_text()) for each in folder.iterdir()}
    assert {name: json.loads(text) for name, text in only["data"].items()} == files


def refusal(cp: ControlPlane, namespace: str, what: Json) -> str:
    """What the controller of DaemonSets is answered in this namespace; "" if it may create this."""
    text = json.dumps(what | {"metadata": {**what["metadata"], "namespace": namespace}})
    controller = "--as=system:serviceaccount:kube-system:daemon-set-controller"
    done = cp.kubectl("create", "--dry-run=server", controller, "-f", "-", input=text)
    return done.stderr if done.returncode else ""


def pod_of(workload: Json) -> Json:
    """A pod of a DaemonSet."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": template(workload)["spec"]}


def test_neighbours_that_run_the_nodes_run_on_and_the_same_pods_of_a_tenant_do_not(
    applied: ControlPlane,
) -> None:
    pods = {named(each): (each["metadata"]["namespace"], pod_of(each)) for each in NEIGHBOURS}
    for name in {"team-a", *(namespace for namespace, _ in pods.values())} - {"kube-system"}:
        kubectl(applied, "create", "namespace", name)

    refused = {name: refusal(applied, *pod) for name, pod in pods.items()}
    assert refused == dict.fromkeys(pods, "")
    of_a_tenant = {name: refusal(applied, "team-a", pod) for name, (_, pod) in pods.items()}
    assert [name for name, said in of_a_tenant.items() if not said] == ["DaemonSet-kube-flannel-ds"]
    assert 'failed calling webhook "govern.bursar.dev"' in of_a_tenant["DaemonSet-nvidia-cuda-validator"]
    assert "[host-pid]" in of_a_tenant["DaemonSet-node-exporter"]
