"""docs/install.md and docs/helm.md, typed on a real API server: install, upgrade, rollback and uninstall."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy import rendered
from deploy.local.build import module_file
from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from deploy.local.tools import CERT_MANAGER, PROMETHEUS_OPERATOR
from tests.deploy.reading import ROOT, Json, documents
from tests.docs.cluster.test_install import (
    MODE_OF,
    OBSERVES,
    POLICIES,
    SETTINGS_OF,
    policies_that_deny,
    switches,
)
from tests.docs.cluster.test_uninstall import everything, refusal
from tests.docs.shell import console, run
from tests.support.control_plane import MERGE
from tests.support.waiting import eventually
from timekeeper.core import __version__

pytestmark = pytest.mark.cluster

PAGE = (ROOT / "docs" / "helm.md").read_text()
INSTALL = (ROOT / "docs" / "install.md").read_text()
DATABASES = (ROOT / "docs" / "databases.md").read_text()
HALF = {"bursar.dev/gpu-percent": "50"}
PUSHED = "registry.example.com/bursar"  # as the pages name the images
WEBHOOK = "/apis/apps/v1/namespaces/bursar-system/deployments/bursar-webhook"
LEDGER = "/apis/apps/v1/namespaces/bursar-system/statefulsets/bursar-timekeeper"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpubudgets.bursar.dev"
KEPT = [
    "APIService/v1alpha1.bursar.dev",  # which the API server makes of the CRD
    "CustomResourceDefinition/gpubudgets.bursar.dev",
    "Namespace/bursar-node",
    "Namespace/bursar-system",
]
CRDS = (
    (
        PROMETHEUS_OPERATOR,
        "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
    ),
    (
        PROMETHEUS_OPERATOR,
        "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
    ),
    (CERT_MANAGER, "deploy/crds/cert-manager.io_issuers.yaml"),
    (CERT_MANAGER, "deploy/crds/cert-manager.io_certificates.yaml"),
)
# a later release of the chart: what it changes in each file
LATER = {
    "Chart.yaml": (f"ersion: {__version__}", "ersion: 9.9.9"),
    "values.yaml": ("mode:", "later: true\nmode:"),
    "values.schema.json": ('"mode": {', '"later": {"type": "boolean"},\n    "mode": {'),
    "templates/gpubudgets.yaml": ("name: Standing, type: string", "name: Later, type: string"),
    "templates/priority-classes.yaml": ("Never", "{{ ternary `Never` `` .Values.later }}"),
}


def typed(part: str, *more: str, page: str = PAGE) -> str:
    """The page's first command that begins so, and what is added to it."""
    lines = (line for block in console(page) for line in block.splitlines())
    return " ".join([next(line for line in lines if line.startswith(part)), *more])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout, with helm on the PATH."""
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "helm").symlink_to(rendered.helm())
    return tmp_path


def release_later(folder: Path) -> None:
    """Make the chart of the checkout a later release."""
    for name, (before, after) in LATER.items():
        file = folder / "deploy" / "chart" / name
        assert before in file.read_text(), name
        file.write_text(file.read_text().replace(before, after))


def container(cp: ControlPlane) -> Json:
    """The webhook's."""
    (only,) = cp.api.call("GET", WEBHOOK)["spec"]["template"]["spec"]["containers"]
    return dict(only)


def release(cp: ControlPlane) -> tuple[str, str]:
    """The webhook's image, and the first column of `kubectl get gpubudgets`."""
    columns = cp.api.call("GET", CRD)["spec"]["versions"][0]["additionalPrinterColumns"]
    return container(cp)["image"], columns[0]["name"]


def bundles(cp: ControlPlane) -> set[str | None]:
    """The CAs by which the API server trusts the webhook."""
    group = "/apis/admissionregistration.k8s.io/v1"
    return {
        webhook["clientConfig"].get("caBundle")
        for kind in ("mutating", "validating")
        for webhook in cp.api.call("GET", f"{group}/{kind}webhookconfigurations/zz-bursar")["webhooks"]
    }


def certify(cp: ControlPlane, folder: Path) -> None:
    """What the certificate process does."""
    command = [sys.executable, "-m", "webhook", "certificates", "--once", "--write", str(folder / "tls")]
    kubeconfig = ["--kubeconfig", str(cp.admin_kubeconfig)]
    subprocess.run([*command, *kubeconfig], check=True, capture_output=True, cwd=ROOT)


@contextmanager
def pods_are_created(cp: ControlPlane) -> Iterator[list[str]]:
    """One ordinary pod after the other, as long as this lasts; the refusals."""
    refused: list[str] = []
    ended = threading.Event()

    def create() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            refused.extend(filter(None, [refusal(cp, f"ordinary-{number}", {})]))

    thread = threading.Thread(target=create)
    thread.start()
    try:
        yield refused
    finally:
        ended.set()
        thread.join()


def enforces(cp: ControlPlane) -> bool:
    """Whether the three switches are as in the manifests: the mode, the policies, the webhook's flag."""
    bindings = cp.api.call("GET", POLICIES)["items"]
    denying = {each["metadata"]["name"] for each in bindings if each["spec"]["validationActions"] == ["Deny"]}
    return denying == policies_that_deny() and switches(cp) == ("enforce", "enforce", False)


def missing(cp: ControlPlane) -> str:
    """What kubectl says of objects of the manifests that the cluster does not have."""
    listed = {"apiVersion": "v1", "kind": "List", "items": list(documents())}
    return cp.kubectl("get", "-o", "name", "-f", "-", input=json.dumps(listed)).stderr


def installed(cp: ControlPlane) -> set[str]:
    """Workloads, and what admission consists of."""
    workloads = "deployments,statefulsets,daemonsets"
    admission = "mutatingwebhookconfigurations,validatingadmissionpolicies,customresourcedefinitions"
    found = cp.kubectl("get", f"{workloads},{admission}", "-A", "-o", "name").stdout.split()
    return {name.partition("/")[2] for name in found if "bursar" in name}


def left(cp: ControlPlane) -> list[str]:
    """What is ours in the cluster, but in our own namespaces; no nodes, which the tests make."""
    kinds = cp.kubectl("api-resources", "--verbs=list", "--namespaced=false", "-o", "name").stdout.split()
    asked = ([",".join(kinds)], ["secrets,roles,rolebindings", "-n", "kube-system"])
    found = [json.loads(cp.kubectl("get", "-o", "json", *each).stdout)["items"] for each in asked]
    return sorted(
        f"{each['kind']}/{each['metadata']['name']}"
        for each in (*found[0], *found[1])
        if each["kind"] != "Node"
        and "bursar" in json.dumps(each["metadata"])
        and not (each["kind"] == "Namespace" and "deletionTimestamp" in each["metadata"])
    )


def pods_wait(cp: ControlPlane) -> None:
    """Eleven for Bursar's scheduler, one behind its gate, one for another scheduler, and one with a node."""
    waiting = {f"waits-{number:02}": {"schedulerName": "bursar-scheduler"} for number in range(11)}
    gated: Json = {"schedulerName": "own", "schedulingGates": [{"name": "bursar.dev/budget"}]}
    placed = {"schedulerName": "bursar-scheduler", "nodeName": "node-of-nobody"}
    kinds: dict[str, Json] = {**waiting, "gated": gated, "own": {"schedulerName": "own"}, "placed": placed}
    for name, fields in kinds.items():
        spec = {"containers": [{"name": "main", "image": "example"}], **fields}
        made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        done = cp.kubectl("create", "-n", "default", "-f", "-", input=json.dumps(made))
        assert done.returncode == 0, done.stderr


def refused(cp: ControlPlane, command: str, folder: Path) -> str:
    """What helm says."""
    with pytest.raises(AssertionError) as failed:
        run(cp, command, folder)
    return str(failed.value)


def no_upgrade_leaves_waiting_pods_alone(cp: ControlPlane, observing: str, folder: Path) -> None:
    """Upgrades that take away what pods wait for name them, until they are gone."""
    listed = ", ".join(f"default/waits-{number:02}" for number in range(10))
    end = "Delete them, or wait until each has a node, and upgrade again"

    said = refused(cp, observing.replace("observe", "meter"), folder)
    assert "mode: meter: 12 pods wait for bursar-scheduler or behind the gate bursar.dev/budget, and" in said
    assert f"wait for ever: default/gated, {listed[:-18]}, and 2 more. {end}; after an upgrade to" in said
    said = refused(cp, f"{observing} --set placement=off", folder)
    assert (
        f"placement: off: 11 pods wait for bursar-scheduler, and would wait for ever: {listed}, and" in said
    )
    assert f" and 1 more. {end}" in said
    assert "bursar-scheduler" in installed(cp)

    run(cp, "kubectl delete pods -n default --all --force --grace-period=0", folder)


def test_the_chart_is_installed_upgraded_rolled_back_and_uninstalled_and_leaves_its_namespaces_alone(
    control_plane: ControlPlane, folder: Path
) -> None:
    cp = control_plane
    observing = typed("helm upgrade bursar", page=INSTALL)
    install = typed("helm install bursar", page=INSTALL)
    assert "images.prefix: no public" in refused(cp, install.partition(" --set images.prefix")[0], folder)
    run(cp, install, folder)
    assert installed(cp) == {"bursar-timekeeper"}
    pods_wait(cp)
    run(cp, observing.replace("observe", "meter"), folder)  # it takes nothing away
    run(cp, observing, folder)
    no_upgrade_leaves_waiting_pods_alone(cp, observing, folder)
    run(cp, observing.replace("observe", "meter"), folder)
    assert installed(cp) == {"bursar-timekeeper", "gpubudgets.bursar.dev"}
    run(cp, observing, folder)
    assert missing(cp) == ""
    assert switches(cp) == OBSERVES
    certify(cp, folder)
    trusted = bundles(cp)
    assert None not in trusted

    run(cp, typed("helm upgrade bursar", "--set mode=enforce"), folder)
    assert (enforces(cp), bundles(cp)) == (True, trusted)
    assert 'failed calling webhook "govern.bursar.dev"' in refusal(cp, "before", HALF)

    release_later(folder)
    run(cp, typed("helm upgrade bursar"), folder)
    assert (release(cp), bundles(cp)) == ((f"{PUSHED}/webhook:9.9.9", "Later"), trusted)
    run(cp, typed("helm rollback bursar"), folder)
    assert (release(cp), bundles(cp)) == ((f"{PUSHED}/webhook:{__version__}", "Standing"), trusted)

    with pods_are_created(cp) as not_created:
        run(cp, typed("helm uninstall bursar"), folder)
    assert not_created == []
    assert refusal(cp, "after", HALF) == ""
    assert left(cp) == KEPT

    run(cp, typed("kubectl delete namespace"), folder)
    run(cp, typed("kubectl delete crd"), folder)
    assert everything(cp) == []


def everything_of(cp: ControlPlane, folder: Path) -> str:
    """The objects of the release as Helm applied them."""
    return run(cp, "helm get manifest bursar -n kube-system", folder)


def test_with_reuse_values_what_an_earlier_release_did_not_have_has_its_default(
    control_plane: ControlPlane, folder: Path
) -> None:
    """Of that release only the values count: Helm keeps them in place of the new chart's."""
    cp = control_plane
    earlier = folder / "earlier"
    (earlier / "templates").mkdir(parents=True)
    (earlier / "Chart.yaml").write_text("{apiVersion: v2, name: bursar, version: 0.1.0}")
    (earlier / "values.yaml").write_text(
        "{images: {prefix: ''}, webhook: {replicas: 3}, timekeeper: {storage: {size: 10Gi}}}"
    )
    (earlier / "templates" / "none.yaml").write_text(
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: none}}"
    )
    upgrade = typed("helm upgrade bursar").replace("--reset-then-reuse-values", "--reuse-values")
    assert "--reuse-values" in upgrade

    run(cp, f"helm install bursar {earlier} -n kube-system --set images.prefix={PUSHED}", folder)
    run(cp, upgrade, folder)

    with_reused = everything_of(cp, folder)
    assert missing(cp) == ""
    assert cp.api.call("GET", WEBHOOK)["spec"]["replicas"] == 3
    run(cp, typed("helm upgrade bursar", "--set webhook.replicas=3"), folder)
    assert everything_of(cp, folder) == with_reused
    run(cp, typed("helm uninstall bursar"), folder)


CLAIM = "/api/v1/namespaces/bursar-system/persistentvolumeclaims/ledger-bursar-timekeeper-0"
CLASS = "block"


def offer_class(cp: ControlPlane) -> None:
    """A StorageClass whose claims may grow, and a volume of it."""
    kind = {"provisioner": "kubernetes.io/no-provisioner", "allowVolumeExpansion": True}
    cp.api.call("POST", "/apis/storage.k8s.io/v1/storageclasses", {"metadata": {"name": CLASS}, **kind})
    spec = {
        "capacity": {"storage": "10Gi"},
        "accessModes": ["ReadWriteOncePod"],
        "hostPath": {"path": "/nowhere"},
        "storageClassName": CLASS,
    }
    cp.api.call("POST", "/api/v1/persistentvolumes", {"metadata": {"name": CLASS}, "spec": spec})


def pod_uid(cp: ControlPlane) -> str:
    """That of the timekeeper's pod."""
    pod = cp.api.call("GET", "/api/v1/namespaces/bursar-system/pods/bursar-timekeeper-0")
    return str(pod["metadata"]["uid"])


def revisions(cp: ControlPlane, folder: Path) -> list[int]:
    """Those of the release, failed ones among them."""
    history = json.loads(run(cp, "helm history bursar -n kube-system -o json", folder))
    return [revision["revision"] for revision in history]


def test_a_larger_volume_is_refused_before_anything_changes_and_the_page_makes_it(
    control_plane: ControlPlane, folder: Path
) -> None:
    cp = control_plane
    run(cp, typed("kubectl delete namespace", "--ignore-not-found"), folder)  # of another test
    offer_class(cp)
    install = typed("helm install bursar").replace("REGISTRY", PUSHED)
    run(cp, f"{install} --set timekeeper.storage.className={CLASS}", folder)
    eventually(lambda: cp.api.call("GET", CLAIM)["status"]["phase"] == "Bound")
    orphan, patch, upgrade = (
        typed(part, page=DATABASES)
        for part in ("kubectl delete statefulset", "kubectl patch pvc", "helm upgrade")
    )
    before = container(cp)

    changed = f"{upgrade} --set webhook.extraArgs={{--log-format=json}}"
    said = refused(cp, changed, folder)
    assert 'timekeeper.storage.size: the StatefulSet bursar-timekeeper has "10Gi", which no upgrade' in said
    assert "Nothing was changed." in said
    for other, stored in (("accessModes={ReadWriteOnce}", '["ReadWriteOncePod"]'), ("labels.team=a", "{}")):
        value = other.split("=")[0].partition(".")[0]
        words = f"timekeeper.storage.{value}: the StatefulSet bursar-timekeeper has {stored}"
        assert words in refused(cp, typed("helm upgrade bursar", f"--set timekeeper.storage.{other}"), folder)
    assert (container(cp), revisions(cp, folder)) == (before, [1])
    run(cp, typed("helm upgrade bursar", "--set timekeeper.storage.size=10240Mi"), folder)  # the same

    uid = pod_uid(cp)
    run(cp, orphan, folder)
    run(cp, patch, folder)
    run(cp, upgrade, folder)
    eventually(lambda: cp.api.call("GET", LEDGER)["status"].get("currentReplicas") == 1)
    assert pod_uid(cp) == uid

    (template,) = cp.api.call("GET", LEDGER)["spec"]["volumeClaimTemplates"]
    sizes = [
        claim["spec"]["resources"]["requests"]["storage"] for claim in (template, cp.api.call("GET", CLAIM))
    ]
    assert sizes == ["20Gi", "20Gi"]
    run(cp, typed("helm uninstall bursar"), folder)


@pytest.mark.soak
def test_helm_takes_over_what_was_applied_from_the_manifests(
    control_plane: ControlPlane, folder: Path
) -> None:
    cp = control_plane
    run(cp, "kubectl apply --server-side -f deploy/manifests", folder)
    taking = next(line for line in PAGE.splitlines() if "--take-ownership" in line)

    run(cp, taking.replace("REGISTRY", PUSHED), folder)
    assert missing(cp) == ""
    assert container(cp)["image"] == f"registry.example.com/bursar/webhook:{__version__}"
    run(cp, typed("helm uninstall bursar"), folder)

    assert left(cp) == KEPT


def settings_of(cp: ControlPlane) -> Json:
    """What `_settings` says; nothing where there is no ConfigMap."""
    found: Json = cp.api.call("GET", SETTINGS_OF)["data"] if cp.api.answers(SETTINGS_OF) else {}
    return found


# as a release before there was an object for the mode had it
FORMER = """\
{{- if ne .Values.mode "enforce" }}
apiVersion: v1
kind: ConfigMap
metadata: {name: bursar-settings, namespace: bursar-system}
data:
  _settings: |
    mode: {{ .Values.mode }}
{{- end }}
"""
BY_HAND = {"_settings": "mode: observe\ntimeZone: Europe/Berlin\nweights: {A100: 2}\n"}


def test_settings_that_somebody_wrote_survive_each_change_of_the_mode_or_stop_it(
    control_plane: ControlPlane, folder: Path
) -> None:
    cp = control_plane
    run(cp, typed("kubectl delete namespace", "--ignore-not-found"), folder)  # of another test
    run(cp, typed("helm install bursar", "--set mode=observe").replace("REGISTRY", PUSHED), folder)
    own = {"_settings": "timeZone: Europe/Berlin"}
    run(
        cp, f"kubectl create configmap bursar-settings -n bursar-system --from-literal={literal(own)}", folder
    )

    for value in ("mode=enforce", "mode=observe", "placement=off", "placement=on", "mode=enforce"):
        run(cp, typed("helm upgrade bursar", f"--set {value}"), folder)
        assert settings_of(cp) == own
        key, _, said = value.partition("=")
        assert cp.api.call("GET", MODE_OF)["data"][key] == said
    taking = typed("helm upgrade bursar", "--take-ownership --force-conflicts", "--set settings.idle=evict")
    said = refused(cp, taking, folder)
    assert "this would drop timeZone, which _settings of the ConfigMap bursar-settings has" in said
    assert settings_of(cp) == own
    run(cp, f"{taking} --set settings.timeZone=Asia/Tokyo", folder)
    assert settings_of(cp) == {"_settings": "idle: evict\ntimeZone: Asia/Tokyo\n"}
    run(cp, typed("helm uninstall bursar"), folder)


def test_an_upgrade_of_a_release_that_wrote_the_mode_into_settings_stops_where_fields_would_be_lost(
    control_plane: ControlPlane, folder: Path
) -> None:
    cp, chart = control_plane, folder / "deploy" / "chart" / "templates"
    run(cp, typed("kubectl delete namespace", "--ignore-not-found"), folder)  # of another test
    now = (chart / "settings.yaml").read_text()
    (chart / "settings.yaml").write_text(FORMER)
    run(cp, typed("helm install bursar", "--set mode=observe").replace("REGISTRY", PUSHED), folder)
    assert settings_of(cp) == {"_settings": "mode: observe\n"}
    cp.api.call("PATCH", SETTINGS_OF, {"data": BY_HAND}, MERGE)
    (chart / "settings.yaml").write_text(now)

    upgrade = typed("helm upgrade bursar", "--set mode=enforce")
    said = refused(cp, upgrade, folder)
    assert "settings: this would drop timeZone, weights, which _settings of the ConfigMap" in said
    assert settings_of(cp) == BY_HAND
    assert cp.api.call("GET", MODE_OF)["data"]["mode"] == "observe"
    (annotate,) = re.findall(r"kubectl annotate configmap \S+ -n \S+ \S+=keep", said)
    run(cp, annotate, folder)
    run(cp, upgrade, folder)
    assert settings_of(cp) == BY_HAND
    assert cp.api.call("GET", MODE_OF)["data"]["mode"] == "enforce"
    run(cp, typed("helm upgrade bursar", "--set mode=observe"), folder)
    assert settings_of(cp) == BY_HAND
    run(cp, typed("helm uninstall bursar"), folder)


def literal(data: Json) -> str:
    """An entry as a word of the shell."""
    ((key, text),) = data.items()
    return shlex.quote(f"{key}={text}")


def doctor(cp: ControlPlane, folder: Path) -> list[Json]:
    """What `kubectl bursar doctor` calls an error."""
    plugin = folder / "bin" / "kubectl-bursar"
    plugin.write_text(f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m timekeeper.cli.main "$@"\n')
    plugin.chmod(0o755)
    found = json.loads(run(cp, "kubectl bursar doctor -o json || test $? = 1", folder))["items"]
    return [each for each in found if each["level"] == "error"]


def test_before_and_after_an_install_the_doctor_names_the_command_that_mends_what_is_missing(
    control_plane: ControlPlane, folder: Path
) -> None:
    cp = control_plane
    run(cp, typed("kubectl delete namespace", "--ignore-not-found"), folder)  # of another test
    (first, *_) = doctor(cp, folder)
    assert first["subject"] == "namespace"
    assert first["command"].startswith(typed("helm install bursar"))
    run(cp, typed("helm install bursar").replace("REGISTRY", PUSHED), folder)
    certify(cp, folder)
    deleted = (
        "deployment/bursar-certificates -n bursar-system",
        "mutatingwebhookconfiguration/zz-bursar",
        "priorityclass/gpu-lower-priority",
        "validatingadmissionpolicy/bursar-sizes",
        "validatingadmissionpolicybinding/bursar-growth",
    )
    for each in deleted:
        run(cp, f"kubectl delete {each}", folder)

    missed = [each for each in doctor(cp, folder) if "pods are ready" not in each["sentence"]]
    assert [(each["subject"], each["sentence"].partition(" ")[0]) for each in missed] == [
        ("bursar-certificates", "it"),
        ("mutating webhooks", "it"),
        ("policies", "bursar-sizes"),
        ("policy bindings", "bursar-growth"),
    ]
    (command,) = {each["command"].partition(" (")[0] for each in missed}
    run(cp, command, folder)

    assert missing(cp) == ""
    assert container(cp)["image"].startswith("registry.example.com/bursar/")
    run(cp, typed("helm uninstall bursar"), folder)


def places(cp: ControlPlane) -> dict[str, list[str]]:
    """The nodes of each component's pods that are not about to go."""
    pods = cp.api.call("GET", "/api/v1/namespaces/bursar-system/pods")["items"]
    found: dict[str, list[str]] = {}
    for pod in pods:
        if "deletionTimestamp" not in pod["metadata"]:
            name = pod["metadata"]["labels"]["app.kubernetes.io/component"]
            found.setdefault(name, []).append(pod["spec"]["nodeName"])
    return {name: sorted(nodes) for name, nodes in found.items()}


@pytest.mark.soak
def test_high_availability_runs_on_three_nodes_and_a_rollout_there_is_never_stuck(
    control_plane: ControlPlane, folder: Path
) -> None:
    cp = control_plane
    for source, path in CRDS:
        applied = cp.kubectl("create", "-f", str(module_file(source, path, print)))
        assert applied.returncode == 0, applied.stderr
    for number in range(3):
        cp.api.call("POST", "/api/v1/nodes", kwok_node(f"node-{number}"))
    cp.start_scheduler()
    options = "networkPolicies.enabled=true,networkPolicies.apiServers={10.0.0.1/32},certManager.enabled=true"
    install = next(line for line in PAGE.splitlines() if "-f deploy/chart/values-ha.yaml" in line)
    run(cp, f"{install.replace('REGISTRY', 'bursar')} --set '{options}' --wait --timeout 5m", folder)
    on_each = ["node-0", "node-1", "node-2"]
    assert (places(cp)["timekeeper"], places(cp)["webhook"]) == (on_each, on_each)
    assert all(len(nodes) == len(set(nodes)) > 1 for nodes in places(cp).values()), places(cp)

    upgrade = typed("helm upgrade bursar", "--set images.prefix=registry.example.com/bursar")
    run(cp, f"{upgrade} --wait --timeout 5m", folder)

    assert container(cp)["image"].startswith("registry.example.com/")
    kinds = "poddisruptionbudgets,networkpolicies,podmonitors,servicemonitors,certificates,issuers"
    found = cp.kubectl("get", "-A", "-o", "name", kinds).stdout.split()
    assert Counter(each.partition(".")[0].partition("/")[0] for each in found) == {
        "certificate": 4,
        "issuer": 2,
        "networkpolicy": 4,
        "poddisruptionbudget": 4,
        "podmonitor": 1,
        "servicemonitor": 3,
    }
    run(cp, typed("helm uninstall bursar"), folder)
    assert left(cp) == KEPT
    assert cp.kubectl("get", "-A", "-o", "name", kinds).stdout == ""
