"""Pods that another scheduler bound, beside ours: they count on the cards that their annotations name."""

import json
import random

import pytest

from scheduler_ext.fit.caps import CapChecks
from scheduler_ext.fit.fit import fit
from scheduler_ext.model.node import read_node
from scheduler_ext.model.standing import NamespaceStanding, NamespaceStandings
from scheduler_ext.preemption.victims import PreemptionContext, choose
from scheduler_ext.reports.closed_nodes import closures, culprits
from scheduler_ext.scoring.policy import BUILT
from scheduler_ext.snapshot.node_info import NodeInfo, whole_left
from scheduler_ext.snapshot.snapshot import EMPTY, node_updated, pod_deleted, pod_updated, pods_listed
from tests.scheduler_ext.reserving import NOW_MS, held
from tests.scheduler_ext.worlds import Json, bound, cards_of, in_namespace, node, read, rebuilt, request_of
from tests.worlds import card, of_resources, pod
from timekeeper.core.standings import Cap, Caps

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


# Static pods, which kubelets run from files of their nodes


def mirror(uid: str = "m1", gpus: int = 1, name: str = "web-n", namespace: str = "team-a") -> Json:
    """The object that the kubelet of node "n" makes of its static pod."""
    raw = pod(of_resources({GPU: str(gpus)}, "main"), annotations={"kubernetes.io/config.mirror": "4f3e"})
    raw["metadata"] |= {"name": name, "namespace": namespace, "uid": uid}
    return bound(raw, "n", None)


def whole_cards(gpus: int) -> Json:
    """A node whose device plugin gives out so many whole cards."""
    offered = {GPU: str(gpus)}
    return {"metadata": {"name": "n"}, "status": {"capacity": offered, "allocatable": offered}}


@pytest.mark.parametrize(("asked", "there", "held_milli"), [(1, 4, 1_000), (60, 4, 4_000), (2, 0, None)])
def test_a_static_pod_holds_what_it_requests_of_its_nodes_cards(
    asked: int, there: int, held_milli: int | None
) -> None:
    snapshot = rebuilt([whole_cards(there)], [mirror(gpus=asked)])

    assert snapshot.held.get("team-a") == held_milli
    assert whole_left(snapshot.node("n")) == there - (held_milli or 0) // 1_000
    assert snapshot.node("n").closed == ""


@pytest.mark.parametrize("seed", range(20))
def test_static_pods_of_a_node_together_hold_at_most_its_cards_in_any_order_of_events(seed: int) -> None:
    rng = random.Random(seed)
    snapshot, there = node_updated(EMPTY, read_node(whole_cards(3))), dict[str, Json]()
    for number in range(40):
        name, namespace = f"w{rng.randrange(4)}", rng.choice(["team-a", "team-b"])
        if rng.randrange(5) == 0:
            snapshot = node_updated(snapshot, read_node(whole_cards(rng.choice([0, 3]))))
        elif (raw := there.pop(f"{namespace}/{name}", None)) is not None:
            snapshot = pod_deleted(snapshot, read(raw), now_ms=number)
        else:
            raw = there[f"{namespace}/{name}"] = mirror(f"m{number}", rng.randint(1, 5), name, namespace)
            snapshot = pod_updated(snapshot, read(raw), now_ms=number)
        cards = len(snapshot.node("n").cards)
        assert sum(snapshot.held.values()) <= 1_000 * cards
        assert whole_left(snapshot.node("n")) >= 0


def test_a_mirror_that_is_made_again_holds_its_cards_once() -> None:
    first, again = read(mirror()), read(mirror("m2"))
    snapshot = rebuilt([whole_cards(4)], [mirror()])
    gone = pod_deleted(snapshot, first, now_ms=1)
    back = pod_updated(gone, again, now_ms=2)
    listed = pods_listed(snapshot, [again], now_ms=2)

    assert [known.held.get("team-a") for known in (snapshot, gone, back, listed)] == [1_000] * 4


def test_it_counts_in_caps_and_nothing_evicts_it() -> None:
    snapshot = rebuilt([whole_cards(2)], [mirror(gpus=2)])
    caps = Caps(own=Cap(total_milli=2_000))
    spent = NamespaceStanding("OVER_BUDGET", on_exhausted="reclaim", caps=caps)
    standings = NamespaceStandings({"team-a": spent}, NamespaceStanding("IN_BUDGET"))
    wants = pod(of_resources({GPU: "1"}, "main"), priority=1_000_000)
    mine, others = read(wants), read(in_namespace("team-b", wants))

    refusal = CapChecks(lambda: standings).refusal(mine, snapshot)
    assert refusal is not None
    assert choose(others, snapshot.node("n"), PreemptionContext(snapshot.pods, standings, NOW_MS)) is None
