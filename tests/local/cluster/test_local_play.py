"""What kwok's nodes and pods do: as a kubelet's would."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from tests.local.worlds import NODES, events, get, namespace, pod
from tests.support.waiting import eventually

SIDECAR = {"name": "sidecar", "image": "example", "restartPolicy": "Always"}
INIT = {"name": "init", "image": "example"}

pytestmark = pytest.mark.soak  # every story stands on it


@pytest.fixture(scope="module")
def pods(control_plane: ControlPlane) -> Iterator[str]:
    """The path of pods, in a namespace of a cluster with one node."""
    control_plane.start_scheduler()
    control_plane.api.call("POST", NODES, kwok_node("one", cards=8))
    with namespace(control_plane.api, "play") as path:
        yield path


def phase(control_plane: ControlPlane, path: str, wanted: str) -> Any:
    """Wait for a pod's phase; returns its status."""

    def reached() -> Any:
        status = control_plane.api.call("GET", path)["status"]
        return status if status["phase"] == wanted else None

    return eventually(reached)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def conditions(status: dict[str, Any]) -> dict[str, str]:
    return {condition["type"]: condition["status"] for condition in status.get("conditions", [])}


def test_a_bound_pod_runs_and_its_status_looks_like_a_kubelets(
    control_plane: ControlPlane, pods: str
) -> None:
    control_plane.api.call("POST", pods, pod("runs", initContainers=[INIT, SIDECAR]))

    status = phase(control_plane, f"{pods}/runs", "Running")

    started = status["startTime"]
    assert [(c["name"], c["state"], c["ready"]) for c in status["containerStatuses"]] == [
        ("main", {"running": {"startedAt": started}}, True)
    ]
    init, sidecar = status["initContainerStatuses"]
    assert init["state"]["terminated"]["exitCode"] == 0
    assert init["state"]["terminated"]["startedAt"] == init["state"]["terminated"]["finishedAt"] == started
    assert sidecar["state"] == {"running": {"startedAt": started}}
    assert conditions(status) == {
        "PodScheduled": "True",
        "PodReadyToStartContainers": "True",
        "Initialized": "True",
        "ContainersReady": "True",
        "Ready": "True",
    }
    assert status["podIP"].startswith("10.244.")


def test_a_pod_ends_by_itself_the_time_it_names_after_it_started(
    control_plane: ControlPlane, pods: str
) -> None:
    annotations = {"local.bursar.dev/run-for": "2s"}
    body = pod("ends", annotations=annotations, restartPolicy="Never", initContainers=[INIT, SIDECAR])
    control_plane.api.call("POST", pods, body)
    phase(control_plane, f"{pods}/ends", "Running")
    touches = count()

    def has_ended() -> Any:
        """A change on the way must not make it run longer."""
        change = {"metadata": {"annotations": {"example.com/touched": str(next(touches))}}}
        found = control_plane.api.call("PATCH", f"{pods}/ends", change, "application/merge-patch+json")
        return found["status"] if found["status"]["phase"] == "Succeeded" else None

    status = eventually(has_ended)

    main = status["containerStatuses"][0]["state"]["terminated"]
    assert (main["exitCode"], main["reason"]) == (0, "Completed")
    assert main["startedAt"] == status["startTime"]
    assert at(main["finishedAt"]) - at(main["startedAt"]) >= timedelta(seconds=2)
    init, sidecar = (each["state"]["terminated"] for each in status["initContainerStatuses"])
    assert init["finishedAt"] == init["startedAt"]
    assert (sidecar["finishedAt"], sidecar["exitCode"]) == (main["finishedAt"], 0)
    assert conditions(status)["PodScheduled"] == "True"
    assert conditions(status)["Ready"] == "False"


def test_a_failing_pod_that_is_to_be_restarted_is_restarted_in_place(
    control_plane: ControlPlane, pods: str
) -> None:
    annotations = {"local.bursar.dev/run-for": "1s", "local.bursar.dev/exit-code": "7"}
    control_plane.api.call("POST", pods, pod("again", annotations=annotations, restartPolicy="OnFailure"))

    def restarted() -> Any:
        statuses = control_plane.api.call("GET", f"{pods}/again")["status"].get("containerStatuses", [])
        return [each for each in statuses if each["restartCount"] >= 1]

    (main,) = eventually(restarted)
    assert main["lastState"]["terminated"]["exitCode"] == 7
    assert main["state"]["running"]["startedAt"] == main["lastState"]["terminated"]["finishedAt"]
    control_plane.api.call("DELETE", f"{pods}/again")


def test_a_deleted_pods_containers_are_terminated_before_the_object_goes(
    control_plane: ControlPlane, pods: str
) -> None:
    control_plane.api.call("POST", pods, pod("dies", initContainers=[SIDECAR]))
    started = phase(control_plane, f"{pods}/dies", "Running")["startTime"]
    version = control_plane.api.call("GET", f"{pods}/dies")["metadata"]["resourceVersion"]
    control_plane.api.call("DELETE", f"{pods}/dies")

    story = []
    for event in events(control_plane.api, pods, "dies", version):
        story.append((event["type"], event["object"]["status"]))
        if event["type"] == "DELETED":
            break

    terminated = [status for kind, status in story if kind == "MODIFIED" and status["phase"] == "Failed"]
    assert terminated, "the object went without a sight of its end"
    main = terminated[0]["containerStatuses"][0]["state"]["terminated"]
    assert (main["exitCode"], main["startedAt"]) == (143, started)
    assert at(main["finishedAt"]) >= at(started)
    assert story[-1][1]["containerStatuses"][0]["state"]["terminated"] == main


def test_a_bound_pod_of_which_nothing_began_is_ended_before_it_goes(
    control_plane: ControlPlane, pods: str
) -> None:
    control_plane.stop_process("kwok")  # so that nothing begins
    control_plane.api.call("POST", pods, pod("early"))
    eventually(lambda: control_plane.api.call("GET", f"{pods}/early")["spec"].get("nodeName"))
    version = control_plane.api.call("GET", f"{pods}/early")["metadata"]["resourceVersion"]
    control_plane.api.call("DELETE", f"{pods}/early")
    control_plane.restart_process("kwok")

    for event in events(control_plane.api, pods, "early", version):
        if event["type"] == "DELETED":
            break

    last = event["object"]["status"]
    assert last["phase"] == "Failed"
    assert last["containerStatuses"][0]["state"]["terminated"].get("startedAt") is None


def test_a_new_pod_of_a_deleted_ones_name_is_left_alone(control_plane: ControlPlane, pods: str) -> None:
    control_plane.api.call("POST", pods, pod("heir"))
    phase(control_plane, f"{pods}/heir", "Running")

    control_plane.api.call("DELETE", f"{pods}/heir")
    eventually(lambda: get(control_plane.api, f"{pods}/heir") is None)
    heir = control_plane.api.call("POST", pods, pod("heir"))

    phase(control_plane, f"{pods}/heir", "Running")
    assert control_plane.api.call("GET", f"{pods}/heir")["metadata"]["uid"] == heir["metadata"]["uid"]
    assert "failed to delete pod heir" not in control_plane.logs("kwok"), "it was removed twice"
