"""HAMi on NVIDIA's cards: what its words mean, which cards its nodes have, and what its plugin reads."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_ext.binding.manifest import written_for
from scheduler_ext.fit.fit import fit
from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import read_pod
from scheduler_ext.snapshot.allocation import allocation_of
from scheduler_ext.snapshot.node_info import node_info_of, with_allocation
from tests.worlds import inventory, of_resources, pod
from timekeeper.accounts.pods import decode_request, encode_request
from timekeeper.api.resources.bindings import read_bindings
from timekeeper.core.dialects import BY_NAME
from timekeeper.core.dialects.dialect import PlacedRequest
from timekeeper.core.request.cards import UndecodableError
from timekeeper.core.request.inventory import read_cards
from timekeeper.core.request.request import parse
from timekeeper.core.values import Ask, Card, GPURequest, Placement, Slice
from timekeeper.core.wire import binding_asks

Json = dict[str, Any]

GPU, MEMORY, PERCENTAGE, CORES, PRIORITY = (
    f"nvidia.com/{word}" for word in ("gpu", "gpumem", "gpumem-percentage", "gpucores", "priority")
)


def requested(raw: Json) -> GPURequest:
    """The request of a valid pod."""
    found = parse(raw)
    assert not found.violations
    assert found.request is not None
    return found.request


@pytest.mark.parametrize(
    ("limits", "dialect", "ask"),
    [
        ({GPU: "2"}, "nvidia", Ask(2, 1000, 0)),
        ({GPU: "1", MEMORY: "3000"}, "hami", Ask(1, 0, 3000)),
        # without a number it is of one card
        ({MEMORY: "3000"}, "hami", Ask(1, 0, 3000)),
        ({GPU: "2", MEMORY: "3000", CORES: "30"}, "hami", Ask(2, 300, 3000)),
        ({GPU: "1", PERCENTAGE: "50"}, "hami", Ask(1, 0, 0, memory_milli=500)),
        ({GPU: "1", PERCENTAGE: "50", CORES: "30"}, "hami", Ask(1, 300, 0, memory_milli=500)),
        # gpumem takes precedence over gpumem-percentage
        ({GPU: "1", MEMORY: "3000", PERCENTAGE: "50"}, "hami", Ask(1, 0, 3000)),
        # without an amount of memory all of it
        ({GPU: "1", CORES: "30"}, "hami", Ask(1, 300, 0, memory_milli=1000)),
        ({GPU: "1", CORES: "0"}, "hami", Ask(1, 0, 0, memory_milli=1000)),
        ({GPU: "1", PRIORITY: "1"}, "hami", Ask(1, 1000, 0)),
        ({GPU: "1", PERCENTAGE: "100"}, "hami", Ask(1, 1000, 0)),
        ({GPU: "1", CORES: "100", MEMORY: "3000"}, "hami", Ask(1, 1000, 0)),
    ],
)
def test_its_words_mean_what_hami_takes_them_for(limits: Json, dialect: str, ask: Ask) -> None:
    request = requested(pod(of_resources(limits)))

    assert (request.dialect, request.asks[0].ask) == (dialect, ask)


def test_whole_cards_beside_its_own_words_belong_to_it() -> None:
    request = requested(pod(of_resources({GPU: "1"}, "a"), of_resources({GPU: "1", MEMORY: "5"}, "b")))

    assert request.dialect == "hami"
    assert [each.ask for each in request.asks] == [Ask(1, 1000, 0), Ask(1, 0, 5)]


@pytest.mark.parametrize(
    ("limits", "rule", "field"),
    [
        ({PRIORITY: "0"}, "vgpu-number", GPU),
        ({GPU: "65", MEMORY: "3000"}, "vgpu-range", GPU),
        ({GPU: "1", PERCENTAGE: "101"}, "vgpu-range", PERCENTAGE),
        ({GPU: "1", CORES: "101"}, "vgpu-range", CORES),
        ({GPU: "1", PRIORITY: "2"}, "vgpu-range", PRIORITY),
        ({GPU: "1", MEMORY: "9" * 18}, "vgpu-range", MEMORY),
        ({GPU: "1", MEMORY: "NaN"}, "amount", MEMORY),
        ({GPU: "1", MEMORY: "0"}, "amount", MEMORY),
        ({GPU: "1", PERCENTAGE: "-1"}, "amount", PERCENTAGE),
        ({GPU: "0", CORES: "30"}, "amount", GPU),
        ({GPU: "1", MEMORY: "5", "bursar.dev/gpu-percent": "50"}, "several-dialects", None),
    ],
)
def test_a_wrong_amount_is_refused_with_the_field(limits: Json, rule: str, field: str | None) -> None:
    (violation,) = parse(pod(of_resources(limits))).violations

    assert violation.rule == rule
    assert field is None or violation.path == f"spec.containers[0].resources.limits[{field}]"


@pytest.mark.parametrize("limits", [{GPU: "1"}, {GPU: "1", MEMORY: "5"}])
def test_its_annotations_choose_the_cards(limits: Json) -> None:
    words = {
        "nvidia.com/use-gputype": "A100, H100",
        "nvidia.com/nouse-gputype": "T4",
        "nvidia.com/use-gpuuuid": "GPU-1,GPU-2",
        "nvidia.com/nouse-gpuuuid": "GPU-3",
        "nvidia.com/numa-bind": "true",
        "hami.io/gpu-scheduler-policy": "spread",
    }
    request = requested(pod(of_resources(limits), annotations=words))

    assert (request.models, request.exclude_models) == (("A100", "H100"), ("T4",))
    assert (request.uuids, request.exclude_uuids) == (("GPU-1", "GPU-2"), ("GPU-3",))
    assert (request.topology, request.policy) == ("numa", "spread")


def test_bursars_annotations_take_precedence_and_empty_ones_are_no_constraint() -> None:
    words = {"nvidia.com/use-gputype": "A100", "nvidia.com/use-gpuuuid": " ", "bursar.dev/gpu-models": "H100"}
    request = requested(pod(of_resources({GPU: "1"}), annotations=words))

    assert (request.models, request.uuids) == (("H100",), ())


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("nvidia.com/vgpu-mode", "mig", "vgpu-constraint"),
        ("nvidia.com/numa-bind", "maybe", "vgpu-constraint"),
        ("nvidia.com/nouse-gpuuuid", ",".join(map(str, range(65))), "long-constraint"),
    ],
)
def test_a_wrong_annotation_is_refused_by_its_name(name: str, value: str, rule: str) -> None:
    (violation,) = parse(pod(of_resources({GPU: "1"}), annotations={name: value})).violations

    assert (violation.rule, violation.path) == (rule, f"metadata.annotations[{name}]")


def hami_node(register: str, capacity: Json | None = None, annotations: Json | None = None) -> Json:
    """A node as HAMi's plugin describes it."""
    amounts = {GPU: "20"} if capacity is None else capacity
    return {
        "metadata": {
            "name": "n",
            "annotations": {"hami.io/node-nvidia-register": register, **(annotations or {})},
        },
        "status": {"capacity": amounts, "allocatable": amounts},
    }


V100 = "NVIDIA-Tesla V100-PCIE-32GB"
LISTED = json.dumps(
    [
        {"id": "GPU-b", "index": 1, "count": 10, "devmem": 32768, "devcore": 100, "type": V100, "numa": 1},
        {"id": "GPU-a", "count": 10, "devmem": 32768, "devcore": 100, "type": V100, "health": True},
        {"id": "GPU-c", "index": 2, "devmem": 32768, "type": V100, "mode": "mig", "health": True},
    ]
)


@pytest.mark.parametrize(
    ("register", "cards"),
    [
        # a list leaves out what is 0, false or empty
        (
            LISTED,
            [
                Card("GPU-b", 1, V100, 32768, healthy=False, numa=1),
                Card("GPU-a", 0, V100, 32768, numa=0),
                Card("GPU-c", 2, V100, 32768, healthy=False, numa=0),
            ],
        ),
        (
            f"GPU-a,10,32768,100,{V100},0,true:GPU-b,10,16384,100,{V100},-1,false:",
            [Card("GPU-a", 0, V100, 32768, numa=0), Card("GPU-b", 1, V100, 16384, healthy=False)],
        ),
        (
            f"GPU-a,10,32768,100,{V100},0,true,7,hami-core:GPU-b,10,16384,100,{V100},1,true,3,mps:",
            [
                Card("GPU-a", 7, V100, 32768, numa=0),
                Card("GPU-b", 3, V100, 16384, healthy=False, numa=1),
            ],
        ),
    ],
)
def test_a_node_has_the_cards_that_the_plugin_registers(register: str, cards: list[Card]) -> None:
    assert list(read_cards(hami_node(register)) or ()) == cards


@pytest.mark.parametrize(
    "register",
    [
        "",
        "[",
        "[1]",
        '[{"id": "GPU-a"}]',
        '[{"devmem": 5}]',
        '[{"id": "GPU-a", "devmem": NaN}]',
        "GPU-a,10,32768:",
        "GPU-a,10,x,100,T4,0,true:",
        "GPU-a,10,5,100,T4,0,true:GPU-a,10,5,100,T4,0,true:",
        "[" * 100_000,
        "".join(f"GPU-{n},10,5,100,T4,0,true:" for n in range(65)),
    ],
)
def test_a_description_that_cannot_be_read_closes_the_node(register: str) -> None:
    raw = hami_node(register)
    if register:
        with pytest.raises(UndecodableError):
            read_cards(raw)
    assert not read_node(raw).cards
    assert read_node(raw).fault == ("inventory" if register else "")


def test_its_cordon_and_bursars_both_count_and_the_agents_inventory_does_not() -> None:
    raw = hami_node(
        "".join(f"GPU-{n},10,32768,100,T4,0,true:" for n in range(3)),
        annotations={
            "hami.io/device-cordon": "GPU-0",
            "bursar.dev/cordoned-cards": "GPU-1",
            "bursar.dev/inventory": inventory(),
        },
    )

    assert [each.cordoned for each in read_node(raw).cards] == [True, True, False]


def test_a_node_is_hamis_only_while_it_advertises_cards_and_is_closed_where_it_may_not_be_locked() -> None:
    register = "GPU-a,10,32768,100,T4,0,true:"

    assert (read_node(hami_node(register)).family, read_node(hami_node(register)).fault) == ("hami", "")
    assert read_node(hami_node(register, {"bursar.dev/gpu-percent": "100"})).family == "bursar"
    assert read_node(hami_node(register, {GPU: "1", "aliyun.com/gpu-mem": "5"})).fault == "two-families"
    assert read_node(hami_node(register), ()).fault == "not-lockable"
    assert read_node({"status": {"capacity": {GPU: "1"}}}).family == "nvidia"


MIXED = pod(
    of_resources({}, "plain"),
    of_resources({GPU: "2", MEMORY: "3000", CORES: "30"}, "worker"),
    init=[of_resources({GPU: "1", MEMORY: "500"}, "loads"), of_resources({}, "waits")],
)


def test_a_bound_pod_has_what_the_plugin_reads() -> None:
    request = requested(MIXED)
    placement = Placement(
        (
            ("loads", (Slice("GPU-a", 0, 0, 500),)),
            ("worker", (Slice("GPU-a", 0, 300, 3000), Slice("GPU-b", 1, 300, 3000))),
        )
    )
    placed = PlacedRequest(
        request, placement, "node-a", 1_700_000_000_900_000_007, ("plain", "worker"), ("loads", "waits")
    )

    devices = "GPU-a,NVIDIA,500,0:;;;GPU-a,NVIDIA,3000,30:GPU-b,NVIDIA,3000,30:;"
    assert BY_NAME["hami"].at_binding(placed) == {
        "hami.io/vgpu-node": "node-a",
        "hami.io/vgpu-time": "1700000000",
        "hami.io/vgpu-devices-to-allocate": devices,
        "hami.io/vgpu-devices-allocated": devices,
        "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": "1700000000",
    }


def decoded(text: str) -> list[list[tuple[str, str, int, int]]]:
    """As HAMi reads the annotation: a container's devices end with a colon, and a container with a semicolon,
    so that the last part is empty. A device has at least four fields, and its numbers have 32 bits."""
    *parts, last = text.split(";")
    assert last == ""
    containers = []
    for part in parts:
        assert re.fullmatch(r"([^,:;]+,[^,:;]+,[0-9]+,[0-9]+:)*", part)
        devices = [each.split(",") for each in part.split(":") if each]
        containers.append([(uuid, kind, int(mib), int(cores)) for uuid, kind, mib, cores in devices])
    assert all(max(each[2:]) < 2**31 for devices in containers for each in devices)
    return containers


AMOUNTS = st.fixed_dictionaries(
    {},
    optional={
        MEMORY: st.integers(1, 9000).map(str),
        PERCENTAGE: st.integers(1, 100).map(str),
        CORES: st.integers(0, 100).map(str),
        PRIORITY: st.sampled_from("01"),
    },
)
LIMITS: st.SearchStrategy[Json] = st.one_of(
    st.just({}), st.tuples(st.integers(1, 2), AMOUNTS).map(lambda found: {GPU: str(found[0]), **found[1]})
)


@given(st.lists(st.lists(LIMITS, min_size=2, max_size=5), min_size=2, max_size=4), st.integers(0, 1))
def test_what_is_written_reads_back_as_the_cards_that_were_given(pods: list[list[Json]], first: int) -> None:
    """Pods in flight on one node, each also twice: no card is given beyond what it has, and each container
    finds its devices at its place, with the amounts that HAMi would have computed."""
    sizes = {f"GPU-{n}": 16_000 + 4000 * n for n in range(4)}
    register = "".join(f"{uuid},10,{size},100,T4,0,true:" for uuid, size in sizes.items())
    raw_node = hami_node(register, {GPU: "40"})
    node = node_info_of("n", read_node(raw_node), {})
    memory, cores = dict.fromkeys(sizes, 0), dict.fromkeys(sizes, 0)
    for number, limits in enumerate([*pods, *pods]):
        named = [of_resources(each, f"c{at}") for at, each in enumerate(limits)]
        raw = pod(*named[first:], init=named[:first])
        raw["metadata"]["uid"] = f"uid-{number}"
        found = read_pod(raw)
        if found is None or found.request is None:
            continue
        placement = fit(found.request, node)
        if not isinstance(placement, Placement):
            continue
        node = with_allocation(node, allocation_of(found, placement, "assumed"))
        cards = read_node(raw_node).cards
        written = written_for(found, found.request, placement, "n", 0, cards, "hami")

        texts = written.annotations
        assert texts["hami.io/vgpu-devices-allocated"] == texts["hami.io/vgpu-devices-to-allocate"]
        read = decoded(texts["hami.io/vgpu-devices-to-allocate"])
        assert [len({uuid for uuid, *_ in devices}) for devices in read] == [
            int(each.get(GPU, 0)) for each in limits
        ]
        for at, (devices, each) in enumerate(zip(read, limits, strict=True)):
            for uuid, kind, mib, percent in devices:
                assert (kind, mib, percent) == ("NVIDIA", *as_hami_counts(each, sizes[uuid]))
                if at >= first:  # an init container runs before the others
                    memory[uuid] += mib
                    cores[uuid] += percent
        assert all(memory[uuid] <= sizes[uuid] and cores[uuid] <= 100 for uuid in sizes)
        assert written.labels == {"hami.io/vgpu-node": "n"}


def as_hami_counts(limits: Json, card_mib: int) -> tuple[int, int]:
    """MiB and per cent of one device, by HAMi's rules; a whole card has all its memory."""
    percentage = int(limits.get(PERCENTAGE, 100))
    memory = int(limits.get(MEMORY, 0)) or card_mib * percentage // 100
    exclusive = CORES not in limits and MEMORY not in limits and percentage == 100
    cores = 100 if exclusive else int(limits.get(CORES, 0))
    return (card_mib if cores == 100 else memory), cores


def test_shares_of_memory_reach_the_ledger_as_they_are() -> None:
    request = requested(
        pod(of_resources({GPU: "2", PERCENTAGE: "50", CORES: "30"}, "a"), of_resources({}, "b"))
    )
    entry = {"uid": "u", "namespace": "n", "pod": "p", "node": "n", "age_ms": 0, "grace_ms": 0}
    entry |= {"dialect": "hami", "asks": binding_asks(request), "devices": '{"version":1,"containers":{}}'}

    (reported,) = read_bindings(json.dumps({"version": 1, "bindings": [entry]}).encode(), 0)

    assert reported.request.asks == request.asks
    assert decode_request(encode_request(request)).asks == request.asks
