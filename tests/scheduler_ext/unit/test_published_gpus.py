"""GPUs that drivers publish for device claims: which nodes give out none of their cards, and what is said."""

import random

import pytest

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.cache.device_slices import DeviceSlices
from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.node import read_node
from scheduler_ext.reports.closed_nodes import closures, why_closed
from scheduler_ext.scoring.policy import BINPACK
from scheduler_ext.snapshot.node_info import is_emptier
from scheduler_ext.snapshot.snapshot import EMPTY
from scheduler_ext.verbs.fit_cache import FitCache, fit_key
from tests.scheduler_ext.worlds import Json, holders, node, percent, request_of
from tests.timekeeper.claims import device_slice
from tests.worlds import card
from timekeeper.core.claims.devices import read_slice
from timekeeper.core.claims.drivers import DeviceComparison, DriverRule

NVIDIA, AMD, INTEL = "gpu.nvidia.com", "gpu.amd.com", "gpu.intel.com"
HERE = "GPU-18db0e85-99e9-4746-8531-ffeb86328b39"
OTHER = "GPU-93d37703-997c-4f46-a531-755e3e0dc2ac"
INSTANCE = "MIG-5d0ae5ba-2c0a-5b5a-a7a6-d37b4bd2c3b4"
OTHER_INSTANCE = "MIG-0d0ae5ba-2c0a-5b5a-a7a6-d37b4bd2c3b4"
BY_CLAIMS = "its GPUs are given out by device claims of {}; ask for them by a claim"


class World:
    """The cache behind the slices, by these rules of an administrator."""

    def __init__(self, *nodes: Json, rules: tuple[DriverRule, ...] = ()) -> None:
        self.rules = rules
        self.cache = ClusterCache(lambda: 0, lambda _names: None)
        self.cache.await_published_gpus()
        self.slices = DeviceSlices(self.cache, lambda: self.rules)
        self.slices.judge_again()
        self.kind = self.slices.kind()
        self.cache.nodes_listed(map(read_node, nodes))
        self.cache.pods_listed([])

    def publish(self, *slices: Json) -> None:
        self.kind.listed([read_slice(each) for each in slices])

    def sentence(self, name: str = "n") -> str:
        """What a pod with half a card is told of the node; "": it fits."""
        answer = fit(request_of(percent(50)), self.cache.snapshot.node(name))
        return answer.sentence if isinstance(answer, Refusal) else ""

    def closed(self) -> set[str]:
        return {each.name for each in self.cache.snapshot.nodes.values() if each.closed == "claims"}


def with_uuid(uuid: str) -> Json:
    raw = node("n", {**card(0), "uuid": uuid})
    assert read_node(raw).cards[0].uuid == uuid
    return raw


def gpu(uuid: str = "", driver: str = NVIDIA, kind: str = "gpu", parent: str = "", on: str = "n") -> Json:
    """A slice with one device."""
    attributes = {"type": {"string": kind}}
    attributes |= {"uuid": {"string": uuid}} if uuid else {}
    attributes |= {"parentUUID": {"string": parent}} if parent else {}
    return device_slice("gpu-0", node=on, driver=driver, attributes=attributes)


def test_a_node_whose_cards_a_driver_publishes_gives_out_none_and_names_the_driver() -> None:
    world = World(node("n"), node("m"))
    assert world.sentence() == ""

    world.publish(gpu())

    assert world.sentence() == BY_CLAIMS.format(NVIDIA)
    assert world.sentence("m") == ""
    there = world.cache.snapshot.node("n")
    assert why_closed(there) == f"its GPUs are given out by device claims of {NVIDIA}"
    key = fit_key(request_of(percent(50)), BINPACK, ())
    found = FitCache().partition(key, world.cache.snapshot.nodes, ["n", "m"])
    assert (found.fits, {name: why.sentence for name, why in found.refused.items()}) == (
        ["m"],
        {"n": BY_CLAIMS.format(NVIDIA)},
    )


def test_a_node_without_an_inventory_names_the_driver_too_also_on_the_map_and_is_not_closed() -> None:
    world = World({"metadata": {"name": "n"}, "status": {}})

    world.publish(gpu())

    assert world.sentence() == BY_CLAIMS.format(NVIDIA)
    assert not world.closed()
    there = world.cache.snapshot.node("n")
    assert (there.is_on_map, there.undescribed) == (True, f"device claims of {NVIDIA}")


@pytest.mark.parametrize(
    ("slice_", "card_uuid", "closes"),
    [
        (gpu(HERE), HERE, True),
        (gpu(OTHER), HERE, False),
        (gpu(), HERE, True),  # it says no UUID
        (gpu(OTHER), "n-0", True),  # the card's is not of NVIDIA
        (gpu("gpu-1"), HERE, True),
        (gpu(INSTANCE, kind="mig", parent=HERE), HERE, True),
        (gpu(INSTANCE, kind="mig", parent=OTHER), HERE, False),
        (gpu(INSTANCE, kind="mig"), HERE, True),
        (gpu(INSTANCE, kind="mig", parent=OTHER), INSTANCE, True),
        (gpu(OTHER_INSTANCE, kind="mig", parent=HERE), INSTANCE, False),
        (gpu(HERE), INSTANCE, True),  # perhaps a part of it
        (gpu(kind="vfio"), HERE, True),
        (gpu(kind="nic"), HERE, False),  # by its rule no GPU
        (gpu(driver="compute-domain.nvidia.com"), HERE, False),
        (gpu(driver="odd.example.com"), HERE, False),  # no rule
        (gpu(driver=AMD), HERE, False),
        (gpu(driver=AMD), "n-0", True),
        (gpu(driver="gpu.example.com"), HERE, True),
        (gpu(on="m"), HERE, False),
        (gpu(on=""), HERE, False),  # of no one node
    ],
)
def test_only_gpus_that_may_be_the_nodes_cards_close_it(slice_: Json, card_uuid: str, closes: bool) -> None:
    world = World(with_uuid(card_uuid))

    world.publish(slice_)

    assert world.closed() == ({"n"} if closes else set())


@pytest.mark.parametrize(("driver", "closes"), [(INTEL, True), (NVIDIA, False), (AMD, False)])
def test_cards_of_intel_are_given_out_by_intels_driver_alone(driver: str, closes: bool) -> None:
    capacity = {"gpu.intel.com/i915": "4", "gpu.intel.com/memory.max": "64000000000"}
    labels = {"gpu.intel.com/cards": "card0.card1", "gpu.intel.com/gpu-numbers": "0.1"}
    status = {"capacity": capacity, "allocatable": capacity}
    world = World({"metadata": {"name": "n", "labels": labels}, "status": status})
    assert world.cache.snapshot.node("n").cards

    world.publish(gpu(driver=driver))

    assert world.closed() == ({"n"} if closes else set())


def test_several_drivers_are_all_named() -> None:
    world = World(node("n"))

    world.publish(gpu(driver=NVIDIA), gpu(driver="gpu.example.com"))

    assert world.sentence() == BY_CLAIMS.format(f"gpu.example.com and {NVIDIA}")


def test_a_device_of_its_own_node_closes_that_node() -> None:
    slice_ = gpu(on="")
    slice_["spec"]["devices"][0]["nodeName"] = "m"
    world = World(node("n"), node("m"))

    world.publish(slice_)

    assert world.closed() == {"m"}


def test_claims_are_named_before_the_strangers_that_they_are_to_the_nodes_agent() -> None:
    report = {"bursar.dev/holders": holders(closed="process 4711 is on GPU-0, and of no pod")}
    world = World(node("n", annotations=report))
    assert world.cache.snapshot.node("n").closed == "strangers"

    world.publish(gpu())

    assert world.closed() == {"n"}


def test_the_node_opens_when_its_slices_are_gone_and_has_a_notice_for_each() -> None:
    world = World(node("n"))
    first = world.cache.snapshot.nodes
    world.kind.seen(read_slice(gpu()))
    second = world.cache.snapshot.nodes

    world.kind.gone(read_slice(gpu()))

    third = world.cache.snapshot.nodes
    assert [each.sentence() for each in (*closures(second, first), *closures(third, second))] == [
        f"No GPU pods are placed on the node: its GPUs are given out by device claims of {NVIDIA}.",
        "GPU pods are placed on the node again.",
    ]
    assert is_emptier(world.cache.snapshot.node("n"), second.get("n"))


def test_a_slice_that_moves_or_is_not_listed_any_more_opens_its_node() -> None:
    world = World(node("n"), node("m"))
    moved = {**gpu(on="m"), "metadata": gpu()["metadata"]}
    world.publish(gpu())

    world.kind.seen(read_slice(moved))
    assert world.closed() == {"m"}

    world.publish()
    assert not world.closed()


def test_no_node_opens_while_its_pool_is_written_anew() -> None:
    """The first slice of a new generation does not have the devices that the others will have."""
    world = World(with_uuid(HERE))
    world.publish(gpu(HERE))
    newer = gpu(OTHER)
    newer["metadata"]["name"], newer["spec"]["pool"]["generation"] = "newer", 2

    world.kind.seen(read_slice(newer))

    assert world.closed() == {"n"}


def test_rules_that_change_close_and_open_nodes() -> None:
    world = World(node("n"), node("m"))
    nic = gpu(driver="odd.example.com", kind="nic", on="m")
    world.publish(gpu(driver="odd.example.com", kind="train"), nic)
    assert not world.closed()

    train = (DeviceComparison("type", "=", ("train",)),)
    world.rules = (DriverRule("odd.example.com", where=train),)
    world.slices.judge_again()
    assert world.closed() == {"n"}

    world.rules = (DriverRule("odd.example.com", has_gpus=False),)
    world.slices.judge_again()
    assert not world.closed()


def test_a_node_that_comes_after_its_slice_is_closed_and_one_that_goes_leaves_nothing() -> None:
    world = World()
    world.publish(gpu())
    world.cache.node_updated(read_node(node("n")))
    assert world.closed() == {"n"}

    world.cache.node_deleted("n")
    world.publish()

    assert world.cache.snapshot.nodes == EMPTY.nodes


def test_nothing_is_answered_before_it_is_known_what_drivers_publish() -> None:
    listed, unserved = World(node("n")), World(node("n"))
    listed.kind.seen(read_slice(gpu()))
    before = [each.cache.complete for each in (listed, unserved)]

    listed.publish(gpu())
    unserved.slices.unserved()

    assert (before, listed.cache.complete, unserved.cache.complete) == ([False, False], True, True)


@pytest.mark.parametrize("seed", range(30))
def test_what_is_known_after_any_course_is_what_the_slices_say_that_exist(seed: int) -> None:
    chance = random.Random(seed)
    world, there = World(*(node(name) for name in "abc")), dict[str, Json]()
    for _ in range(40):
        name = chance.choice("xyz")
        slice_ = gpu(driver=chance.choice([NVIDIA, AMD, "odd.example.com"]), on=chance.choice("abc"))
        slice_["metadata"]["name"] = name
        step = chance.random()
        if step < 0.5:
            there[name] = slice_
            world.kind.seen(read_slice(slice_))
        elif step < 0.8 and name in there:
            world.kind.gone(read_slice(there.pop(name)))
        elif step < 0.9:
            there = {key: each for key, each in there.items() if chance.random() < 0.5}
            world.publish(*there.values())
        else:
            world.rules = chance.choice([(), (DriverRule("odd.example.com"),)])
            world.slices.judge_again()

        anew = World(*(node(each) for each in "abc"), rules=world.rules)
        anew.publish(*there.values())
        assert world.cache.snapshot == anew.cache.snapshot
