"""What a pod's CPU and memory cost, and what of them goes with a part of a card."""

from typing import Any

import pytest

from timekeeper.core.rating.host import host_rate, most_host, node_kinds
from timekeeper.core.request.host import (
    CardHost,
    HostAmount,
    HostShare,
    allocatable,
    card_host,
    charged,
    decode_host,
    encode_host,
    requested,
)
from timekeeper.core.values import Ask, Card, ContainerAsk, GPURequest, UndecodableError

GIB = 1 << 30
NODE = HostAmount(64_000, 512 * GIB)
TWO = (("A100", 2),)
REQUEST = GPURequest(dialect="bursar", asks=(ContainerAsk("main", False, Ask(1, 10, 0)),))


def cards(*models: str) -> tuple[Card, ...]:
    return tuple(Card(f"GPU-{index}", index, model, 80_000) for index, model in enumerate(models))


@pytest.mark.parametrize(
    ("asked", "models", "weights", "rate"),
    [
        (HostAmount(62_000, GIB), TWO, (), 1_938),  # 62 of 64 CPUs of two cards: 1937.5
        (HostAmount(1_000, 256 * GIB), TWO, (), 1_000),  # half the memory
        (HostAmount(62_000, 0), TWO, (("A100", 500),), 969),
        (HostAmount(32_000, 0), (("A100", 1), ("T4", 3)), (("T4", 250),), 875),
        (HostAmount(), TWO, (), 0),
        (HostAmount(1, 1), TWO, (), 1),
        (HostAmount(900_000, 0), TWO, (), 2_000),  # the whole node is the most
        (HostAmount(62_000, 0), (), (), 0),
    ],
)
def test_the_rate_of_a_host_share_is_the_larger_part_of_all_weights_rounded_up(
    asked: HostAmount, models: tuple[tuple[str, int], ...], weights: tuple[tuple[str, int], ...], rate: int
) -> None:
    assert host_rate(HostShare(asked, NODE, models), weights) == rate


def test_a_node_that_does_not_report_an_amount_charges_nothing_for_it() -> None:
    assert host_rate(HostShare(HostAmount(32_000, GIB), HostAmount(0, 4 * GIB), TWO), ()) == 500


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


def test_the_annotation_fixes_the_share_and_is_read_back() -> None:
    share = HostShare(HostAmount(62_000, GIB), NODE, TWO)

    assert decode_host(encode_host(share)) == share


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version":1,"cards":{"A100":-1}}', '{"version":1,"cards":[]}']
)
def test_an_annotation_that_is_not_of_this_form_is_refused(text: str) -> None:
    with pytest.raises(UndecodableError):
        decode_host(text)


def test_before_the_binding_the_costliest_node_that_holds_the_pod_counts() -> None:
    small, large = HostAmount(8_000, 64 * GIB), HostAmount(64_000, 512 * GIB)
    kinds = node_kinds([(cards("A100", "A100"), large), (cards("A100", "A100"), small), (cards("T4"), small)])

    def most(cpu_milli: int, **constraints: object) -> int:
        request = GPURequest(dialect="bursar", asks=REQUEST.asks, **constraints)  # type: ignore[arg-type]
        share = most_host(request, HostAmount(cpu_milli, GIB), kinds, ())
        assert share is not None
        return host_rate(share, ())

    assert most(8_000) == 2_000  # all of a small node with two cards
    assert most(16_000) == 500  # it fits on the large one only
    assert most(8_000, models=("T4",)) == 1_000
    assert most(8_000, uuids=("GPU-9",)) == 2_000
    assert most(99_000) == 32  # on no node; what is left is the memory of the smallest


def test_the_room_for_each_card_is_that_of_the_roomiest_nodes() -> None:
    nodes = [
        (cards("A100", "A100"), NODE),
        (cards("T4"), HostAmount(8_000, 1024 * GIB)),
        (cards("T4"), HostAmount()),  # it does not say what it has
        ((), HostAmount(10**9, 10**15)),
    ]

    assert card_host(nodes) == CardHost(32_000, 1024 * GIB, 80_000)
    assert card_host(nodes[2:]) is None


@pytest.mark.parametrize(
    ("level", "cpu", "overhead", "reason", "scheduled", "paid"),
    [
        ("container", ("60", "1", "1"), "0", "", 60_000, 60_000),
        ("container", ("60", "1", "1"), "0", "Deferred", 60_000, 1_000),
        ("container", ("60", "1", "1"), "0", "Infeasible", 1_000, 1_000),
        ("container", ("1", "1", "60"), "0", "", 60_000, 60_000),
        ("pod", ("60", "1", "1"), "0", "", 60_000, 60_000),
        ("pod", ("60", "1", "1"), "0", "Deferred", 60_000, 1_000),
        ("pod", ("60", "1", "1"), "0", "Infeasible", 1_000, 1_000),
        ("pod", ("1", "2", "60"), "0", "", 60_000, 60_000),
        ("pod", ("1", "3", "3"), "2", "", 3_000, 3_000),
        ("pod", ("60", "", ""), "2", "Deferred", 62_000, 62_000),
    ],
)
def test_a_deferred_resize_counts_for_the_scheduler_and_is_not_paid(
    level: str, cpu: tuple[str, str, str], overhead: str, reason: str, scheduled: int, paid: int
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

    assert (requested(pod).cpu_milli, charged(pod).cpu_milli) == (scheduled, paid)
