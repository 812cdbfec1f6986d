"""The extender beside a real kube-scheduler and API server, with the rights that it has in a cluster."""

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deploy.local.api import ApiError
from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import tencent_capacity
from deploy.local.tools import KUBERNETES
from scheduler_ext.assembly.extender import REPORTER
from tests.scheduler_ext.clusters import World, decided, placed
from tests.scheduler_ext.processes import Process
from tests.support.waiting import eventually
from tests.worlds import Json
from timekeeper.edge.clock import now_ms
from timekeeper.edge.events import EventRecorder
from timekeeper.runtime.api_server import event_sender
from timekeeper.runtime.connect import connect

pytestmark = pytest.mark.make_test("fits, scores and places")


def used(pods: list[Json]) -> dict[str, tuple[int, int]]:
    """Thousandths and MiB taken of each card, from the objects alone, by nobody's code but this."""
    total: dict[str, tuple[int, int]] = {}
    for pod in pods:
        if pod["spec"].get("nodeName") and pod["status"].get("phase") not in ("Succeeded", "Failed"):
            devices = json.loads(pod["metadata"]["annotations"]["bursar.dev/devices"])
            for slices in devices["containers"].values():
                for each in slices:
                    share, memory = total.get(each["uuid"], (0, 0))
                    total[each["uuid"]] = share + each["share_milli"], memory + each["memory_mib"]
    return total


HALF = {"bursar.dev/gpu-percent": "50"}


def test_a_half_card_pod_is_bound_with_its_annotations(world: World) -> None:
    world.node("n", cards=2)
    world.pod("p", HALF, annotations={"bursar.dev/devices": "forged"})

    eventually(lambda: world.node_info_of("p") == "n")

    annotations = world.get("p")["metadata"]["annotations"]
    (card,) = world.cards_of("p")
    assert annotations["visible-devices.bursar.dev/main"] == card
    assert annotations["visible-devices.bursar.dev/bursar-sidecar"] == card
    eventually(lambda: world.extender.metric("bursar_extender_free_gpus") == 1.5)
    assert world.extender.metric("bursar_extender_cards_untouched") == 1


def test_where_the_api_server_has_no_pod_groups_a_pod_waits_for_none(world: World) -> None:
    """It has dropped the group's name, and admission has made the pod a member."""
    world.node("n1", cards=1)
    marks = {"bursar.dev/held": "turn", "bursar.dev/gang-key": "podgroup/g"}
    gate = {"name": "bursar.dev/gang"}

    world.pod("a", HALF, annotations=marks, schedulingGates=[gate], schedulingGroup={"podGroupName": "g"})

    eventually(lambda: world.node_info_of("a") == "n1", "its node")
    assert "schedulingGroup" not in world.get("a")["spec"]


def test_two_half_card_pods_share_one_card_and_the_third_gets_the_other(world: World) -> None:
    world.node("n", cards=2)
    for name in ("a", "b", "c"):
        world.pod(name, HALF)
        placed(world, name)

    assert world.cards_of("a") == world.cards_of("b") != world.cards_of("c")


def test_a_pod_of_zeros_is_bound_and_closes_no_node(world: World) -> None:
    """kube-scheduler leaves the Binding of a pod that names the extender's resources to it, also of zeros."""
    world.node("n", cards=1)
    world.pod("a", HALF)
    placed(world, "a")
    world.pod("zeros", {"bursar.dev/gpu-percent": "0", "nvidia.com/gpu": "0"})

    eventually(lambda: world.get("zeros")["spec"].get("nodeName") == "n")

    assert "annotations" not in world.get("zeros")["metadata"]
    world.pod("b", HALF)
    placed(world, "b")


def test_binpack_fills_the_node_that_is_in_use(world: World) -> None:
    for name in ("n1", "n2", "n3"):
        world.node(name, cards=2)
    world.pod("first", {"bursar.dev/gpu-percent": "10"})
    eventually(lambda: world.node_info_of("first"))

    for at in range(4):
        world.pod(f"p{at}", {"bursar.dev/gpu-percent": "40"})
        placed(world, f"p{at}")

    assert {world.node_info_of(f"p{at}") for at in range(4)} == {world.node_info_of("first")}


def test_a_tencent_pod_is_placed_on_a_tencent_node(world: World) -> None:
    world.node("ours", cards=2, memory_mib=8192)
    world.node("theirs", cards=2, memory_mib=8192, capacity=tencent_capacity(2, 8192))
    world.pod("p", {"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "16"})

    eventually(lambda: world.node_info_of("p") == "theirs")

    assert world.get("p")["metadata"]["annotations"]["tencent.com/predicate-gpu-idx-0"] == "0"


NANO = [
    ("nano-gpu.io/gpu-core", "nano-gpu.io/gpu-memory", "nano-gpu.io/gpu-main", "nano-gpu.io/gpu"),
    ("nano-gpu/gpu-percent", "", "nano-gpu/container-main", "nano-gpu/assume"),
    ("nano-gpu/qgpu-core", "nano-gpu/qgpu-memory", "nano-gpu/container-main", "nano-gpu/assume"),
    (
        "elasticgpu.io/gpu-core",
        "elasticgpu.io/gpu-memory",
        "elasticgpu.io/container-main",
        "elasticgpu.io/assumed",
    ),
]


@pytest.mark.parametrize(("core", "memory", "annotation", "assumed"), NANO)
def test_pods_of_nano_gpu_are_placed_on_its_nodes_which_have_no_agent_of_ours(
    world: World, core: str, memory: str, annotation: str, assumed: str
) -> None:
    capacity = {core: "200"} | ({memory: "16000"} if memory else {})
    world.node("ours", cards=2, memory_mib=8000)
    world.node("theirs", cards=0, capacity=capacity)
    half = {core: "60"} | ({memory: "5000"} if memory else {})
    for name in ("a", "b"):
        world.pod(name, half)
        placed(world, name)
    world.pod("c", half)
    decided(world, "c")

    assert [world.node_info_of(name) for name in ("a", "b", "c")] == ["theirs", "theirs", ""]
    bound = [world.get(name)["metadata"] for name in ("a", "b")]
    assert sorted(each["annotations"][annotation] for each in bound) == ["0", "1"]
    assert [each["annotations"][assumed] for each in bound] == ["true", "true"]
    if KUBERNETES.series >= (1, 35):  # an older API server takes no labels from a Binding
        assert [each["labels"][assumed] for each in bound] == ["true", "true"]


def test_pods_of_gpushare_are_placed_on_its_nodes_whatever_its_unit(world: World) -> None:
    world.node("ours", cards=2, memory_mib=8000)
    world.node("theirs", cards=0, capacity={"aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2"})
    for name in ("a", "b"):
        world.pod(name, {"aliyun.com/gpu-mem": "9"})
        placed(world, name)
    world.pod("c", {"aliyun.com/gpu-mem": "9"})
    decided(world, "c")

    assert [world.node_info_of(name) for name in ("a", "b", "c")] == ["theirs", "theirs", ""]
    bound = [world.get(name)["metadata"]["annotations"] for name in ("a", "b")]
    told = [
        [each[f"ALIYUN_COM_GPU_MEM_{word}"] for word in ("IDX", "POD", "DEV", "ASSIGNED")] for each in bound
    ]
    assert sorted(told) == [["0", "9", "15", "false"], ["1", "9", "15", "false"]]
    times = [int(each["ALIYUN_COM_GPU_MEM_ASSUME_TIME"]) for each in bound]
    assert times == sorted(times)  # the plugin serves the oldest first


def test_the_third_pod_of_five_gigabytes_waits_and_is_bound_after_a_release(
    world: World,
) -> None:
    world.node("small", cards=2, memory_mib=8000, labels={"pool": "small"})
    world.node("other", cards=2, memory_mib=8000)
    for name in ("a", "b", "c"):
        world.pod(name, {"bursar.dev/gpu-memory": "5000"}, nodeSelector={"pool": "small"})
        decided(world, name)
    assert world.node_info_of("c") == ""
    assert "no card has 5000 MiB free" in world.refusals("c")
    events = world.plane.api.call("GET", "/api/v1/namespaces/default/events")["items"]
    assert any("no card has 5000 MiB free" in each["message"] for each in events)

    world.delete("a")
    eventually(lambda: gone(world, "a"))

    eventually(lambda: world.node_info_of("c"))
    assert world.cards_of("c") != world.cards_of("b")


def gone(world: World, name: str) -> bool:
    """Whether the pod has no object any more."""
    try:
        world.get(name)
    except ApiError as error:
        return error.status == 404
    return False


def test_cards_that_a_force_deleted_pod_may_still_use_are_given_out_when_its_grace_period_is_over(
    world: World,
) -> None:
    """kube-scheduler sees the pod gone at once and nothing later: only being woken gets the next one on."""
    world.node("n", cards=1)
    world.pod("a", {"bursar.dev/gpu-percent": "80"}, terminationGracePeriodSeconds=2)
    eventually(lambda: world.node_info_of("a"))
    world.pod("low", {"bursar.dev/gpu-percent": "60"})
    eventually(lambda: world.refusals("low"))

    before = world.extender.said().count("event=woken")

    world.delete("a", grace_s=0)
    eventually(lambda: world.node_info_of("low"))

    assert world.extender.said().count("event=woken") == before + 1


def test_of_two_that_wait_the_one_of_higher_priority_goes_first(world: World) -> None:
    for name, value in (("high", 1000), ("low", -5)):
        body = {"metadata": {"name": name}, "value": value, "preemptionPolicy": "Never"}
        world.plane.api.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
    world.node("n", cards=2)
    for name in ("a", "b"):
        world.pod(name, {"bursar.dev/gpu-percent": "60"}, terminationGracePeriodSeconds=1)
        placed(world, name)
    for name in ("low", "high"):
        world.pod(name, {"bursar.dev/gpu-percent": "60"}, priorityClassName=name)
        decided(world, name)

    world.delete("a", grace_s=0)

    eventually(lambda: world.node_info_of("high"))
    assert world.node_info_of("low") == ""
    world.delete("b", grace_s=0)
    eventually(lambda: world.node_info_of("low"))


def test_where_totals_are_short_kube_schedulers_own_preemption_makes_room(world: World) -> None:
    body = {"metadata": {"name": "preempting"}, "value": 9000}
    world.plane.api.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
    world.node("n", cards=2)
    for name in ("a", "b", "c", "d"):
        world.pod(name, HALF)
        placed(world, name)

    world.pod("e", HALF, priorityClassName="preempting")

    placed(world, "e")
    left = [pod["metadata"]["name"] for pod in world.bound() if pod["status"]["phase"] == "Running"]
    assert len(left) <= 4
    assert all(share <= 1000 for share, _ in used(world.pods()).values())


def of_priorities(world: World, **values: int) -> None:
    """Classes of these names."""
    for name, value in values.items():
        body = {"metadata": {"name": name}, "value": value}
        world.plane.api.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)


def test_where_kube_schedulers_victims_free_no_card_one_is_added_that_does(world: World) -> None:
    """It would have the two of lowest priority leave, which are on different cards."""
    of_priorities(world, five=5, four=4, one=1, hundred=100)
    world.node("n", cards=2)
    for name, share, of in (("a1", 50, "five"), ("a2", 50, ""), ("b1", 50, "four"), ("b2", 40, "one")):
        world.pod(name, {"bursar.dev/gpu-percent": str(share)}, priorityClassName=of)
        placed(world, name)
    assert world.cards_of("a1") == world.cards_of("a2") != world.cards_of("b1") == world.cards_of("b2")
    emptied = world.cards_of("b1")

    world.pod("whole", {"bursar.dev/gpu-percent": "100"}, priorityClassName="hundred")

    placed(world, "whole")
    assert world.cards_of("whole") == emptied
    eventually(lambda: {pod["metadata"]["name"] for pod in world.pods()} == {"a1", "whole"})
    assert "event=preempt result=fit" in world.extender.said()


def test_where_no_victims_would_free_the_cards_kube_scheduler_evicts_no_pod(world: World) -> None:
    of_priorities(world, picky=100)
    world.node("n", cards=1)
    world.pod("a", {"bursar.dev/gpu-percent": "80"})
    placed(world, "a")

    limits, only = {"bursar.dev/gpu-percent": "50"}, {"bursar.dev/gpu-models": "V100"}
    world.pod("b", limits, priorityClassName="picky", annotations=only)

    eventually(lambda: "event=preempt result=none" in world.extender.said())
    eventually(lambda: world.refusals("b"))
    assert world.node_info_of("b") == ""
    assert world.get("a")["metadata"].get("deletionTimestamp") is None


def test_of_thirty_two_half_cards_at_once_exactly_eight_fit_on_four_cards(world: World) -> None:
    world.node("n1", cards=2)
    world.node("n2", cards=2)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda at: world.pod(f"p{at}", HALF), range(32)))
    eventually(lambda: len(world.bound()) == 8)
    eventually(lambda: all(world.refusals(f"p{at}") or world.node_info_of(f"p{at}") for at in range(32)))

    assert len(world.bound()) == 8
    assert sorted(used(world.pods()).values()) == [(1000, 16_000)] * 4


def test_killed_and_started_again_in_a_burst_it_overcommits_nothing(world: World) -> None:
    world.node("n1", cards=16)
    world.node("n2", cards=16)

    unfinished = 0
    with ThreadPoolExecutor(8) as pool:
        made = pool.map(lambda at: world.pod(f"p{at}", {"bursar.dev/gpu-percent": "30"}), range(120))
        for _ in range(3):
            goal = min(len(world.bound()) + 2, 96)
            eventually(lambda goal=goal: len(world.bound()) >= goal)  # type: ignore[misc]
            world.extender.kill()
            unfinished += len(world.bound()) < 96
            world.extender.start_ready()
        list(made)
    eventually(lambda: len(world.bound()) == 96)

    assert unfinished > 0, "no kill fell into the burst"
    assert sorted(share for share, _ in used(world.pods()).values()) == [900] * 32


def test_events_stand_where_people_look_for_them(world: World) -> None:
    """Posted with the rights of the extender's role, and no others."""
    world.node("n", cards=1)
    world.pod("p", HALF)
    token = world.plane.kubectl("create", "token", "extender", "-n", "bursar-system").stdout.strip()
    lines: list[str] = []
    events = EventRecorder[str](
        event_sender(connect(world.plane.kubeconfig(token, "events"))),
        REPORTER,
        "extender-0",
        now_ms,
        lambda event, **fields: lines.append(event),
    )
    uid = world.get("p")["metadata"]["uid"]
    stop = threading.Event()
    thread = threading.Thread(target=events.run, args=(stop,))

    thread.start()
    events.post("default", "p", uid, "BindTakenBack", "It did not happen.", "Warning")
    events.post("default", "p", uid, "Preempting", "a" * 5_000)
    events.post("default", "p" * 253, uid, "Preempting", "A name as long as may be.")
    events.post_on_node("n", "CardsClosed", "Its inventory cannot be read.", "Warning")
    events.post("nowhere", "p", uid, "BindTakenBack", "A namespace that is gone.")
    eventually(lambda: sum(events.results().values()) == 5)
    stop.set()
    thread.join()

    assert events.results() == {"posted": 4, "repeated": 0, "dropped": 0, "failed": 1}
    assert lines == ["event-not-posted"]
    described = world.plane.kubectl("describe", "pod", "p").stdout
    assert re.search(rf"Warning +BindTakenBack +\S+ +{REPORTER} +It did not happen\.", described)
    assert re.search(rf"Normal +Preempting +\S+ +{REPORTER} +a{{1024}}$", described, re.MULTILINE)
    described = world.plane.kubectl("describe", "node", "n").stdout
    assert re.search(rf"Warning +CardsClosed +\S+ +{REPORTER} +Its inventory cannot be read\.", described)


def test_a_waiting_pod_is_told_why_and_counted_beside_the_free_compute(world: World) -> None:
    world.node("n", cards=2, memory_mib=8000)
    for name in ("a", "b"):
        world.pod(name, {"bursar.dev/gpu-percent": "60"})
        placed(world, name)
    world.pod("waits", HALF)
    decided(world, "waits")

    assert "1 no card has 50 percent free" in world.refusals("waits")
    assert world.extender.metric('bursar_extender_pods_waiting{standing="UNKNOWN"}') == 1
    assert world.extender.metric('bursar_extender_nodes_refused_total{reason="full"}') >= 1
    assert world.extender.metric("bursar_extender_free_gpus") == 0.8


def test_it_ends_in_order(plane: ControlPlane, tmp_path: Path) -> None:
    process = Process(tmp_path, f"--kubeconfig={plane.admin_kubeconfig}", traced=True)
    process.start_ready()

    assert process.end() == 0
    assert "Traceback" not in process.said()
