"""A node whose GPUs a driver publishes, on a real API server with a real kube-scheduler: pods with limits get
none of its cards."""

from tests.scheduler_ext.clusters import World, placed
from tests.support.waiting import eventually
from tests.timekeeper.claims import device_slice

SLICES = "/apis/resource.k8s.io/v1/resourceslices"


def test_a_pod_gets_a_card_of_a_drivers_node_once_the_driver_is_gone(world: World) -> None:
    slice_ = device_slice("gpu-0", node="n", driver="gpu.nvidia.com", attributes={"type": {"string": "gpu"}})
    world.plane.api.call("POST", SLICES, slice_)
    world.node("n", cards=2)
    eventually(lambda: "its GPUs are given out" in world.extender.dry_run("n")["n"])
    world.pod("p", {"bursar.dev/gpu-percent": "50"})

    eventually(lambda: world.refusals("p"))
    assert "its GPUs are given out by device claims of gpu.nvidia.com; ask for them by a claim" in (
        world.refusals("p")
    )
    world.plane.api.call("DELETE", f"{SLICES}/n-gpu.nvidia.com")

    placed(world, "p")
