"""What Bindings write for Volcano's node plugins, read by the packages of Volcano's own scheduler that count
cards.

Of the systems whose annotations Bursar writes, Volcano (v1.10.0) alone had a module with source at a module
proxy when this was written. What is written for the others is read back by rules taken from their sources, in
`tests/core/dialects/plugins.py`.

It belongs to `make soak`, because the program takes minutes to build, once.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler_ext.binding.manifest import written_for
from scheduler_ext.fit.fit import fit
from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import read_pod
from scheduler_ext.snapshot.allocation import allocation_of
from scheduler_ext.snapshot.node_info import node_info_of, with_allocation
from tests.support.go_programs import program
from tests.support.profile import examples
from tests.worlds import Json, of_resources, pod
from timekeeper.core.values import Placement, Slice

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

GO = Path(__file__).parents[1] / "go"
MANY = settings(
    max_examples=examples(100, soak=300),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


class Volcano:
    """The Go program, which answers each world with a line."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def reads(self, node: Json, pods: list[Json]) -> Json:
        """Cards by pod, totals by card, and indexes by pod."""
        into, out = self._process.stdin, self._process.stdout
        assert into is not None
        assert out is not None
        into.write(json.dumps({"node": node, "pods": pods}) + "\n")
        into.flush()
        found: Json = json.loads(out.readline())
        return found


@contextmanager
def started(folder: Path) -> Iterator[Volcano]:
    """The program without a cluster: it finds no kubeconfig and never calls an API server."""
    command = [str(program(GO, "volcano"))]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env={"HOME": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        with process:
            yield Volcano(process)


@pytest.fixture(scope="module")
def volcano(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Volcano]:
    with started(tmp_path_factory.mktemp("volcano")) as running:
        yield running


Bound = list[tuple[Json, tuple[Slice, ...]]]


def bound(raw_node: Json, pods: list[Json]) -> Bound:
    """The pods that fit, one after the other, as their Bindings leave them, and the cards that they have."""
    info, found = node_info_of("n", read_node(raw_node), {}), []
    there = info.node_object
    assert there is not None
    for number, raw in enumerate(pods):
        raw["metadata"] |= {"name": f"p{number}", "uid": f"uid-{number}"}
        read = read_pod(raw)
        assert read is not None
        assert read.request is not None
        placement = fit(read.request, info)
        if not isinstance(placement, Placement):
            continue
        info = with_allocation(info, allocation_of(read, placement, "assumed"))
        written = written_for(read, read.request, placement, "n", 7 + number, there.cards, there.family)
        raw["metadata"]["annotations"] = dict(written.annotations)
        ((_, slices),) = placement.containers
        found.append((raw, slices))
    return found


def node(annotations: Json, **capacity: str) -> Json:
    """A node with these amounts under volcano.sh."""
    amounts = {f"volcano.sh/{name.replace('_', '-')}": amount for name, amount in capacity.items()}
    metadata = {"name": "n", "annotations": annotations}
    return {"metadata": metadata, "status": {"capacity": amounts, "allocatable": amounts}}


def asking(before: int, after: int, **limits: int) -> Json:
    """A pod whose one container with cards stands among others."""
    amounts = {f"volcano.sh/{name.replace('_', '-')}": str(amount) for name, amount in limits.items()}
    others = [of_resources({}, f"c{at}") for at in range(before + after)]
    return pod(*others[:before], of_resources(amounts), *others[before:])


SHAPES = st.lists(
    st.tuples(
        st.integers(1, 3), st.integers(1, 9000), st.integers(0, 99), st.integers(0, 2), st.integers(0, 2)
    ),
    min_size=1,
    max_size=6,
)


@MANY
@given(wanted=SHAPES)
def test_volcano_takes_pods_of_vgpus_for_the_cards_that_they_were_given(
    volcano: Volcano, wanted: list[tuple[int, int, int, int, int]]
) -> None:
    """Each pod twice, all of them in flight."""
    register = "".join(f"GPU-{at},10,16000,NVIDIA-T4,true,hami-core:" for at in range(4))
    there = node({"volcano.sh/node-vgpu-register": register}, vgpu_number="40")
    placed = bound(
        there,
        [
            asking(before, after, vgpu_number=cards, vgpu_memory=memory, vgpu_cores=cores)
            for cards, memory, cores, before, after in [*wanted, *wanted]
        ],
    )

    read = volcano.reads(there, [raw for raw, _ in placed])

    meant = {
        raw["metadata"]["name"]: {
            each.uuid: {"memory": each.memory_mib, "cores": each.share_milli // 10} for each in slices
        }
        for raw, slices in placed
    }
    assert read["pods"] == meant
    assert len(meant) > 0
    assert sorted(read["totals"]) == [f"GPU-{at}" for at in range(4)]
    for total in read["totals"].values():
        assert total["memory"] <= 16000
        assert total["cores"] <= 100


@MANY
@given(wanted=st.lists(st.tuples(st.integers(1, 9000), st.integers(0, 2)), min_size=1, max_size=6))
def test_volcano_takes_pods_of_its_former_sharing_for_the_cards_that_they_were_given(
    volcano: Volcano, wanted: list[tuple[int, int]]
) -> None:
    """Each pod twice, all of them in flight."""
    there = node({}, gpu_memory="64000", gpu_number="4")
    placed = bound(there, [asking(before, 0, gpu_memory=memory) for memory, before in [*wanted, *wanted]])

    read = volcano.reads(there, [raw for raw, _ in placed])

    assert read["index"] == {raw["metadata"]["name"]: [slices[0].index] for raw, slices in placed}
    assert read["pods"] == {
        raw["metadata"]["name"]: {f"card{each.index}": {"memory": 0, "cores": 0} for each in slices}
        for raw, slices in placed
    }


@MANY
@given(wanted=st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_volcano_takes_pods_of_whole_cards_for_the_cards_that_they_were_given(
    volcano: Volcano, wanted: list[int]
) -> None:
    """Each pod twice, all of them in flight."""
    there = node({}, gpu_number="8")
    placed = bound(there, [asking(0, 1, gpu_number=cards) for cards in [*wanted, *wanted]])

    read = volcano.reads(there, [raw for raw, _ in placed])

    assert read["index"] == {
        raw["metadata"]["name"]: [each.index for each in slices] for raw, slices in placed
    }
    given_out = [index for indexes in read["index"].values() for index in indexes]
    assert len(given_out) == len(set(given_out)) > 0
