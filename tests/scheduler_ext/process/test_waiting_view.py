"""Why a pod waits: the last decision about it, as people are shown it."""

import random
import re
from dataclasses import replace

import pytest

from scheduler_ext.fit import refusal
from scheduler_ext.model.node import CLOSED, read_node
from scheduler_ext.verbs.last_decisions import (
    MAX_EXAMPLES,
    MAX_PODS,
    CountedRefusal,
    LastDecisions,
)
from tests.scheduler_ext.conftest import Running
from tests.scheduler_ext.process.test_view import waiting, world
from tests.scheduler_ext.worlds import asking, node, percent, request_of
from tests.worlds import card, container, of_resources

__all__ = ["world"]
from timekeeper.core.values import Ask, Card, CardSet

WHOLE_CARDS_ONLY = node("n", card(0), capacity={"nvidia.com/gpu": "1"})


def test_a_waiting_pod_shows_which_nodes_were_refused_for_which_reason(world: Running) -> None:
    raw = world.put_pod(percent(60, "waiter", priority=7))
    for _ in range(3):
        world.filter(raw, "a", "closed", "nowhere")

    (pod,) = waiting(world)["pods"]

    created, decision = pod.pop("created"), pod.pop("decision")
    assert pod == {
        "namespace": "team-a",
        "name": "waiter",
        "uid": "uid-waiter",
        "scheduler": raw["spec"].get("schedulerName", ""),
        "priority": 7,
        "standing": "UNKNOWN",
        "state": "refused",
        "malformed": "",
        "scheduler_message": "",
        "obstacle": "",
        "asks": [{"container": "main", "devices": 1, "share_milli": 600, "memory_mib": 0}],
        "reservation": None,
    }
    first, last = decision.pop("first"), decision.pop("last")
    assert created < first <= last
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first)
    assert sorted(decision.pop("reasons"), key=lambda each: str(each["kind"])) == [
        {
            "reason": "node is closed for sharing: a GPU pod was bound to it without a placement",
            "kind": "closed",
            "nodes": 1,
            "examples": ["closed"],
        },
        {"reason": "no card has 60 percent free", "kind": "room", "nodes": 1, "examples": ["a"]},
        {
            "reason": "node is not known to the extender yet",
            "kind": "unknown-node",
            "nodes": 1,
            "examples": ["nowhere"],
        },
    ]
    assert decision == {"times": 3, "offered": 3, "bind_error": ""}


def test_who_is_bound_waits_no_more(world: Running) -> None:
    raw = world.put_pod(percent(60, "waiter"))
    world.filter(raw, "a")

    assert world.bind(raw, "b") == ""

    world.hears(world.api.pod("waiter"))
    assert waiting(world) == {"version": 1, "total": 0, "pods": [], "next": None}


def test_what_became_of_the_last_bind_is_reported(world: Running) -> None:
    raw = world.put_pod(percent(60, "waiter"))

    world.bind(raw, "a")

    (pod,) = waiting(world)["pods"]
    assert pod["decision"]["bind_error"] == "no card has 60 percent free"
    assert pod["decision"]["times"] == 0


def test_each_state_of_a_waiting_pod_has_its_word(world: Running) -> None:
    world.put_pod(percent(60, "gated", schedulingGates=[{"name": "x"}]))
    world.put_pod(percent(60, "unasked"))
    world.put_pod(percent(150, "malformed"))
    world.filter(world.put_pod(percent(60, "refused")), "a")
    gone = percent(60, "deleting")
    gone["metadata"]["deletionTimestamp"] = "2026-11-20T04:32:53Z"
    world.put_pod(gone)

    view = waiting(world)

    assert {each["name"]: each["state"] for each in view["pods"]} == {
        "gated": "gated",
        "malformed": "not-asked",
        "refused": "refused",
        "unasked": "not-asked",
    }
    assert [each["name"] for each in view["pods"] if "more than one card" in each["malformed"]] == [
        "malformed"
    ]


def test_a_pod_that_kube_schedulers_own_sums_refuse_is_shown_with_its_message(world: Running) -> None:
    raw = percent(60, "unasked")
    message = "0/3 nodes are available: 3 Insufficient bursar.dev/gpu-percent."
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    raw["status"] = {"phase": "Pending", "conditions": [refused]}
    world.put_pod(raw)

    (pod,) = waiting(world)["pods"]

    assert (pod["state"], pod["decision"], pod["scheduler_message"]) == ("not-asked", None, message)


def test_waiting_pods_come_page_by_page_by_namespace_and_name(world: Running) -> None:
    names = [f"p{at}" for at in range(5)]
    for name in names:
        world.put_pod(percent(60, name))
    other = percent(60, "p0")
    other["metadata"] |= {"namespace": "team-b", "uid": "uid-other"}
    world.put_pod(other)
    first = waiting(world, limit=4)
    second = waiting(world, limit=4, after=first["next"])

    assert [each["name"] for each in first["pods"]] == names[:4]
    assert [(each["namespace"], each["name"]) for each in second["pods"]] == [
        ("team-a", "p4"),
        ("team-b", "p0"),
    ]
    assert (first["total"], second["total"], second["next"]) == (6, 6, None)
    assert [each["namespace"] for each in waiting(world, name="p0")["pods"]] == ["team-a", "team-b"]
    assert waiting(world, namespace="team-b")["total"] == 1


# decisions


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
    "UNKNOWN_NODE": [refusal.UNKNOWN_NODE],
    "NO_HEALTHY_CARD": [refusal.NO_HEALTHY_CARD],
    "CORDONED": [refusal.CORDONED],
    "NOT_BY_CHOICE": [refusal.NOT_BY_CHOICE],
    "SEVERAL_CARDS": [refusal.SEVERAL_CARDS],
    "NO_XE_LINKS": [refusal.NO_XE_LINKS],
    "GIVEN_UP": [refusal.GIVEN_UP],
    "NOT_TRIED": [refusal.NOT_TRIED],
    "SPENT": [refusal.SPENT],
    "GANG_WAITS": [refusal.GANG_WAITS],
    "GANG_ELSEWHERE": [refusal.GANG_ELSEWHERE],
}
KIND_OF = {
    "not_enough_free": "room",
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
    "UNKNOWN_NODE": "unknown-node",
    "NO_HEALTHY_CARD": "unhealthy",
    "CORDONED": "cordoned",
    "NOT_BY_CHOICE": "constraint",
    "SEVERAL_CARDS": "constraint",
    "NO_XE_LINKS": "constraint",
    "GIVEN_UP": "search",
    "NOT_TRIED": "search",
    "SPENT": "budget",
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
    assert set(KIND_OF.values()) == LastDecisions(lambda: 0).nodes_refused().keys()


FULL = refusal.not_enough_free(HALF)


def test_the_reasons_are_counted_that_of_most_nodes_first() -> None:
    decisions = LastDecisions(lambda: 5)
    many = {f"n{at:03}": FULL for at in range(30)}

    decisions.refused("u", 31, ({"m": refusal.NO_CARDS}, many))

    decision = decisions.of("u")
    assert decision is not None
    assert decision.reasons == (
        CountedRefusal(FULL, 30, tuple(f"n{at:03}" for at in range(MAX_EXAMPLES))),
        CountedRefusal(refusal.NO_CARDS, 1, ("m",)),
    )
    assert {key: count for key, count in decisions.nodes_refused().items() if count} == {
        "room": 30,
        "no-cards": 1,
    }


def test_nodes_are_counted_by_what_refuses_them_in_any_order_and_number() -> None:
    """Also where equal reasons are several objects."""
    rng = random.Random(1)
    for _ in range(300):
        whys = [replace(FULL, sentence=f"reason {rng.randrange(4)}") for _ in range(rng.randint(1, 6))]
        nodes = [(f"n{at}", rng.choice(whys[: rng.randint(1, 6)])) for at in range(rng.choice((1, 5, 60)))]
        cut = rng.randint(0, len(nodes))
        decisions = LastDecisions(lambda: 5)

        decisions.refused("u", len(nodes), (dict(nodes[:cut]), dict(nodes[cut:])))

        found = decisions.of("u")
        assert found is not None
        assert [each.nodes for each in found.reasons] == sorted(each.nodes for each in found.reasons)[::-1]
        assert {each.refusal: (each.nodes, each.examples) for each in found.reasons} == {
            why: (len(theirs), tuple(theirs[:MAX_EXAMPLES]))
            for why in dict(nodes).values()
            if (theirs := [name for name, its in nodes if its == why])
        }


def test_the_memory_is_bounded_and_drops_the_least_recently_read() -> None:
    decisions = LastDecisions(lambda: 0)
    for at in range(MAX_PODS):
        decisions.refused(f"u{at}", 1, ({"n": refusal.NO_CARDS},))
    decisions.refused("u0", 1, ({"n": refusal.NO_CARDS},))

    decisions.refused("one more", 1, ({"n": refusal.NO_CARDS},))

    assert decisions.of("u1") is None
    assert [each is not None for each in map(decisions.of, ("u0", "u2", "one more"))] == [True] * 3
