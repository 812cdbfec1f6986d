"""Laws of the snapshot: after any events it is what a new one of the same objects is."""

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from scheduler_ext.fit.fit import fit
from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import Pod, read_any, read_non_gpu_pod
from scheduler_ext.snapshot.allocation import uses_of
from scheduler_ext.snapshot.snapshot import (
    EMPTY,
    assume,
    forget,
    node_deleted,
    node_updated,
    nodes_listed,
    non_gpu_pod_deleted,
    non_gpu_pod_updated,
    non_gpu_pods_listed,
    pod_deleted,
    pod_updated,
    pods_listed,
)
from tests.scheduler_ext.reserving import NOW_MS, held
from tests.scheduler_ext.snapshots import Json, shares
from tests.scheduler_ext.worlds import asking, bound, mib, node, percent, place, read, rebuilt, request_of
from tests.support.profile import examples
from tests.worlds import card, container
from timekeeper.core.request.cards import encode_placement
from timekeeper.core.values import Placement

TOGETHER = asking(
    container("a", gpu_percent="30"),
    container("b", gpu_percent="30"),
    init=[container("i", gpu_count="2")],
    annotations={"bursar.dev/same-gpu": "a,b"},
)
pods_drawn = st.tuples(
    st.sampled_from([percent(30), percent(50), percent(100), mib(5000), percent(150), TOGETHER]),
    st.integers(0, 9),
)


def cpu_pod(number: int, where: str, cores: int, phase: str) -> Json:
    """A pod that asks for no GPU, on a node."""
    raw = asking({**container(), "resources": {"requests": {"cpu": str(cores)}}}, name=f"cpu-{number}")
    return bound(raw, where, None, phase)


@dataclass
class Objects:
    """What the API server would hold."""

    nodes: dict[str, Json] = field(default_factory=dict)
    pods: dict[str, Json] = field(default_factory=dict)


class Story(RuleBasedStateMachine):
    """Events in any order, some of them twice; the running snapshot must be the one that the objects alone
    give, whatever led there. (Pods always end before they go: what vanished is in no object.)"""

    def __init__(self) -> None:
        super().__init__()
        self.objects = Objects()
        self.snapshot = EMPTY
        self.version = 10

    def _put(self, raw: Json) -> None:
        self.version += 1
        raw = {**raw, "metadata": {**raw["metadata"], "resourceVersion": str(self.version)}}
        self.objects.pods[raw["metadata"]["uid"]] = raw
        self.snapshot = pod_updated(self.snapshot, read(raw), NOW_MS)

    @rule(
        name=st.sampled_from("mno"),
        cards=st.integers(1, 3),
        memory=st.sampled_from([16_000, 8_000]),
        cordoned=st.sampled_from(["", "", "{}-GPU-0"]),
    )
    def node_comes_or_changes(self, name: str, cards: int, memory: int, cordoned: str) -> None:
        annotations = {"bursar.dev/cordoned-cards": cordoned.format(name)}
        raw = node(name, *(card(at, memory) for at in range(cards)), annotations=annotations)
        raw["status"]["allocatable"] = {**raw["status"]["allocatable"], "cpu": str(8 * cards)}
        self.objects.nodes[name] = raw
        self.snapshot = node_updated(self.snapshot, read_node(raw))

    @rule(name=st.sampled_from("mno"))
    def node_goes(self, name: str) -> None:
        if self.objects.nodes.pop(name, None):
            self.snapshot = node_deleted(self.snapshot, name)

    @rule(drawn=pods_drawn)
    def pod_comes(self, drawn: tuple[Json, int]) -> None:
        raw, number = drawn
        if f"uid-{number}" not in self.objects.pods:
            self._put({**raw, "metadata": {**raw["metadata"], "name": f"p{number}", "uid": f"uid-{number}"}})

    @rule(number=st.integers(0, 9), name=st.sampled_from("mno"))
    def pod_is_bound(self, number: int, name: str) -> None:
        raw = self.objects.pods.get(f"uid-{number}")
        if raw is None or raw["spec"].get("nodeName") or read(raw).request is None:
            return
        placement = fit(request_of(raw), self.snapshot.node(name))
        if isinstance(placement, Placement):
            self.snapshot = assume(self.snapshot, read(raw), name, placement)
            self._put(bound(raw, name, encode_placement(placement)))

    @rule(number=st.integers(0, 9), name=st.sampled_from("mno"))
    def pod_is_not_bound_after_all(self, number: int, name: str) -> None:
        raw = self.objects.pods.get(f"uid-{number}")
        if raw is None or raw["spec"].get("nodeName") or read(raw).request is None:
            return
        placement = fit(request_of(raw), self.snapshot.node(name))
        if isinstance(placement, Placement):
            self.snapshot = forget(assume(self.snapshot, read(raw), name, placement), f"uid-{number}", NOW_MS)

    @rule(number=st.integers(0, 9), name=st.sampled_from("mno"), ends=st.booleans())
    def cards_are_held_for_a_pod_or_no_longer(self, number: int, name: str, ends: bool) -> None:
        raw = self.objects.pods.get(f"uid-{number}")
        if raw is None or raw["spec"].get("nodeName") or read(raw).request is None:
            return
        if len(read(raw).containers) > 1:
            return
        self._put(held(raw, name, f"{name}-GPU-0", status="False" if ends else "True"))

    @rule(
        number=st.integers(0, 3),
        name=st.sampled_from("mno"),
        cores=st.integers(0, 4),
        phase=st.sampled_from(["Running", "Running", "Failed"]),
        gone=st.booleans(),
    )
    def pod_without_a_gpu_comes_or_goes(
        self, number: int, name: str, cores: int, phase: str, gone: bool
    ) -> None:
        raw = cpu_pod(number, name, cores, phase)
        before = self.objects.pods.pop(raw["metadata"]["uid"], None)
        if gone and before is not None:
            self.snapshot = non_gpu_pod_deleted(self.snapshot, raw["metadata"]["uid"])
            return
        self.objects.pods[raw["metadata"]["uid"]] = raw
        self.snapshot = non_gpu_pod_updated(self.snapshot, read_non_gpu_pod(raw))

    @rule(number=st.integers(0, 9), name=st.sampled_from("mno"), annotation=st.sampled_from([None, "{}"]))
    def pod_is_bound_by_others(self, number: int, name: str, annotation: str | None) -> None:
        raw = self.objects.pods.get(f"uid-{number}")
        if raw is not None and not raw["spec"].get("nodeName"):
            self._put(bound(raw, name, annotation))

    @rule(number=st.integers(0, 9), gone=st.booleans())
    def pod_ends(self, number: int, gone: bool) -> None:
        raw = self.objects.pods.get(f"uid-{number}")
        if raw is None:
            return
        self._put({**raw, "status": {"phase": "Succeeded"}})
        if gone:
            last = self.objects.pods.pop(f"uid-{number}")
            self.snapshot = pod_deleted(self.snapshot, read(last), NOW_MS)

    @rule(number=st.integers(0, 9))
    def event_comes_twice(self, number: int) -> None:
        raw = self.objects.pods.get(f"uid-{number}")
        if raw is not None:
            self.snapshot = pod_updated(self.snapshot, read(raw), NOW_MS)

    @rule()
    def everything_is_listed_again(self) -> None:
        values = [read_any(raw) for raw in self.objects.pods.values()]
        pods = [value for value in values if isinstance(value, Pod)]
        self.snapshot = pods_listed(self.snapshot, pods, NOW_MS)
        others = [value for value in values if not isinstance(value, Pod)]
        self.snapshot = non_gpu_pods_listed(self.snapshot, others)
        self.snapshot = nodes_listed(self.snapshot, map(read_node, self.objects.nodes.values()))

    @invariant()
    def objects_alone_tell_the_same(self) -> None:
        objects = list(self.objects.nodes.values()), list(self.objects.pods.values())
        assert self.snapshot == rebuilt(*objects, NOW_MS)

    @invariant()
    def no_card_is_too_full_but_where_it_shrank(self) -> None:
        for each in self.snapshot.nodes.values():
            for room in each.shape.free_by_card:
                assert room.share_milli >= 0
                assert room.memory_mib >= 0
            sure = {
                uid: allocation
                for uid, allocation in each.allocations.items()
                if allocation.state != "reserved"
            }
            assert all(use.share_milli <= 1000 for use in uses_of(sure).values())


TestStory = pytest.mark.untraced(Story.TestCase)
TestStory.settings = settings(max_examples=examples(20), stateful_step_count=40, deadline=None)


@settings(max_examples=examples(50), deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from([20, 40, 60])), max_size=4),
    st.lists(st.sampled_from([20, 40, 60]), min_size=1, max_size=3),
)
def test_what_is_booked_is_the_most_that_runs_at_any_moment(
    early: list[tuple[bool, int]], mains: list[int]
) -> None:
    """``early``: init containers, True for a native sidecar; what runs together is worked out here anew."""
    inits = [
        container(f"i{at}", gpu_percent=str(share)) | ({"restartPolicy": "Always"} if stays else {})
        for at, (stays, share) in enumerate(early)
    ]
    raw = asking(*(container(f"m{at}", gpu_percent=str(s)) for at, s in enumerate(mains)), init=inits)
    taken = place(rebuilt([node("n", card(0), card(1))], []), raw, "n")
    if taken is None:
        return
    placed = json.loads(taken["metadata"]["annotations"]["bursar.dev/devices"])["containers"]
    sidecars = [f"i{at}" for at, (stays, _) in enumerate(early) if stays]
    moments = [[*sidecars, *(f"m{at}" for at in range(len(mains)))]]
    moments += [
        [f"i{at}", *(f"i{b}" for b in range(at) if early[b][0])]
        for at, (stays, _) in enumerate(early)
        if not stays
    ]

    peaks = {
        uuid: max(
            sum(s["share_milli"] for name in who for s in placed[name] if s["uuid"] == uuid)
            for who in moments
        )
        for uuid in ("GPU-0", "GPU-1")
    }

    assert shares(rebuilt([node("n", card(0), card(1))], [taken])) == [1000 - peak for peak in peaks.values()]
    assert max(peaks.values()) <= 1000


def test_placing_until_nothing_fits_fills_the_cards_and_never_more() -> None:
    snapshot = rebuilt([node("n", card(0), card(1))], [])
    count = 0
    while (taken := place(snapshot, percent(30, f"p{count}"), "n")) is not None:
        snapshot = pod_updated(snapshot, read(taken))
        count += 1

    assert count == 6
    assert shares(snapshot) == [100, 100]
