"""Pods of Intel GPU Aware Scheduling on a real API server and kube-scheduler, on nodes as Intel's plugin and
node feature discovery describe them. The pods are those of its examples."""

import re

from scheduler_ext.controllers.deschedule_labels import LABEL
from tests.scheduler_ext.clusters import PODS, PROFILE, World, placed, rate_of
from tests.support.waiting import eventually
from tests.worlds import Json, of_resources

INTEL = "gpu.intel.com/"
TAS = "telemetry.aware.scheduling.health-metric-policy/"


def intel_node(world: World, name: str, labels: Json | None = None) -> None:
    """Four cards of two tiles, each shared by ten pods at most."""
    amounts = {"i915": 40, "millicores": 4000, "memory.max": 4 * 8 * 10**9, "tiles": 8}
    described = {
        f"{INTEL}gpu-numbers": "0.1.2.3",
        f"{INTEL}xe-links": "0.0-1.0",
        f"{INTEL}xe-links2": "Z_2.1-3.0",
        f"{INTEL}pci-groups": "0.1_2.3",
    }
    capacity = {f"{INTEL}{key}": str(amount) for key, amount in amounts.items()}
    world.node(name, cards=0, capacity=capacity, labels={**described, **(labels or {})})


def limits(**amounts: str) -> Json:
    return {f"{INTEL}{key.replace('__', '.')}": amount for key, amount in amounts.items()}


def several(world: World, name: str, containers: Json, annotations: Json) -> None:
    """A pod with these containers: name -> limits."""
    spec = {
        "schedulerName": PROFILE,
        "containers": [of_resources(amounts, each) for each, amounts in containers.items()],
    }
    world.plane.api.call("POST", PODS, {"metadata": {"name": name, "annotations": annotations}, "spec": spec})


def written(world: World, name: str) -> Json:
    """What the Binding wrote for the plugin."""
    annotations = world.get(name)["metadata"]["annotations"]
    return {key: text for key, text in annotations.items() if key.startswith("gas-container-")}


def test_its_examples_are_placed_and_charged_and_its_plugin_reads_the_placement(world: World) -> None:
    world.node("ours", cards=4)
    intel_node(world, "theirs")
    world.pod("bb", limits(i915="1", millicores="100"))
    placed(world, "bb")
    world.pod("memory", limits(i915="1", memory__max="500M"))
    placed(world, "memory")
    world.pod("tile", limits(i915="1", tiles="1"))
    placed(world, "tile")
    allow = {"gas-allow": "card1,card2,card3", "gas-deny": "card0"}
    world.pod("allow", limits(i915="1"), annotations=allow)
    placed(world, "allow")
    world.pod("xe-link", limits(i915="2", tiles="2"), annotations={"gas-allocate-xelink": "true"})
    placed(world, "xe-link")
    millicores = {"c1": "400", "c2": "300", "c3": "400", "c4": "300"}
    containers = {name: limits(i915="1", millicores=amount) for name, amount in millicores.items()}
    several(world, "same", containers, {"gas-same-gpu": "c1,c3"})
    placed(world, "same")

    names = ("bb", "memory", "tile", "allow", "xe-link", "same")
    assert {world.node_info_of(name) for name in names} == {"theirs"}
    found = {name: written(world, name) for name in names}
    assert found["tile"]["gas-container-tiles"] == f"{found['tile']['gas-container-cards']}:gt0"
    assert found["xe-link"] == {
        "gas-container-cards": "card2,card3",
        "gas-container-tiles": "card2:gt1,card3:gt0",
    }
    assert found["bb"].keys() == found["memory"].keys() == {"gas-container-cards"}
    assert found["allow"]["gas-container-cards"] in ("card1", "card2", "card3")
    assert found["same"]["gas-container-tiles"] == "|||"
    cards = found["same"]["gas-container-cards"].split("|")
    assert cards[0] == cards[2]
    for name in names:
        assert re.fullmatch(r"\d{19}", world.get(name)["metadata"]["annotations"]["gas-ts"])
    assert {name: rate_of(world, name) for name in names[:5]} == {
        "bb": 100,
        "memory": 100,
        "tile": 500,
        "allow": 100,
        "xe-link": 1000,
    }


def test_a_pod_that_must_leave_its_card_is_marked_and_then_no_longer(world: World) -> None:
    intel_node(world, "theirs")
    world.pod("p", limits(i915="1", millicores="100"))
    placed(world, "p")
    label = f"{TAS}gas-deschedule-pods-{written(world, 'p')['gas-container-cards']}"

    def steer(value: str | None) -> None:
        patch = {"metadata": {"labels": {label: value}}}
        merge = "application/merge-patch+json"
        world.plane.api.call("PATCH", "/api/v1/nodes/theirs", patch, content_type=merge)

    def mark() -> str | None:
        found: str | None = world.get("p")["metadata"].get("labels", {}).get(LABEL)
        return found

    steer("PCI_GROUP")
    eventually(lambda: mark() == "gpu")
    world.pod("q", limits(i915="1"))
    placed(world, "q")
    assert written(world, "q")["gas-container-cards"] in ("card2", "card3")

    steer(None)
    eventually(lambda: mark() is None)
