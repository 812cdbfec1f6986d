"""What a waiting pod can hope for: what keeps it off every node comes first, and the free card that is named
is one that it may use."""

from typing import Any

import pytest

from scheduler_ext.reports.findings import findings
from scheduler_ext.reports.prospects import MAX_LOOKS, UNKNOWN, Hole, Prospects, ProspectSearch
from tests.scheduler_ext.worlds import Json, asking, node, on, percent, read, rebuilt
from tests.worlds import card, container, limits_of

PLUGIN = {"nvidia.com/gpu": "8"}


def prospects(nodes: list[Json], pod: Json) -> Prospects:
    return ProspectSearch(rebuilt(nodes, [])).of(read(pod))


def labelled(raw: Json, taints: tuple[Json, ...] = (), **labels: str) -> Json:
    return {
        **raw,
        "metadata": {**raw["metadata"], "labels": labels},
        "spec": {**raw.get("spec", {}), "taints": list(taints)},
    }


def without_placement(name: str, on_node: str) -> Json:
    """A pod that another scheduler has bound: it closes its node until it ends."""
    raw = percent(50, name)
    return {**raw, "spec": {**raw["spec"], "nodeName": on_node}}


def without_inventory(name: str, capacity: Json = PLUGIN) -> Json:
    raw = node(name, capacity=capacity)
    del raw["metadata"]["annotations"]["bursar.dev/inventory"]
    return raw


def test_the_free_card_that_is_named_is_on_a_node_that_the_pod_may_use() -> None:
    small = labelled(node("small", card(0, memory_mib=8_000)), disk="ssd")
    large = node("large", card(0, memory_mib=80_000))
    plugin = node("plugin", card(0, memory_mib=90_000), capacity=PLUGIN)

    found = prospects([small, large, plugin], percent(50, nodeSelector={"disk": "ssd"}))

    assert found == Prospects(hole=Hole("small", 8_000, 1_000))
    assert prospects([small, large, plugin], percent(50)).hole == Hole("large", 80_000, 1_000)


@pytest.mark.parametrize(
    ("nodes", "pod", "obstacle"),
    [
        ([], percent(50), "no node has GPU cards"),
        (
            [labelled(node("n"), disk="hdd")],
            percent(50, nodeSelector={"disk": "ssd"}),
            "its nodeSelector asks for disk=ssd, which no node with GPU cards has as a label",
        ),
        (
            [labelled(node("a"), disk="ssd"), labelled(node("b"), zone="z")],
            percent(50, nodeSelector={"disk": "ssd", "zone": "z"}),
            "its nodeSelector and its required node affinity match no node with GPU cards",
        ),
        (
            [labelled(node("n"), ({"key": "gpu", "value": "yes", "effect": "NoSchedule"},))],
            percent(50),
            "each node with GPU cards that it selects has a taint that it does not tolerate (gpu)",
        ),
        (
            [node("n", card(0), capacity=PLUGIN), without_inventory("m")],
            percent(50),
            "no node that it may use gives out fractions: on 2 nodes NVIDIA's plugin gives out whole cards;"
            " docs/nodes.md gives a node to fractions",
        ),
        (
            [node("n", card(0), capacity=PLUGIN), node("m", card(0), capacity={"aliyun.com/gpu-mem": "16"})],
            percent(50),
            "no node that it may use takes it, even when empty: n: only whole cards here, requested as"
            " nvidia.com/gpu; m: cards here are requested as aliyun.com/gpu-mem",
        ),
        (
            [node("n", card(0), card(1)), node("m", card(0))],
            asking(container(gpu_count="16")),
            "it asks for 16 cards on one node; a node that it may use has at most 2",
        ),
        (
            [node("n", card(0), card(1))],
            asking(container(gpu_count="3"), init=[container("first", gpu_count="2")]),
            "it asks for 3 cards on one node; a node that it may use has at most 2",
        ),
        (
            [node("n", card(0, memory_mib=8_000))],
            asking(container(gpu_memory="9000")),
            "no node that it may use takes it, even when empty: n: no card has 9000 MiB free",
        ),
    ],
)
def test_what_no_card_that_becomes_free_can_mend_is_an_obstacle(
    nodes: list[Json], pod: Json, obstacle: str
) -> None:
    assert prospects(nodes, pod) == Prospects(obstacle)


@pytest.mark.parametrize(
    ("nodes", "pods", "pod"),
    [
        ([node("n", card(0))], [on(percent(100, "there"), "n", "GPU-0")], percent(50)),
        ([node("n", card(0))], [without_placement("there", "n")], percent(50)),
    ],
)
def test_cards_that_are_taken_are_no_obstacle(nodes: list[Json], pods: list[Json], pod: Json) -> None:
    assert ProspectSearch(rebuilt(nodes, pods)).of(read(pod)) == Prospects()


def test_an_obstacle_names_the_nodes_that_have_the_cards_and_why_they_do_not_take_the_pod() -> None:
    two = {"nvidia.com/gpu": "8", "koordinator.sh/gpu-core": "800"}
    nodes = [without_inventory("b", two), without_inventory("a", two), without_inventory("c")]
    pod = asking(limits_of("main", nvidia_com__gpu="9"))

    assert prospects(nodes, pod) == Prospects(
        "no node that it may use takes it, even when empty: a, b: node is closed for sharing: more than one"
        " GPU plugin serves it; c: not enough free GPUs (9 needed)"
    )


def test_the_looks_of_a_call_are_bounded_and_pods_alike_are_looked_for_once() -> None:
    search = ProspectSearch(rebuilt([labelled(node(f"n{at}")) for at in range(10)], []))

    def of(name: str) -> Any:
        return search.of(read(percent(50, nodeSelector={"disk": name})))

    found = [of(str(at)) for at in range(MAX_LOOKS // 10 + 1)]

    assert UNKNOWN not in found[:-1]
    assert found[-1] == UNKNOWN
    assert of("0") == found[0]


@pytest.mark.parametrize(
    ("pod", "is_held"),
    [
        (asking(container(gpu_count="1"), nodeSelector={"disk": "ssd"}), True),
        (percent(50, nodeSelector={"disk": "ssd"}), False),
        (asking(container(gpu_count="1")), False),
    ],
)
def test_all_cards_that_a_pod_may_use_are_held_where_none_is_free_as_it_asks(
    pod: Json, is_held: bool
) -> None:
    """Of the two cards with disk=ssd one is whole and held, of the other 40 % are free."""
    nodes = [
        labelled(node("a", card(0)), disk="ssd"),
        labelled(node("b", card(0)), disk="ssd"),
    ]
    other = node("c", card(0))
    pods = [on(percent(100, "x"), "a", "a-GPU-0"), on(percent(60, "y"), "b", "b-GPU-0")]

    usable = ProspectSearch(rebuilt([*nodes, other], pods)).usable(read(pod))

    assert usable is not None
    assert usable.names == ({"a", "b"} if "nodeSelector" in pod["spec"] else {"a", "b", "c"})
    assert usable.has_for(read(pod)) is not is_held


def test_cards_that_a_plugin_alone_could_name_are_held_too() -> None:
    """Two cards of a plugin's node are held by a pod of two: nothing says which, and none is free."""
    there = node("n", card(0), card(1), capacity={"nvidia.com/gpu": "2"})
    holder = asking(limits_of("main", nvidia_com__gpu="2"), name="x")
    holder["spec"]["nodeName"] = "n"
    waits = read(asking(limits_of("main", nvidia_com__gpu="1"), name="p"))

    search = ProspectSearch(rebuilt([there], [holder]))
    usable = search.usable(waits)

    assert usable is not None
    assert (usable.cards, usable.has_for(waits), search.of(waits).hole) == (2, False, None)


def given_out(allocatable: str) -> Json:
    """A node of eight cards of which its plugin gives out so many, without an inventory."""
    raw = without_inventory("n")
    return {**raw, "status": {**raw["status"], "allocatable": {"nvidia.com/gpu": allocatable}}}


@pytest.mark.parametrize("allocatable", ["0", "8"])
def test_cards_that_their_plugin_calls_unhealthy_are_there(allocatable: str) -> None:
    pod = asking(limits_of("main", nvidia_com__gpu="1"), nodeSelector={"pool": "h100"})
    there = labelled(given_out(allocatable), pool="h100")

    obstacle = prospects([there], pod).obstacle

    unhealthy = "no node that it may use takes it, even when empty: n: "
    assert obstacle.startswith(unhealthy) if allocatable == "0" else not obstacle
    assert "healthy" in obstacle or allocatable == "8"
    found = list(findings(rebuilt([there], []), 0))
    assert "no-agent" not in {each.code for each in found}
