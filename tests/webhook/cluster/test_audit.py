"""``python -m webhook audit`` of a real cluster: what runs already, by today's rules."""

import io
import json
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import yaml

from deploy.local.cluster import ControlPlane
from tests.support.control_plane import apply, bind_role, create_namespace
from tests.support.waiting import eventually
from tests.webhook.cases import SUSPECT
from tests.webhook.cluster.test_registered import define_trainings
from tests.webhook.clusters import Cluster as Clustered
from tests.webhook.process.test_audit import audit
from tests.webhook.unit.test_templates import BAD, GOOD, template, workload
from tests.webhook.worlds import half
from tests.worlds import Json, container
from webhook.__main__ import main
from webhook.audit.cluster import ClusterReader, connect

pytestmark = pytest.mark.traced

NOTHING = '{\n  "items": []\n}\n'


def audited(*flags: str) -> "subprocess.CompletedProcess[str]":
    """The command, run in this process: most of what another takes is its start."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(["audit", *flags])
    return subprocess.CompletedProcess(flags, code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane) -> Clustered:
    """A cluster that ran GPU pods long before Bursar, which is not registered in it yet."""
    made = Clustered(control_plane)
    define_trainings(made.cp)
    broken = template(container(gpu_percent="150"), nodeName="n1", automountServiceAccountToken=False)
    deployment = workload("Deployment", broken, name="wrong")
    deployment["spec"]["replicas"] = 3
    finished = workload("Job", BAD, name="suspended")
    finished["spec"]["suspend"] = True
    training = {
        "apiVersion": "example.org/v1",
        "kind": "Training",
        "metadata": {"name": "t"},
        "spec": {"workers": [{"template": BAD}]},
    }
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": template(one, **spec)["spec"]}
        for name, one, spec in (
            ("ungoverned", half(), {"nodeName": "n1"}),
            ("waiting", half(), {}),
            ("web", {"name": "web", "image": "x"}, {"nodeName": "n1"}),
            ("slow", half(), {"terminationGracePeriodSeconds": 7200}),
        )
    ]
    written = (deployment, finished, training, workload("CronJob", GOOD, name="fine"), *pods)
    apply(made.cp, *written, namespace="team-a")
    system = {"metadata": {"name": "device-plugin"}, "spec": template(half(), nodeName="n1")["spec"]}
    control_plane.api.call("POST", "/api/v1/namespaces/kube-system/pods", system)
    eventually(lambda: len(pods_of(made)) == 7, "the deployment's pods")
    return made


def pods_of(world: Clustered) -> list[Json]:
    """The pods of team-a."""
    return list(world.get("/api/v1/namespaces/team-a/pods")["items"])


def reader(world: Clustered) -> Path:
    """The kubeconfig of a service account that may list pods and workloads, and nothing else."""
    rules = [
        {"apiGroups": [""], "resources": ["pods", "replicationcontrollers"], "verbs": ["get", "list"]},
        {
            "apiGroups": ["apps"],
            "resources": ["deployments", "statefulsets", "daemonsets", "replicasets"],
            "verbs": ["get", "list"],
        },
        {"apiGroups": ["batch"], "resources": ["jobs", "cronjobs"], "verbs": ["get", "list"]},
    ]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "rules": rules}
    apply(world.cp, role | {"metadata": {"name": "auditor"}})
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "auditor"}}
    apply(world.cp, account)
    bind_role(world.cp, "auditor", "system:serviceaccount:default:auditor")
    token = world.kubectl("create", "token", "-n", "default", "auditor").strip()
    return world.cp.kubeconfig(token, "auditor")


@pytest.mark.parametrize("is_impersonated", [False, True])
def test_a_reader_of_pods_and_workloads_finds_what_is_wrong(
    world: Clustered, tmp_path: Path, is_impersonated: bool
) -> None:
    """Also where an administrator acts as it."""
    own = reader(world)
    if is_impersonated:
        admin = yaml.safe_load(world.cp.admin_kubeconfig.read_text())
        admin["users"][0]["user"]["as"] = "system:serviceaccount:default:auditor"
        own = tmp_path / "as"
        own.write_text(yaml.safe_dump(admin))

    done = audited("--kubeconfig", str(own), "-o", "json")

    assert done.returncode == 1
    assert done.stderr.startswith(
        "bursar-webhook audit: namespaces that are exempt by label are included: cannot "
    )
    (_, names, classes, modes, nodes) = done.stderr.splitlines()
    assert "audit: the modes of budgets are not known, so pods count as enforced: cannot list " in modes
    assert "exempt by the installation's values are included: cannot list " in names
    assert "cannot list /api/v1/nodes: nodes is forbidden" in nodes
    assert classes.startswith(
        "bursar-webhook audit: limits that device classes serve are not judged: cannot list "
    )
    found = json.loads(done.stdout)["items"]
    assert sorted((each["kind"], each["finding"]) for each in found if each["owner"]) == [
        *[("Pod", "ungoverned")] * 3,
        *[("Pod", "would-be-refused")] * 3,
    ]
    assert sorted((each["kind"], each["name"], each["finding"]) for each in found if not each["owner"]) == [
        ("Deployment", "wrong", "would-be-refused"),
        ("Job", "suspended", "would-be-refused"),
        ("Pod", "slow", "would-be-refused"),
        ("Pod", "ungoverned", "ungoverned"),
    ]
    assert {each["node"] for each in found if each["finding"] == "ungoverned"} == {"n1"}
    (deployment,) = (each for each in found if each["kind"] == "Deployment")
    assert [(each["rule"], each["path"]) for each in deployment["violations"]] == [
        ("share-range", "spec.template.spec.containers[0].resources.limits[bursar.dev/gpu-percent]"),
        ("node-name", "spec.template.spec.nodeName"),
    ]


def test_the_use_of_each_namespace_is_counted(world: Clustered) -> None:
    done = audited("--kubeconfig", str(world.cp.admin_kubeconfig), "--use", "-o", "json")

    assert (done.returncode, done.stderr) == (0, "")
    lines = json.loads(done.stdout)["items"]
    assert [(each["namespace"], each["dialect"], each["pods"], each["gpus"]) for each in lines] == [
        ("team-a", "bursar", 1, "0.5"),
        ("team-a", "unreadable", 3, "0"),
    ]
    reading = audited("--kubeconfig", str(reader(world)), "--use")
    assert reading.returncode == 0
    assert "requests of memory alone as whole ones: cannot list /api/v1/nodes" in reading.stderr


def test_pods_of_a_namespace_that_is_metered_are_no_ungoverned_ones(world: Clustered) -> None:
    """By the mode of the cluster's own budgets, of which no file is given."""
    admin = ("--kubeconfig", str(world.cp.admin_kubeconfig), "-o", "json")
    written: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "bursar-budgets"}}
    apply(
        world.cp,
        written | {"data": {"team-a": "gpuHours: unlimited\nmode: observe"}},
        namespace="bursar-system",
    )

    found = json.loads(audited(*admin).stdout)["items"]
    world.cp.api.call("DELETE", "/api/v1/namespaces/bursar-system/configmaps/bursar-budgets")

    assert {item["finding"] for item in found} == {"would-be-refused"}
    assert "ungoverned" in {item["finding"] for item in json.loads(audited(*admin).stdout)["items"]}


def test_people_read_pods_of_one_controller_once(world: Clustered, tmp_path: Path) -> None:
    done = audited("--kubeconfig", str(world.cp.admin_kubeconfig))

    lines = done.stdout.splitlines()
    together = [line for line in lines if " and 2 more of ReplicaSet/wrong-" in line]
    assert done.returncode == 1
    assert len(together) == 2
    assert lines[-1] == "6 would be refused, 4 uses GPUs but is not governed"


def test_kinds_of_ones_own_and_namespaces_without_findings(world: Clustered, tmp_path: Path) -> None:
    own = ("--template-path", "example.org/Training=spec.workers.*.template")
    admin = ("--kubeconfig", str(world.cp.admin_kubeconfig), "-o", "json")

    found = json.loads(audited(*admin, *own).stdout)["items"]
    none = audited(*admin, *own, "--namespace", "team-b")
    absent = audited(*admin, "--namespace", "team-b", "--template-path", "example.org/Nothing=spec.template")

    assert [each["violations"][0]["path"] for each in found if each["kind"] == "Training"] == [
        "spec.workers[0].template.spec.containers[0].resources.limits[bursar.dev/gpu-percent]"
    ]
    assert (none.returncode, none.stdout, none.stderr) == (0, NOTHING, "")
    assert (absent.returncode, absent.stdout) == (2, NOTHING)
    assert absent.stderr == "bursar-webhook audit: the cluster has no kind Nothing\n"


def test_the_rules_modes_of_the_budgets_are_gone_by(world: Clustered) -> None:
    budgets = (
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bursar-budgets}\n"
        'data:\n  _settings: "rules: {grace-period: warn}"\n'
    )

    done = audit(
        *("--kubeconfig", str(world.cp.admin_kubeconfig), "-o", "json", "--budgets", "-"), input=budgets
    )

    assert [each["finding"] for each in json.loads(done.stdout)["items"] if each["name"] == "slow"] == [
        "would-be-warned"
    ]


def test_what_may_not_be_read_is_reported_and_the_rest_is_found(world: Clustered, tmp_path: Path) -> None:
    path = reader(world)
    blind = {"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]}
    world.patch("/apis/rbac.authorization.k8s.io/v1/clusterroles/auditor", blind)

    def told() -> "subprocess.CompletedProcess[str]":
        return audited("--kubeconfig", str(path), "-o", "json")

    eventually(lambda: told().returncode == 2, "the rights to be gone")
    done = told()

    assert {each["kind"] for each in json.loads(done.stdout)["items"]} == {"Pod"}
    assert len(done.stderr.splitlines()) == 5 + 7
    assert (
        'cannot list /apis/apps/v1/deployments: deployments.apps is forbidden: User "system:' in done.stderr
    )


def test_an_exempt_namespace_is_not_looked_into(world: Clustered) -> None:
    create_namespace(world.cp, "node-tools")
    taken = {"metadata": {"name": "agent"}, "spec": template(half(), nodeName="n1")["spec"]}
    world.cp.api.call("POST", "/api/v1/namespaces/node-tools/pods", taken)
    admin = ("--kubeconfig", str(world.cp.admin_kubeconfig), "--namespace", "node-tools", "-o", "json")

    before = audited(*admin)
    labels: Json = {"bursar.dev/exempt": "true"}
    world.patch("/api/v1/namespaces/node-tools", {"metadata": {"labels": labels}})
    after = audited(*admin)
    world.patch("/api/v1/namespaces/node-tools", {"metadata": {"labels": dict.fromkeys(labels)}})
    by_name = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["node-tools"]}
    webhook = {
        "name": "govern.bursar.dev",
        "clientConfig": {"url": "https://127.0.0.1:1"},
        "namespaceSelector": {"matchExpressions": [by_name]},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    world.cp.api.call("POST", path, {"metadata": {"name": "zz-bursar"}, "webhooks": [webhook]})
    named = audited(*admin)
    world.cp.api.call("DELETE", f"{path}/zz-bursar")

    assert [each["finding"] for each in json.loads(before.stdout)["items"]] == ["ungoverned"]
    for each in (after, named):
        assert (each.returncode, each.stdout, each.stderr) == (0, NOTHING, "")


def test_kubectls_own_file_is_used_where_no_other_is_named(world: Clustered) -> None:
    done = audit("-o", "json", "--namespace", "team-b", KUBECONFIG=str(world.cp.admin_kubeconfig))

    assert (done.returncode, done.stdout, done.stderr) == (0, NOTHING, "")


def test_a_real_list_is_read_page_by_page(world: Clustered) -> None:
    few = list(
        ClusterReader(connect(world.cp.admin_kubeconfig), page=2).objects("/api/v1/namespaces/team-a/pods")
    )
    all_at_once = list(
        ClusterReader(connect(world.cp.admin_kubeconfig)).objects("/api/v1/namespaces/team-a/pods")
    )

    assert [each["metadata"]["uid"] for each in few] == [each["metadata"]["uid"] for each in all_at_once]
    assert len(few) > 2  # more than one page


def test_a_pod_behind_whose_limit_a_device_class_of_gpus_stands_is_found(world: Clustered) -> None:
    create_namespace(world.cp, "team-c")
    for name, driver in (("card", "gpu.nvidia.com"), ("nic", "nic.example.com")):
        selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
        spec = {"selectors": [selector], "extendedResourceName": f"acme.com/{name}"}
        world.cp.api.call(
            "POST", "/apis/resource.k8s.io/v1/deviceclasses", {"metadata": {"name": name}, "spec": spec}
        )
        limits = {"limits": {f"acme.com/{name}": "1"}}
        spec = template({"name": "main", "image": "x", "resources": limits})["spec"]
        world.cp.api.call(
            "POST", "/api/v1/namespaces/team-c/pods", {"metadata": {"name": name}, "spec": spec}
        )
    settings = {"metadata": {"name": "bursar-device-classes"}, "data": {"noGPUDrivers": "nic.example.com"}}
    world.post("/api/v1/namespaces/bursar-system/configmaps", settings)

    done = audited("--kubeconfig", str(world.cp.admin_kubeconfig), "--namespace", "team-c", "-o", "json")

    assert [(each["name"], each["finding"]) for each in json.loads(done.stdout)["items"]] == [
        ("card", "would-be-refused")
    ]
    assert done.stderr == ""


def test_running_pods_that_a_policy_warns_of_are_listed_and_their_nearest_are_not(world: Clustered) -> None:
    create_namespace(world.cp, "team-d")
    for number, case in enumerate(SUSPECT.values()):
        for name, pod in ((f"bad-{number}", case.bad), (f"good-{number}", case.good)):
            spec = pod["spec"] | {"nodeName": "n1", "automountServiceAccountToken": False}
            body = {"metadata": {"name": name}, "spec": spec}
            world.cp.api.call("POST", "/api/v1/namespaces/team-d/pods", body)

    done = audited("--kubeconfig", str(world.cp.admin_kubeconfig), "--namespace", "team-d", "-o", "json")

    found = {
        each["name"]: [one["rule"] for one in each["violations"]] for each in json.loads(done.stdout)["items"]
    }
    assert found == {f"bad-{number}": [case.rule] for number, case in enumerate(SUSPECT.values())}
    assert {each["finding"] for each in json.loads(done.stdout)["items"]} == {"would-be-warned"}
