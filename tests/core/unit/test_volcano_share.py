"""Volcano's former GPU sharing: its words, the cards of its nodes, and what its plugin reads."""

import json
from typing import Any

import pytest

from scheduler_ext.model.node import read_node
from tests.worlds import card, of_resources, pod
from timekeeper.core.dialects import BY_NAME
from timekeeper.core.dialects.amounts import PodFacts
from timekeeper.core.dialects.dialect import PlacedRequest
from timekeeper.core.request.cards import UndecodableError
from timekeeper.core.request.inventory import read_cards
from timekeeper.core.request.request import parse
from timekeeper.core.values import Ask, Placement, Slice

Json = dict[str, Any]

MEMORY, NUMBER = "volcano.sh/gpu-memory", "volcano.sh/gpu-number"
UNHEALTHY = "volcano.sh/gpu-unhealthy-ids"


@pytest.mark.parametrize(
    ("limits", "dialect", "ask"),
    [
        ({MEMORY: "1024"}, "volcano-memory", Ask(1, 0, 1024)),
        ({NUMBER: "2"}, "volcano-number", Ask(2, 1000, 0)),
    ],
)
def test_its_words_are_memory_of_one_card_or_whole_cards(limits: Json, dialect: str, ask: Ask) -> None:
    request = parse(pod(of_resources(limits), of_resources({}, "plain"))).request

    assert request is not None
    assert (request.dialect, [each.ask for each in request.asks]) == (dialect, [ask])


@pytest.mark.parametrize(
    ("raw", "rule", "path"),
    [
        *(
            (pod(of_resources({name: amount})), "amount", f"spec.containers[0].resources.limits[{name}]")
            for name in (MEMORY, NUMBER)
            for amount in ("0", "-3", "0.5", "NaN", "9" * 30)
        ),
        (pod(of_resources({NUMBER: "65"})), "amount", f"spec.containers[0].resources.limits[{NUMBER}]"),
        (pod(of_resources({MEMORY: "1", NUMBER: "1"})), "several-dialects", "spec.containers"),
        (
            pod(of_resources({MEMORY: "1"}, "a"), of_resources({MEMORY: "1"}, "b")),
            "vgpu-one-container",
            "spec.containers",
        ),
        (
            pod(of_resources({}), init=[of_resources({NUMBER: "1"}, "i")]),
            "vgpu-one-container",
            "spec.containers",
        ),
    ],
)
def test_what_its_plugin_could_not_serve_is_refused_with_the_field(raw: Json, rule: str, path: str) -> None:
    (violation,) = parse(raw).violations

    assert (violation.rule, violation.path) == (rule, path)


def _node(capacity: Json, **annotations: str) -> Json:
    metadata = {"name": "n", "annotations": annotations}
    return {"metadata": metadata, "status": {"capacity": capacity, "allocatable": capacity}}


@pytest.mark.parametrize(
    ("capacity", "family", "memory"),
    [
        ({MEMORY: "22356", NUMBER: "2"}, "volcano-memory", [11178, 11178]),
        ({NUMBER: "2"}, "volcano-number", [1000, 1000]),
        ({MEMORY: "22356"}, "volcano-memory", []),
        ({MEMORY: "1", NUMBER: "2"}, "volcano-memory", []),
    ],
)
def test_the_node_that_counts_memory_serves_no_pods_of_whole_cards(
    capacity: Json, family: str, memory: list[int]
) -> None:
    read = read_node(_node(capacity))

    assert (read.family, read.fault) == (family, "")
    assert [each.memory_mib for each in read.cards] == memory


def test_its_unhealthy_cards_are_not_given_out() -> None:
    cards = read_cards(_node({NUMBER: "4"}, **{UNHEALTHY: "1,3"})) or ()

    assert [each.index for each in cards if each.usable] == [0, 2]
    with pytest.raises(UndecodableError):
        read_cards(_node({NUMBER: "4"}, **{UNHEALTHY: "1;3"}))


@pytest.mark.parametrize(
    "capacity",
    [{MEMORY: "42", NUMBER: "2"}, {"aliyun.com/gpu-mem": "42", "aliyun.com/gpu-count": "2"}],
)
def test_beside_our_agent_memory_is_in_the_units_of_the_plugin(capacity: Json) -> None:
    """Of cards of 15 and 30 GB whose plugin counts in GiB, and both together as 42."""
    sizes = (15109, 30218)
    inventory = {"version": 1, "cards": [card(at, size) for at, size in enumerate(sizes)]}
    raw = _node(capacity, **{"bursar.dev/inventory": json.dumps(inventory)})

    cards = read_cards(raw) or ()

    assert [(each.uuid, each.memory_mib) for each in cards] == [("GPU-0", 14), ("GPU-1", 28)]


@pytest.mark.parametrize(
    ("limits", "slices", "index"),
    [
        ({MEMORY: "1024"}, (Slice("card1", 1, 0, 1024),), "1"),
        ({NUMBER: "2"}, (Slice("card0", 0, 1000, 0), Slice("card3", 3, 1000, 0)), "0,3"),
    ],
)
def test_a_bound_pod_has_what_its_plugin_reads_and_the_same_is_read_of_volcanos_own(
    limits: Json, slices: tuple[Slice, ...], index: str
) -> None:
    request = parse(pod(of_resources(limits))).request
    assert request is not None
    dialect, container = BY_NAME[request.dialect], request.asks[0].container

    written = dialect.at_binding(
        PlacedRequest(
            request, Placement(((container, slices),)), "n", 1_593_764_466_550_835_304, (container,)
        )
    )

    assert written == {
        "volcano.sh/gpu-index": index,
        "volcano.sh/predicate-time": "1593764466550835304",
        "volcano.sh/gpu-assigned": "false",
    }
    assert dialect.found(PodFacts(written, {}), request) == {container: tuple(s.index for s in slices)}
