"""What a pod requests of CPU and memory, and what of them goes with a card."""

from typing import Any

import pytest

from timekeeper.core.rating.held import card_host
from timekeeper.core.request.host import (
    CardHost,
    HostAmount,
    allocatable,
    requested,
)
from timekeeper.core.values import Card

GIB = 1 << 30
NODE = HostAmount(64_000, 512 * GIB)


def cards(*models: str) -> tuple[Card, ...]:
    return tuple(Card(f"GPU-{index}", index, model, 80_000) for index, model in enumerate(models))


def test_requests_count_as_kube_scheduler_counts_them() -> None:
    """Containers and native sidecars together, or more for an init container; overhead on top. A limit stands
    for an absent request, and a request of the whole pod for those of its containers."""

    def asks(name: str, kind: str = "requests", **more: object) -> dict[str, object]:
        return {"name": name, "resources": {kind: {"cpu": "2", "memory": "1Gi"}}, **more}

    spec = {
        "initContainers": [asks("side", restartPolicy="Always"), asks("first")],
        "containers": [asks("a"), asks("b", "limits")],
        "overhead": {"cpu": "250m"},
    }

    assert requested({"spec": spec}) == HostAmount(6_250, 3 * GIB)
    whole = {**spec, "resources": {"requests": {"cpu": "1"}}}
    assert requested({"spec": whole}) == HostAmount(1_250, 3 * GIB)
    for limited, cpu_milli in (({**spec}, 6_250), ({"overhead": spec["overhead"]}, 4_250)):
        assert requested({"spec": {**limited, "resources": {"limits": {"cpu": "4"}}}}).cpu_milli == cpu_milli
    assert requested({}) == HostAmount()


def test_a_node_says_what_its_pods_may_request() -> None:
    node = {"status": {"capacity": {"cpu": "64"}, "allocatable": {"cpu": "63500m", "memory": "512Gi"}}}

    assert allocatable(node) == HostAmount(63_500, 512 * GIB)
    assert allocatable({}) == HostAmount()


def test_the_least_of_all_nodes_with_cards_goes_with_a_card() -> None:
    """Beside a node of one card and 64 CPUs half a card may not take all of a node of eight cards. A MIG
    instance is a seventh of its card here."""
    instances = cards(*("NVIDIA A100 80GB PCIe MIG 1g.10gb",) * 7)
    nodes = [
        (cards("A100"), NODE),
        (cards(*("A100",) * 8), HostAmount(64_000, 4096 * GIB)),
        (instances, HostAmount(64_000, 2048 * GIB)),
        (cards("T4"), HostAmount()),  # it does not say what it has
        ((), HostAmount(1, 1)),
    ]

    assert card_host(nodes) == CardHost(8_000, 512 * GIB, 80_000)
    assert card_host([(instances, NODE)]) == CardHost(63_936, 549_206_607_280, 80_000)
    assert card_host(nodes[3:]) is None


@pytest.mark.parametrize(
    ("level", "cpu", "overhead", "reason", "scheduled"),
    [
        ("container", ("60", "1", "1"), "0", "", 60_000),
        ("container", ("60", "1", "1"), "0", "Deferred", 60_000),
        ("container", ("60", "1", "1"), "0", "Infeasible", 1_000),
        ("container", ("1", "1", "60"), "0", "", 60_000),
        ("pod", ("60", "1", "1"), "0", "", 60_000),
        ("pod", ("60", "1", "1"), "0", "Deferred", 60_000),
        ("pod", ("60", "1", "1"), "0", "Infeasible", 1_000),
        ("pod", ("1", "2", "60"), "0", "", 60_000),
        ("pod", ("1", "3", "3"), "2", "", 3_000),
        ("pod", ("60", "", ""), "2", "Deferred", 62_000),
    ],
)
def test_a_resize_counts_for_the_scheduler_unless_it_is_infeasible(
    level: str, cpu: tuple[str, str, str], overhead: str, reason: str, scheduled: int
) -> None:
    """CPU that is requested, allocated and actual. The kubelet adds a pod's overhead to what it reports of
    the pod; where it reports nothing, the request counts."""
    asked, has = {"requests": {"cpu": cpu[0]}}, {"resources": {"requests": {"cpu": cpu[2]}}}
    status = {**has, "allocatedResources": {"cpu": cpu[1]}} if cpu[1] else {}
    condition = [{"type": "PodResizePending", "reason": reason}] if reason else []
    main = {"name": "main"} if level == "pod" else {"name": "main", "resources": asked}
    pod: dict[str, Any] = {
        "spec": {"containers": [main], "overhead": {"cpu": overhead}},
        "status": {"conditions": condition},
    }
    if level == "pod":
        pod["spec"]["resources"] = asked
        pod["status"] |= status
    else:
        pod["status"]["containerStatuses"] = [{"name": "main", **status}]

    assert requested(pod).cpu_milli == scheduled
