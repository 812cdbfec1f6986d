"""Members of a gang without GPUs: nodes must have their CPU and memory beside the members with cards."""

from typing import Any

import pytest

from scheduler_ext.gangs.capacity import PlanInput
from scheduler_ext.gangs.plan import GangPlan, lack_text, plan
from scheduler_ext.model.pod import CPUMember, read_non_gpu_pod
from scheduler_ext.model.standing import UNHEARD
from scheduler_ext.scoring.policy import BINPACK
from scheduler_ext.snapshot.snapshot import non_gpu_pod_deleted, non_gpu_pod_updated, non_gpu_pods_listed
from tests.scheduler_ext.worlds import asking, node, rebuilt
from tests.worlds import Json, card, container

GIB = 1024**3
OF_JOB = {"training.kubeflow.org/job-name": "train"}


def cpu_node(name: str, cpu: int, memory_gib: int = 64, **labels: str) -> Json:
    """A node without cards."""
    there = {"cpu": str(cpu), "memory": f"{memory_gib}Gi", "pods": "110"}
    metadata = {"name": name, "labels": labels}
    return {"metadata": metadata, "status": {"capacity": there, "allocatable": there}}


def gpu_node(name: str, cards: int, cpu: int = 64) -> Json:
    raw = node(name, *(card(at) for at in range(cards)))
    raw["status"]["allocatable"] = raw["status"]["allocatable"] | {"cpu": str(cpu), "memory": "512Gi"}
    return raw


def launcher(
    name: str = "launcher", cpu: str = "4", memory: str = "8Gi", labels: Json | None = None, **fields: Any
) -> Json:
    """A member without GPUs; keywords go into its spec."""
    spec = {"containers": [container(requests={"cpu": cpu, "memory": memory})], **fields}
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return {"metadata": metadata | {"labels": OF_JOB if labels is None else labels}, "spec": spec}


def worker(name: str, cpu: str = "8") -> Json:
    named = {"bursar.dev/gang-size": "2", "bursar.dev/held": "turn"}
    raw = asking(container(requests={"cpu": cpu}, gpu_percent="100"), name=name, annotations=named)
    raw["metadata"] |= {"namespace": "default", "labels": raw["metadata"]["labels"] | OF_JOB}
    return raw


def made(nodes: list[Json], *beside: Json) -> GangPlan:
    """The plan of two workers of eight cores each."""
    raws = [worker("w0"), worker("w1")]
    snapshot = rebuilt(nodes, [*raws, *beside])
    pods = [pod for name in ("w0", "w1") if (pod := snapshot.pods.get(f"uid-{name}"))]
    return plan(pods, PlanInput(snapshot, UNHEARD, lambda _: BINPACK))


def test_a_launcher_that_no_node_has_cpu_for_keeps_the_workers_waiting() -> None:
    """Twenty cores: the workers take sixteen, and four are left."""
    nodes = [gpu_node("g", 2, cpu=20)]

    assert made(nodes, launcher(cpu="4")).suffices(2)
    found = made(nodes, launcher(cpu="5"))
    assert not found.suffices(2)
    assert lack_text(found) == (
        "no node has the CPU and memory of launcher, of this gang, beside the members with cards"
    )
    assert made([*nodes, cpu_node("c", 5)], launcher(cpu="5")).suffices(2)


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        ({"memory": "60Gi"}, True),
        ({"memory": "70Gi"}, False),
        ({"nodeSelector": {"pool": "cpu"}}, True),
        ({"nodeSelector": {"pool": "other"}}, False),
        ({"labels": {}}, True),  # of no gang
        ({"labels": {"training.kubeflow.org/job-name": "other"}, "cpu": "90"}, True),
        ({"nodeName": "elsewhere", "cpu": "90"}, True),  # it has a node
    ],
)
def test_what_counts_of_a_member_without_gpus(fields: Json, fits: bool) -> None:
    nodes = [gpu_node("g", 2, cpu=16), cpu_node("c", 8, pool="cpu")]

    assert made(nodes, launcher(**fields)).suffices(2) is fits


def test_a_launcher_counts_whose_controller_is_another_than_its_workers() -> None:
    """As of an MPIJob: they are of one name."""
    nodes, beside = [gpu_node("g", 2, cpu=20)], launcher(cpu="5")
    by = {"apiVersion": "batch/v1", "kind": "Job", "name": "train-launcher", "uid": "u", "controller": True}
    beside["metadata"]["ownerReferences"] = [by]
    raws = [worker("w0"), worker("w1")]
    for raw in raws:
        of_job = {**by, "apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "name": "train", "uid": "v"}
        raw["metadata"]["ownerReferences"] = [of_job]
    snapshot = rebuilt(nodes, [*raws, beside])
    pods = [pod for _, pod in snapshot.pods.items()]

    assert plan(pods, PlanInput(snapshot, UNHEARD, lambda _: BINPACK)).unplaced == ("launcher",)


def test_a_tainted_node_takes_no_launcher_that_does_not_tolerate_it() -> None:
    tainted = cpu_node("c", 8)
    tainted["spec"] = {"taints": [{"key": "reserved", "effect": "NoSchedule"}]}
    tolerant = launcher(tolerations=[{"key": "reserved", "operator": "Exists"}])

    assert not made([gpu_node("g", 2, cpu=16), tainted], launcher()).suffices(2)
    assert made([gpu_node("g", 2, cpu=16), tainted], tolerant).suffices(2)


def test_several_members_do_not_use_the_same_cpu() -> None:
    """Eight cores: two of four fit, and a third does not, nor one of another size."""
    nodes = [gpu_node("g", 2, cpu=16), cpu_node("c", 8)]
    two = [launcher(f"l{at}") for at in range(2)]

    assert made(nodes, *two).suffices(2)
    assert made(nodes, *two, launcher("l2")).unplaced == ("l2",)
    assert made(nodes, *two, launcher("small", cpu="1")).unplaced == ("small",)
    other = launcher("busy", cpu="5", labels={}, nodeName="c")
    assert made(nodes, other, launcher()).unplaced == ("launcher",)


def test_a_member_that_lacks_beside_others_that_lack_cards_is_told_too() -> None:
    found = made([gpu_node("g", 1, cpu=8)], launcher())

    assert lack_text(found) == (
        "1 of 2 members fit; 1 cards missing of 2, the others on 1 node; no node takes more of them; "
        "no node has the CPU and memory of launcher, of this gang, beside the members with cards"
    )


def test_the_snapshot_has_those_that_wait_and_no_others() -> None:
    waiting, gone = read_non_gpu_pod(launcher()), launcher("gone") | {"status": {"phase": "Failed"}}
    snapshot = rebuilt([], [launcher(), gone, launcher("single", labels={})])
    takes = 4_000, (("memory", 8 * GIB * 1000), ("pods", 1000))
    member = CPUMember("uid-launcher", "default", "launcher", "kubeflow/train", *takes)

    assert dict(snapshot.cpu_members.items()) == {"uid-launcher": member}
    bound = non_gpu_pod_updated(snapshot, read_non_gpu_pod(launcher(nodeName="n")))
    assert len(bound.cpu_members) == 0
    assert len(non_gpu_pod_deleted(snapshot, "uid-launcher").cpu_members) == 0
    assert len(non_gpu_pods_listed(snapshot, []).cpu_members) == 0
    there = non_gpu_pods_listed(snapshot, [read_non_gpu_pod(launcher(nodeName="n"))])
    assert len(there.cpu_members) == 0
    assert non_gpu_pods_listed(snapshot, [waiting]) == snapshot
    leaving = launcher()
    leaving["metadata"]["deletionTimestamp"] = "2027-01-01T00:00:00Z"
    assert len(non_gpu_pod_updated(snapshot, read_non_gpu_pod(leaving)).cpu_members) == 0
