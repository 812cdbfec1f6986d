"""Binding through the API server: one Binding with everything in it, and no card given back on a guess."""

import json
from typing import Any

import pytest

from scheduler_ext.binding.manifest import Written, binding, written_for
from scheduler_ext.clients.pod_patches import wake_patch
from scheduler_ext.fit.fit import fit
from tests.scheduler_ext.stepped import Start, Stepped
from tests.scheduler_ext.store import Fault, Store
from tests.scheduler_ext.worlds import Json, asking, node, on, percent, read
from tests.worlds import card, container, limits_of, of_resources
from timekeeper.core.values import Placement, Slice


@pytest.fixture
def world(running: Stepped) -> Stepped:
    """Two nodes of two cards."""
    running.put_node(node("a", card(0), card(1)))
    running.put_node(node("b", card(0), card(1)))
    return running


def test_one_binding_carries_uid_version_and_all_annotations(world: Stepped) -> None:
    raw = world.put_pod(
        asking(container("main", gpu_percent="50"), container("second", gpu_count="1"), container("plain"))
    )

    assert world.bind(raw, "a") == ""

    (sent,) = world.api.made("bind")
    assert sent["target"] == {"apiVersion": "v1", "kind": "Node", "name": "a"}
    assert sent["metadata"]["uid"] == "uid-p"
    assert sent["metadata"]["resourceVersion"] == raw["metadata"]["resourceVersion"]
    annotations = world.api.pod("p")["metadata"]["annotations"]
    assert annotations == sent["metadata"]["annotations"]
    assert json.loads(annotations.pop("bursar.dev/devices")) == {
        "version": 1,
        "containers": {
            "main": [{"uuid": "a-GPU-0", "index": 0, "share_milli": 500, "memory_mib": 8000}],
            "second": [{"uuid": "a-GPU-1", "index": 1, "share_milli": 1000, "memory_mib": 16000}],
        },
    }
    assert annotations == {
        "visible-devices.bursar.dev/main": "a-GPU-0",
        "visible-devices.bursar.dev/second": "a-GPU-1",
        "visible-devices.bursar.dev/bursar-sidecar": "a-GPU-0,a-GPU-1",
        "mps-memory.bursar.dev/main": "0=8000M",
        "mps-threads.bursar.dev/main": "50",
        "mps-memory.bursar.dev/second": "0=16000M",
        "mps-threads.bursar.dev/second": "100",
    }


def test_a_tencent_pod_gets_what_its_plugin_reads(running: Stepped, monkeypatch: pytest.MonkeyPatch) -> None:
    capacity = {"tencent.com/vcuda-core": "200", "tencent.com/vcuda-memory": "64"}
    running.put_node(node("t", card(0, 8192), card(1, 8192), capacity=capacity))
    raw = running.put_pod(
        asking(limits_of("main", tencent_com__vcuda_core="50", tencent_com__vcuda_memory="8"))
    )

    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000_007_999_999)
    assert running.bind(raw, "t") == ""

    written = running.api.pod("p")["metadata"]["annotations"]
    assert written["tencent.com/predicate-gpu-idx-0"] == "0"
    assert written["tencent.com/predicate-node"] == "t"
    assert written["tencent.com/gpu-assigned"] == "false"
    assert written["tencent.com/predicate-time"] == "1700000000007999999"
    assert not [name for name in written if name.startswith("mps-")]  # gpu-manager limits by its own means


def test_where_the_plugin_picks_the_cards_none_is_shown_to_a_container(running: Stepped) -> None:
    running.put_node(node("v", card(0), card(1), capacity={"nvidia.com/gpu": "2"}))
    raw = running.put_pod(asking(limits_of("main", nvidia_com__gpu="1")))

    assert running.bind(raw, "v") == ""

    assert running.api.pod("p")["metadata"]["annotations"].keys() == {"bursar.dev/devices"}
    there = running.extender.cache.snapshot.node("v")
    assert (running.free("v"), there.unnamed) == ([1000, 1000], 1)


@pytest.mark.parametrize(
    ("resource", "written"), [("nvidia.com/gpu", set()), ("nvidia.com/gpu.shared", {"bursar.dev/devices"})]
)
def test_beside_replicas_whole_cards_without_an_inventory_are_bound_without_a_card(
    running: Stepped, resource: str, written: set[str]
) -> None:
    """kube-scheduler counts both; the place of a replica is what its charge follows from."""
    there = node("v", capacity={"nvidia.com/gpu": "2", "nvidia.com/gpu.shared": "4"})
    there["metadata"]["annotations"] = {}
    running.put_node(there)
    raw = running.put_pod(asking(of_resources({resource: "1"})))

    assert running.bind(raw, "v") == ""

    assert running.api.pod("p")["metadata"].get("annotations", {}).keys() == written


def ungoverned(raw: Json) -> Json:
    """The pod as it is where no webhook has seen it."""
    return {
        **raw,
        "metadata": {name: value for name, value in raw["metadata"].items() if name != "labels"},
    }


def test_an_ungoverned_pod_is_placed_and_counted_all_the_same(world: Stepped) -> None:
    raw = world.put_pod(ungoverned(percent(50)))
    assert "labels" not in raw["metadata"]

    assert world.bind(raw, "a") == ""

    assert world.free("a") == [500, 1000]


ZEROS = of_resources({"nvidia.com/gpu": "0", "nvidia.com/gpumem": "0", "bursar.dev/gpu-percent": "0"})


@pytest.mark.parametrize("of", [container(), ZEROS], ids=["none", "zeros"])
def test_a_pod_without_a_gpu_is_bound_plainly(world: Stepped, of: Json) -> None:
    """kube-scheduler calls an extender for pods that name its resources, whatever the amounts."""
    raw = world.api.put("pods", asking(of))
    answer = world.filter(raw, "a", "b")
    assert answer["NodeNames"] == ["a", "b"]

    assert world.bind(raw, "a") == ""

    (sent,) = world.api.made("bind")
    assert sent["metadata"]["annotations"] == {}
    assert world.free("a") == [1000, 1000]


def test_a_pod_that_the_watch_has_not_shown_yet_is_read(world: Stepped) -> None:
    world.api.watching = False
    raw = world.api.put("pods", percent(50))

    assert world.bind(raw, "a") == ""

    assert world.free("a") == [500, 1000]


def test_binding_twice_is_success_and_sends_nothing_more(world: Stepped) -> None:
    raw = world.put_pod(percent(50))

    assert world.bind(raw, "a") == ""
    world.hears(world.api.pod("p"))
    assert world.bind(raw, "a") == ""

    assert len(world.api.made("bind")) == 1
    assert world.free("a") == [500, 1000]


def test_a_pod_bound_to_another_node_is_an_error(world: Stepped) -> None:
    raw = world.put_pod(percent(50))
    assert world.bind(raw, "a") == ""
    world.hears(world.api.pod("p"))

    assert world.bind(raw, "b") == "the pod is already bound to node a"
    assert world.free("b") == [1000, 1000]


def test_what_no_longer_fits_is_refused_at_bind(world: Stepped) -> None:
    first, second, third = (world.put_pod(percent(60, name)) for name in ("x", "y", "z"))
    assert world.bind(first, "a") == ""
    assert world.bind(second, "a") == ""

    assert world.bind(third, "a") == "no card has 60 percent free"
    assert len(world.api.made("bind")) == 2


def test_a_malformed_pod_is_not_bound(world: Stepped) -> None:
    raw = world.put_pod(percent(150))

    assert world.bind(raw, "a").startswith("malformed GPU request: ")
    assert world.api.made("bind") == []


def test_a_pod_of_the_same_name_is_another_pod(world: Stepped) -> None:
    raw = world.put_pod(percent(50))
    world.api.delete("pods", "p", "team-a")
    successor = percent(50)
    successor["metadata"]["uid"] = "uid-successor"
    world.put_pod(successor)

    assert world.bind(raw, "a") == "the pod is gone"
    assert world.free("a") == [1000, 1000]


@pytest.mark.parametrize("status", [400, 403, 404, 422, 429])
def test_a_definite_refusal_gives_the_cards_back(world: Stepped, status: int) -> None:
    raw = world.put_pod(percent(50))
    world.api.faults.append(Fault("bind", status=status))

    assert world.bind(raw, "a") == f"fault {status}"

    assert world.free("a") == [1000, 1000]
    assert world.bind(raw, "b") == ""


def test_a_version_that_has_moved_on_is_read_and_sent_again(world: Stepped) -> None:
    raw = world.put_pod(percent(50))
    world.api.watching = False
    world.api.put("pods", {**raw, "status": {"phase": "Pending", "conditions": []}})

    assert world.bind(raw, "a") == ""

    assert len(world.api.made("bind")) == 2
    assert world.free("a") == [500, 1000]


def test_a_conflict_that_no_new_version_explains_is_a_refusal(world: Stepped) -> None:
    raw = percent(50)
    raw["spec"]["schedulingGates"] = [{"name": "wait"}]
    raw = world.put_pod(raw)

    assert "schedulingGates" in world.bind(raw, "a")
    assert world.free("a") == [1000, 1000]


def test_bound_behind_our_back_to_the_same_node_is_success(world: Stepped) -> None:
    raw = world.put_pod(percent(50))
    world.api.watching = False
    world.api.put("pods", on(raw, "a", "a-GPU-1"))

    assert world.bind(raw, "a") == ""

    assert world.free("a") == [1000, 500]


def test_bound_behind_our_back_to_another_node_is_an_error_and_booked_there(world: Stepped) -> None:
    raw = world.put_pod(percent(50))
    world.api.watching = False
    world.api.put("pods", on(raw, "b", "b-GPU-1"))

    assert world.bind(raw, "a") == "the pod is already bound to node b"

    assert world.free("a") == [1000, 1000]
    assert world.free("b") == [1000, 500]


@pytest.mark.parametrize(
    "fault",
    [
        Fault("bind", obeyed=True, how="reset"),
        Fault("bind", obeyed=False, how="reset"),
        Fault("bind", obeyed=True, status=500),
        Fault("bind", obeyed=False, status=500),
        Fault("bind", obeyed=False, status=503),
    ],
    ids=str,
)
def test_a_lost_answer_is_made_good_by_a_look_at_the_pod(world: Stepped, fault: Fault) -> None:
    raw = world.put_pod(percent(50))
    world.api.faults.append(fault)

    assert world.bind(raw, "a") == ""

    assert world.api.pod("p")["spec"]["nodeName"] == "a"
    assert world.free("a") == [500, 1000]
    assert len(world.api.made("bind")) == (1 if fault.obeyed else 2)


@pytest.mark.parametrize("obeyed", [True, False])
def test_a_binding_without_an_answer_in_time_keeps_the_cards_until_it_is_settled(
    world: Stepped, obeyed: bool
) -> None:
    raw = world.put_pod(percent(100))
    world.api.watching = False
    world.api.faults += [Fault("bind", obeyed=obeyed, how="silent"), Fault("patch", status=500)]

    assert "does not answer" in world.bind(raw, "a")
    assert world.free("a") == [0, 1000]

    world.settles()
    assert any("unsettled" in line for line in world.lines)
    assert world.free("a") == [0, 1000]
    world.extender.cache.mark_uncertain("uid-p")
    world.settles()
    assert any(line.startswith("settled") for line in world.lines)
    assert world.free("a") == ([0, 1000] if obeyed else [1000, 1000])


def test_the_cards_of_a_pod_too_large_for_the_store_are_free_once_its_binding_cannot_have_succeeded(
    world: Stepped,
) -> None:
    raw = world.put_pod(percent(100))
    full = Fault("patch", status=500, said="etcdserver: request is too large")
    world.api.faults += [Fault("bind", obeyed=False, how="silent"), full]

    assert "does not answer" in world.bind(raw, "a")

    world.settles()
    assert any(line.startswith("settled") for line in world.lines)
    assert world.free("a") == [1000, 1000]


def test_the_watch_settles_it_too(world: Stepped) -> None:
    raw = world.put_pod(percent(100))
    world.api.faults += [Fault("bind", obeyed=True, how="silent"), Fault("patch", status=500)]

    assert "does not answer" in world.bind(raw, "a")

    world.hears(world.api.pod("p"))
    allocation = world.extender.cache.snapshot.allocation("uid-p")
    assert allocation is not None
    assert allocation.state == "bound"


def test_a_late_binding_cannot_succeed_once_it_was_settled_as_not_done(world: Stepped) -> None:
    raw = world.put_pod(percent(100))
    world.api.faults.append(Fault("bind", obeyed=False, how="silent"))
    assert "does not answer" in world.bind(raw, "a")
    world.settles()
    assert any(line.startswith("settled") for line in world.lines)
    (late,) = world.api.made("bind")

    status, _ = world.api.bind("team-a", "p", late)

    assert status == 409
    assert world.free("a") == [1000, 1000]


def test_asked_for_another_node_an_unsettled_binding_is_settled_first(world: Stepped) -> None:
    raw = world.put_pod(percent(100))
    world.api.faults += [Fault("bind", obeyed=False, how="silent"), Fault("patch", status=500)]
    assert "does not answer" in world.bind(raw, "a")
    world.settles()
    assert any("unsettled" in line for line in world.lines)

    assert world.bind(raw, "b") == ""

    assert world.free("a") == [1000, 1000]
    assert world.free("b") == [0, 1000]


def test_asked_for_another_node_an_unsettled_binding_that_was_done_is_found(world: Stepped) -> None:
    raw = world.put_pod(percent(100))
    world.api.watching = False
    world.api.faults += [Fault("bind", obeyed=True, how="silent"), Fault("patch", status=500)]
    assert "does not answer" in world.bind(raw, "a")
    world.settles()
    assert any("unsettled" in line for line in world.lines)

    assert world.bind(raw, "b") == "the pod is already bound to node a"
    assert world.free("b") == [1000, 1000]


def test_asked_again_for_the_same_node_the_same_cards_are_sent(world: Stepped) -> None:
    raw = world.put_pod(percent(40))
    world.api.faults += [Fault("bind", obeyed=False, how="silent"), Fault("patch", status=500)]
    assert "does not answer" in world.bind(raw, "a")
    world.settles()
    assert any("unsettled" in line for line in world.lines)

    assert world.filter(raw, "a", "b")["NodeNames"] == ["a", "b"]
    assert world.bind(raw, "a") == ""

    first, second = world.api.made("bind")
    assert first["metadata"]["annotations"] == second["metadata"]["annotations"]
    assert world.free("a") == [600, 1000]


def test_a_pod_does_not_stand_in_its_own_way(running: Stepped) -> None:
    running.put_node(node("a"))
    raw = running.put_pod(percent(100))
    running.api.faults += [Fault("bind", obeyed=False, how="silent"), Fault("patch", status=500)]
    assert "does not answer" in running.bind(raw, "a")

    assert running.filter(raw, "a")["NodeNames"] == ["a"]
    assert running.filter(running.put_pod(percent(100, "other")), "a")["NodeNames"] == []


def test_a_refusal_after_a_lost_binding_does_not_free_the_cards_before_it_is_settled(world: Stepped) -> None:
    raw = world.put_pod(percent(100))
    world.api.faults += [
        Fault("bind", obeyed=False, how="silent"),
        Fault("patch", status=500),
        Fault("bind", status=403),
        Fault("patch", status=500),
    ]
    assert "does not answer" in world.bind(raw, "a")
    world.settles()
    assert any("unsettled" in line for line in world.lines)

    assert world.bind(raw, "a") == "fault 403"

    assert world.free("a") == [0, 1000]


def test_a_pod_deleted_unseen_holds_its_cards_for_its_grace_period(world: Stepped) -> None:
    raw = world.put_pod(percent(100, terminationGracePeriodSeconds=1))
    world.api.watching = False
    world.api.faults += [Fault("bind", obeyed=True, how="silent")]

    assert "does not answer" in world.bind(raw, "a")
    world.api.delete("pods", "p", "team-a")
    world.settles()

    assert any("gone=" in line for line in world.lines)
    assert world.free("a") == [0, 1000]
    world.passes(3)
    assert world.free("a") == [1000, 1000]


@pytest.mark.parametrize("status", [404, 409])
def test_a_settling_that_is_refused_while_the_pod_is_there_frees_nothing(world: Stepped, status: int) -> None:
    """A webhook may deny with any status, and a writer that was faster is a conflict."""
    raw = world.put_pod(percent(100))
    world.api.watching = False
    world.api.faults += [Fault("bind", obeyed=True, how="silent"), Fault("patch", status=status)]

    assert "does not answer" in world.bind(raw, "a")
    world.settles()
    assert any("settled" in line for line in world.lines)

    allocation = world.extender.cache.snapshot.allocation("uid-p")
    assert allocation is not None
    assert allocation.state == "assumed"
    world.extender.cache.mark_uncertain("uid-p")
    world.settles()
    assert any(line.startswith("settled") for line in world.lines)
    assert world.free("a") == [0, 1000]


def test_an_api_server_that_is_down_is_a_clean_error(start: Start, api: Store) -> None:
    world = start()
    world.put_node(node("a"))
    raw = world.put_pod(percent(50))
    api.end()

    assert "API server" in world.bind(raw, "a")
    assert world.filter(raw, "a")["NodeNames"] == ["a"]


def test_a_read_that_is_older_than_the_pods_end_does_not_bring_it_back(world: Stepped) -> None:
    raw = world.put_pod(on(percent(50), "a", "a-GPU-0"))
    world.api.put("pods", {**raw, "status": {"phase": "Succeeded"}})
    world.api.delete("pods", "p", "team-a")
    world.catches_up()
    assert world.extender.cache.snapshot.pods.get("uid-p") is None

    world.extender.cache.pod_read(read(raw))

    assert world.free("a") == [1000, 1000]
    assert world.extender.cache.snapshot.pods.get("uid-p") is None


def test_a_read_that_is_older_than_the_list_without_the_pod_does_not_bring_it_back(world: Stepped) -> None:
    raw = world.put_pod(percent(50))

    world.extender.cache.pods_listed([])
    world.extender.cache.pod_read(read(on(raw, "a", "a-GPU-0")))

    assert world.free("a") == [1000, 1000]


def test_a_placement_found_on_a_node_that_has_changed_since_is_not_booked(world: Stepped) -> None:
    cache = world.extender.cache
    first, second = (read(world.put_pod(percent(60, name))) for name in ("x", "y"))
    node_before = cache.snapshot.node("a")
    placement = fit(first.request or pytest.fail("malformed"), node_before)
    assert isinstance(placement, Placement)

    assert cache.assume(first, node_before, placement)
    assert not cache.assume(second, node_before, placement)

    assert world.free("a") == [400, 1000]


def test_cards_that_changed_under_an_unsettled_binding_are_not_sent_again(world: Stepped) -> None:
    raw = world.put_pod(percent(40))
    world.api.faults += [Fault("bind", obeyed=False, how="silent"), Fault("patch", status=500)]
    assert "does not answer" in world.bind(raw, "a")
    world.put_node(node("a", card(1)))

    assert world.bind(raw, "a") == "the node's cards differ from those that were assumed for the pod"


def test_a_pod_that_went_before_its_binding_was_sent_leaves_nothing(world: Stepped) -> None:
    raw = world.put_pod(percent(40))
    world.api.watching = False
    world.api.delete("pods", "p", "team-a")

    assert world.bind(raw, "a") == 'pods "p" not found'
    assert world.free("a") == [1000, 1000]


def test_a_pod_that_went_after_a_lost_answer_is_found_gone(world: Stepped) -> None:
    raw = world.put_pod(percent(40))
    world.api.watching = False
    world.api.faults += [Fault("bind", status=500), Fault("get", status=404)]

    assert world.bind(raw, "a") == "the pod is gone"
    allocation = world.extender.cache.snapshot.allocation("uid-p")
    assert allocation is not None
    assert allocation.state == "orphaned"


LIMITS: dict[str, tuple[Any, tuple[Any, ...], str, str]] = {
    "half a card": ({"gpu_percent": "50"}, (card(0, 16001),), "0=8000M", "50"),
    "a part in memory and compute": (
        {"gpu_percent": "7", "gpu_memory": "1024"},
        (card(0),),
        "0=1024M",
        "7",
    ),
    "memory alone, whose compute is not limited": ({"gpu_memory": "4096"}, (card(0),), "0=4096M", "100"),
    "a third of each of three cards": (
        {"gpu_percent": "99", "gpu_count": "3"},
        (card(0, 10_000), card(1, 10_000), card(2, 10_000)),
        "0=3300M,1=3300M,2=3300M",
        "33",
    ),
    "cards of different memory, in the order of their indexes": (
        {"gpu_percent": "200"},
        (card(5, 24_000), card(3, 16_000)),
        "0=16000M,1=24000M",
        "100",
    ),
}


@pytest.mark.parametrize("case", LIMITS)
def test_a_container_gets_its_limits_in_the_variables_of_mps(running: Stepped, case: str) -> None:
    amounts, cards, memory, threads = LIMITS[case]
    running.put_node(node("a", *cards))
    raw = running.put_pod(asking(container("main", **amounts), container("plain")))

    assert running.bind(raw, "a") == ""

    written = running.api.pod("p")["metadata"]["annotations"]
    limits = {name: value for name, value in written.items() if name.startswith("mps-")}
    assert limits == {"mps-memory.bursar.dev/main": memory, "mps-threads.bursar.dev/main": threads}


def test_limits_follow_the_cards_indexes_in_whatever_order_they_were_chosen() -> None:
    pod = read(asking(container("main", gpu_count="2")))
    assert pod.request is not None
    slices = (Slice("GPU-b", 7, 1000, 24_000), Slice("GPU-a", 2, 1000, 16_000))

    written = written_for(pod, pod.request, Placement((("main", slices),)), "n", 0)

    assert written.annotations["mps-memory.bursar.dev/main"] == "0=16000M,1=24000M"


def test_labels_go_with_the_binding_too(world: Stepped) -> None:
    raw = world.put_pod(ungoverned(percent(50)))
    version = raw["metadata"]["resourceVersion"]
    written = Written({"note": "a"}, {"team.example/assumed": "true"})

    status, _ = world.api.bind("team-a", "p", binding("team-a", "p", "uid-p", version, "a", written))

    assert status == 201
    metadata = world.api.pod("p")["metadata"]
    assert (metadata["annotations"], metadata["labels"]) == ({"note": "a"}, {"team.example/assumed": "true"})


def test_two_wakes_in_the_same_second_are_two_changes() -> None:
    first, second = (wake_patch("uid-p", "CardFreed", "m", 1_795_149_173_000 + ms) for ms in (1, 2))

    assert first != second
    assert first["status"]["conditions"][0]["message"] == "m at 2026-11-20T04:32:53.001Z"
