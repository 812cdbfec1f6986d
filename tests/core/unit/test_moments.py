"""What a pod has at one time: one rule for everything that it requests."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds import Json, of_resources, pod
from timekeeper.core.admission.protection import share_milli
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.dialects import BY_NAME
from timekeeper.core.dialects.dialect import PlacedRequest
from timekeeper.core.dialects.moments import cards_at_once, peak
from timekeeper.core.rating.held import least_milli
from timekeeper.core.rating.nodes import NodeCards
from timekeeper.core.rating.rating import Demand, Rating, rated
from timekeeper.core.request.cards import amounts_by_card
from timekeeper.core.request.claims import EXPLICIT, KnownClaims, reuses_devices
from timekeeper.core.request.device_classes import DeviceClass
from timekeeper.core.request.host import requested
from timekeeper.core.request.metered import metered_request, of_devices
from timekeeper.core.request.request import containers, parse, parse_new
from timekeeper.core.values import Card, GPURequest, Placement, Slice

GPU, TPU, FRACTION = "nvidia.com/gpu", "google.com/tpu", "bursar.dev/gpu-percent"
MEMORY, HELD = "bursar.dev/gpu-memory", "aliyun.com/gpu-mem"
CARD = Card("GPU-0", 0, "A100", 16_000)
CLASSES = {"gpu": DeviceClass("gpu", "gpu.nvidia.com"), "other": DeviceClass("other", "gpu.nvidia.com")}

Kinds = list[tuple[str, int]]  # of containers in the pod's order: what kind each is, and how much it requests

AT_ONCE: list[tuple[Kinds, int]] = [
    ([("main", 3), ("main", 2)], 5),
    ([("init", 4), ("main", 1)], 4),
    ([("init", 1), ("sidecar", 1), ("init", 2), ("main", 1)], 3),
    ([("init", 3), ("sidecar", 1), ("main", 1)], 3),
    ([("sidecar", 1), ("init", 5), ("main", 3)], 6),
    ([("sidecar", 1), ("sidecar", 2), ("init", 1), ("main", 1)], 4),
    ([("sidecar", 2), ("init", 1), ("sidecar", 1), ("init", 3), ("main", 1)], 6),
    ([("sidecar", 2), ("init", 2)], 4),
]


def of(kinds: Kinds, resource: str, unit: int = 1, **more: Json) -> Json:
    """A pod whose containers request these multiples of a resource. ``more``: what containers c0, c1...
    request beside it."""
    parts: dict[str, list[Json]] = {"init": [], "main": []}
    for at, (kind, amount) in enumerate(kinds):
        limits = {resource: str(amount * unit), **more.get(f"c{at}", {})}
        raw = of_resources(limits, f"c{at}") | ({"restartPolicy": "Always"} if kind == "sidecar" else {})
        parts["main" if kind == "main" else "init"].append(raw)
    return pod(*parts["main"], init=parts["init"])


def request_of(raw: Json) -> GPURequest:
    request = parse(raw).request
    assert request is not None
    return request


def rating(request: GPURequest, charge_by: str = "dominant") -> Rating:
    return rated(Demand(request=request), NodeCards((CARD,)), BudgetSettings(charge_by=charge_by))


def metered_milli(raw: Json) -> int:
    read = metered_request(raw, parse_new(raw, "pass"))
    assert read is not None
    request = of_devices(read.request, {})
    assert request is not None
    return rating(request).rate_milli


def units_of_gpushare(kinds: Kinds) -> int:
    """Of the annotation that its plugin reads."""
    request = request_of(of(kinds, HELD))
    placed = tuple((each.container, (Slice("GPU-0", 0, 0, each.ask.memory_mib),)) for each in request.asks)
    facts = PlacedRequest(request, Placement(placed), "n", 0, (), (), (CARD,))
    return int(BY_NAME["gpushare"].at_binding(facts)["ALIYUN_COM_GPU_MEM_POD"])


def by_class(kinds: Kinds, reuses: bool = True) -> int:
    raw = of(kinds, f"{EXPLICIT}gpu")
    asked = KnownClaims(CLASSES, reuses=reuses).asked_by(raw, "a", containers(raw))
    assert asked is not None
    return asked.devices


def metered_devices(kinds: Kinds) -> int:
    request = parse_new(of(kinds, TPU), "meter").request
    assert request is not None
    return least_milli(request) // 1000


def used_of_one_card(kinds: Kinds) -> int:
    request = request_of(of(kinds, FRACTION))
    placed = tuple((each.container, (Slice("GPU-0", 0, each.ask.share_milli, 1),)) for each in request.asks)
    return amounts_by_card(request, Placement(placed))["GPU-0"].share_milli // 10


READERS: dict[str, Callable[[Kinds], int]] = {
    "cards": lambda kinds: cards_at_once(request_of(of(kinds, GPU)).asks),
    "rate": lambda kinds: rating(request_of(of(kinds, GPU))).rate_milli // 1000,
    "rate of memory": lambda kinds: rating(request_of(of(kinds, MEMORY, 1600)), "memory").rate_milli // 100,
    "requested share": lambda kinds: rating(request_of(of(kinds, FRACTION))).requested.share_milli // 10,
    "requested memory": lambda kinds: rating(request_of(of(kinds, MEMORY, 100))).requested.memory_mib // 100,
    "least": lambda kinds: least_milli(request_of(of(kinds, GPU))) // 1000,
    "least of memory": lambda kinds: least_milli(request_of(of(kinds, MEMORY, 1600)), [CARD]) // 100,
    "floor": lambda kinds: share_milli(request_of(of(kinds, FRACTION))) // 10,
    "meter": lambda kinds: metered_milli(of(kinds, GPU)) // 1000,
    "metered devices": lambda kinds: metered_milli(of(kinds, TPU)) // 1000,
    "governed devices": metered_devices,
    "device class": by_class,
    "gpushare": units_of_gpushare,
    "one card": used_of_one_card,
    "CPU": lambda kinds: requested(of(kinds, "cpu")).cpu_milli // 1000,
}


@pytest.mark.parametrize(("kinds", "most"), AT_ONCE)
@pytest.mark.parametrize("reader", READERS)
def test_an_init_container_counts_with_the_sidecars_before_it(reader: str, kinds: Kinds, most: int) -> None:
    assert READERS[reader](kinds) == most


@pytest.mark.parametrize(
    ("kinds", "most"), [(AT_ONCE[2][0], 5), (AT_ONCE[0][0], 5), (AT_ONCE[1][0], 5), (AT_ONCE[6][0], 8)]
)
def test_a_kube_scheduler_before_1_35_requests_devices_of_a_class_for_each_container(
    kinds: Kinds, most: int
) -> None:
    assert by_class(kinds, reuses=False) == most


@pytest.mark.parametrize(
    ("version", "reuses"),
    [
        ({"major": "1", "minor": "36"}, True),
        ({"major": "1", "minor": "35+"}, True),
        ({"major": "2", "minor": "0"}, True),
        ({"major": "1", "minor": "34+"}, False),
        ({"major": "1", "minor": ""}, False),
        ({"major": "1", "minor": 7}, False),
        ({}, False),
    ],
)
def test_the_version_of_the_api_server_says_it(version: Json, reuses: bool) -> None:
    assert reuses_devices(version) is reuses


def test_devices_of_one_resource_are_not_given_to_a_container_that_requests_another() -> None:
    """Neither by kube-scheduler nor by the kubelet, which takes none back before the pod ends."""
    first, then = of_resources({f"{EXPLICIT}gpu": "2"}, "i"), of_resources({f"{EXPLICIT}other": "1"})
    raw = pod(then, init=[first])
    asked = KnownClaims(CLASSES).asked_by(raw, "a", containers(raw))
    devices = pod(of_resources({"habana.ai/gaudi": "1"}), init=[of_resources({TPU: "2"}, "i")])

    assert asked is not None
    assert asked.devices == 3
    assert metered_milli(devices) == 3_000


@pytest.mark.parametrize(
    ("raw", "most"),
    [
        (of([("init", 1), ("main", 1)], GPU, c0={TPU: "2"}), 3),
        (of([("init", 1), ("main", 2)], GPU, c0={TPU: "2"}, c1={TPU: "1"}), 4),
        (of([("sidecar", 1), ("init", 2), ("main", 1)], GPU, c1={TPU: "1"}), 4),
    ],
)
def test_a_metered_pod_has_its_cards_and_its_other_devices(raw: Json, most: int) -> None:
    assert metered_milli(raw) == 1_000 * most


def test_a_metered_pods_fractions_count_in_the_pods_order() -> None:
    """The request of the later container is read first."""
    raw = pod(of_resources({GPU: "1"}), init=[of_resources({}, "i")])
    raw["metadata"]["annotations"] = {"nvidia.com/container.i.gpu-memory.request": str(8_000 << 20)}

    assert metered_milli(raw) == 1_000


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=6))
def test_the_peak_is_the_largest_sum_of_what_runs_together(parts: list[tuple[bool, int]]) -> None:
    together = sum(amount for is_init, amount in parts if not is_init)
    sums = [
        amount + sum(before for was_init, before in parts[:at] if not was_init)
        for at, (is_init, amount) in enumerate(parts)
        if is_init
    ]

    assert peak(parts) == max(together, *sums, 0)
