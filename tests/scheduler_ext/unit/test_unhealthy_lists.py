"""gpushare's lists of unhealthy cards."""

import pytest

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.cache.informers import Kind
from scheduler_ext.cache.unhealthy_lists import UnhealthyList, UnhealthyLists, read_list
from scheduler_ext.model.node import Node, read_node
from tests.scheduler_ext.worlds import node as ours
from tests.worlds import Json


def shared(name: str, cards: int = 3) -> Node:
    """A node of gpushare."""
    capacity = {"aliyun.com/gpu-count": str(cards), "aliyun.com/gpu-mem": str(cards * 16_000)}
    return read_node({"metadata": {"name": name}, "status": {"capacity": capacity, "allocatable": capacity}})


def configmap(name: str, gpus: object) -> Json:
    """A ConfigMap as gpushare's users write it."""
    return {"metadata": {"name": name}, "data": {"gpus": gpus}}


def _unexpected(_value: object) -> None:
    raise AssertionError("the cache is not behind the lists")


class World:
    """The cache behind the lists."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.cache = ClusterCache(lambda: 0, lambda names: None)
        lists = UnhealthyLists(self.cache, lambda event, **fields: self.lines.append(event))
        none: Kind[Node] = Kind("", read_node, _unexpected, _unexpected, _unexpected)
        self.nodes, self.maps = lists.of_nodes(none), lists.kind("kube-system")

    def usable(self, name: str) -> list[int]:
        """The cards that may be given out."""
        return [card.index for card in self.cache.snapshot.node(name).cards if card.usable]


def test_the_cards_of_a_nodes_list_are_not_given_out_until_it_is_shorter_or_gone() -> None:
    world = World()
    world.nodes.listed([shared("a"), shared("b"), read_node(ours("c"))])
    assert (world.usable("a"), world.usable("c")) == ([], [0])  # the lists are not there yet

    world.maps.listed([UnhealthyList("a", (0, 2)), UnhealthyList("c", (0,))])
    assert (world.usable("a"), world.usable("b"), world.usable("c")) == ([1], [0, 1, 2], [0])
    world.maps.seen(UnhealthyList("a", (2,)))
    world.maps.seen(UnhealthyList("b", (1,)))
    assert (world.usable("a"), world.usable("b")) == ([0, 1], [0, 2])
    world.nodes.seen(shared("a", 4))
    assert world.usable("a") == [0, 1, 3]
    world.maps.gone(UnhealthyList("a", (2,)))
    assert world.usable("a") == [0, 1, 2, 3]
    world.maps.listed([])
    assert world.usable("b") == [0, 1, 2]
    world.nodes.gone(shared("b"))
    world.maps.seen(UnhealthyList("b", (1,)))
    assert world.cache.snapshot.nodes.get("b") is None


def test_of_a_node_whose_list_cannot_be_read_no_card_is_given_out_and_that_is_logged() -> None:
    world = World()
    world.maps.listed([UnhealthyList("a", None)])
    world.nodes.seen(shared("a"))

    assert (world.usable("a"), world.lines) == ([], ["unhealthy-list"])
    world.maps.seen(UnhealthyList("a", ()))
    assert world.usable("a") == [0, 1, 2]


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (configmap("unhealthy-gpu-n.1", "0,2"), UnhealthyList("n.1", (0, 2))),
        (configmap("unhealthy-gpu-n", " 1, 2"), UnhealthyList("n", (1, 2))),
        (configmap("unhealthy-gpu-n", ""), UnhealthyList("n", ())),
        ({"metadata": {"name": "unhealthy-gpu-n"}}, UnhealthyList("n", ())),
        (configmap("unhealthy-gpu-n", "0,GPU-1"), UnhealthyList("n", None)),
        (configmap("unhealthy-gpu-n", "0,,1"), UnhealthyList("n", None)),
        (configmap("kube-root-ca.crt", "0"), None),
    ],
)
def test_a_list_is_read(raw: Json, found: UnhealthyList | None) -> None:
    assert read_list(raw) == found
