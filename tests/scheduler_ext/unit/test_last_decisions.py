"""The last decision about a waiting pod: every way to refuse has a kind, and the reasons are counted."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from scheduler_ext.fit import refusal
from scheduler_ext.model.node import CLOSED, read_node
from scheduler_ext.verbs.last_decisions import MAX_PODS, CountedRefusal, LastDecisions
from tests.scheduler_ext.worlds import asking, node, percent, request_of
from tests.worlds import card, container, of_resources
from timekeeper.core.values import Ask, Card, CardSet

WHOLE_CARDS_ONLY = node("n", card(0), capacity={"nvidia.com/gpu": "1"})

HALF = request_of(percent(50))
PAIR = request_of(asking(container(gpu_count="2"), annotations={"bursar.dev/topology": "pair"}))
NUMA = request_of(asking(container(gpu_count="2"), annotations={"bursar.dev/topology": "numa"}))
LINKED = request_of(
    asking(
        of_resources({"gpu.intel.com/i915": "2", "gpu.intel.com/tiles": "2"}),
        annotations={"gas-allocate-xelink": "true"},
    )
)
SAID = {
    "not_enough_free": [
        refusal.not_enough_free(request_of(raw))
        for raw in (
            percent(50),
            percent(100),
            asking(container(gpu_memory="8000")),
            asking(container(gpu_count="2")),
            asking(container(gpu_count="2", gpu_percent="100")),
            asking(container("a", gpu_percent="50"), container("b", gpu_percent="50")),
        )
    ]
    + [refusal.not_enough_free(each) for each in (PAIR, NUMA, LINKED)],
    "not_allowed": [
        refusal.not_allowed(request_of(percent(50, annotations=annotations)))
        for annotations in (
            {"bursar.dev/gpu-models": "H100,A100"},
            {"bursar.dev/exclude-gpu-models": "T4"},
            {"bursar.dev/gpu-uuids": "GPU-x"},
            {"bursar.dev/min-gpu-memory": "40000"},
        )
    ],
    "not_known": [refusal.not_known("pair"), refusal.not_known("numa")],
    "never_near": [refusal.never_near("pair", 2), refusal.never_near("numa", 2)],
    "no_such_sets": [
        refusal.no_such_sets(Ask(2, 1000, 0, sets=(each,)), [Card("GPU-0", 0, "T4", 16)])
        for each in (CardSet(2, 32), CardSet(2, 8), CardSet(2, pair=1))
    ],
    "closed": [refusal.closed(word) for word in CLOSED],
    "by_claims": [refusal.by_claims(["gpu.nvidia.com"])],
    "drained": [refusal.drained("gang team-a/train", "at most until 14:20", "none passes")],
    "malformed": [refusal.malformed("no room for it here")],
    "another_family": [refusal.another_family(HALF, read_node(raw)) for raw in (node(), WHOLE_CARDS_ONLY)],
    "no_usable_card": [refusal.no_usable_card([])],
    "capped": [refusal.capped("namespace", "team-a", "maxGPUs", 2_500)],
    "NO_CARDS": [refusal.NO_CARDS],
    "NOT_DESCRIBED": [refusal.NOT_DESCRIBED],
    "UNKNOWN_NODE": [refusal.UNKNOWN_NODE],
    "NO_HEALTHY_CARD": [refusal.NO_HEALTHY_CARD],
    "CORDONED": [refusal.CORDONED],
    "NOT_BY_CHOICE": [refusal.NOT_BY_CHOICE],
    "SEVERAL_CARDS": [refusal.SEVERAL_CARDS],
    "NO_XE_LINKS": [refusal.NO_XE_LINKS],
    "GIVEN_UP": [refusal.GIVEN_UP],
    "NOT_TRIED": [refusal.NOT_TRIED],
    "spent": [refusal.spent("team-a", ""), refusal.spent("team-a", "_group.lab")],
    "GANG_WAITS": [refusal.GANG_WAITS],
    "GANG_ELSEWHERE": [refusal.GANG_ELSEWHERE],
}
KIND_OF = {
    "not_enough_free": "full",
    "not_allowed": "constraint",
    "not_known": "constraint",
    "never_near": "constraint",
    "no_such_sets": "constraint",
    "closed": "closed",
    "by_claims": "closed",
    "drained": "drained",
    "malformed": "malformed",
    "another_family": "family",
    "no_usable_card": "unhealthy",
    "NO_CARDS": "no-cards",
    "NOT_DESCRIBED": "no-cards",
    "UNKNOWN_NODE": "unknown-node",
    "NO_HEALTHY_CARD": "unhealthy",
    "CORDONED": "cordoned",
    "NOT_BY_CHOICE": "constraint",
    "SEVERAL_CARDS": "constraint",
    "NO_XE_LINKS": "constraint",
    "GIVEN_UP": "search",
    "NOT_TRIED": "search",
    "spent": "budget",
    "capped": "cap",
    "GANG_WAITS": "gang",
    "GANG_ELSEWHERE": "gang",
}


def test_every_way_to_refuse_is_in_the_table() -> None:
    makers = {
        name
        for name, value in vars(refusal).items()
        if isinstance(value, refusal.Refusal)
        or (getattr(value, "__module__", "") == refusal.__name__ and name.islower() and name[0] != "_")
    }

    assert makers == SAID.keys() == KIND_OF.keys()


@pytest.mark.parametrize("way", SAID)
def test_every_refusal_has_a_kind(way: str) -> None:
    assert {each.kind for each in SAID[way]} == {KIND_OF[way]}


def test_every_kind_is_counted_from_the_start() -> None:
    assert set(KIND_OF.values()) == LastDecisions().nodes_refused().keys()


FULL = refusal.not_enough_free(HALF)


def test_the_reasons_are_counted_that_of_most_nodes_first() -> None:
    decisions = LastDecisions()
    many = {f"n{at:03}": FULL for at in range(30)}

    decisions.refused("u", 31, ({"m": refusal.NO_CARDS}, many))

    decision = decisions.of("u")
    assert decision is not None
    assert decision.reasons == (
        CountedRefusal(FULL, 30),
        CountedRefusal(refusal.NO_CARDS, 1),
    )
    assert {key: count for key, count in decisions.nodes_refused().items() if count} == {
        "full": 30,
        "no-cards": 1,
    }


def test_what_decides_stands_before_the_many_nodes_without_cards() -> None:
    decisions = LastDecisions()
    without = {f"cpu{at}": refusal.NO_CARDS for at in range(90)}

    decisions.refused("u", 95, (without, {f"gpu{at}": FULL for at in range(5)}))

    decision = decisions.of("u")
    assert decision is not None
    assert decision.reasons == (CountedRefusal(FULL, 5), CountedRefusal(refusal.NO_CARDS, 90))


def test_nodes_are_counted_by_what_refuses_them_in_any_order_and_number() -> None:
    """Also where equal reasons are several objects."""
    rng = random.Random(1)
    for _ in range(300):
        whys = [replace(FULL, sentence=f"reason {rng.randrange(4)}") for _ in range(rng.randint(1, 6))]
        nodes = [(f"n{at}", rng.choice(whys[: rng.randint(1, 6)])) for at in range(rng.choice((1, 5, 60)))]
        cut = rng.randint(0, len(nodes))
        decisions = LastDecisions()

        decisions.refused("u", len(nodes), (dict(nodes[:cut]), dict(nodes[cut:])))

        found = decisions.of("u")
        assert found is not None
        assert [each.nodes for each in found.reasons] == sorted(each.nodes for each in found.reasons)[::-1]
        assert {each.refusal: each.nodes for each in found.reasons} == Counter(why for _, why in nodes)


def test_the_memory_is_bounded_and_drops_the_least_recently_read() -> None:
    decisions = LastDecisions()
    for at in range(MAX_PODS):
        decisions.refused(f"u{at}", 1, ({"n": refusal.NO_CARDS},))
    decisions.refused("u0", 1, ({"n": refusal.NO_CARDS},))

    decisions.refused("one more", 1, ({"n": refusal.NO_CARDS},))

    assert decisions.of("u1") is None
    assert [each is not None for each in map(decisions.of, ("u0", "u2", "one more"))] == [True] * 3
