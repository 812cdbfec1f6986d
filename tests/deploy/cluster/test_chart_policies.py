"""The chart, installed by Helm, under policies that many clusters have: Pod Security, and some that Kyverno
publishes, played by policies of the API server."""

import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

from deploy import rendered
from deploy.local.cluster import ControlPlane
from tests.deploy.chart_values import Values
from tests.deploy.cluster.test_accepted import pod_of, refused
from tests.deploy.reading import AGENTS, NAMESPACE, ROOT, loaded, template
from tests.support.control_plane import applied, apply
from tests.support.waiting import eventually

CONTAINERS = "(variables.pod.containers + variables.pod.?initContainers.orValue([]))"
# name in Kyverno's library -> what it asks of each pod and of what starts pods
POLICIES = {
    "disallow-latest-tag": f"{CONTAINERS}.all(c, c.image.matches(':[^/]+$') && !c.image.endsWith(':latest'))",
    "require-requests-limits": f"""{CONTAINERS}.all(c, 'memory' in c.?resources.?limits.orValue({{}})
        && ['cpu', 'memory'].all(k, k in c.?resources.?requests.orValue({{}})))""",
    "require-labels": """['app.kubernetes.io/name', 'team'].all(k, k in object.metadata.?labels.orValue({})
        && (!has(object.spec.template) || k in object.spec.template.metadata.?labels.orValue({})))""",
    "require-pod-probes": f"""{CONTAINERS}.all(c, [c.?livenessProbe, c.?readinessProbe]
        .exists(p, p.hasValue() && p.value().?periodSeconds.orValue(0) > 0))""",
    "require-ro-rootfs": f"{CONTAINERS}.all(c, c.?securityContext.?readOnlyRootFilesystem.orValue(false))",
    "restrict-image-registries": f"{CONTAINERS}.all(c, c.image.startsWith('registry.example.com/'))",
    # the agents need the paths of their node: this one leaves out their namespace
    "disallow-host-path": """namespaceObject.metadata.name == 'bursar-node'
        || !variables.pod.?volumes.orValue([]).exists(v, has(v.hostPath))""",
}
# what breaks each of them alone
BREAKING: dict[str, Values] = {
    "disallow-latest-tag": {"image": "registry.example.com/main:latest"},
    "require-requests-limits": {"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}},
    "require-labels": {"team": None},
    "require-pod-probes": {"livenessProbe": None},
    "require-ro-rootfs": {"securityContext": None},
    "restrict-image-registries": {"image": "other.example.com/main:1"},
    "disallow-host-path": {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]},
}
MEETING: Values = {
    "images": {"prefix": "registry.example.com/bursar"},
    "scheduler": {"image": "registry.example.com/kube-scheduler"},
    "commonLabels": {"team": "gpus"},
}


def policy(name: str, expression: str) -> Iterable[Values]:
    rule = {"apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"]}
    rules = [
        {**rule, "apiGroups": [""], "resources": ["pods"]},
        {**rule, "apiGroups": ["apps"], "resources": ["deployments", "statefulsets", "daemonsets"]},
    ]
    api = "admissionregistration.k8s.io/v1"
    ours = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [NAMESPACE, AGENTS]}
    spec = {
        "matchConstraints": {"resourceRules": rules, "namespaceSelector": {"matchExpressions": [ours]}},
        "variables": [
            {
                "name": "pod",
                "expression": "has(object.spec.template) ? object.spec.template.spec : object.spec",
            }
        ],
        "validations": [{"expression": expression, "message": f"refused by {name}"}],
    }
    yield {"apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec}
    bound = {"policyName": name, "validationActions": ["Deny"]}
    yield {
        "apiVersion": api,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": bound,
    }


def deployment(team: str | None = "gpus", volumes: Iterable[Values] = (), **of_container: object) -> Values:
    """One that breaks no policy, but for what is given."""
    amounts = {"cpu": "1", "memory": "1Gi"}
    container = {
        "name": "main",
        "image": "registry.example.com/main:1",
        "resources": {"requests": amounts, "limits": amounts},
        "livenessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 10},
        "securityContext": {"readOnlyRootFilesystem": True},
    } | of_container
    labels = {"app.kubernetes.io/name": "main"} | ({"team": team} if team else {})
    pod = {"containers": [container], "volumes": [*volumes]}
    spec = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}
    metadata = {"name": "main", "namespace": NAMESPACE, "labels": labels}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def of_page() -> Values:
    """The probe that the page names for the certificate process."""
    page = (ROOT / "docs" / "helm.md").read_text()
    probe = page.split("`certificates.livenessProbe`, such as `")[1].split("`")[0]
    return {"certificates": {"livenessProbe": {**yaml.safe_load(f"{{{probe}}}"), "periodSeconds": 60}}}


def workloads(texts: dict[str, str]) -> list[Values]:
    objects = [document for text in texts.values() for document in loaded(text)]
    return [
        document for document in objects if document["kind"] in ("Deployment", "StatefulSet", "DaemonSet")
    ]


def broken(cp: ControlPlane, workload: Values) -> set[str]:
    """The policies that refuse a workload."""
    said = applied(cp, workload, NAMESPACE, dry=True).refusal
    return {name for name in POLICIES if f"refused by {name}" in said}


@pytest.fixture(scope="module")
def cp(control_plane: ControlPlane) -> ControlPlane:
    """With both namespaces as the chart makes them, and each policy in force."""
    for name, level in ((NAMESPACE, "restricted"), (AGENTS, "privileged")):
        labels = {"pod-security.kubernetes.io/enforce": level}
        apply(
            control_plane,
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}},
        )
    for name, expression in POLICIES.items():
        apply(control_plane, *policy(name, expression))
        eventually(lambda name=name: broken(control_plane, deployment(**BREAKING[name])) == {name})  # type: ignore[misc]
    assert broken(control_plane, deployment()) == set()
    return control_plane


@pytest.mark.parametrize("database", ["", "bursar-database"])
def test_helm_installs_the_chart_under_common_policies_and_its_pods_are_admitted(
    cp: ControlPlane, tmp_path: Path, database: str
) -> None:
    helm = rendered.helm()
    values = {**MEETING, **of_page(), "database": {"secretName": database}}
    (tmp_path / "meeting.yaml").write_text(yaml.safe_dump(values))
    flag = f"--values={tmp_path}/meeting.yaml"
    run = [str(helm), f"--kubeconfig={cp.admin_kubeconfig}", "-n", "kube-system"]

    command = [*run, "install", "bursar", str(rendered.CHART), flag, "--take-ownership", "--force-conflicts"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    found = workloads(rendered.rendered(helm, flag))
    assert len(found) == 5
    for workload in found:
        pod = pod_of(workload, workload["metadata"]["namespace"])
        pod["metadata"]["labels"] = template(workload)["metadata"]["labels"]
        assert refused(cp, pod) == "", workload["metadata"]["name"]
    done = subprocess.run([*run, "uninstall", "bursar"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_each_policy_refuses_the_chart_without_the_value_that_meets_it(
    cp: ControlPlane, tmp_path: Path
) -> None:
    helm = rendered.helm()
    without = {
        "images.tag=latest": {"disallow-latest-tag"},
        "images.prefix=other.example.com/bursar": {"restrict-image-registries"},
        "commonLabels=null": {"require-labels"},
        "certificates.livenessProbe=null": {"require-pod-probes"},
        "webhook.resources.requests=null": {"require-requests-limits"},
    }
    (tmp_path / "meeting.yaml").write_text(yaml.safe_dump({**MEETING, **of_page()}))

    for flag, names in without.items():
        texts = rendered.rendered(helm, f"--values={tmp_path}/meeting.yaml", f"--set={flag}")
        assert {name for workload in workloads(texts) for name in broken(cp, workload)} == names, flag
