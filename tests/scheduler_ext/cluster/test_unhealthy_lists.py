"""gpushare's lists of unhealthy cards on a real API server, read by the extender's account with the right of
the sample alone."""

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from tests.scheduler_ext.clusters import World, extender_with
from tests.scheduler_ext.processes import ROOT
from tests.support.control_plane import apply_files
from tests.support.waiting import eventually

ACCOUNT = "bursar-scheduler"
MAPS = "/api/v1/namespaces/kube-system/configmaps"


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> ControlPlane:
    """The control plane with our roles, and the right to read ConfigMaps of kube-system."""
    files = ("manifests/00-namespace.yaml", "manifests/rbac.yaml", "samples/gpushare-health.yaml")
    apply_files(control_plane, [ROOT / "deploy" / each for each in files])
    return control_plane


extender = extender_with("--unhealthy-lists=kube-system", account=ACCOUNT)


def test_a_listed_card_gets_no_pod_and_gets_one_when_its_list_is_deleted(world: World) -> None:
    gpus = {"metadata": {"name": "unhealthy-gpu-n"}, "data": {"gpus": "0"}}
    world.plane.api.call("POST", MAPS, gpus)
    node = kwok_node("n", capacity={"aliyun.com/gpu-count": "2", "aliyun.com/gpu-mem": "32"})
    world.plane.api.call("POST", "/api/v1/nodes", node)
    for name in ("first", "second"):
        world.pod(name, {"aliyun.com/gpu-mem": "16"})

    (placed,) = eventually(world.bound)
    assert placed["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"] == "1"
    (waiting,) = {"first", "second"} - {placed["metadata"]["name"]}
    eventually(lambda: world.refusals(waiting))
    world.plane.api.call("DELETE", f"{MAPS}/unhealthy-gpu-n")

    eventually(lambda: len(world.bound()) == 2)
    written = {each["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"] for each in world.bound()}
    assert written == {"0", "1"}
