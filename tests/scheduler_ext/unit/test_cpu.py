"""CPU is counted as kube-scheduler counts it, and what a node has left of it follows from objects."""

import math
import random
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.model.cpu import MAX_MILLI, requested_milli
from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import NonGPUPod, Pod, read_any, read_non_gpu_pod
from scheduler_ext.snapshot.snapshot import (
    EMPTY,
    Snapshot,
    nodes_listed,
    non_gpu_pod_deleted,
    non_gpu_pod_updated,
    non_gpu_pods_listed,
    pods_listed,
)
from tests.scheduler_ext.stepped import Stepped
from tests.scheduler_ext.worlds import Json, asking, node, on, percent
from tests.worlds import container
from timekeeper.core.quantity import thousandths


def cpu(name: str, amount: str, **fields: Any) -> Json:
    """A container that asks for CPU."""
    return {"name": name, "resources": {"requests": {"cpu": amount}}, **fields}


def plain(name: str, amount: str, where: str = "n", phase: str = "Running") -> Json:
    """A bound pod without a request for GPUs."""
    spec: Json = {"containers": [cpu("c", amount)]} | ({"nodeName": where} if where else {})
    return {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": spec, "status": {"phase": phase}}


def with_cpu(raw: Json, amount: str) -> Json:
    """The same pod whose first container asks for CPU as well."""
    first, *rest = raw["spec"]["containers"]
    resources = {**first["resources"], "requests": {**first["resources"].get("requests", {}), "cpu": amount}}
    return {**raw, "spec": {**raw["spec"], "containers": [{**first, "resources": resources}, *rest]}}


def of_cpu(name: str, cores: str) -> Json:
    """A node with one card and so many cores."""
    raw = node(name)
    raw["status"]["allocatable"] = {**raw["status"]["allocatable"], "cpu": cores}
    return raw


def snapshot_of(nodes: list[Json], pods: list[Json]) -> Snapshot:
    """From objects alone."""
    values = [read_any(raw) for raw in pods]
    others = [each for each in values if isinstance(each, NonGPUPod)]
    snapshot = pods_listed(non_gpu_pods_listed(EMPTY, others), [p for p in values if isinstance(p, Pod)], 0)
    return nodes_listed(snapshot, map(read_node, nodes))


@pytest.mark.parametrize(
    ("pod", "milli"),
    [
        ({"containers": [cpu("a", "250m"), cpu("b", "1.5")]}, 1750),
        ({"containers": [{"name": "a"}]}, 0),
        ({"containers": [cpu("a", "1")], "initContainers": [cpu("i", "3")]}, 3000),
        (
            {
                "containers": [cpu("a", "1")],
                "initContainers": [cpu("s", "500m", restartPolicy="Always"), cpu("i", "2")],
            },
            2500,
        ),
        (
            {
                "containers": [cpu("a", "1")],
                "initContainers": [cpu("i", "1200m"), cpu("s", "500m", restartPolicy="Always")],
            },
            1500,
        ),
        ({"containers": [cpu("a", "1")], "overhead": {"cpu": "120m"}}, 1120),
        (
            {
                "containers": [cpu("a", "1")],
                "resources": {"requests": {"cpu": "4"}},
                "overhead": {"cpu": "1"},
            },
            5000,
        ),
        ({"containers": [cpu("a", "0.1m")]}, 1),
        ({"containers": [cpu("a", "nonsense"), cpu("b", "-1"), cpu("c", "2k"), "no object"]}, 2_000_000),
    ],
)
def test_a_pods_cpu_is_kube_schedulers_own_sum(pod: Json, milli: int) -> None:
    assert requested_milli({"spec": pod}) == milli


@pytest.mark.parametrize(
    "pod",
    [
        {"containers": [cpu("a", "9P")]},
        {"containers": [cpu("a", "9P"), cpu("b", "9P"), cpu("c", "9P")]},
        {"containers": [cpu("a", "600k"), cpu("b", "600k")]},
        {"containers": [cpu("a", "9223372036854775807")]},
        {"containers": [cpu("a", "1e30")]},
        {"containers": [], "resources": {"requests": {"cpu": "9P"}}, "overhead": {"cpu": "9P"}},
    ],
)
def test_more_cpu_than_any_node_has_is_so_much(pod: Json) -> None:
    assert requested_milli({"spec": pod}) == MAX_MILLI
    vast = {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "9P"}}}
    assert read_node(vast).cpu_milli == MAX_MILLI


@pytest.mark.parametrize(
    ("status", "condition", "milli"),
    [
        ({"resources": {"requests": {"cpu": "3"}}, "allocatedResources": {"cpu": "2"}}, None, 3000),
        ({"resources": {"requests": {"cpu": "500m"}}, "allocatedResources": {"cpu": "2"}}, None, 2000),
        ({"resources": {"requests": {"cpu": "500m"}}}, None, 1000),
        ({"resources": {"requests": {"cpu": "500m"}}}, "Infeasible", 500),
        ({"resources": {"requests": {"cpu": "500m"}}}, "Deferred", 1000),
        ({"allocatedResources": {"cpu": "9"}}, None, 1000),
    ],
)
def test_a_container_that_is_being_resized_counts_with_the_most_that_it_may_have(
    status: Json, condition: str | None, milli: int
) -> None:
    conditions = [{"type": "PodResizePending", "reason": condition}] if condition else []
    raw = {
        "spec": {"containers": [cpu("a", "1")]},
        "status": {"containerStatuses": [{"name": "a", **status}], "conditions": conditions},
    }

    assert requested_milli(raw) == milli


@given(
    st.from_regex(r"[0-9]{1,6}(\.[0-9]{1,6})?(n|u|m|k|M|Ki|Mi|e[0-9]|E-[0-9])?", fullmatch=True).filter(
        str.isascii
    )
)
def test_cpu_amounts_mean_what_the_client_library_reads_in_them(text: str) -> None:
    exact: Decimal = parse_quantity(text)

    assert thousandths(text) == math.ceil(exact * 1000)


@pytest.mark.parametrize("value", ["", "x", "1_0", None, True, 1.5, "9" * 99, [], {}])
def test_what_is_no_amount_of_cpu_is_none(value: object) -> None:
    assert thousandths(value) is None


def test_a_whole_number_is_read_as_cores() -> None:
    assert thousandths(4) == 4000


def test_a_nodes_cpu_is_what_pods_with_and_without_cards_leave_of_it() -> None:
    gpu = with_cpu(on(percent(40, "gpu"), "n", "GPU-0"), "3")
    pods = [
        gpu,
        plain("web", "1500m"),
        plain("waiting", "8", where=""),
        plain("done", "8", phase="Succeeded"),
    ]

    snapshot = snapshot_of([of_cpu("n", "16")], pods)

    assert snapshot.node("n").cpu_left == 16_000 - 3_000 - 1_500
    assert dict(snapshot.non_gpu_pods.items()) == {
        "uid-web": NonGPUPod("uid-web", "n", 1500, (("pods", 1000),))
    }


def test_a_bound_pod_for_whose_cpu_kube_schedulers_sum_has_overflowed_takes_nothing_of_the_node() -> None:
    spec = {"nodeName": "n", "containers": [cpu("a", "5P"), cpu("b", "5P")]}
    overflowed = {"metadata": {"name": "x", "uid": "x"}, "spec": spec, "status": {"phase": "Running"}}

    snapshot = snapshot_of([of_cpu("n", "16")], [overflowed, plain("web", "999999")])

    assert snapshot.node("n").cpu_left == 16_000 - 999_999_000


def test_a_pod_that_ends_or_goes_gives_its_cpu_back() -> None:
    snapshot = snapshot_of([of_cpu("n", "4")], [plain("a", "1"), plain("b", "2")])

    ended = non_gpu_pod_updated(snapshot, read_non_gpu_pod(plain("a", "1", phase="Failed")))
    gone = non_gpu_pod_deleted(ended, "uid-b")

    assert [s.node("n").cpu_left for s in (snapshot, ended, gone)] == [1_000, 2_000, 4_000]
    assert gone == snapshot_of([of_cpu("n", "4")], [])


def test_pods_on_a_node_that_is_not_known_yet_count_once_it_is() -> None:
    early = snapshot_of([], [plain("a", "1")])

    known = nodes_listed(early, [read_node(of_cpu("n", "4"))])
    away = nodes_listed(known, [])

    assert known.node("n").cpu_left == 3_000
    assert away == early
    assert non_gpu_pod_deleted(away, "uid-a") == EMPTY


def test_cpu_alone_changes_nothing_of_a_nodes_cards_and_wakes_no_pod() -> None:
    freed: list[list[str]] = []
    cache = ClusterCache(lambda: 0, freed.append)
    cache.pods_listed([read_any(on(percent(40), "n", "GPU-0")), read_any(plain("web", "2"))])
    cache.nodes_listed([read_node(of_cpu("n", "4"))])
    freed.clear()
    before = cache.snapshot.node("n")

    cache.pod_deleted(read_any(plain("web", "2")))

    after = cache.snapshot.node("n")
    assert (before.cpu_left, after.cpu_left) == (2_000, 4_000)
    assert after.free_by_card is before.free_by_card
    assert after.shape is before.shape
    assert freed == []


@pytest.mark.parametrize("seed", range(5))
def test_the_running_sum_is_that_of_a_rebuild_from_objects(seed: int) -> None:
    rng = random.Random(seed)
    objects: dict[str, Json] = {}
    cache = ClusterCache(lambda: 0, lambda names: None)
    nodes = [of_cpu(name, "64") for name in ("n", "m")]
    cache.pods_listed([])
    cache.nodes_listed(map(read_node, nodes))
    for _ in range(200):
        name = f"p{rng.randrange(12)}"
        match rng.randrange(4):
            case 0 if name in objects:
                cache.pod_deleted(read_any(objects.pop(name)))
            case 1:
                cache.pods_listed(map(read_any, objects.values()))
            case _:
                where = objects[name]["spec"].get("nodeName", "") if name in objects else ""
                where = where or rng.choice(["", "n", "m"])
                phase = rng.choice(["Pending", "Running", "Succeeded"])
                objects[name] = plain(name, f"{rng.randrange(3000)}m", where, phase)
                cache.pod_updated(read_any(objects[name]))
    assert cache.snapshot == snapshot_of(nodes, list(objects.values()))


def test_pods_that_request_more_cpu_than_there_is_stop_no_other(running: Stepped) -> None:
    names = [f"n{at}" for at in range(8)]
    for name in names:
        running.put_node(node(name))
    for at in range(40):
        running.put_pod(with_cpu(on(percent(10, f"b{at}"), names[at % 8], f"{names[at % 8]}-GPU-0"), "1"))
    huge = [container(f"c{at}", gpu_percent="10") for at in range(3)]
    for each in huge:
        each["resources"]["requests"] = {"cpu": "9P"}
    for at in range(20):
        running.put_pod(asking(*huge, name=f"huge{at}"))
    running.extender.policies.learn(running.extender.cache.snapshot)

    assert running.filter(running.put_pod(percent(20, "p")), *names)["NodeNames"] == names
    assert running.filter(running.put_pod(asking(*huge, name="its")), *names)["Error"] == ""
