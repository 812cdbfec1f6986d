"""What the settler says is wrong with nodes, pods and claims: one thing wrong at a time."""

import pytest

from tests.timekeeper.claims import device_slice
from tests.timekeeper.worlds import HOUR, MINUTE, T0, Json, gpu_pod, lease
from tests.worlds import card, inventory
from timekeeper.accounts.pods import LedgerPod, read_pod
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.claims.devices import read_slice
from timekeeper.core.object_names import timestamp
from timekeeper.settler.cluster.cluster_state import ClusterState
from timekeeper.settler.cluster.known_nodes import NodeLease
from timekeeper.settler.cluster.watches import read_lease, read_node
from timekeeper.settler.findings import findings, of_clocks
from timekeeper.settler.state.tick_view import cluster_view

GPUS, OF_GPU = "gpu.nvidia.com", {"type": {"string": "gpu"}}
WHOLE, PERCENT = {"nvidia.com/gpu": "8"}, {"bursar.dev/gpu-percent": "100"}
GFD = {
    f"nvidia.com/gpu.{name}": text for name, text in (("product", "T4"), ("count", "1"), ("memory", "15360"))
}
TAINT = [{"key": "k", "effect": "NoSchedule"}]
ALONE, PLACED = BudgetSettings(mode="meter"), BudgetSettings(mode="enforce", placement="on")


def node(
    capacity: Json, labels: Json | None = None, written: str = "", allocatable: Json | None = None
) -> Json:
    """Node n with this inventory."""
    annotations = {"bursar.dev/inventory": written} if written else {}
    there = capacity if allocatable is None else allocatable
    return {
        "metadata": {"name": "n", "annotations": annotations, "labels": labels or {}},
        "status": {"capacity": capacity, "allocatable": there},
    }


def found(
    *nodes: Json,
    settings: BudgetSettings = PLACED,
    slices: tuple[Json, ...] = (),
    pods: tuple[LedgerPod, ...] = (),
    leases: tuple[NodeLease, ...] = (),
) -> list[tuple[str, str]]:
    """Level and sentence of each finding."""
    cluster = ClusterState()
    for each in map(read_node, nodes):
        cluster.nodes.see(each, False, T0)
    for pod in pods:
        cluster.pods.put(pod.uid, pod)
    for of_node in leases:
        cluster.nodes.see_lease(of_node, False)
    for raw in slices:
        cluster.claims.pools.put(read_slice(raw))
    clocks = of_clocks(cluster.nodes.wrong_clocks(), cluster.nodes.leaseless())
    every = (*findings(cluster_view(cluster), settings, T0), *clocks)
    return [(each.kind.level, each.sentence) for each in every]


@pytest.mark.parametrize(
    ("labels", "written", "said"),
    [
        ({}, "", "nothing describes its cards"),
        (GFD, "not JSON", "its description cannot be read"),
        (GFD | {"nvidia.com/gpu.count": "8"}, inventory(card(0, model="T4")), "labels say 8 x T4"),
    ],
)
def test_a_node_whose_cards_the_ledger_cannot_know_is_named_where_bursar_places_nothing(
    labels: Json, written: str, said: str
) -> None:
    raw = node({"nvidia.com/gpu": "1"}, labels, written)

    ((level, sentence),) = found(raw, settings=ALONE)

    assert (level, sentence.startswith("node n: "), said in sentence) == ("warning", True, True)
    assert found(raw, settings=BudgetSettings(placement="off")) == [(level, sentence)]
    assert found(raw) == []


def test_nodes_that_describe_their_cards_are_counted() -> None:
    praise = [("ok", "1 nodes with GPUs describe their cards")]

    assert found(node({"nvidia.com/gpu": "1"}, GFD), settings=ALONE) == praise
    assert found(node({"amd.com/gpu": "8"}), settings=ALONE) == praise
    assert found(node({"cpu": "8"}), settings=ALONE) == []


@pytest.mark.parametrize(
    ("allocatable", "slice_", "drivers"),
    [
        (WHOLE, {"driver": GPUS, "attributes": OF_GPU}, ["nvidia.com/gpu", GPUS]),
        (PERCENT, {"driver": GPUS, "attributes": OF_GPU}, ["bursar.dev/gpu-percent", GPUS]),
        ({"nvidia.com/mig-1g.5gb": "7"}, {"driver": GPUS, "attributes": OF_GPU}, ["mig-1g.5gb", GPUS]),
        ({"amd.com/gpu": "8"}, {"driver": "gpu.amd.com"}, ["amd.com/gpu", "gpu.amd.com"]),
        (WHOLE, {"driver": "compute-domain.nvidia.com"}, []),
        (WHOLE, {"driver": GPUS, "attributes": {"type": {"string": "new"}}}, []),
        (WHOLE, {"driver": "gpu.intel.com"}, []),
        (WHOLE, {"driver": "nic.example.com"}, []),
        (WHOLE, {"driver": GPUS, "attributes": OF_GPU, "taints": TAINT}, []),
        (WHOLE, {"driver": GPUS, "attributes": OF_GPU, "node": "another"}, []),
        ({"nvidia.com/gpu": "0"}, {"driver": GPUS, "attributes": OF_GPU}, []),
        ({"cpu": "8"}, {"driver": GPUS, "attributes": OF_GPU}, []),
    ],
)
def test_a_node_whose_cards_two_give_out_is_named(
    allocatable: Json, slice_: Json, drivers: list[str]
) -> None:
    slices = (device_slice("gpu-0", **{"node": "n"} | slice_),)

    said = found(node(WHOLE, allocatable=allocatable), slices=slices)

    assert [level for level, _ in said] == ["error"] * bool(drivers)
    assert all(name in sentence for _, sentence in said for name in ("n gives out its cards twice", *drivers))


CARD = {"uuid": {"string": "GPU-1"}}


@pytest.mark.parametrize(
    ("first", "second", "how"),
    [
        (
            {"attributes": CARD},
            {"attributes": CARD},
            "GPU-1 by claims of gpu.example.com and odd.example.com",
        ),
        ({"attributes": CARD}, {"attributes": {"parentUUID": CARD["uuid"]}}, "GPU-1 by claims of"),
        ({"attributes": CARD}, {"attributes": {"uuid": {"string": "GPU-2"}}}, ""),
        ({"attributes": CARD}, {"attributes": CARD, "taints": TAINT}, ""),
        ({"attributes": CARD}, {"attributes": CARD, "driver": "compute-domain.nvidia.com"}, ""),
        ({"attributes": CARD}, {"attributes": CARD, "node": "m"}, ""),
        ({"attributes": {}}, {"attributes": {}}, ""),
    ],
)
def test_a_card_that_two_drivers_publish_is_named_with_both(first: Json, second: Json, how: str) -> None:
    others = {"driver": "odd.example.com"} | second
    slices = (device_slice("gpu-0", **{"node": "n"} | first), device_slice("x", **{"node": "n"} | others))

    said = found(node({"cpu": "8"}), slices=slices)

    assert [level for level, _ in said] == ["error"] * bool(how)
    assert all(f"n gives out its cards twice: {how}" in sentence for _, sentence in said)


def test_of_many_cards_that_two_drivers_publish_one_is_named_and_both_drivers() -> None:
    uuids = [f"GPU-{number:036}" for number in range(8)]
    slices = []
    for driver in ("gpu.example.com", "odd.example.com"):
        body = device_slice(*uuids, node="n", driver=driver)
        for device in body["spec"]["devices"]:
            device["attributes"] = {"uuid": {"string": device["name"]}}
        slices.append(body)

    ((_, sentence),) = found(node({"cpu": "8"}), slices=tuple(slices))

    how = f"{uuids[0]} and others by claims of gpu.example.com and odd.example.com"
    assert f"n gives out its cards twice: {how}, so" in sentence


def test_a_failed_pod_that_runs_by_its_status_is_named_once_its_grace_is_over() -> None:
    def lost(deleted_ms: int) -> LedgerPod:
        raw = gpu_pod(f"p{deleted_ms}", phase="Failed")
        raw["metadata"]["deletionTimestamp"] = timestamp(deleted_ms)
        raw["metadata"]["deletionGracePeriodSeconds"] = 30
        raw["status"]["containerStatuses"] = [{"name": "main", "state": {"running": {}}}]
        read = read_pod(raw)
        assert isinstance(read, LedgerPod)
        return read

    ((level, sentence),) = found(pods=(lost(T0 - 2 * MINUTE), lost(T0 + MINUTE)))

    assert level == "warning"
    assert sentence.startswith(
        f"team-a/p{T0 - 2 * MINUTE} has failed, but its status says that it runs on n1: it"
    )


def test_resources_that_nothing_classifies_are_named_until_the_settings_do() -> None:
    raw = node({**PERCENT, "rdma/hca": "8", "example.com/npu": "0"})

    ((level, sentence),) = found(raw)

    assert (level, sentence.partition(":")[0]) == (
        "warning",
        "nothing says whether rdma/hca, on n, is an accelerator",
    )
    assert found(raw, settings=BudgetSettings(devices=(("rdma/hca", "none"),))) == []


def test_the_worst_of_the_wrong_clocks_of_gpu_nodes_is_named() -> None:
    def leases(**ahead_ms: int) -> tuple[NodeLease, ...]:
        return tuple(read_lease(lease(T0 + ms, name, T0)) for name, ms in ahead_ms.items())

    raw = node(PERCENT, written=inventory(card(0)))
    nodes = raw, raw | {"metadata": {**raw["metadata"], "name": "m"}}
    said = "clocks of m, n differ from the API server's, m's by 60 s"
    assert found(*nodes, leases=leases(n=MINUTE // 2, m=MINUTE, cpu=HOUR)) == [("warning", said)]
    assert found(*nodes, leases=leases(n=900, m=0)) == []
