"""What devices cost that are several GPUs, or parts of a whole: however a pool is cut, a full layout costs
the same; without a rule that says how many GPUs a device is, the charge stays and has a doubt."""

import random
from collections.abc import Iterator

import pytest

from tests.core.unit.test_claims import WEIGHTS, charge
from tests.timekeeper.claims import DRIVER, allocated, device_slice
from tests.worlds import Json
from timekeeper.core.claims.drivers import DriverRule

TPUS = DriverRule(DRIVER, units="capacity.tpus")
DOUBT = (
    "it takes all of a counter that others leave, or counters of several sets, and counts as one GPU at most:"
    f" drivers.{DRIVER}.units says how many GPUs a device is"
)


def device(name: str, chips: object, **taken: dict[str, str]) -> Json:
    """A device of so many chips, that takes counters of these sets."""
    consumes = [
        {
            "counterSet": its.replace("_", "-"),
            "counters": {key: {"value": much} for key, much in some.items()},
        }
        for its, some in taken.items()
    ]
    found = {"name": name, "attributes": {"model": {"string": "H100"}}, "consumesCounters": consumes}
    return found | {"capacity": {} if chips is None else {"tpus": {"value": str(chips)}}}


def pool(*devices: Json, **sets: dict[str, str]) -> Json:
    body = device_slice(node="n1")
    body["spec"]["devices"] = list(devices)
    body["spec"]["sharedCounters"] = [
        {"name": name.replace("_", "-"), "counters": {key: {"value": much} for key, much in some.items()}}
        for name, some in sets.items()
    ]
    return body


NODES = [f"tpus-node-{number}" for number in range(1, 7)]


def kep() -> Json:
    """The pool of KEP-4815: six nodes of four chips, cut by rectangles of whole nodes."""
    rows = [device(f"tpu-2x2-{at}", 4, tpus={node: "4"}) for at, node in enumerate(NODES, 1)]
    rows += [device(f"tpu-2x4-{at}", 8, tpus=dict.fromkeys(NODES[at - 1 : at + 1], "4")) for at in (1, 3, 5)]
    rows += [device("tpu-4x4", 16, tpus=dict.fromkeys(NODES[:4], "4"))]
    rows += [device("tpu-4x6", 24, tpus=dict.fromkeys(NODES, "4"))]
    return pool(*rows, tpus=dict.fromkeys(NODES, "4"))


LAYOUTS = (
    ("tpu-4x6",),
    ("tpu-4x4", "tpu-2x4-5"),
    ("tpu-2x4-1", "tpu-2x4-3", "tpu-2x4-5"),
    ("tpu-4x4", "tpu-2x2-5", "tpu-2x2-6"),
    tuple(f"tpu-2x2-{number}" for number in range(1, 7)),
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("is_one_claim", [True, False])
def test_a_full_layout_costs_the_same_however_it_is_cut(layout: tuple[str, ...], is_one_claim: bool) -> None:
    devices = [allocated(name) for name in layout]
    charges = [charge(*devices, of=(kep(),), rules=(TPUS,))]
    if not is_one_claim:
        charges = [charge(each, of=(kep(),), rules=(TPUS,)) for each in devices]

    assert sum(each.rate_milli for each in charges) == 24 * 1000 * dict(WEIGHTS)["H100"] // 1000
    assert sum(gpu.share_milli for each in charges for gpu in each.gpus) == 24_000
    assert {each.doubt for each in charges} == {""}


def cut(chance: random.Random, chips: int) -> Iterator[int]:
    """Random parts of so many chips."""
    while chips:
        part = chance.randint(1, chips)
        yield part
        chips -= part


@pytest.mark.parametrize("seed", range(20))
def test_random_layouts_of_one_pool_cost_what_it_has(seed: int) -> None:
    chance = random.Random(seed)
    chips = chance.randint(1, 64)
    parts = list(cut(chance, chips))
    body = pool(*(device(f"d{at}", part) for at, part in enumerate(parts)))

    found = charge(*(allocated(f"d{at}") for at in range(len(parts))), of=(body,), rules=(TPUS,))

    assert sum(gpu.share_milli for gpu in found.gpus) == 1000 * chips


TWO = {"gpu_0": {"memory": "80Gi"}, "gpu_1": {"memory": "80Gi"}}


@pytest.mark.parametrize(
    ("name", "body", "milli", "doubt"),
    [
        ("tpu-4x4", kep(), 1000, DOUBT),
        ("tpu-2x2-1", kep(), 1000, DOUBT),
        ("pair", pool(device("pair", None, **TWO), **TWO), 1000, DOUBT),
        ("one", pool(device("pair", None, **TWO), device("one", None, gpu_0=TWO["gpu_0"]), **TWO), 1000, ""),
        (
            "large",
            pool(
                device("large", None, s={"memory": "80Gi", "cores": "8"}),
                device("small", None, s={"memory": "20Gi", "cores": "1"}),
                s={"memory": "80Gi", "cores": "8"},
            ),
            1000,
            "",
        ),
        (
            "half",
            pool(
                device("half", None, s={"memory": "40Gi"}),
                device("other", None, s={"cores": "1"}),
                s={"memory": "80Gi", "cores": "8"},
            ),
            500,
            "",
        ),
    ],
    ids=["16 chips", "4 of them", "both cards", "one card", "a card beside its part", "a half"],
)
def test_without_it_the_charge_stays_and_what_nothing_says_has_a_doubt(
    name: str, body: Json, milli: int, doubt: str
) -> None:
    (found,) = charge(allocated(name), of=(body,)).gpus

    assert (found.share_milli, found.rating.doubt) == (milli, doubt)


def test_counters_that_the_rule_does_not_name_make_no_doubt() -> None:
    sets = {"s": {"memory": "80Gi", "engine": "1"}}
    body = pool(device("a", None, s=sets["s"]), device("b", None, s={"memory": "40Gi"}), **sets)

    assert charge(allocated("a"), of=(body,)).doubt == DOUBT
    assert charge(allocated("a"), of=(body,), rules=(DriverRule(DRIVER, counters=("memory",)),)).doubt == ""


@pytest.mark.parametrize("chips", [None, 0, -4, "9E", "no"])
def test_a_device_that_does_not_say_how_many_gpus_it_is_counts_as_one_with_a_doubt(chips: object) -> None:
    (found,) = charge(allocated("d"), of=(pool(device("d", chips)),), rules=(TPUS,)).gpus

    assert (found.share_milli, found.rating.rate_milli) == (1000, 2000)
    assert found.rating.doubt == f"it has no capacity.tpus (drivers.{DRIVER}.units)"


def test_an_attribute_may_say_it_and_a_share_is_a_part_of_all_of_them() -> None:
    one = device("d", 8) | {"allowMultipleAllocations": True}
    one["attributes"]["chips"] = {"int": 4}
    rule = DriverRule(DRIVER, units="chips")

    whole = charge(allocated("d"), of=(pool(one),), rules=(rule,)).gpus[0]
    share = allocated("d", shareID="s", consumedCapacity={"tpus": "2"})

    assert whole.share_milli == 4000
    assert charge(share, of=(pool(one),), rules=(rule,)).gpus[0].share_milli == 1000
