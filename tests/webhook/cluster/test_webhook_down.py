"""What works while nobody serves the webhook."""

from pathlib import Path

import pytest
import yaml

from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from tests.support.control_plane import apply, apply_files, kubectl, refused
from tests.support.waiting import eventually
from tests.webhook.replicas import MANIFESTS, NAMESPACE, PODS, Replica, certify, gpu_pod, prepared, service
from tests.webhook.worlds import half, plain
from tests.worlds import Json


@pytest.fixture(scope="module")
def down(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> ControlPlane:
    """A cluster with all our policies, and a webhook that nobody serves. GPU pods that were admitted before:
    a Job's, two with a user's finalizer that nobody has bound, and one with a limit on its cpu."""
    cp = control_plane
    prepared(cp)
    cp.api.call("POST", "/api/v1/nodes", kwok_node("n1", cards=2))
    for name in ("waiting", "held"):
        cp.api.call("POST", PODS, governed(gpu_pod(name)))
    resizable = gpu_pod("resized")
    resizable["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "1"
    cp.api.call("POST", PODS, resizable)
    cp.api.call("POST", JOBS, job("admitted", {"run-for": "4s"}, half(), labels=GOVERNED))
    eventually(lambda: len(pods_of(cp, "admitted")) == 1, "the Job's pod")
    policies = [each.stem for each in sorted(MANIFESTS.glob("admission-*.yaml"))]
    names = ("priority-classes", *policies, "webhook-configurations")
    apply_files(cp, [MANIFESTS / f"{name}.yaml" for name in names])
    service(cp)
    nobody = Replica(cp, tmp_path_factory.mktemp("down"), "nobody", Path("/nowhere"))
    nobody.announce(ready=True)
    assert certify(cp, nobody.log_file.parent)
    eventually(lambda: "connection refused" in refusal(cp, gpu_pod("any")), "the API server to ask nobody")
    return cp


GOVERNED = {"bursar.dev/governed": "true"}
JOBS = "/apis/batch/v1/namespaces/team-a/jobs"


def governed(pod: Json) -> Json:
    """The pod as it looks after the webhook has seen it, with a user's finalizer."""
    pod["metadata"] |= {"labels": GOVERNED, "finalizers": ["example.com/wait"]}
    return pod


def job(name: str, play: dict[str, str], container: Json, labels: dict[str, str]) -> Json:
    """A Job of one pod on the kwok node, with what it plays."""
    annotations = {f"local.bursar.dev/{key}": value for key, value in play.items()}
    spec = {"nodeName": "n1", "restartPolicy": "Never", "containers": [container]}
    template = {"metadata": {"annotations": annotations, "labels": labels}, "spec": spec}
    return {"metadata": {"name": name}, "spec": {"template": template}}


def pods_of(cp: ControlPlane, name: str) -> list[Json]:
    """A Job's pods."""
    return list(cp.api.call("GET", f"{PODS}?labelSelector=job-name%3D{name}")["items"])


def refusal(cp: ControlPlane, pod: Json, path: str = PODS) -> str:
    """What the API server says to a pod on a dry run; empty where it takes it."""
    return refused(cp, "POST", f"{path}?dryRun=All", pod)


def gone(cp: ControlPlane, name: str) -> bool:
    """Whether there is no such pod in team-a."""
    return not cp.api.answers(f"{PODS}/{name}")


def test_while_it_is_down_a_gpu_pod_is_refused_by_the_api_servers_own_message(down: ControlPlane) -> None:
    said = refusal(down, gpu_pod("refused"))

    assert said.startswith('500: Internal error occurred: failed calling webhook "govern.bursar.dev": ')
    assert "bursar-webhook.bursar-system.svc" in said
    assert said.endswith("connect: connection refused")


@pytest.mark.parametrize(
    ("namespace", "container"),
    [("team-a", plain()), ("kube-system", half()), ("bursar-system", half()), ("bursar-system", plain())],
)
def test_while_it_is_down_pods_that_are_none_of_its_business_are_created(
    down: ControlPlane, namespace: str, container: Json
) -> None:
    metadata = {"generateName": "free-", "namespace": namespace}
    spec = {"containers": [container], "automountServiceAccountToken": False}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    made = down.api.call("POST", f"/api/v1/namespaces/{namespace}/pods", body)

    assert made["metadata"]["name"].startswith("free-")


def test_while_it_is_down_its_own_replicas_are_created(down: ControlPlane) -> None:
    apply_files(down, [MANIFESTS / "rbac.yaml"])
    for name in ("webhook", "certificates"):
        documents = yaml.safe_load_all((MANIFESTS / f"{name}.yaml").read_text())
        (deployment,) = (each for each in documents if each["kind"] == "Deployment")
        apply(down, deployment)

    for name in ("webhook", "certificates"):
        chosen = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app.kubernetes.io%2Fcomponent%3D{name}"
        eventually(
            lambda chosen=chosen: len(down.api.call("GET", chosen)["items"]) == 2,  # type: ignore[misc]
            f"two pods of {name}",
        )
        down.api.call("DELETE", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/bursar-{name}")


def test_while_it_is_down_jobs_finish_and_their_pods_finalizers_go(down: ControlPlane) -> None:
    down.api.call("POST", JOBS, job("plain", {"run-for": "1s"}, plain(), labels={}))

    for name in ("plain", "admitted"):
        kubectl(down, "wait", "-n", "team-a", f"job/{name}", "--for=condition=Complete", "--timeout=5m")
        (pod,) = pods_of(down, name)
        assert pod["status"]["phase"] == "Succeeded"
        assert "finalizers" not in pod["metadata"]


def test_while_it_is_down_a_gpu_job_waits_with_an_event_that_says_why(down: ControlPlane) -> None:
    down.api.call("POST", JOBS, job("later", {}, half(), labels={}))

    eventually(
        lambda: "failed calling webhook" in kubectl(down, "describe", "job/later", "-n", "team-a"),
        "the Job's event",
    )
    down.api.call("DELETE", f"{JOBS}/later?propagationPolicy=Background")


def test_while_it_is_down_gpu_pods_are_labelled_and_bound_and_run(down: ControlPlane) -> None:
    labels = {"metadata": {"labels": {"app": "x"}}}
    assert refused(down, "PATCH", f"{PODS}/waiting", labels) == ""
    binding = {"metadata": {"name": "waiting"}, "target": {"kind": "Node", "name": "n1"}}
    down.api.call("POST", f"{PODS}/waiting/binding", binding)

    kubectl(down, "wait", "-n", "team-a", "pod/waiting", "--for=condition=Ready", "--timeout=5m")


def test_while_it_is_down_the_cpu_of_a_gpu_pod_is_resized(down: ControlPlane) -> None:
    resources = {"name": "main", "resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "2"}}}

    assert refused(down, "PATCH", f"{PODS}/resized/resize", {"spec": {"containers": [resources]}}) == ""

    (main,) = down.api.call("GET", f"{PODS}/resized")["spec"]["containers"]
    assert main["resources"]["limits"]["cpu"] == "2"


def test_while_it_is_down_gpu_pods_are_deleted_and_their_finalizers_are_removed(down: ControlPlane) -> None:
    down.api.call("DELETE", f"{PODS}/held")
    assert not gone(down, "held")

    assert refused(down, "PATCH", f"{PODS}/held", {"metadata": {"finalizers": None}}) == ""

    eventually(lambda: gone(down, "held"), "the pod to be gone")


def test_while_it_is_down_a_namespace_of_gpu_pods_can_be_deleted(down: ControlPlane) -> None:
    assert refused(down, "PATCH", f"{PODS}/waiting", {"metadata": {"finalizers": None}}) == ""

    kubectl(down, "delete", "namespace", "team-a", "--timeout=5m")
