"""What a claim holds, what drivers publish of it, which of it are GPUs, and what it costs."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.timekeeper.claims import DRIVER, allocated, device_claim, device_slice
from tests.timekeeper.worlds import T0
from tests.worlds import Json
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.claims.allocation import AllocatedDevice, DeviceAllocation, DeviceClaim, read_claim
from timekeeper.core.claims.devices import MAX_FORMER, DevicePools, read_slice
from timekeeper.core.claims.drivers import DeviceComparison, DriverRule, read_comparison, rules_of
from timekeeper.core.rating.allocations import ClaimCharge, charge_of
from timekeeper.core.rating.weights import Weights
from timekeeper.core.request.device_classes import GPU_DRIVERS, DeviceClass, kind_of, read_settings

NVIDIA = "gpu.nvidia.com"
WEIGHTS = (("A100", 1000), ("H100", 2000))


def pools(*slices: Json) -> DevicePools:
    found = DevicePools()
    for each in slices:
        found.put(read_slice(each))
    return found


def charge(
    *devices: Json, of: tuple[Json, ...] = (), rules: tuple[DriverRule, ...] = (), weights: Weights = WEIGHTS
) -> ClaimCharge:
    """The charge of these allocated devices, by these slices."""
    allocation = read_claim(device_claim("c", *devices)).allocation
    assert allocation is not None
    return charge_of(allocation, pools(*of).find, rules_of(rules), BudgetSettings(weights=weights))


def rate(*devices: Json, of: tuple[Json, ...] = (), rules: tuple[DriverRule, ...] = ()) -> int:
    return charge(*devices, of=of, rules=rules).rate_milli


def test_a_claim_is_read_with_its_devices_classes_and_pods() -> None:
    raw = device_claim(
        "c", allocated(shareID="s1", consumedCapacity={"memory": "8Gi"}), at_ms=T0, pods=("u1", "u2")
    )

    assert read_claim(raw) == DeviceClaim(
        uid="claim-c",
        namespace="team-a",
        name="c",
        allocation=DeviceAllocation(
            (AllocatedDevice(DRIVER, "n1", "gpu-0", "r0", "gpu", "s1", (("memory", 1000 * 8 * 1024**3),)),),
            "n1",
            T0,
        ),
        consumers=("u1", "u2"),
        users=("u1/u1", "u2/u2"),
    )


def test_the_class_of_a_request_of_several_alternatives_is_that_of_the_allocated_one() -> None:
    raw = device_claim("c", allocated() | {"request": "r0/small"})
    alternatives = [{"name": "big", "deviceClassName": "h100"}, {"name": "small", "deviceClassName": "mig"}]
    raw["spec"]["devices"]["requests"] = [{"name": "r0", "firstAvailable": alternatives}]

    found = read_claim(raw).allocation

    assert found is not None
    assert [each.device_class for each in found.devices] == ["mig"]


def test_a_pod_group_is_a_consumer_that_is_no_pod() -> None:
    raw = device_claim("c", allocated(), pods=())
    raw["status"]["reservedFor"] = [{"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "uid": "g"}]

    found = read_claim(raw)

    assert (found.consumers, found.other_consumers) == ((), 1)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "metadata",
                    "spec",
                    "status",
                    "devices",
                    "results",
                    "allocation",
                    "requests",
                    "reservedFor",
                    "pool",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), JUNK))
def test_no_json_makes_the_readers_raise(raw: Json) -> None:
    read_claim(raw)
    read_slice(raw)


def test_a_whole_device_costs_its_models_weight() -> None:
    h100 = device_slice("gpu-0", "gpu-1", model="H100")

    assert rate(allocated("gpu-0"), allocated("gpu-1"), of=(h100,)) == 4000
    assert charge(allocated("gpu-0"), of=(h100,)).gpus[0].rating.requested.memory_mib == 80 * 1024


def test_a_share_costs_the_largest_part_that_it_consumes_and_a_least_one() -> None:
    shared = device_slice(
        "gpu-0",
        allowMultipleAllocations=True,
        capacity={"memory": {"value": "80Gi"}, "compute": {"value": "100"}},
    )

    def share(**consumed: str) -> int:
        return rate(allocated(shareID="s", consumedCapacity=consumed), of=(shared,))

    assert share(memory="40Gi", compute="10") == 500
    assert share(memory="8Gi", compute="25") == 250
    assert share(memory="0", compute="0") == 10
    assert share() == 10
    assert share(memory="1", compute="0") == 10
    assert share(memory="160Gi", compute="0") == 1000


def test_a_share_of_less_than_nothing_costs_the_least_and_has_no_memory() -> None:
    shared = device_slice("gpu-0", allowMultipleAllocations=True)
    taken = allocated(shareID="s", consumedCapacity={"memory": "-8Gi"})
    (found,) = charge(taken, of=(shared,)).gpus

    assert (found.share_milli, found.rating.requested.memory_mib) == (10, 0)


@pytest.mark.parametrize(("model", "shown"), [("A\x00100\n", "A?100"), ("GPU 5 é", "GPU 5 é")])
def test_a_model_has_no_character_that_a_database_does_not_take(model: str, shown: str) -> None:
    (found,) = charge(allocated(), of=(device_slice("gpu-0", model=model),)).gpus

    assert found.rating.models == shown


def test_a_share_counts_by_the_capacities_that_the_rule_names() -> None:
    shared = device_slice(
        "gpu-0", allowMultipleAllocations=True, capacity={"memory": {"value": "80Gi"}, "nics": {"value": "1"}}
    )
    rule = DriverRule(DRIVER, capacity=("memory",), min_share_milli=200)
    taken = allocated(shareID="s", consumedCapacity={"memory": "8Gi", "nics": "1"})

    assert rate(taken, of=(shared,)) == 1000
    assert rate(taken, of=(shared,), rules=(rule,)) == 200


def partitioned(**counters: tuple[str, str]) -> Json:
    """A device ``whole`` and one ``part`` of it; by name what the whole has of a counter, and the part."""
    body = device_slice("whole", "part")
    of_whole = {name: {"value": each[0]} for name, each in counters.items()}
    of_part = {name: {"value": each[1]} for name, each in counters.items()}
    body["spec"]["sharedCounters"] = [{"name": "set", "counters": of_whole}]
    for device, taken in zip(body["spec"]["devices"], (of_whole, of_part), strict=True):
        device["consumesCounters"] = [{"counterSet": "set", "counters": taken}]
    return body


def test_a_partition_is_the_largest_part_of_its_counters() -> None:
    body = partitioned(memory=("80Gi", "10Gi"), compute=("100", "25"))

    assert rate(allocated("part"), of=(body,)) == 250
    assert rate(allocated("whole"), of=(body,)) == 1000


def test_a_counter_of_which_the_whole_has_none_counts_for_nothing() -> None:
    body = partitioned(memory=("80Gi", "10Gi"), compute=("0", "0"))

    assert rate(allocated("part"), of=(body,)) == 125


def test_counters_may_be_in_another_slice_of_the_pool_than_the_devices() -> None:
    body = partitioned(memory=("80Gi", "10Gi"))
    counters = body["spec"].pop("sharedCounters")
    other = device_slice()
    other["metadata"]["name"] = "counters"
    other["spec"] = {**other["spec"], "sharedCounters": counters}

    assert rate(allocated("part"), of=(body, other)) == 125


def test_a_share_of_a_partition_is_a_part_of_that_part() -> None:
    body = partitioned(memory=("80Gi", "40Gi"))
    body["spec"]["devices"][1] |= {"capacity": {"memory": {"value": "40Gi"}}}

    taken = allocated("part", shareID="s", consumedCapacity={"memory": "10Gi"})

    assert rate(taken, of=(body,)) == 125


def nvidia(kind: str, name: str = "gpu-0", **attributes: str) -> Json:
    given = {"type": kind, "productName": "NVIDIA A100-SXM4-80GB"} | attributes
    texts = {key: {"string": value} for key, value in given.items()}
    return device_slice(name, driver=NVIDIA, attributes=texts)


def test_an_instance_without_a_profile_counts_by_multiprocessors_and_memory_and_not_by_memory_slices() -> (
    None
):
    body = device_slice("mig", driver=NVIDIA, attributes={"type": {"string": "mig"}})
    whole = {"multiprocessors": "98", "memory": "80Gi", "memory-slice-0": "1"}
    taken = {"multiprocessors": "14", "memory": "10Gi", "memory-slice-0": "1"}
    body["spec"]["sharedCounters"] = [
        {"name": "s", "counters": {name: {"value": each} for name, each in whole.items()}}
    ]
    counters = {name: {"value": each} for name, each in taken.items()}
    body["spec"]["devices"][0]["consumesCounters"] = [{"counterSet": "s", "counters": counters}]

    assert rate(allocated("mig", driver=NVIDIA), of=(body,)) == 143


def divided(
    count: int,
    kind: str,
    profile: str,
    parent: str = "resource.kubernetes.io/pciBusID",
    product: str = "MI300X",
) -> Json:
    """Partitions of one device beside a whole device, as their driver publishes them."""
    whole = {
        "type": "amdgpu",
        "productName": "MI300X",
        "partitionProfile": "spx_nps1",
        parent: "0000:0b:00.0",
    }
    part = {"type": kind, "productName": product, "partitionProfile": profile, parent: "0000:0a:00.0"}
    body = device_slice(*(f"part-{at}" for at in range(count)), driver=AMD, attributes=texts(part))
    body["spec"]["devices"] += device_slice("whole", driver=AMD, attributes=texts(whole))["spec"]["devices"]
    return body


def texts(attributes: Json) -> Json:
    return {name: {"string": text} for name, text in attributes.items()}


AMD = "gpu.amd.com"
PARTITION = "amdgpu-partition"
UNSAID = "nothing says which part of a device it is: it counts as a whole one"


@pytest.mark.parametrize(("body", "milli", "doubt"), [
    (divided(8, PARTITION, "cpx_nps4"), 125, ""),
    (divided(6, PARTITION, "cpx_nps1"), 167, ""),
    (divided(2, PARTITION, "dpx_nps2", "pciAddr"), 500, ""),
    (divided(1, PARTITION, "cpx_nps4"), 125, ""),
    (divided(1, PARTITION, "cpx_nps4", product="MI300A"), 167, ""),
    (divided(1, PARTITION, "cpx_nps4", product=""), 125, "a partition cpx_nps4 counts as 1/8 of a device"),
    (divided(1, PARTITION, "odd_nps4"), 1000, UNSAID),
    (divided(8, "amdgpu", "spx_nps1"), 1000, ""),
])  # fmt: skip
def test_a_partition_is_an_equal_part_of_what_is_published_of_its_device(
    body: Json, milli: int, doubt: str
) -> None:
    found = charge(allocated("part-0", driver=AMD), of=(body,))

    assert (found.rate_milli, found.doubt) == (milli, doubt)
    assert rate(allocated("whole", driver=AMD), of=(body,)) == 1000


def test_a_share_of_what_partitions_a_device_on_demand_is_its_part() -> None:
    """AMD's automatic partitioning: a device for each mode, of which one at a time may be used, by shares."""
    body = device_slice("gpu-0-cpx-nps4", driver=AMD, allowMultipleAllocations=True)
    device = body["spec"]["devices"][0]
    device["capacity"] = {"partitions": {"value": "8"}}
    mutex = {"counters": {"partition-mode": {"value": "1"}}}
    body["spec"]["sharedCounters"] = [{"name": "mutex", **mutex}]
    device["consumesCounters"] = [{"counterSet": "mutex", **mutex}]

    taken = allocated("gpu-0-cpx-nps4", driver=AMD, shareID="s", consumedCapacity={"partitions": "1"})

    assert rate(taken, of=(body,)) == 125


@pytest.mark.parametrize(("product", "profile", "parent_memory", "milli", "doubt"), [
    ("NVIDIA A100-SXM4-80GB", "1g.10gb", "80Gi", 143, ""),
    ("NVIDIA A100-SXM4-80GB", "1g.20gb", "", 143, ""),
    ("", "1g.24gb", "184Gi", 143, ""),
    ("", "1g.24gb", "47Gi", 500, ""),
    ("", "1g.24gb", "", 143, "counts as 1/7"),
    ("NVIDIA X900", "2g.48gb", "", 500, "X900 counts as 2/4"),
    ("NVIDIA A100-SXM4-80GB", "", "", 1000, UNSAID),
    ("NVIDIA A100-SXM4-80GB", "", "160Gi", 500, ""),
])  # fmt: skip
def test_a_mig_instance_counts_by_its_slices_else_by_its_parent(
    product: str, profile: str, parent_memory: str, milli: int, doubt: str
) -> None:
    parent = nvidia("gpu", uuid="GPU-1")
    parent["spec"]["devices"][0]["capacity"] = {"memory": {"value": parent_memory or "1Gi"}}
    instance = nvidia("mig", "mig", parentUUID="GPU-1", profile=profile, productName=product)
    instance["metadata"]["name"] = "mig"

    found = charge(allocated("mig", driver=NVIDIA), of=(parent, instance) if parent_memory else (instance,))

    assert found.rate_milli == milli
    assert doubt in found.doubt
    assert bool(found.doubt) == bool(doubt)


def test_a_weight_with_the_profile_states_what_an_instance_of_a_claim_costs() -> None:
    instance = nvidia("mig", "mig", parentUUID="GPU-1", profile="1g.24gb", productName="NVIDIA X900")

    found = charge(allocated("mig", driver=NVIDIA), of=(instance,), weights=(("X900 MIG 1g.24gb", 250),))

    assert (found.rate_milli, found.doubt) == (250, "")


def test_the_model_of_a_mig_instance_is_that_of_its_card() -> None:
    found = charge(allocated(driver=NVIDIA), of=(nvidia("gpu"),))

    assert [gpu.rating.models for gpu in found.gpus] == ["NVIDIA A100-SXM4-80GB"]


@pytest.mark.parametrize(("driver", "kind", "is_gpu"), [
    (NVIDIA, "gpu", True),
    (NVIDIA, "mig", True),
    (NVIDIA, "vfio", True),
    (NVIDIA, "later", True),
    ("compute-domain.nvidia.com", "daemon", False),
])  # fmt: skip
def test_which_devices_of_nvidias_drivers_are_gpus(driver: str, kind: str, is_gpu: bool) -> None:
    body = device_slice("d", driver=driver, attributes={"type": {"string": kind}})

    found = charge(allocated("d", driver=driver), of=(body,))

    assert bool(found.gpus) is is_gpu
    assert found.unknown_drivers == ()


@pytest.mark.parametrize("kind", [{"type": {"string": "later"}}, {}])
def test_a_device_of_a_type_that_the_built_in_rule_does_not_know_counts_as_a_whole_one_with_a_doubt(
    kind: Json,
) -> None:
    named = kind | {"productName": {"string": "NVIDIA A100"}}
    body = device_slice("d", driver=NVIDIA, attributes=named, consumesCounters=[])

    (found,) = charge(allocated("d", driver=NVIDIA), of=(body,)).gpus

    assert (found.share_milli, found.rating.rate_milli, found.rating.models) == (1000, 1000, "NVIDIA A100")
    said = kind.get("type", {}).get("string")
    assert found.rating.doubt == (
        f"a device of gpu.nvidia.com of a type that is not known, {said}, counts as a whole one"
    )


def test_what_the_comparisons_of_an_administrator_leave_out_costs_nothing() -> None:
    rule = DriverRule(NVIDIA, where=(DeviceComparison("type", "=", ("gpu",)),))
    body = device_slice("d", driver=NVIDIA, attributes={"type": {"string": "later"}})

    assert charge(allocated("d", driver=NVIDIA), of=(body,), rules=(rule,)).gpus == ()


@pytest.mark.parametrize(
    ("lists", "given", "is_gpu"),
    [
        ({"gpuDrivers": "x.example.com"}, (), True),
        ({"noGPUDrivers": "x.example.com"}, (), False),
        ({"gpuDrivers": "x.example.com", "noGPUDrivers": "x.example.com"}, (), False),
        ({"gpuDrivers": "x.example.com"}, (DriverRule("x.example.com", has_gpus=False),), False),
        ({"noGPUDrivers": "x.example.com"}, (DriverRule("x.example.com"),), True),
        ({}, (), None),
    ],
)
def test_the_lists_of_device_classes_are_rules_as_admission_reads_them(
    lists: dict[str, str], given: tuple[DriverRule, ...], is_gpu: bool | None
) -> None:
    settings = read_settings(lists)
    rule = rules_of(given, settings).get("x.example.com")

    assert (rule and rule.has_gpus) is is_gpu
    kind = kind_of(DeviceClass("c", "x.example.com"), settings, {one.driver: one.has_gpus for one in given})
    assert kind == {True: "gpu", False: "other", None: "unknown"}[is_gpu]


@pytest.mark.parametrize("driver", GPU_DRIVERS)
def test_no_list_of_device_classes_changes_the_rule_of_a_vendor(driver: str) -> None:
    lists = {"gpuDrivers": driver, "noGPUDrivers": driver}

    assert rules_of((), read_settings(lists))[driver] == rules_of(())[driver]


def test_a_device_of_a_driver_without_a_rule_is_named_and_costs_nothing() -> None:
    found = charge(allocated(driver="nic.example.com"), allocated(), of=(device_slice("gpu-0"),))

    assert (found.rate_milli, found.unknown_drivers) == (1000, ("nic.example.com",))


def test_admin_access_is_free_also_where_nothing_publishes_the_device() -> None:
    looks = allocated(adminAccess=True)

    assert [rate(looks, of=given) for given in ((device_slice("gpu-0"),), ())] == [0, 0]
    assert len(charge(looks).gpus) == 1


def test_a_device_that_nothing_publishes_counts_as_a_whole_one_with_a_doubt() -> None:
    found = charge(allocated())

    assert (found.rate_milli, found.gpus[0].found) == (1000, None)
    assert found.doubt == "no ResourceSlice has its device, which counts as a whole one with weight 1"


def version(number: int, *devices: str, model: str, part: str = "n1", of: int = 1) -> Json:
    """A slice of pool n1 in the generation of this number."""
    body = device_slice(*devices, model=model)
    body["metadata"]["name"] = part
    body["spec"]["pool"] |= {"generation": number, "resourceSliceCount": of}
    return body


def model_of(found: DevicePools, device: str) -> object:
    known = found.find(DRIVER, "n1", device)
    return known and known.device.attribute("model")


def test_of_a_pool_the_newest_generation_counts() -> None:
    old, new = version(1, "gpu-0", model="A100"), version(2, "gpu-0", model="H100", part="new")
    found = pools(new, old)

    assert (model_of(found, "gpu-0"), found.of_driver(DRIVER)) == ("H100", {"n1": 1})
    found.remove("new")
    assert model_of(found, "gpu-0") == "A100"


OLD, NEW = "H100", "A100"
MOTIONS: dict[str, tuple[list[Json | str], object]] = {
    "other names in the same slice": ([version(1, "d", model=OLD), version(2, "e", model=NEW)], OLD),
    "without another generation": ([version(1, "d", model=OLD), version(1, "e", model=NEW)], OLD),
    "and again": (
        [version(1, "d", model=OLD), version(2, "e", model=NEW), version(2, "e", "f", model=NEW)],
        OLD,
    ),
    "twice": (
        [version(1, "d", model=OLD), version(2, "e", model=NEW), version(3, "f", model=NEW)],
        OLD,
    ),
    "the new one has it": ([version(1, "d", model=OLD), version(2, "d", model=NEW)], NEW),
    "the new one is not whole": (
        [
            version(1, "d", model=OLD, part="a", of=2),
            version(1, "e", model=OLD, part="b", of=2),
            version(2, "d", model=NEW, part="a", of=2),
        ],
        OLD,
    ),
    "now it is": (
        [
            version(1, "d", model=OLD, part="a", of=2),
            version(1, "e", model=OLD, part="b", of=2),
            version(2, "d", model=NEW, part="a", of=2),
            version(2, "e", model=NEW, part="b", of=2),
        ],
        NEW,
    ),
    "none is whole": ([version(1, "d", model=OLD, of=3), version(2, "d", model=NEW, part="b", of=3)], NEW),
    "its slice is gone": ([version(1, "d", model=OLD), "n1"], OLD),
    "it is there anew, and counts from one": (
        [version(7, "d", model=OLD), "n1", version(1, "d", model=NEW)],
        NEW,
    ),
    "it never was": ([version(1, "e", model=OLD)], None),
}


@pytest.mark.parametrize("motion", MOTIONS)
def test_a_device_is_found_while_its_driver_replaces_what_it_publishes(motion: str) -> None:
    events, model = MOTIONS[motion]
    found = DevicePools()
    for event in events:
        found.remove(event) if isinstance(event, str) else found.put(read_slice(event))

    assert model_of(found, "d") == model


def test_former_slices_of_pools_that_come_and_go_are_forgotten() -> None:
    found = DevicePools()
    for number in range(2 * MAX_FORMER):
        found.put(replace(read_slice(version(1, "d", model=OLD)), name=f"s{number}"))
        found.remove(f"s{number}")

    assert len(found._former) == MAX_FORMER


DEVICE: Json = {
    "attributes": {
        "kind": {"string": "train"},
        "cores": {"int": 64},
        "shared": {"bool": True},
        "other.example.com/zone": {"string": "a"},
        f"{DRIVER}/rev": {"version": "1.2.0"},
    },
    "capacity": {"memory": {"value": "16Gi"}},
}


@pytest.mark.parametrize(("text", "holds"), [
    ("kind = train", True),
    ("kind = infer|train", True),
    ("kind = infer", False),
    ("kind != infer|mixed", True),
    ("kind != train", False),
    ("cores >= 64", True),
    ("cores > 64", False),
    ("cores = 64", True),
    ("shared = true", True),
    ("other.example.com/zone = a", True),
    ("rev = 1.2.0", True),
    ("absent = x", False),
    ("absent != x", True),
    ("absent > 1", False),
    ("kind > 1", False),
    ("capacity.memory >= 16Gi", True),
    ("capacity.memory < 16Gi", False),
    ("capacity.memory = 8Gi|16Gi", True),
    ("capacity.absent > 0", False),
])  # fmt: skip
def test_a_comparison_holds_of_a_device_or_not(text: str, holds: bool) -> None:
    found = pools(device_slice("gpu-0", **DEVICE)).find(DRIVER, "n1", "gpu-0")
    comparison = read_comparison(text)

    assert found is not None
    assert comparison is not None
    assert comparison.holds(found.device) is holds


@pytest.mark.parametrize(
    "text", ["", "kind", "kind = ", "= a", "kind ~ a", "cores > many", "a = b c", "a" * 300 + " = b"]
)
def test_other_texts_are_no_comparison(text: str) -> None:
    assert read_comparison(text) is None


@pytest.mark.parametrize(
    "text", ["kind = train|infer", "capacity.memory >= 16Gi", "other.example.com/zone != a"]
)
def test_the_text_of_a_comparison_is_read_as_the_same(text: str) -> None:
    comparison = read_comparison(text)

    assert comparison is not None
    assert comparison.text == text


def test_a_rule_of_an_administrator_replaces_the_one_that_is_built_in() -> None:
    rules = rules_of((DriverRule(NVIDIA, where=(DeviceComparison("type", "=", ("gpu",)),)),))

    assert rules[NVIDIA].model == "model"
    assert rules["gpu.example.com"] == DriverRule("gpu.example.com")


@pytest.mark.parametrize("seed", range(50))
def test_shares_of_a_device_together_cost_no_less_than_what_they_consume(seed: int) -> None:
    chance = random.Random(seed)
    total = chance.randint(1, 10**6)
    cuts = sorted(chance.sample(range(total + 1), min(total + 1, chance.randint(1, 6))))
    parts = [after - before for before, after in zip([0, *cuts], [*cuts, total], strict=True)]
    body = device_slice("gpu-0", allowMultipleAllocations=True, capacity={"memory": {"value": str(total)}})

    rates = [
        rate(allocated(shareID="s", consumedCapacity={"memory": str(each)}), of=(body,)) for each in parts
    ]

    assert all(each >= -(-1000 * part // total) for each, part in zip(rates, parts, strict=True))
    assert sum(rates) >= 1000
