"""Volcano's vGPU: what its words mean, which cards its nodes have, and what its plugin reads."""

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
from tests.worlds import of_resources, pod
from timekeeper.core.dialects import BY_NAME
from timekeeper.core.dialects.dialect import PlacedRequest
from timekeeper.core.request.cards import UndecodableError
from timekeeper.core.request.inventory import read_cards
from timekeeper.core.request.request import parse
from timekeeper.core.values import Ask, Card, Placement, Slice

Json = dict[str, Any]

NUMBER, MEMORY, PERCENTAGE, CORES = (
    f"volcano.sh/vgpu-{word}" for word in ("number", "memory", "memory-percentage", "cores")
)


@pytest.mark.parametrize(
    ("limits", "ask"),
    [
        ({NUMBER: "2"}, Ask(2, 1000, 0)),
        ({NUMBER: "1", MEMORY: "3000"}, Ask(1, 0, 3000)),
        ({NUMBER: "2", MEMORY: "3000", CORES: "50"}, Ask(2, 500, 3000)),
        ({NUMBER: "1", PERCENTAGE: "50"}, Ask(1, 0, 0, memory_milli=500)),
        ({NUMBER: "1", CORES: "50"}, Ask(1, 500, 0, memory_milli=1000)),
    ],
)
def test_its_words_mean_what_volcano_takes_them_for(limits: Json, ask: Ask) -> None:
    request = parse(pod(of_resources(limits), of_resources({}, "plain"))).request

    assert request is not None
    assert (request.dialect, [each.ask for each in request.asks]) == ("volcano", [ask])


ONE = {NUMBER: "1"}


@pytest.mark.parametrize(
    ("raw", "rule", "path"),
    [
        (pod(of_resources({MEMORY: "5"})), "vgpu-number", f"spec.containers[0].resources.limits[{NUMBER}]"),
        (
            pod(of_resources({**ONE, CORES: "101"})),
            "vgpu-range",
            f"spec.containers[0].resources.limits[{CORES}]",
        ),
        (pod(of_resources({NUMBER: "NaN"})), "amount", f"spec.containers[0].resources.limits[{NUMBER}]"),
        (pod(of_resources(ONE, "a"), of_resources(ONE, "b")), "vgpu-one-container", "spec.containers"),
        (pod(of_resources({}), init=[of_resources(ONE, "i")]), "vgpu-one-container", "spec.containers"),
        (
            pod(of_resources(ONE, "a"), of_resources({"nvidia.com/gpu": "1"})),
            "several-dialects",
            "spec.containers",
        ),
        (
            pod(of_resources(ONE), annotations={"volcano.sh/vgpu-mode": "mig"}),
            "vgpu-constraint",
            "metadata.annotations[volcano.sh/vgpu-mode]",
        ),
    ],
)
def test_what_its_plugin_could_not_serve_is_refused_with_the_field(raw: Json, rule: str, path: str) -> None:
    (violation,) = parse(raw).violations

    assert (violation.rule, violation.path) == (rule, path)


def test_its_annotations_choose_the_cards() -> None:
    words = {
        "nvidia.com/use-gputype": "A100",
        "volcano.sh/vgpu-use-gpuuuid": "GPU-1,GPU-2",
        "volcano.sh/vgpu-nouse-gpuuuid": "GPU-3",
        "volcano.sh/vgpu-mode": "hami-core",
    }
    request = parse(pod(of_resources(ONE), annotations=words)).request

    assert request is not None
    assert (request.models, request.uuids) == (("A100",), ("GPU-1", "GPU-2"))
    assert request.exclude_uuids == ("GPU-3",)


def volcano_node(register: str, capacity: Json | None = None) -> Json:
    """A node as Volcano's plugin describes it."""
    amounts = {NUMBER: "20", MEMORY: "32000", CORES: "200"} if capacity is None else capacity
    return {
        "metadata": {"name": "n", "annotations": {"volcano.sh/node-vgpu-register": register}},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def test_a_node_has_the_cards_that_the_plugin_registers() -> None:
    register = "GPU-a,10,16000,NVIDIA-T4,true,hami-core:GPU-b,10,8000,NVIDIA-T4,false,hami-core:"
    mig = "GPU-a,10,16000,NVIDIA-A100,true,mig:"

    assert read_cards(volcano_node(register)) == (
        Card("GPU-a", 0, "NVIDIA-T4", 16000),
        Card("GPU-b", 1, "NVIDIA-T4", 8000, healthy=False),
    )
    assert [each.healthy for each in read_cards(volcano_node(mig)) or ()] == [False]
    assert read_node(volcano_node(register)).family == "volcano"
    assert read_node(volcano_node(register), ("hami",)).fault == "not-lockable"
    assert read_node(volcano_node(register, {"nvidia.com/gpu": "1"})).family == "nvidia"
    for broken in ("GPU-a,10:", "GPU-a,10,x,T4,true,hami-core:", f"{register}GPU-a,10,5,T4,true,:"):
        with pytest.raises(UndecodableError):
            read_cards(volcano_node(broken))


def test_a_bound_pod_has_what_the_plugin_reads() -> None:
    request = parse(pod(of_resources({}, "a"), of_resources({NUMBER: "2", MEMORY: "9"}, "b"))).request
    assert request is not None
    placement = Placement((("b", (Slice("GPU-a", 0, 0, 9), Slice("GPU-b", 1, 0, 9))),))
    placed = PlacedRequest(request, placement, "n", 1_700_000_000_900_000_007, ("a", "b", "c"), ("first",))

    devices = ";GPU-a,NVIDIA,9,0:GPU-b,NVIDIA,9,0:;"
    assert BY_NAME["volcano"].at_binding(placed) == {
        "volcano.sh/vgpu-node": "n",
        "volcano.sh/vgpu-time": "1700000000",
        "volcano.sh/vgpu-ids-new": devices,
        "volcano.sh/devices-to-allocate": devices,
        "volcano.sh/bind-phase": "allocating",
        "volcano.sh/bind-time": "1700000000",
    }


def decoded(text: str) -> list[list[tuple[str, str, int, int]]]:
    """As Volcano reads the annotation: semicolons join the containers, and each device ends with a colon."""
    containers = []
    for part in text.split(";"):
        devices = [each.split(",") for each in part.split(":") if each]
        containers.append([(uuid, kind, int(mib), int(cores)) for uuid, kind, mib, cores in devices])
    return containers


@given(
    st.lists(
        st.tuples(
            st.integers(1, 2), st.integers(1, 9000), st.integers(0, 99), st.integers(0, 2), st.integers(0, 2)
        ),
        min_size=1,
        max_size=6,
    )
)
def test_what_is_written_reads_back_as_the_cards_that_were_given(
    wanted: list[tuple[int, int, int, int, int]],
) -> None:
    """Pods in flight on one node, each twice: devices stand at the place of their container, and no card is
    given beyond what it has."""
    raw_node = volcano_node("".join(f"GPU-{n},10,16000,T4,true,hami-core:" for n in range(4)))
    node = node_info_of("n", read_node(raw_node), {})
    used: dict[str, tuple[int, int]] = {}
    for turn, (number, memory, cores, before, after) in enumerate([*wanted, *wanted]):
        asking = of_resources({NUMBER: str(number), MEMORY: str(memory), CORES: str(cores)}, "main")
        others = [of_resources({}, f"c{at}") for at in range(before + after)]
        raw = pod(*others[:before], asking, *others[before:])
        raw["metadata"]["uid"] = f"uid-{turn}"
        found = read_pod(raw)
        assert found is not None
        assert found.request is not None
        placement = fit(found.request, node)
        if not isinstance(placement, Placement):
            continue
        node = with_allocation(node, allocation_of(found, placement, "assumed"))
        written = written_for(found, found.request, placement, "n", 0, (), "volcano").annotations

        assert written["volcano.sh/vgpu-ids-new"] == written["volcano.sh/devices-to-allocate"]
        read = decoded(written["volcano.sh/devices-to-allocate"])
        assert [bool(each) for each in read] == [False] * before + [True] + [False] * after
        assert [each[1:] for each in read[before]] == [("NVIDIA", memory, cores)] * number
        assert len({uuid for uuid, *_ in read[before]}) == number
        for uuid, _, mib, percent in read[before]:
            mine = used.get(uuid, (0, 0))
            used[uuid] = mine[0] + mib, mine[1] + percent
        assert all(mib <= 16000 and percent <= 100 for mib, percent in used.values())
