"""The taint of GPU nodes on a real API server with webhook, extender and kube-scheduler: it keeps pods
without GPUs off them, and GPU pods tolerate it."""

from collections.abc import Iterator

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from deploy.local.scheduler import PLAIN_PROFILE
from tests.docs.shell import commands, run
from tests.scheduler_ext.processes import Process as Extender
from tests.support.waiting import eventually
from tests.webhook.clusters import Registered
from tests.webhook.servers import ROOT
from tests.webhook.worlds import plain
from tests.worlds import Json, container

PODS = "/api/v1/namespaces/team-a/pods"
PAGE = ROOT / "docs" / "placement.md"
LABEL = "bursar.node-restriction.kubernetes.io/gpu-node"


@pytest.fixture
def cluster(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registered]:
    """A node of 64 CPUs and three cards, with the taint that the docs give it."""
    folder = tmp_path_factory.mktemp
    with Registered(control_plane, folder("webhook"), "--gpu-node-taint=nvidia.com/gpu") as cluster:
        cluster.post("/api/v1/nodes", kwok_node("gpus", cards=3, labels={LABEL: "true"}))
        (tainting,) = [each for each in commands(PAGE) if "kubectl taint" in each]
        run(control_plane, tainting, folder("typed"))
        account = "/api/v1/namespaces/team-a/serviceaccounts/default"
        eventually(lambda: control_plane.api.answers(account), "the namespace's account")
        extender = Extender(folder("extender"), f"--kubeconfig={control_plane.admin_kubeconfig}")
        extender.start_ready()
        profiles = (PLAIN_PROFILE, "bursar-scheduler")
        control_plane.start_scheduler("both", profiles=profiles, extender_url=extender.url)
        yield cluster
        extender.kill()


def made(cluster: Registered, name: str, main: Json, cpu: str) -> Json:
    """The pod as the API server stores it."""
    main["resources"] = main["resources"] | {"requests": {"cpu": cpu}}
    body = {"metadata": {"name": name}, "spec": {"containers": [main]}}
    stored: Json = cluster.post(PODS, body)
    return stored


def test_a_pod_without_gpus_stays_off_the_gpu_node_and_gpu_pods_are_placed(cluster: Registered) -> None:
    def seen(name: str) -> Json:
        found: Json = cluster.get(f"{PODS}/{name}")
        return found

    made(cluster, "hog", plain("main"), "63500m")
    eventually(lambda: "untolerated taint" in str(seen("hog")["status"].get("conditions")))

    governed = made(cluster, "trainer", container(gpu_percent="100"), "8")
    eventually(lambda: seen("trainer")["spec"].get("nodeName") == "gpus")

    ours = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert governed["spec"]["tolerations"].count(ours) == 1
    assert "nodeName" not in seen("hog")["spec"]
