"""KubeGPU and KubeDevice: what their annotation requests, which cards nodes have, and what is written."""

import json

import pytest

from scheduler_ext.binding.manifest import written_for
from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import read_pod
from scheduler_ext.snapshot.node_info import NodeInfo, node_info_of
from tests.scheduler_ext.worlds import request_of
from tests.worlds import Json, of_resources, pod
from timekeeper.core.request.request import parse
from timekeeper.core.values import Ask, CardSet, ContainerAsk

DEVICE_INFO = "KubeDevice/DeviceInfo"
GIB = 2**30
GROUP = "resource/group"
GENERATE = "gpu/gpu-generate-topology"
COUNT = "nvidia.com/gpu"


def info(init: Json | None = None, generate: int | None = None, **running: Json) -> Json:
    """The annotation's value: container -> requests."""
    whole: Json = {"runningcontainer": {name: {"requests": each} for name, each in running.items()}}
    if init is not None:
        whole["initcontainer"] = {"init": {"requests": init}}
    return whole | ({} if generate is None else {"requests": {GENERATE: generate}})


def kube(told: object, *names: str, init: bool = False, annotation: str = DEVICE_INFO) -> Json:
    """A pod with these containers and this annotation."""
    text = told if isinstance(told, str) else json.dumps(told)
    containers = [of_resources({}, name) for name in names or ("main",)]
    return pod(*containers, init=[of_resources({}, "init")] if init else None, annotations={annotation: text})


def cards_in(group: str, *cards: str, memory: int = 0) -> Json:
    """Requests of these cards in a group, with a least memory in bytes."""
    found = {f"{GROUP}/{group}gpu/{card}/cards": 1 for card in cards}
    return found | ({f"{GROUP}/{group}gpu/{card}/memory": memory for card in cards} if memory else {})


PAIRS_IN_FOURS = tuple((at // 4, at // 2) for at in range(8))
FOUR_AND_PAIRS = ((0, 0), (0, 0), (0, 1), (0, 1), (1, 2), (1, 2), (1, 2), (1, 2))


def node(groups: tuple[tuple[int, int], ...], memories: tuple[int, ...] = ()) -> NodeInfo:
    """A node as its advertiser describes it: for each card the numbers of its groups."""
    amounts: Json = {COUNT: len(groups)}
    for at, (upper, lower) in enumerate(groups):
        card = f"{GROUP}/gpugrp1/{upper}/gpugrp0/{lower}/gpu/GPU-{at}"
        amounts |= {f"{card}/cards": 1, f"{card}/memory": memories[at] if memories else 16 * GIB}
    described = json.dumps({"name": "n", "capacity": amounts, "allocatable": amounts})
    raw = {
        "metadata": {"name": "n", "annotations": {DEVICE_INFO: described}},
        "status": {"capacity": {COUNT: str(len(groups))}, "allocatable": {COUNT: str(len(groups))}},
    }
    return node_info_of("n", read_node(raw), {})


def placed(raw: Json, on: NodeInfo) -> dict[str, list[str]] | str:
    """Container -> UUIDs of its cards, or the refusal."""
    found = fit(request_of(raw), on)
    if isinstance(found, Refusal):
        return found.sentence
    return {name: [each.uuid for each in slices] for name, slices in found.containers}


def bound(raw: Json, on: NodeInfo) -> Json:
    """The annotations of the pod's Binding to the node."""
    read, there = read_pod(raw), on.node_object
    assert read is not None
    assert read.request is not None
    assert there is not None
    found = fit(read.request, on)
    assert not isinstance(found, Refusal), found
    return written_for(read, read.request, found, "n", 7, there.cards, there.family).annotations


@pytest.mark.parametrize(
    ("told", "devices", "topology", "sets"),
    [
        (info(main={COUNT: 1}), 1, "", ()),
        (info(main={COUNT: 3}), 3, "closest", ()),
        (info(main={COUNT: 3, GENERATE: 1}), 3, "closest", ()),
        (info(main={COUNT: 3, GENERATE: 0}), 3, "", ()),
        (info(main={COUNT: 3}, generate=0), 3, "", ()),
        (info(main=cards_in("", "a", "b", memory=16 * GIB)), 2, "closest", (CardSet(2, 16384),)),
        (info(main=cards_in("", "a", memory=16 * GIB + 1)), 1, "", (CardSet(1, 16385),)),
        (
            info(main=cards_in("", "a", memory=GIB) | cards_in("", "b")),
            2,
            "closest",
            (CardSet(1, 1024), CardSet(1)),
        ),
        (info(main=cards_in("gpugrp0/A/", "a", "b")), 2, "", (CardSet(2, pair=1),)),
        (info(main=cards_in("gpugrp1/A/gpugrp0/0/", "a", "b")), 2, "", (CardSet(2, pair=1),)),
        (info(main=cards_in("gpugrp1/A/", "a", "b", "c")), 3, "", (CardSet(3, socket=1),)),
        (
            info(main=cards_in("gpugrp1/A/gpugrp0/0/", "a") | cards_in("gpugrp1/A/gpugrp0/1/", "b")),
            2,
            "",
            (CardSet(2, socket=1),),
        ),
        (info(main=cards_in("gpugrp0/A/", "a")), 1, "", ()),
        (info(main=cards_in("", "a") | {COUNT: 4}), 4, "closest", ()),
        (
            info(main=cards_in("gpugrp0/A/", "a", "b") | cards_in("gpugrp0/B/", "c", "d") | {COUNT: 5}),
            5,
            "",
            (CardSet(1), CardSet(2, pair=1), CardSet(2, pair=2)),
        ),
        (
            info(
                main=cards_in("gpugrp1/A/gpugrp0/x/", "a", "b") | cards_in("gpugrp1/A/gpugrp0/y/", "c", "d")
            ),
            4,
            "",
            (CardSet(2, pair=1, socket=1), CardSet(2, pair=2, socket=1)),
        ),
        (
            info(main=cards_in("gpugrp0/A/", "a", memory=GIB) | cards_in("gpugrp0/A/", "b", memory=2 * GIB)),
            2,
            "",
            (CardSet(1, 2048, pair=1), CardSet(1, 1024, pair=1)),
        ),
    ],
)
def test_its_annotation_requests_whole_cards(
    told: Json, devices: int, topology: str, sets: tuple[CardSet, ...]
) -> None:
    request = request_of(kube(told))

    assert request.asks == (ContainerAsk("main", False, Ask(devices, 1000, 0, sets=sets)),)
    assert (request.topology, request.by_set) == (topology, bool(sets))


@pytest.mark.parametrize(
    ("told", "at"),
    [
        ("", ""),
        ("{", ""),
        ("[]", ""),
        ("NaN", ""),
        ('{"runningcontainer":{"main":{"requests":{"nvidia.com/gpu":NaN}}}}', ""),
        ("[" * 100_000, ""),
        ({}, ""),
        (info(main={COUNT: 65}), ".runningcontainer[main].requests"),
        (info(main={COUNT: -1}), f".runningcontainer[main].requests[{COUNT}]"),
        (info(main={COUNT: 1.5}), f".runningcontainer[main].requests[{COUNT}]"),
        (info(main={COUNT: "1"}), f".runningcontainer[main].requests[{COUNT}]"),
        (info(main={COUNT: 10**30}), f".runningcontainer[main].requests[{COUNT}]"),
        (info(main={COUNT: 1}, generate=2), f".requests[{GENERATE}]"),
        (info(other={COUNT: 1}), ".runningcontainer"),
        (info(main=[1]), ".runningcontainer[main].requests"),  # type: ignore[arg-type]
        ({"runningcontainer": {"main": 7}}, ".runningcontainer[main]"),
        ({"runningcontainer": [7]}, ".runningcontainer"),
        (info(main={f"{GROUP}/gpu/a/cards": 2}), f".runningcontainer[main].requests[{GROUP}/gpu/a/cards]"),
        (
            info(main={f"{GROUP}/gpu/a/enumType": 3}),
            f".runningcontainer[main].requests[{GROUP}/gpu/a/enumType]",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place_in_the_annotation(told: object, at: str) -> None:
    (violation,) = parse(kube(told)).violations

    assert (violation.rule, violation.path) == (
        "unreadable-request",
        f"metadata.annotations[{DEVICE_INFO}]{at}",
    )


def test_the_refusal_of_an_enum_mask_names_what_to_write_instead() -> None:
    """S12's second container asks for a card with one of the bits of 0x3 and 190000 bytes at least."""
    asked = {f"{GROUP}/gpu/a/cards": 1, f"{GROUP}/gpu/a/memory": 190_000, f"{GROUP}/gpu/a/enumType": 3}
    (violation,) = parse(kube(info(main=asked))).violations

    assert violation.sentence() == (
        f"metadata.annotations[{DEVICE_INFO}].runningcontainer[main].requests[{GROUP}/gpu/a/enumType]: "
        'bits that a card must have are not supported, got "3"; allowed: models of cards, in the annotation '
        f'bursar.dev/gpu-models; for example {DEVICE_INFO}: {{"runningcontainer":{{"main":{{"requests":'
        f'{{"{COUNT}":2}}}}}}}}'
    )
    models = kube(info(main={COUNT: 2}))
    models["metadata"]["annotations"]["bursar.dev/gpu-models"] = "A100"
    assert request_of(models).models == ("A100",)


def test_each_container_has_groups_of_its_own() -> None:
    """Two linked cards, two on one NUMA node, and three anywhere, though closest to each other."""
    told = info(
        a=cards_in("gpugrp0/A/", "x", "y"), b=cards_in("gpugrp1/A/", "x", "y"), c={COUNT: 3}, d={COUNT: 1}
    )

    request = request_of(kube(told, *"abcd"))
    found = placed(kube(told, *"abcd"), node(PAIRS_IN_FOURS))

    assert [each.ask.sets for each in request.asks] == [
        (CardSet(2, pair=1),),
        (CardSet(2, socket=1),),
        (),
        (),
    ]
    assert request.topology == "closest"
    assert isinstance(found, dict)
    numbers = {name: [int(uuid[4:]) for uuid in uuids] for name, uuids in found.items()}
    assert len({at for of_one in numbers.values() for at in of_one}) == 8
    assert len({at // 2 for at in numbers["a"]}) == len({at // 4 for at in numbers["b"]}) == 1
    assert len({at // 4 for at in numbers["c"]}) == 1


def test_s13_counts_alone_get_distinct_cards_and_an_init_container_one_of_the_pods_own() -> None:
    raw = kube(info(init={COUNT: 1}, generate=0, a={COUNT: 2}, b={COUNT: 1}), "a", "b", init=True)

    found = placed(raw, node(tuple((at, at) for at in range(5))))

    assert isinstance(found, dict)
    assert [len(found[name]) for name in ("a", "b", "init")] == [2, 1, 1]
    assert len({*found["a"], *found["b"]}) == 3
    assert {*found["init"]} <= {*found["a"], *found["b"]}


FIVE = node(tuple((at, at) for at in range(5)), tuple(each * GIB for each in (100, 256, 257, 192, 178)))


@pytest.mark.parametrize(("init", "reused"), [(100, "GPU-4"), (257, "GPU-2")])
def test_s12_cards_of_different_least_memories_in_one_pod(init: int, reused: str) -> None:
    """The scenario's memories, in GiB. Its first container got card 2 in place of 1, for a mask that its last
    one asks of card 1 and that is not read here; of the cards that suffice the smallest is taken."""
    run0 = cards_in("", "a", memory=256 * GIB) | cards_in("", "b", memory=178 * GIB)
    told = info(
        init=cards_in("", "x", memory=init * GIB),
        run0=run0,
        run1=cards_in("", "a", memory=190 * GIB),
    )

    assert placed(kube(told, "run0", "run1", init=True), FIVE) == {
        "run0": ["GPU-1", "GPU-4"],
        "run1": ["GPU-3"],
        "init": [reused],
    }


def test_s12_a_container_that_asks_for_more_gets_it_though_another_one_comes_first() -> None:
    two = node(((0, 0), (1, 1)), (16 * GIB, 32 * GIB))
    told = info(a=cards_in("", "x", memory=8 * GIB), b=cards_in("", "x", memory=32 * GIB))

    assert placed(kube(told, "a", "b"), two) == {"a": ["GPU-0"], "b": ["GPU-1"]}
    assert placed(kube(info(a={COUNT: 1}, b=cards_in("", "x", memory=32 * GIB)), "a", "b"), two) == {
        "a": ["GPU-0"],
        "b": ["GPU-1"],
    }


@pytest.mark.parametrize(
    ("requests", "reason"),
    [
        (cards_in("", "a", memory=17 * GIB), f"no card with {17 * 1024} MiB of memory here"),
        (
            cards_in("", "a", memory=16 * GIB) | cards_in("", *"bcdefghi", memory=GIB),
            "fewer than 9 cards with the memory requested here",
        ),
        (
            cards_in("gpugrp0/A/", "a", "b", "c"),
            "no 3 cards in groups as requested here",
        ),
    ],
)
def test_a_node_that_can_never_have_the_cards_of_a_container_is_refused_for_good(
    requests: Json, reason: str
) -> None:
    assert placed(kube(info(main=requests)), node(PAIRS_IN_FOURS)) == reason


def test_s12_with_one_least_memory_the_cards_that_have_it() -> None:
    five = FIVE
    two = kube(info(main=cards_in("", "a", "b", memory=256 * GIB)))

    assert placed(two, five) == {"main": ["GPU-1", "GPU-2"]}
    assert placed(kube(info(main=cards_in("", "a", memory=257 * GIB))), five) == {"main": ["GPU-2"]}
    assert placed(kube(info(main=cards_in("", "a", memory=258 * GIB))), five) == (
        f"no card with {258 * 1024} MiB of memory here"
    )


def test_s15_two_cards_are_of_one_pair_and_four_of_one_socket() -> None:
    two = placed(kube(info(main=cards_in("gpugrp0/A/", "a", "b"))), node(PAIRS_IN_FOURS))
    four = placed(kube(info(main=cards_in("gpugrp1/A/", *"abcd"))), node(PAIRS_IN_FOURS))

    assert isinstance(two, dict)
    assert len({int(uuid[4:]) // 2 for uuid in two["main"]}) == 1
    assert isinstance(four, dict)
    assert len({int(uuid[4:]) // 4 for uuid in four["main"]}) == 1


def test_s15_four_of_one_socket_and_a_pair_of_the_other_in_one_container() -> None:
    raw = kube(info(main=cards_in("gpugrp1/A/", *"abcd") | cards_in("gpugrp0/B/", "e", "f")))

    found = placed(raw, node(PAIRS_IN_FOURS))

    assert isinstance(found, dict)
    numbers = sorted(int(uuid[4:]) for uuid in found["main"])
    assert [at // 4 for at in numbers].count(0) in (2, 4)
    (pair,) = (
        {at // 2 for at in numbers if at // 4 == side}
        for side in (0, 1)
        if [at // 4 for at in numbers].count(side) == 2
    )
    assert len(pair) == 1


def test_s16_two_pairs_of_one_socket_in_one_container() -> None:
    requests = cards_in("gpugrp1/A/gpugrp0/x/", "a", "b") | cards_in("gpugrp1/A/gpugrp0/y/", "c", "d")
    split = node(((0, 0), (0, 0), (1, 1), (1, 1), (1, 2), (1, 2)))

    assert placed(kube(info(main=requests)), split) == {"main": ["GPU-2", "GPU-3", "GPU-4", "GPU-5"]}


def test_s16_three_cards_are_of_one_group_of_four_or_else_of_one_socket() -> None:
    raw = kube(info(main={COUNT: 3}))
    of_four, of_pairs = placed(raw, node(FOUR_AND_PAIRS)), placed(raw, node(PAIRS_IN_FOURS))
    scattered = placed(raw, node(((0, 0), (1, 1), (2, 2))))

    assert isinstance(of_four, dict)
    assert {int(uuid[4:]) // 4 for uuid in of_four["main"]} == {1}
    assert isinstance(of_pairs, dict)
    assert len({int(uuid[4:]) // 4 for uuid in of_pairs["main"]}) == 1
    assert isinstance(scattered, dict)
    assert len(scattered["main"]) == 3


@pytest.mark.parametrize("groups", [PAIRS_IN_FOURS, FOUR_AND_PAIRS, tuple((at, at) for at in range(8))])
def test_s16b_groups_have_the_numbers_that_the_node_side_gives_them(
    groups: tuple[tuple[int, int], ...],
) -> None:
    written = json.loads(bound(kube(info(main={COUNT: 8})), node(groups))[DEVICE_INFO])

    assert set(written["runningcontainer"]["main"]["allocatefrom"].values()) == {
        f"{GROUP}/gpugrp1/{upper}/gpugrp0/{lower}/gpu/GPU-{at}/cards"
        for at, (upper, lower) in enumerate(groups)
    }


def test_an_init_container_that_shares_the_card_of_another_one_has_its_least_memory_too() -> None:
    two = node(((0, 0), (1, 1)), (16 * GIB, 32 * GIB))
    told = info(init=cards_in("", "x", memory=32 * GIB))
    told["initcontainer"]["early"] = {"requests": {COUNT: 1}}
    raw = kube(told, init=True)
    raw["spec"]["initContainers"].insert(0, of_resources({}, "early"))
    raw["metadata"]["annotations"]["bursar.dev/same-gpu"] = "early,init"

    assert placed(raw, two) == {"early": ["GPU-1"], "init": ["GPU-1"]}
