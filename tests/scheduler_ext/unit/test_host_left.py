"""Victims for CPU, memory and other resources beside free cards, and what pods and nodes count of these."""

from dataclasses import replace
from typing import Any

import pytest

from scheduler_ext.model.other_resources import requested_others
from scheduler_ext.preemption.plan import fits_on_any
from scheduler_ext.preemption.victims import choose
from scheduler_ext.scoring.policy import BINPACK
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.verbs.preempt_verb import NodeVictims, with_cards
from scheduler_ext.waiting.order import WaitingPod
from tests.scheduler_ext.preemption_worlds import at, names_of
from tests.scheduler_ext.reserving import NOW_MS, held, stamp
from tests.scheduler_ext.worlds import Json, node, on, percent, read, rebuilt
from tests.worlds import card, pod

GIB = 1024**3


def needing(raw: Json, **requests: str) -> Json:
    """The pod, whose container requests these too."""
    first, *rest = raw["spec"]["containers"]
    first = first | {"resources": first["resources"] | {"requests": requests}}
    return {**raw, "spec": raw["spec"] | {"containers": [first, *rest]}}


def hog(name: str, uuid: str, priority: int = 0, **requests: str) -> Json:
    """A pod with 1 % of a card, and these."""
    return on(needing(percent(1, name, priority=priority), **requests), "n", uuid)


def without_gpu(name: str, leaves_ms: int = 0, **requests: str) -> Json:
    """A pod that runs on the node without cards."""
    raw = needing(pod({"name": "main", "image": "x", "resources": {}}), **requests)
    raw["metadata"] |= {"name": name, "uid": f"uid-{name}"}
    if leaves_ms:
        raw["metadata"] |= {"deletionTimestamp": stamp(leaves_ms)}
    return raw | {"spec": raw["spec"] | {"nodeName": "n"}, "status": {"phase": "Running"}}


def host(*pods: Json, pods_allowed: int = 110) -> Snapshot:
    """A node of 64 CPUs, 512 GiB and three cards, with these pods."""
    there = node("n", *(card(at) for at in range(3)))
    amounts = {"cpu": "64", "memory": "512Gi", "pods": str(pods_allowed)}
    there["status"] |= {"allocatable": there["status"]["allocatable"] | amounts}
    return rebuilt([there], list(pods), NOW_MS)


def victims(snapshot: Snapshot, raw: Json) -> list[str] | None:
    return names_of(choose(read(raw), snapshot.node("n"), replace(at(snapshot), now_ms=NOW_MS)))


WAITING = percent(100, "waiting", priority=5)


@pytest.mark.parametrize(
    ("taken", "wanted"),
    [
        ({"cpu": "62"}, {"cpu": "8"}),
        ({"memory": "511Gi"}, {"memory": "2Gi"}),
        ({"cpu": "62", "memory": "511Gi"}, {"cpu": "1", "memory": "2Gi"}),
    ],
)
def test_a_pod_that_has_what_is_lacking_beside_free_cards_leaves(taken: Json, wanted: Json) -> None:
    snapshot = host(hog("small", "GPU-0", cpu="1"), hog("hog", "GPU-1", **taken))

    assert victims(snapshot, needing(WAITING, **wanted)) == ["hog"]
    assert victims(snapshot, needing(WAITING, cpu="100m")) == []
    equal = needing(percent(100, "waiting"), **wanted)
    assert victims(snapshot, equal) is None


def test_a_node_that_takes_no_further_pod_is_made_room_on() -> None:
    pods = [hog("old", "GPU-0"), hog("young", "GPU-0", priority=-1), without_gpu("web")]

    assert victims(host(*pods, pods_allowed=3), WAITING) == ["young"]
    assert victims(host(*pods, pods_allowed=4), WAITING) == []


def test_a_pod_without_gpus_stays_and_one_that_leaves_is_waited_for() -> None:
    wanted = needing(WAITING, cpu="40")
    pods = [hog("hog", "GPU-0", cpu="20"), without_gpu("web", cpu="30")]
    leaving = [pods[0], without_gpu("web", NOW_MS + 30_000, cpu="30")]
    late = [pods[0], without_gpu("web", NOW_MS - 60_000, cpu="30")]

    assert victims(host(*pods), wanted) is None
    assert victims(host(*late), wanted) is None
    snapshot = host(*leaving)
    choice = choose(read(wanted), snapshot.node("n"), replace(at(snapshot), now_ms=NOW_MS))
    assert names_of(choice) == []
    assert choice is not None
    assert choice.awaits
    assert choice.grace_ms(NOW_MS) == 30_000


def test_what_a_pod_needs_for_which_cards_are_reserved_counts_for_later_ones() -> None:
    first = held(needing(percent(100, "first"), cpu="60"), "n", "GPU-0", since_ms=NOW_MS - 2_000)
    second = held(needing(percent(100, "second"), cpu="8"), "n", "GPU-1", since_ms=NOW_MS - 1_000)
    snapshot = host(first, second)

    assert victims(snapshot, needing(WAITING, cpu="8")) is None
    assert victims(snapshot, second) is None
    assert victims(snapshot, first) == []


def test_a_node_with_free_cards_and_without_cpu_has_no_room() -> None:
    nodes = [host(hog("hog", "GPU-0", cpu="62")).node("n")]

    for cpu, room in (("2", True), ("8", False)):
        assert fits_on_any(WaitingPod(read(needing(WAITING, cpu=cpu)), BINPACK, None), nodes) is room


def test_victims_that_kube_scheduler_chose_for_cpu_stay_its_choice() -> None:
    snapshot = host(without_gpu("web", cpu="62"))
    offered = {"n": NodeVictims(("uid-web",), 0)}

    found = with_cards(read(needing(WAITING, cpu="8")), offered, snapshot, at(snapshot), BINPACK)

    assert list(found) == [("n", NodeVictims(("uid-web",), 0))]


def resized(memory: str, allocated: str, actual: str, *conditions: Json, node: str = "n") -> Json:
    """A pod of one container while its memory is changed."""
    status: Json = {"name": "a", "allocatedResources": {"memory": allocated}}
    status["resources"] = {"requests": {"memory": actual}}
    containers = [{"name": "a", "resources": {"requests": {"memory": memory}}}]
    return {
        "spec": {"nodeName": node, "containers": containers},
        "status": {"containerStatuses": [status], "conditions": list(conditions)},
    }


def test_memory_that_is_being_resized_counts_with_the_most_that_the_container_may_have() -> None:
    infeasible = {"type": "PodResizePending", "reason": "Infeasible"}

    def memory(raw: Any) -> int:
        return dict(requested_others(raw)).get("memory", 0) // 1000

    assert memory(resized("3Gi", "2Gi", "1Gi")) == 3 * GIB
    assert memory(resized("1Gi", "2Gi", "3Gi")) == 3 * GIB
    assert memory(resized("9Gi", "2Gi", "1Gi", infeasible)) == 2 * GIB


def test_memory_beyond_kube_schedulers_sum_counts_as_nothing_once_the_pod_is_bound() -> None:
    huge = [{"name": name, "resources": {"requests": {"memory": "8E"}}} for name in ("a", "b")]

    assert dict(requested_others({"spec": {"containers": huge}}))["memory"] == 16 * 10**21
    assert requested_others({"spec": {"containers": huge, "nodeName": "n"}}) == (("pods", 1000),)
