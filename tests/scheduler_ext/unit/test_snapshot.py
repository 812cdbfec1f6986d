"""How events make one snapshot from another, and what a node may be used for."""

import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import Pod, read_any, read_non_gpu_pod
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.node_info import is_roomier, uses_of
from scheduler_ext.snapshot.snapshot import (
    EMPTY,
    Snapshot,
    assume,
    forget,
    node_deleted,
    node_updated,
    nodes_listed,
    non_gpu_pod_deleted,
    non_gpu_pod_updated,
    non_gpu_pods_listed,
    orphan,
    pod_deleted,
    pod_updated,
    pods_listed,
)
from tests.scheduler_ext.reserving import NOW_MS, held
from tests.scheduler_ext.worlds import (
    asking,
    bound,
    cards_of,
    holders,
    mib,
    node,
    on,
    percent,
    place,
    read,
    rebuilt,
    request_of,
)
from tests.support.profile import examples
from tests.worlds import card, container, limits_of, status, terminated
from tests.worlds import running as running_state
from timekeeper.core.request.cards import encode_placement
from timekeeper.core.values import Placement

Json = dict[str, Any]

NVIDIA = {"nvidia.com/gpu": "2"}
TENCENT = {"tencent.com/vcuda-core": "200", "tencent.com/vcuda-memory": "125"}


def why(snapshot: Snapshot, raw: Json, where: str = "n") -> str:
    """The sentence that refuses the pod this node."""
    answer = fit(request_of(raw), snapshot.node(where))
    assert isinstance(answer, Refusal)
    return answer.sentence


def whole(count: int = 1, name: str = "p") -> Json:
    """A pod of whole cards as NVIDIA's users write it."""
    return asking(limits_of("main", nvidia_com__gpu=str(count)), name=name)


# whose node it is


@pytest.mark.parametrize(
    ("capacity", "raw", "sentence"),
    [
        (NVIDIA, percent(50), "only whole cards here, requested as nvidia.com/gpu"),
        (NVIDIA, percent(100), "cards here are requested as nvidia.com/gpu"),
        (TENCENT, percent(50), "cards here are requested as tencent.com/vcuda-core"),
        (None, whole(), "cards here are requested as bursar.dev/gpu-percent"),
        (
            {**TENCENT, **NVIDIA},
            percent(50),
            "node is closed for sharing: more than one GPU plugin serves it",
        ),
        (
            {"bursar.dev/gpu-percent": "200", **NVIDIA},
            whole(),
            "node is closed for sharing: more than one GPU plugin serves it",
        ),
        (
            {"amd.com/gpu": "32"},
            percent(50),
            "node is closed for sharing: its GPU plugin is not supported",
        ),
    ],
)
def test_a_request_is_placed_only_on_a_node_of_its_dialects_family(
    capacity: Json | None, raw: Json, sentence: str
) -> None:
    assert why(rebuilt([node("n", card(0), card(1), capacity=capacity)], []), raw) == sentence


def test_a_plugin_that_advertises_nothing_any_more_makes_no_second_family() -> None:
    capacity = {"bursar.dev/gpu-percent": "100", "nvidia.com/gpu": "0"}

    assert cards_of(fit(request_of(percent(50)), rebuilt([node("n", capacity=capacity)], []).node("n")))


def test_a_node_without_an_inventory_has_no_cards_whatever_it_advertises() -> None:
    raw = node("n", capacity={**TENCENT, **NVIDIA})
    del raw["metadata"]["annotations"]["bursar.dev/inventory"]

    assert why(rebuilt([raw], []), percent(50)) == "no GPU cards here"
    assert why(rebuilt([], []), percent(50), "elsewhere") == "node is not known to the extender yet"


def test_an_inventory_that_cannot_be_read_closes_its_node() -> None:
    raw = node("n", annotations={"bursar.dev/inventory": "{"})

    assert (
        why(rebuilt([raw], []), percent(50))
        == "node is closed for sharing: its card inventory cannot be read"
    )


@pytest.mark.parametrize("annotations", [{}, {"bursar.dev/holders": holders()}], ids=["no agent", "an agent"])
def test_whole_cards_are_given_where_the_plugin_picks_them_counting_unnamed_ones(
    annotations: Json,
) -> None:
    others, cards = bound(whole(2, "other"), "n", None), [card(at) for at in range(4)]
    there = node("n", *cards, capacity={"nvidia.com/gpu": "4"}, annotations=annotations)
    snapshot = rebuilt([there], [others])

    assert len(cards_of(fit(request_of(whole(2)), snapshot.node("n")))["main"]) == 2
    assert why(snapshot, whole(3)) == "not enough free GPUs (3 needed)"


def test_init_containers_of_an_unplaced_pod_reuse_its_cards() -> None:
    others = asking(
        limits_of("main", nvidia_com__gpu="1"), init=[limits_of("first", nvidia_com__gpu="2")], name="other"
    )
    cards = [card(at) for at in range(4)]
    snapshot = rebuilt([node("n", *cards, capacity={"nvidia.com/gpu": "4"})], [bound(others, "n", None)])

    assert snapshot.node("n").unnamed == 2


def test_a_choice_of_cards_cannot_be_kept_where_the_plugin_picks_them() -> None:
    mixed = node("n", card(0, model="A100"), card(1, model="T4"), capacity=NVIDIA)
    choosy = {
        **whole(),
        "metadata": {**whole()["metadata"], "annotations": {"bursar.dev/gpu-models": "A100"}},
    }

    assert why(rebuilt([mixed], []), choosy) == "cards here cannot be chosen by model, UUID or topology"
    same = node("n", card(0, model="A100"), card(1, model="A100"), capacity=NVIDIA)
    assert cards_of(fit(request_of(choosy), rebuilt([same], []).node("n")))


@pytest.mark.parametrize(("nodes", "fits"), [((0, 0, 0), True), ((0, 0, 1), False), ((0, 0, None), False)])
def test_cards_near_each_other_are_had_where_the_plugin_picks_them_if_all_are(
    nodes: tuple[int | None, ...], fits: bool
) -> None:
    capacity = {"nvidia.com/gpu": "3"}
    there = node("n", *(card(at, numa=numa) for at, numa in enumerate(nodes)), capacity=capacity)
    two = whole(2)
    two["metadata"]["annotations"] = {"bursar.dev/topology": "numa"}

    answer = fit(request_of(two), rebuilt([there], []).node("n"))

    assert isinstance(answer, Placement) == fits
    assert fits or answer == Refusal("cards here cannot be chosen by model, UUID or topology", "constraint")


# which cards may be used


@pytest.mark.parametrize(
    ("annotations", "indexes", "sentence"),
    [
        ({"bursar.dev/gpu-models": "T4"}, [1], ""),
        ({"bursar.dev/gpu-models": "H100,V100"}, None, "no H100 or V100 here"),
        ({"bursar.dev/exclude-gpu-models": "A100"}, [1], ""),
        (
            {"bursar.dev/exclude-gpu-models": "A100,T4"},
            None,
            "all cards here are of excluded models (A100 or T4)",
        ),
        ({"bursar.dev/gpu-uuids": "GPU-1"}, [1], ""),
        ({"bursar.dev/gpu-uuids": "GPU-7"}, None, "none of the cards that the pod names is here"),
    ],
)
def test_constraints_choose_among_the_cards(
    annotations: Json, indexes: list[int] | None, sentence: str
) -> None:
    snapshot = rebuilt([node("n", card(0, model="A100"), card(1, model="T4"))], [])
    raw = percent(10, annotations=annotations)

    if indexes is None:
        assert why(snapshot, raw) == sentence
    else:
        assert cards_of(fit(request_of(raw), snapshot.node("n"))) == {"main": indexes}


def test_an_unhealthy_card_is_never_given() -> None:
    one = rebuilt([node("n", card(0, healthy=False), card(1))], [])
    none = rebuilt([node("n", card(0, healthy=False))], [])

    assert cards_of(fit(request_of(percent(10)), one.node("n"))) == {"main": [1]}
    assert why(none, percent(10)) == "no healthy GPU card here"
    assert why(one, asking(container(gpu_count="2"))) == "not enough free GPUs (2 needed)"


# what a refusal says


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (percent(50), "no card has 50% free"),
        (mib(5000), "no card has 5000 MiB free"),
        (asking(container(gpu_percent="50", gpu_memory="8192")), "no card has 50% and 8192 MiB free"),
        (percent(100), "not enough free GPUs (1 needed)"),
        (asking(container(gpu_count="2")), "not enough free GPUs (2 needed)"),
        (asking(container(gpu_count="2", gpu_percent="100")), "not enough GPUs with 50% free (2 needed)"),
        (
            asking(
                container("a", gpu_percent="30"),
                container("b", gpu_percent="30"),
                container("c", gpu_count="1"),
            ),
            "not enough free for 2 x 30% + 1 whole card",
        ),
    ],
)
def test_a_shortage_names_the_need_and_no_varying_figure(raw: Json, sentence: str) -> None:
    for free in (60, 40, 10):
        user = on(percent(100 - free // 10, "user"), "n", "GPU-0")
        assert why(rebuilt([node("n")], [user]), raw) == sentence


def test_a_link_counts_whichever_of_the_two_cards_shows_it() -> None:
    one_told = node("n", card(0, links=[]), card(1, links=["GPU-0"]))
    two = asking(container(gpu_count="2"), annotations={"bursar.dev/topology": "pair"})

    assert cards_of(fit(request_of(two), rebuilt([one_told], []).node("n"))) == {"main": [0, 1]}


def test_cards_of_unknown_numa_nodes_are_not_on_one_together() -> None:
    one_known = node("n", card(0, numa=0), card(1), card(2))
    two = asking(container(gpu_count="2"), annotations={"bursar.dev/topology": "numa"})

    assert why(rebuilt([one_known], []), two) == "no 2 cards on one NUMA node here"


def test_a_choice_of_linked_cards_that_takes_too_long_is_given_up_too() -> None:
    """Forty cards in five parts, each linked to all but its own part: no six are linked with each other."""
    parts = [[f"GPU-{at}" for at in range(40) if at % 5 != part] for part in range(5)]
    there = node("n", *(card(at, links=parts[at % 5]) for at in range(40)))
    asked = {"bursar.dev/topology": "pair"}

    five = asking(container(gpu_count="5"), annotations=asked)
    six = asking(container(gpu_count="6"), annotations=asked)

    assert cards_of(fit(request_of(five), rebuilt([there], []).node("n")))
    assert why(rebuilt([there], []), six) == "no layout of its containers was found in time"


def test_a_search_that_is_given_up_says_so() -> None:
    sizes = [331 + 7 * at % 13 for at in range(23)]
    containers = [container(f"c{at}", gpu_memory=str(10 * size)) for at, size in enumerate(sizes)]
    snapshot = rebuilt([node("n", *(card(at, 10_000) for at in range(8)))], [])

    assert why(snapshot, asking(*containers)) == "no layout of its containers was found in time"


# who holds cards


def shares(snapshot: Snapshot, where: str = "n") -> list[int]:
    return [room.share_milli for room in snapshot.node(where).free_by_card if room]


def test_a_pod_holds_its_cards_until_its_gpu_containers_have_ended() -> None:
    at = "2026-11-20T04:32:53Z"
    raw = on(percent(40), "n", "GPU-0")

    def held(phase: str, **states: Json) -> bool:
        return shares(rebuilt([node("n")], [{**raw, "status": status(phase, **states)}])) == [600]

    assert held("Pending")
    assert held("Running", main=running_state(at))
    assert held("Running", main=terminated(at, at))
    assert held("Failed", main=running_state(at))
    assert not held("Failed", main=terminated(at, at))
    assert not held("Succeeded", main=terminated(at, at))


def test_a_deletion_that_is_only_requested_frees_nothing() -> None:
    raw = on(percent(40), "n", "GPU-0")
    raw["metadata"]["deletionTimestamp"] = "2026-11-20T04:32:53Z"

    assert shares(rebuilt([node("n")], [raw])) == [600]


def test_a_pod_that_ended_before_its_object_went_frees_its_cards_at_once() -> None:
    raw = on(percent(40), "n", "GPU-0")
    snapshot = rebuilt([node("n")], [raw])

    ended = read({**raw, "status": {"phase": "Failed"}})
    assert pod_deleted(snapshot, ended, 0) == rebuilt([node("n")], [])


def test_an_orphaned_pod_counts_for_at_most_the_longest_grace_period() -> None:
    raw = on(percent(40, terminationGracePeriodSeconds=86_400), "n", "GPU-0")
    before = replace(rebuilt([node("n")], [raw]), most_grace_ms=60_000)

    snapshot = pod_deleted(before, read(raw), 1_000)
    allocation = snapshot.allocation("uid-p")

    assert allocation is not None
    assert (allocation.state, allocation.until_ms) == ("orphaned", 61_000)


def test_what_a_list_no_longer_has_goes_on_holding_its_cards() -> None:
    snapshot = pods_listed(rebuilt([node("n")], [on(percent(40), "n", "GPU-0")]), [], 0)

    assert shares(snapshot) == [600]
    assert len(snapshot.pods) == 0


def test_what_is_only_assumed_outlives_a_list_that_may_be_older() -> None:
    raw = percent(40)
    snapshot = rebuilt([node("n")], [raw])
    placement = fit(request_of(raw), snapshot.node("n"))
    assert isinstance(placement, Placement)
    snapshot = assume(snapshot, read(raw), "n", placement)

    for older in ([], [read(raw)]):
        assert shares(pods_listed(snapshot, older, 0)) == [600]
    touched = {**raw, "metadata": {**raw["metadata"], "resourceVersion": "9"}}
    assert shares(pod_updated(snapshot, read(touched))) == [600]
    assert shares(forget(snapshot, "uid-p")) == [1000]
    assert shares(orphan(snapshot, "uid-p", 0)) == [600]


def test_a_refusal_does_not_unseat_a_pod_that_was_seen_bound() -> None:
    snapshot = rebuilt([node("n")], [on(percent(40), "n", "GPU-0")])

    assert forget(snapshot, "uid-p") == snapshot


def test_an_assumed_pod_that_turns_up_elsewhere_moves_there() -> None:
    raw = percent(40)
    snapshot = rebuilt([node("n"), node("m")], [raw])
    placement = fit(request_of(raw), snapshot.node("n"))
    assert isinstance(placement, Placement)

    snapshot = pod_updated(assume(snapshot, read(raw), "n", placement), read(on(raw, "m", "m-GPU-0")))

    assert shares(snapshot, "n") == [1000]
    assert shares(snapshot, "m") == [600]


# what closes a node


def devices(**containers: list[Json]) -> str:
    return json.dumps({"version": 1, "containers": containers})


SLICE = {"uuid": "GPU-0", "index": 0, "share_milli": 500, "memory_mib": 8000}


@pytest.mark.parametrize(
    ("annotation", "word"),
    [
        ("", "placement"),
        ("{}", "placement"),
        (devices(main=[{**SLICE, "share_milli": 1}]), "placement"),
        (devices(main=[{**SLICE, "uuid": "GPU-9"}]), "placement"),
        (devices(other=[SLICE]), "placement"),
        (devices(main=[SLICE, {**SLICE, "uuid": "GPU-1"}]), "placement"),
        (None, "unplaced"),
    ],
)
def test_a_placement_that_cannot_be_believed_closes_its_node_and_frees_no_card(
    annotation: str | None, word: str
) -> None:
    raw = bound(percent(50), "n", annotation)
    snapshot = rebuilt([node("n", card(0), card(1)), node("m")], [raw])

    assert snapshot.node("n").closed == word
    assert why(snapshot, percent(1)).startswith("node is closed for sharing: ")
    assert cards_of(fit(request_of(percent(1)), snapshot.node("m")))
    ended = pod_deleted(snapshot, read({**raw, "status": {"phase": "Succeeded"}}), 0)
    assert ended.node("n").closed == ""


def test_a_node_that_is_closed_for_two_reasons_shows_the_same_one_whichever_came_first() -> None:
    pods = [on(percent(50, "p"), "n", "GPU-9"), bound(percent(50, "q"), "n", None)]
    assert {rebuilt([node("n")], [pod]).node("n").closed for pod in pods} == {"placement", "unplaced"}

    one, other = (rebuilt([node("n")], listed) for listed in (pods, pods[::-1]))

    assert one == other
    assert one.node("n").closed == "placement"


def test_a_placement_counts_only_for_a_pod_that_is_bound() -> None:
    raw = percent(50)
    raw["metadata"]["annotations"] = {"bursar.dev/devices": devices(main=[SLICE])}

    assert shares(rebuilt([node("n")], [raw])) == [1000]


def test_an_annotation_on_a_pod_that_requests_no_gpu_means_nothing() -> None:
    raw = bound(asking(container()), "n", devices(main=[SLICE]))

    snapshot = rebuilt([node("n")], [raw])

    assert snapshot.node("n").closed == ""
    assert shares(snapshot) == [1000]


def test_a_malformed_pod_that_got_bound_closes_its_node_while_any_container_runs() -> None:
    raw = bound(percent(150), "n", None)
    at = "2026-11-20T04:32:53Z"

    assert rebuilt([node("n")], [raw]).node("n").closed == "unplaced"
    still = {**raw, "status": status("Failed", main=running_state(at))}
    assert rebuilt([node("n")], [still]).node("n").closed == "unplaced"
    done = {**raw, "status": status("Failed", main=terminated(at, at))}
    assert rebuilt([node("n")], [done]).node("n").closed == ""


def test_a_card_that_leaves_the_inventory_under_a_pod_closes_the_node_until_it_is_back() -> None:
    snapshot = rebuilt([node("n", card(0), card(1))], [on(percent(50), "n", "GPU-0")])

    without = node_updated(snapshot, read_node(node("n", card(1))))

    assert without.node("n").closed == "placement"
    assert node_updated(without, read_node(node("n", card(0), card(1)))) == snapshot


# nothing changes but what the event is about


def test_a_heartbeat_of_a_node_or_pod_leaves_every_node_as_it_is() -> None:
    raw = on(percent(50), "n", "GPU-0")
    snapshot = rebuilt([node("n"), node("m")], [raw])

    again = node_updated(snapshot, read_node({**node("n"), "spec": {"x": 1}}))
    later = {**raw, "metadata": {**raw["metadata"], "resourceVersion": "77"}}
    touched = pod_updated(again, read(later))

    assert again is snapshot
    assert list(touched.nodes.changed_since(snapshot.nodes)) == []
    assert touched.pods.get("uid-p") == read(later)


def test_only_the_node_of_an_event_changes() -> None:
    snapshot = rebuilt([node(f"n{at}") for at in range(50)], [])

    changed = pod_updated(snapshot, read(on(percent(50), "n7", "n7-GPU-0")))

    assert list(changed.nodes.changed_since(snapshot.nodes)) == ["n7"]


@pytest.mark.parametrize(
    ("before", "after", "roomier"),
    [
        ([], [on(percent(50), "n", "GPU-0")], False),
        ([on(percent(50), "n", "GPU-0")], [], True),
        ([on(percent(50), "n", "GPU-0")], [on(percent(50), "n", "GPU-0")], False),
        ([bound(percent(50), "n", None)], [], True),
        ([], [bound(percent(50), "n", None)], False),
    ],
)
def test_a_node_is_roomier_when_a_card_of_it_is(before: list[Json], after: list[Json], roomier: bool) -> None:
    old, new = (rebuilt([node("n")], pods).node("n") for pods in (before, after))

    assert is_roomier(new, old) is roomier


def test_a_node_is_roomier_when_a_card_heals_comes_or_the_node_is_new() -> None:
    sick = rebuilt([node("n", card(0, healthy=False))], []).node("n")
    well = rebuilt([node("n", card(0))], []).node("n")
    two = rebuilt([node("n", card(0), card(1))], []).node("n")

    assert is_roomier(well, sick)
    assert is_roomier(two, well)
    assert is_roomier(well, None)


# laws


keys = st.text(max_size=3)


@pytest.mark.untraced
@given(st.lists(st.tuples(keys, st.integers() | st.none())))
def test_a_map_is_a_dict_that_keeps_its_former_versions(changes: list[tuple[str, int | None]]) -> None:
    model: dict[str, int] = {}
    versions: list[tuple[Map[int], dict[str, int]]] = []
    current: Map[int] = Map()
    for key, value in changes:
        versions.append((current, dict(model)))
        if value is None:
            current = current.without(key)
            model.pop(key, None)
        else:
            current = current.set(key, value)
            model[key] = value

    for each, then in [*versions, (current, model)]:
        assert dict(each.items()) == then
        assert len(each) == len(then)
        assert each == Map(then)
        touched = {key for key in {**model, **then} if model.get(key) is not then.get(key)}
        assert set(current.changed_since(each)) == touched


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
