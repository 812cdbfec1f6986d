"""Cards of pods that are deleted by force, on a real API server with a real kube-scheduler: they are free
when the kubelet cannot run the pod any more."""

import pytest

from tests.scheduler_ext.clusters import World, extender_with, placed

pytestmark = pytest.mark.make_test("keeps a card until its pod has ended")

WHOLE = {"bursar.dev/gpu-percent": "100"}


extender = extender_with()


def test_a_second_deletion_with_no_grace_does_not_free_what_still_runs(
    world: World, request: pytest.FixtureRequest
) -> None:
    for name in ("long", "short"):
        world.node(f"node-{name}", cards=1)
        own = {"nodeSelector": {"kubernetes.io/hostname": f"node-{name}"}}
        world.pod(name, WHOLE, terminationGracePeriodSeconds=2, **own)
        placed(world, name)
        world.pod(f"after-{name}", WHOLE, **own)

    # A kubelet that hears of the first deletion must not have removed the pod before the second.
    world.plane.stop_process("kwok")
    request.addfinalizer(lambda: world.plane.restart_process("kwok"))
    world.delete("long", grace_s=36_000)
    world.delete("long", grace_s=0)
    world.delete("short", grace_s=0)

    placed(world, "after-short")
    assert world.extender.dry_run("node-long")["node-long"] != ""
    assert world.node_info_of("after-long") == ""
