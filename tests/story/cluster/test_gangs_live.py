"""Gangs of Jobs that live: pods end, are lost, come again and become more, while parts of Bursar restart. A
real API server, kube-scheduler and Job controller, kwok nodes, and every role of Bursar."""

import pytest

from deploy.local.stack import Stack
from tests.story.cluster.test_gangs import Place, job_of
from tests.support.scenes import Awaited, Scene, scene
from tests.worlds import Json
from timekeeper.core.object_names import timestamp
from timekeeper.edge.clock import now_ms

MERGE = "application/merge-patch+json"


class Lives(Place):
    """A Job of pods with a card each."""

    def __init__(self, stack: Stack, name: str, *cards: int, size: int, **spec: object) -> None:
        super().__init__(stack, name, *cards)
        self.job = f"/apis/batch/v1/namespaces/{name}/jobs/train"
        counts: Json = {"parallelism": size, "completions": size, "completionMode": "Indexed"}
        job_of(self, "train", annotated=size, **{**counts, **spec})

    def change(self, **spec: object) -> None:
        """Other fields of the Job."""
        self.stack.cp.api.call("PATCH", self.job, {"spec": spec}, MERGE)

    def of_index(self, index: int) -> str:
        """The name of the pod of this index that lives."""
        found: list[str] = [
            each["metadata"]["name"]
            for each in self.pods()
            if each["metadata"]["annotations"].get("batch.kubernetes.io/job-completion-index") == str(index)
            and each["metadata"]["name"] in self.running()
        ]
        return found[0]

    def end(self, index: int, phase: str) -> None:
        """The pod of this index ends, and its containers with it."""
        path = f"{self.path}/{self.of_index(index)}"
        there = self.stack.cp.api.call("GET", path)["status"]
        ended = {"terminated": {"exitCode": int(phase == "Failed"), "finishedAt": timestamp(now_ms())}}
        status: Json = {
            kind: [{**each, "state": ended, "ready": False} for each in there[kind]]
            for kind in ("containerStatuses", "initContainerStatuses")
            if kind in there
        }
        self.stack.cp.api.call("PATCH", f"{path}/status", {"status": {"phase": phase, **status}}, MERGE)

    def lose(self, index: int) -> None:
        """Its pod is deleted."""
        self.stack.cp.api.call("DELETE", f"{self.path}/{self.of_index(index)}?gracePeriodSeconds=0")

    def run(self, count: int) -> Awaited:
        """So many run."""
        return f"{count} to run", lambda: len(self.running()) == count


def evictions(place: Place) -> list[str]:
    """Events of evictions of gangs in the namespace."""
    events = f"/apis/events.k8s.io/v1/namespaces/{place.name}/events"
    found = place.stack.cp.api.call("GET", events)["items"]
    return [each["note"] for each in found if each["reason"] == "GangEviction"]


@scene
def test_a_member_that_ended_well_is_missed_by_none_after_suspend_and_resume(stack: Stack) -> Scene:
    place = Lives(stack, "ended", 4, size=4)
    yield place.run(4)
    place.end(0, "Succeeded")
    yield place.run(3)
    place.change(suspend=True)
    yield place.run(0)

    place.change(suspend=False)

    yield place.run(3)
    assert evictions(place) == []


@scene
def test_a_lost_pod_is_replaced_beside_those_that_run(stack: Stack) -> Scene:
    place = Lives(stack, "missed", 3, 3, size=4, backoffLimit=6)
    yield place.run(4)
    place.end(0, "Succeeded")
    place.lose(1)
    yield place.run(3)

    place.end(2, "Failed")  # a retry

    yield place.run(3)
    assert evictions(place) == []


@scene
def test_cards_of_members_whose_containers_have_ended_go_to_others_and_to_a_retry(stack: Stack) -> Scene:
    place = Lives(stack, "retried", 3, size=3, backoffLimit=6)
    yield place.run(3)
    place.end(0, "Succeeded")
    place.end(1, "Succeeded")
    place.create("a", "b", gang="other", size=2)
    yield place.run(3)

    place.end(2, "Failed")

    yield place.run(3)
    assert place.of_index(2)
    assert evictions(place) == []


@scene
def test_a_job_that_grows_gets_its_further_pods_one_by_one(stack: Stack) -> Scene:
    place = Lives(stack, "grows", 3, size=2)
    yield place.run(2)

    place.change(parallelism=4, completions=4)
    yield place.run(3)
    yield place.says("train", "runs: 3 of 4 members have a node; 0 of 1 members fit; 1 cards missing")
    place.node("grows-more", 1)
    yield place.run(4)


@scene
def test_a_node_that_can_never_take_a_pod_gets_none(stack: Stack) -> Scene:
    """Its plugin is gone: kube-scheduler would refuse it for ever."""
    place = Place(stack, "plugless", 1, 1)
    gone: Json = {"bursar.dev/gpu-percent": "0"}
    status = {"capacity": gone, "allocatable": gone}
    stack.cp.api.call("PATCH", "/api/v1/nodes/plugless-0/status", {"status": status}, MERGE)
    place.create("a", "b", size=2)
    yield place.says("a", "1 of 2 members fit; 1 cards missing")
    yield place.stays()

    place.node("plugless-more", 1)
    yield place.are_bound("a", "b")


@pytest.mark.parametrize("part", ["timekeeper", "extender"])
def test_a_restart_evicts_no_gang_that_is_a_pod_short(stack: Stack, part: str) -> None:
    """By an ordinary SIGTERM, while the card of the lost pod is another one's."""
    place = Lives(stack, f"short-of-{part}", 3, size=3, backoffLimit=6)
    stack.wait(*place.run(3))
    place.lose(0)
    place.create("other", gang="other", size=1)
    stack.wait("the third card to be used", lambda: len(place.bound()) == 3)

    stack.stop(part)
    stack.start(part)
    url = {"timekeeper": stack.timekeeper_url, "extender": stack.extender_url}[part]
    stack.wait(f"{part} to be back", lambda: stack.is_ready(url), part)
    stack.wait("three cards to be in use", lambda: len(place.running()) == 3)

    assert evictions(place) == []
