"""Whose pods keep a node's free cards from being used: the parts are exact, and nothing is stranded on a
balanced node."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_ext.model.pod import read_non_gpu_pod
from scheduler_ext.scoring.stranding import shares, stranded_by
from scheduler_ext.snapshot.snapshot import non_gpu_pod_deleted, non_gpu_pod_updated
from tests.scheduler_ext.worlds import node, on, percent, rebuilt
from tests.worlds import Json, card


def of(cards: int, cpu: str, memory: str = "1024Mi", **fields: Any) -> Json:
    """A node with so many cards, and this allocatable CPU and memory."""
    raw = node("n", *(card(at, **fields) for at in range(cards)))
    raw["status"]["allocatable"] = {**raw["status"]["allocatable"], "cpu": cpu, "memory": memory}
    return raw


def holding(namespace: str, cpu: str, memory: str = "0", cards: dict[int, int] | None = None) -> Json:
    """A bound pod of a namespace with these requests, and this share of each card."""
    name = f"{namespace}-{cpu}-{memory}-{cards}"
    if cards:
        ((index, share),) = cards.items()
        raw = on(percent(share, name), "n", f"GPU-{index}")
    else:
        raw = {
            "metadata": {"name": name, "uid": name},
            "spec": {"nodeName": "n", "containers": [{"name": "c"}]},
        }
        raw["status"] = {"phase": "Running"}
    raw["metadata"]["namespace"] = namespace
    first = raw["spec"]["containers"][0]
    first["resources"] = {**first.get("resources", {}), "requests": {"cpu": cpu, "memory": memory}}
    return raw


def found(there: Json, *pods: Json) -> dict[str, int]:
    return stranded_by(rebuilt([there], [*pods]).node("n"))


def test_a_pod_of_62_of_64_cpus_and_a_hundredth_of_a_card_strands_the_rest_of_two() -> None:
    """Of 1,990 thousandths that are free, 2 of 64 CPUs serve 62."""
    assert found(of(2, "64"), holding("hog", "62", cards={0: 1})) == {"hog": 1_928}


@pytest.mark.parametrize(
    "pods",
    [
        [],
        [holding("fair", "320m", "5Mi", cards={0: 1})],
        [holding("fair", "32", "512Mi", cards={0: 100})],
        [holding("fair", "64", "1024Mi", cards={0: 100}), holding("poor", "0", cards={1: 100})],
    ],
    ids=["nothing runs", "one proportional pod", "half of all", "no card is free"],
)
def test_a_neighbour_with_proportional_requests_strands_nothing(pods: list[Json]) -> None:
    assert found(of(2, "64"), *pods) == {}


def test_a_pod_without_a_gpu_strands_what_it_holds_and_who_has_his_part_nothing() -> None:
    mixed = [holding("web", "63500m"), holding("fair", "16", cards={0: 100})]

    assert found(of(4, "80"), *mixed) == {"web": 3_000 - 25}


def test_memory_strands_as_cpu_does_and_the_scarcer_of_both_counts() -> None:
    assert found(of(2, "64", "1000Mi"), holding("a", "1", "900Mi"), holding("b", "32")) == {"a": 1_800}
    assert found(of(2, "64", "1000Mi"), holding("a", "1", "600Mi"), holding("b", "48")) == {
        "a": 31,
        "b": 1_501,
    }


def test_a_pod_that_requests_memory_alone_strands_until_it_goes() -> None:
    snapshot = rebuilt([of(2, "64")], [])
    there = non_gpu_pod_updated(snapshot, read_non_gpu_pod(holding("a", "0", "512Mi")))

    assert stranded_by(there.node("n")) == {"a": 1_000}
    assert non_gpu_pod_deleted(there, "a-0-512Mi-None") == snapshot


def test_a_closed_node_and_cards_that_are_not_given_out_strand_nothing() -> None:
    closed = of(2, "64")
    closed["metadata"]["annotations"]["bursar.dev/inventory"] = "broken"

    assert found(closed, holding("web", "64")) == {}
    assert found(of(2, "64", healthy=False), holding("web", "64")) == {}


namespaces = st.sampled_from(("a", "b", "c"))
amounts = st.tuples(namespaces, st.integers(0, 30), st.integers(0, 400), st.sampled_from((0, 1, 7, 33, 100)))


@given(drawn=st.lists(amounts, max_size=6), cards=st.integers(1, 8), cpu=st.integers(1, 96))
def test_the_parts_are_integers_that_sum_to_what_is_stranded(
    drawn: list[tuple[str, int, int, int]], cards: int, cpu: int
) -> None:
    pods, free, left_cpu, left_memory = [], cards * 1_000, cpu, 1_024
    for at, (namespace, cores, memory, share) in enumerate(drawn):
        its = {at: share} if share and at < cards else None
        raw = holding(namespace, str(cores), f"{memory}Mi", its)
        raw["metadata"] |= {"name": f"p{at}", "uid": f"p{at}"}
        pods.append(raw)
        free -= 10 * share if its else 0
        left_cpu, left_memory = left_cpu - cores, left_memory - memory

    parts = found(of(cards, str(cpu)), *pods)

    served = min(Fraction(max(0, left_cpu), cpu), Fraction(max(0, left_memory), 1_024)) * cards * 1_000
    assert sum(parts.values()) == max(0, free - int(served))
    assert all(milli > 0 for milli in parts.values())
    assert {*parts} <= {namespace for namespace, *_ in drawn}


@given(whole=st.integers(0, 10**6), weights=st.dictionaries(namespaces, st.integers(1, 10**18), min_size=1))
def test_shares_are_the_exact_ones_but_for_less_than_one(whole: int, weights: dict[str, int]) -> None:
    divided = shares(whole, weights)

    assert sum(divided.values()) == whole
    total = sum(weights.values())
    for name, weight in weights.items():
        assert abs(divided.get(name, 0) - Fraction(whole * weight, total)) < 1
