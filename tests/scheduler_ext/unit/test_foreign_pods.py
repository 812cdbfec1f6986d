"""Pods that another scheduler bound, beside ours: they count on the cards that their annotations name."""

import json

import pytest

from scheduler_ext.fit.fit import fit
from scheduler_ext.reports.closed_nodes import closures, culprits
from scheduler_ext.scoring.policy import BUILT
from scheduler_ext.snapshot.node_info import NodeInfo
from tests.scheduler_ext.reserving import NOW_MS, held
from tests.scheduler_ext.worlds import Json, bound, cards_of, node, rebuilt, request_of
from tests.worlds import card, of_resources, pod

CORE = "nano-gpu.io/gpu-core"
NODE: Json = {
    "metadata": {"name": "n"},
    "status": {"capacity": {CORE: "200"}, "allocatable": {CORE: "200"}},
}


def asks(core: int, name: str) -> Json:
    """A pod with so much of a card."""
    raw = pod(of_resources({CORE: str(core)}, "main"))
    raw["metadata"] |= {"name": name, "uid": f"uid-{name}"}
    return raw


def foreign(core: int, index: str, name: str = "theirs") -> Json:
    """A pod that another scheduler bound to the card of this index."""
    raw = asks(core, name)
    raw["metadata"]["annotations"] = {"nano-gpu.io/gpu-main": index, "nano-gpu.io/gpu": "true"}
    return bound(raw, "n", None)


def ours(core: int, card: str) -> Json:
    """A pod that we bound to this card, of 1000 units of memory."""
    slices = {"main": [{"uuid": card, "index": 0, "share_milli": 10 * core, "memory_mib": 10 * core}]}
    return bound(asks(core, "ours"), "n", json.dumps({"version": 1, "containers": slices}))


def chosen(raw: Json, node: NodeInfo) -> dict[str, list[int]]:
    """The indexes of the cards that the pod would get."""
    return cards_of(fit(request_of(raw), node, BUILT["binpack"]))


def test_a_foreign_pod_takes_its_card_and_leaves_the_node_open() -> None:
    snapshot = rebuilt([NODE], [foreign(60, "1")])

    node = snapshot.node("n")
    assert node.closed == ""
    assert [free.share_milli for free in node.free_by_card if free is not None] == [1000, 400]
    assert chosen(asks(50, "p"), node) == {"main": [0]}
    assert chosen(asks(40, "p"), node) == {"main": [1]}


def test_an_annotation_that_breaks_later_leaves_a_bound_pod_its_cards() -> None:
    raw = ours(60, "card1")
    raw["metadata"]["annotations"]["bursar.dev/gpu-topology"] = "nonsense"

    node = rebuilt([NODE], [raw]).node("n")
    assert node.closed == ""
    assert [free.share_milli for free in node.free_by_card if free is not None] == [1000, 400]


def test_reserved_cards_do_not_count_as_given_out_twice() -> None:
    waiting = held(asks(60, "waits"), "n", "card-1")
    condition = waiting["status"]["conditions"][1]
    # `held` writes cards of 16000 MiB; these have 1000 units
    condition["message"] = condition["message"].replace("card-1", "card1").replace("9600", "600")

    node = rebuilt([NODE], [foreign(60, "1"), waiting], NOW_MS).node("n")
    assert [each.state for each in node.allocations.values()].count("reserved") == 1
    assert node.closed == ""


def test_a_card_that_two_schedulers_gave_out_closes_the_node_until_one_pod_has_ended() -> None:
    mine, theirs = ours(60, "card1"), foreign(60, "1")
    both = rebuilt([NODE], [mine, theirs])

    assert both.node("n").closed == "overcommitted"
    assert culprits(both.node("n")) == ("team-a/theirs",)
    (closure,) = closures(both.nodes, rebuilt([NODE], [mine]).nodes)
    assert "two schedulers gave out one of its cards (team-a/theirs)" in closure.sentence()
    assert rebuilt([NODE], [mine]).node("n").closed == ""
    assert rebuilt([NODE], [theirs]).node("n").closed == ""
    beside = rebuilt([NODE], [ours(60, "card0"), theirs])
    assert beside.node("n").closed == ""


GPU = "nvidia.com/gpu"


def by_claim(name: str = "resourceClaimName") -> Json:
    """A bound pod with a whole GPU, for whose extended resource kube-scheduler has made a claim."""
    raw = pod(of_resources({GPU: "1"}, "main"))
    raw["metadata"] |= {"name": "theirs", "uid": "uid-theirs"}
    return bound(raw, "n", None, extendedResourceClaimStatus={name: "theirs-extended-resources-x"})


@pytest.mark.parametrize(
    ("raw", "gpus", "held_milli"),
    [
        (by_claim(), "0", None),  # the timekeeper counts the claim
        (by_claim(), "4", 1_000),  # kube-scheduler bound it without the claim
        (by_claim("another"), "0", 1_000),
    ],
)
def test_a_pod_that_a_claim_serves_holds_no_cards_of_its_own(
    raw: Json, gpus: str, held_milli: int | None
) -> None:
    status = {"capacity": {GPU: gpus}, "allocatable": {GPU: gpus}}
    snapshot = rebuilt([{"metadata": {"name": "n"}, "status": status}], [raw])

    assert snapshot.held.get("team-a") == held_milli


@pytest.mark.parametrize(("raw", "closed"), [(by_claim(), ""), (by_claim("another"), "unplaced")])
def test_a_pod_that_a_claim_serves_does_not_close_the_node(raw: Json, closed: str) -> None:
    there = node("n", card(0), capacity={"bursar.dev/gpu-percent": "100", "bursar.dev/gpu-memory": "16000"})

    assert rebuilt([there], [raw]).node("n").closed == closed
