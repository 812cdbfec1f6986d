"""What the manifests say of each other: selectors, ports, volumes, accounts, images, hardening."""

import pytest
import yaml

from deploy.local.scheduler import GPU_PROFILE, extender, scheduler_configuration
from deploy.local.tools import KUBERNETES_VERSION
from tests.deploy.reading import (
    AGENTS,
    NAMESPACE,
    Json,
    container,
    containers,
    documents,
    named,
    of_kind,
    template,
    the,
    workloads,
)
from timekeeper.core import __version__

CLUSTER_WIDE = (
    "Namespace",
    "CustomResourceDefinition",
    "ClusterRole",
    "ClusterRoleBinding",
    "PriorityClass",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
)
# the one cluster role and the one role of others' that accounts of ours are bound to
KUBERNETES_OWN_ROLES = {
    ("ClusterRole", "system:kube-scheduler"),
    ("ClusterRole", "system:volume-scheduler"),
    ("Role", "extension-apiserver-authentication-reader"),
}

each_workload = pytest.mark.parametrize("workload", workloads(), ids=named)
each_container = pytest.mark.parametrize(
    "container", [c for _, c in containers()], ids=[n for n, _ in containers()]
)


def selected(selector: Json) -> list[str]:
    """The workloads whose pods a selector selects."""
    return [
        workload["metadata"]["name"]
        for workload in workloads()
        if selector.items() <= template(workload)["metadata"]["labels"].items()
    ]


def test_the_namespaces_come_first_so_that_one_apply_of_the_folder_finds_them() -> None:
    first = [(each["kind"], each["metadata"]["name"]) for each in documents()[:2]]

    assert first == [("Namespace", NAMESPACE), ("Namespace", AGENTS)]


def test_only_the_namespace_of_the_agents_admits_pods_with_host_access() -> None:
    levels = {
        each["metadata"]["name"]: each["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        for each in of_kind("Namespace")
    }
    places = {(each["kind"] == "DaemonSet", each["metadata"]["namespace"]) for each in workloads()}

    assert levels == {NAMESPACE: "restricted", AGENTS: "privileged"}
    assert places == {(True, AGENTS), (False, NAMESPACE)}


@each_workload
def test_a_quota_names_the_class_of_a_workload_in_its_namespace(workload: Json) -> None:
    (quota,) = (
        each
        for each in of_kind("ResourceQuota")
        if each["metadata"]["namespace"] == workload["metadata"]["namespace"]
    )
    (expression,) = quota["spec"]["scopeSelector"]["matchExpressions"]

    assert template(workload)["spec"]["priorityClassName"] in expression["values"]


@pytest.mark.parametrize("document", documents(), ids=named)
def test_everything_in_a_namespace_names_it(document: Json) -> None:
    namespace = document["metadata"].get("namespace")

    if document["kind"] in CLUSTER_WIDE:
        assert namespace is None
    else:
        assert namespace in (NAMESPACE, AGENTS, "kube-node-lease", "kube-system")


def test_nothing_is_defined_twice() -> None:
    keys = [(d["kind"], d["metadata"].get("namespace"), d["metadata"]["name"]) for d in documents()]

    assert sorted(set(keys), key=str) == sorted(keys, key=str)


@each_workload
def test_a_workload_selects_its_own_pods_and_no_other(workload: Json) -> None:
    assert selected(workload["spec"]["selector"]["matchLabels"]) == [workload["metadata"]["name"]]


@pytest.mark.parametrize("service", of_kind("Service"), ids=named)
def test_a_service_leads_to_the_pods_of_its_name_by_a_port_that_they_have(service: Json) -> None:
    assert selected(service["spec"]["selector"]) == [service["metadata"]["name"]]

    (port,) = service["spec"]["ports"]
    containers = template(the_workload(service["metadata"]["name"]))["spec"]["containers"]
    only = containers[-1]  # beside kube-scheduler the extender
    assert port["port"] == 443
    assert port["targetPort"] in [each["name"] for each in only["ports"]]


def test_a_disruption_budget_selects_only_a_workload_with_a_replica_to_spare() -> None:
    for budget in of_kind("PodDisruptionBudget"):
        (name,) = selected(budget["spec"]["selector"]["matchLabels"])

        assert the_workload(name)["spec"]["replicas"] > budget["spec"]["minAvailable"]


@each_workload
def test_replicas_spread_over_nodes_by_their_own_labels(workload: Json) -> None:
    spread = template(workload)["spec"].get("topologySpreadConstraints", [])

    assert bool(spread) == (workload["spec"].get("replicas", 1) > 1)  # a DaemonSet has one a node
    for constraint in spread:
        assert selected(constraint["labelSelector"]["matchLabels"]) == [workload["metadata"]["name"]]


@each_workload
def test_a_workload_has_an_account_of_its_own_that_the_manifests_make(workload: Json) -> None:
    accounts = [template(each)["spec"]["serviceAccountName"] for each in workloads()]
    account = template(workload)["spec"]["serviceAccountName"]

    assert accounts.count(account) == 1
    assert the("ServiceAccount", account)["automountServiceAccountToken"] is False


def test_every_account_is_used_by_a_workload() -> None:
    made = {account["metadata"]["name"] for account in of_kind("ServiceAccount")}

    assert made == {template(each)["spec"]["serviceAccountName"] for each in workloads()}


@pytest.mark.parametrize("binding", of_kind("RoleBinding", "ClusterRoleBinding"), ids=named)
def test_a_binding_binds_a_role_that_is_there_to_accounts_that_are_there(binding: Json) -> None:
    role = (binding["roleRef"]["kind"], binding["roleRef"]["name"])
    ours = {
        (each["kind"], each["metadata"]["name"])
        for each in of_kind("Role", "ClusterRole")
        if each["metadata"].get("namespace") in (None, binding["metadata"].get("namespace"))
    }

    assert role in ours | KUBERNETES_OWN_ROLES
    for subject in binding["subjects"]:
        account = the("ServiceAccount", subject["name"])["metadata"]
        assert (subject["kind"], subject["namespace"]) == ("ServiceAccount", account["namespace"])


@each_workload
def test_every_volume_is_mounted_and_every_mount_has_its_volume(workload: Json) -> None:
    spec = template(workload)["spec"]
    claims = workload["spec"].get("volumeClaimTemplates", [])
    volumes = [each["name"] for each in spec.get("volumes", [])] + [
        each["metadata"]["name"] for each in claims
    ]
    mounts = {mount["name"] for one in spec["containers"] for mount in one.get("volumeMounts", [])}

    assert sorted(mounts) == sorted(volumes)


@each_container
def test_the_paths_in_a_containers_arguments_lie_in_what_is_mounted(container: Json) -> None:
    folders = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
    words = " ".join([*container.get("command", []), *container.get("args", [])]).split()
    values = [word.partition("=")[2].removeprefix("sqlite:///") for word in words if "=" in word]
    paths = [path for value in values for path in value.split(",")]

    for path in (path for path in paths if path.startswith("/")):
        assert any(f"{path}/".startswith(f"{folder}/") for folder in folders), path


@each_container
def test_a_container_meets_pod_security_restricted_and_cannot_write_its_own_files(container: Json) -> None:
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert container["resources"]["limits"].keys() == {"memory"}  # a limit on CPU would throttle admissions


@each_workload
def test_a_pod_runs_as_the_user_of_the_images_and_outlives_users_pods(workload: Json) -> None:
    spec = template(workload)["spec"]
    on_each_node = workload["kind"] == "DaemonSet"

    if on_each_node:  # for the kubelet's socket; root without a capability
        assert spec["securityContext"]["runAsUser"] == 0
    else:
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] == 65532
        assert not [each for each in spec.get("volumes", []) if "hostPath" in each]
    assert spec.get("hostPID", False) == on_each_node
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["priorityClassName"] == f"system-{'node' if on_each_node else 'cluster'}-critical"
    assert "hostNetwork" not in spec  # loopback would be the node's, and the extender open to it
    assert spec["enableServiceLinks"] is False  # or a Service bursar-x would set BURSAR_X_... in our pods


@each_container
def test_images_are_ours_at_this_version_or_kube_scheduler_at_the_one_we_test(container: Json) -> None:
    name, _, tag = container["image"].rpartition(":")

    if name == "registry.k8s.io/kube-scheduler":
        assert tag == f"v{KUBERNETES_VERSION}"
    else:
        assert name in ("bursar/webhook", "bursar/timekeeper", "bursar/extender", "bursar/sidecar")
        assert tag == __version__


def test_the_webhook_serves_on_until_the_nodes_know_that_it_goes() -> None:
    grace_s = template(the("Deployment", "bursar-webhook"))["spec"].get("terminationGracePeriodSeconds", 30)

    assert 0 < container("bursar-webhook/webhook")["lifecycle"]["preStop"]["sleep"]["seconds"] < grace_s - 10


def test_probes_call_a_port_that_the_container_names() -> None:
    for name, one in containers():
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            asked = one.get(kind, {}).get("httpGet")
            if asked:
                assert asked["port"] in [port["name"] for port in one["ports"]], f"{name} {kind}"
                # the agent's port has metrics, as a node's others have, and no secret
                assert asked.get("scheme", "HTTP") == ("HTTP" if name == "bursar-node/agent" else "HTTPS")


def test_every_server_is_probed_at_its_start_while_it_lives_and_for_being_ready() -> None:
    servers = [one for name, one in containers() if name != "bursar-certificates/certificates"]

    for one in servers:
        assert {"startupProbe", "livenessProbe", "readinessProbe"} <= one.keys()


def test_kube_scheduler_is_configured_as_the_local_control_plane_configures_it() -> None:
    told = yaml.safe_load(the("ConfigMap", "bursar-scheduler")["data"]["scheduler.yaml"])
    (listen,) = (arg for arg in container("bursar-scheduler/extender")["args"] if arg.startswith("--listen="))
    expected = scheduler_configuration(
        "", (GPU_PROFILE,), (extender(f"http://{listen.removeprefix('--listen=')}"),)
    )

    lease = told.pop("leaderElection")
    expected.pop("leaderElection")
    assert told == expected
    assert (lease["leaderElect"], lease["resourceNamespace"]) == (True, NAMESPACE)


def test_kube_scheduler_may_hold_the_lease_of_its_configuration() -> None:
    told = yaml.safe_load(the("ConfigMap", "bursar-scheduler")["data"]["scheduler.yaml"])
    (rule,) = the("Role", "bursar-kube-scheduler")["rules"]

    assert rule["resourceNames"] == [told["leaderElection"]["resourceName"]]


def test_the_extender_listens_on_loopback_alone() -> None:
    assert "--listen=127.0.0.1:8445" in container("bursar-scheduler/extender")["args"]


def the_workload(name: str) -> Json:
    """The workload of this name."""
    (found,) = (each for each in workloads() if each["metadata"]["name"] == name)
    return found
