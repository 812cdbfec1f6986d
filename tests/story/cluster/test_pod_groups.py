"""Pods of Kubernetes' PodGroups from end to end: an API server, a kube-scheduler and controllers with their
gates on, and every role of Bursar. As many as the group says start together."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.commands import Options
from deploy.local.stack import Stack
from tests.story.cluster.test_gangs import CARDS, Place
from tests.story.cluster.test_metering import gpu_pod
from tests.story.cluster.test_raw_objects import RawClient, in_namespace, of_spec, unread, written
from tests.support.control_plane import create_namespace
from tests.support.scenes import Awaited, Scene, scene
from tests.worlds import Json

pytestmark = pytest.mark.kubernetes("1.37")

SERVED = "--runtime-config=scheduling.k8s.io/v1beta1=true"
GATES = "--feature-gates=GenericWorkload=true,WorkloadWithJob=true"
GROUPS = "/apis/scheduling.k8s.io/v1beta1"
MONEY = {"name": "bursar.dev/budget"}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """One of its own, with the gates."""
    options = Options(api_flags=(GATES, SERVED), controller_flags=(GATES,), scheduler_flags=(GATES,))
    with ControlPlane(options) as plane, Stack(plane) as started:
        yield started


class Grouped(Place):
    """Its pods are of the PodGroup `train`."""

    def template(self, name: str) -> Json:
        """A pod of which no card takes two."""
        pod = gpu_pod(name, 60, "600s")
        pod["spec"]["nodeSelector"] = {"of": self.name}
        return pod

    def create(self, *names: str, **_: object) -> None:
        """Its pods."""
        for name in names:
            pod = self.template(name)
            pod["spec"]["schedulingGroup"] = {"podGroupName": "train"}
            self.stack.cp.api.call("POST", self.path, pod)

    def group(self, policy: Json) -> None:
        """Its PodGroup."""
        groups = f"{GROUPS}/namespaces/{self.name}/podgroups"
        group = {"metadata": {"name": "train"}, "spec": {"schedulingPolicy": policy}}
        self.stack.cp.api.call("POST", groups, group)

    def all_have(self, *gates: Json) -> Awaited:
        """Each pod has these gates and no other."""
        return f"all to have {gates}", lambda: all(there == [*gates] for there in self.gates())

    def gates(self) -> list[list[Json]]:
        """Of each pod."""
        return [pod["spec"].get("schedulingGates", []) for pod in self.pods()]


@scene
def test_as_many_as_the_group_says_are_paid_and_start_together(stack: Stack) -> Scene:
    place = Grouped(stack, "whole", 1, 1)
    place.group({"gang": {"minCount": 3}})
    place.create("a", "b")
    yield place.says("a", "2 of 3 members exist")
    yield place.all_have(MONEY, CARDS)

    place.create("c")
    yield place.all_have(CARDS)
    yield place.says(
        "a", "it can never start here: 3 members need 0.6 cards each, and nodes with of=whole take 2"
    )
    yield place.stays()
    yield place.all_have(CARDS)

    place.node("whole-2", 1)
    yield place.are_bound("a", "b", "c")


@scene
def test_more_pods_than_the_group_needs_keep_no_other_waiting(stack: Stack) -> Scene:
    """kube-scheduler tries no pod of a group while one of it has a gate."""
    place = Grouped(stack, "more", 1, 1, 1)
    place.group({"gang": {"minCount": 3}})
    place.create("a", "b", "c", "d")
    yield place.number_bound(3)
    yield place.all_have()

    place.node("more-4", 1)
    yield place.are_bound("a", "b", "c", "d")


@scene
def test_pods_of_a_group_that_starts_none_together_go_singly(stack: Stack) -> Scene:
    place = Grouped(stack, "basic", 1, 1)
    place.group({"basic": {}})
    place.create("a", "b", "c")

    yield place.number_bound(2)
    yield place.all_have()
    assert len(place.bound()) == 2


@scene
def test_pods_wait_for_a_group_that_does_not_exist(stack: Stack) -> Scene:
    place = Grouped(stack, "missing", 1, 1)
    place.create("a", "b")
    yield place.says("a", "there is no PodGroup train in namespace missing")
    yield place.all_have(MONEY, CARDS)
    assert place.bound() == []

    place.group({"gang": {"minCount": 2}})
    yield place.are_bound("a", "b")


@scene
def test_the_pods_of_a_job_start_as_the_group_says_that_its_controller_makes(stack: Stack) -> Scene:
    place = Grouped(stack, "job", 1, 1)
    template = place.template("unused")
    del template["metadata"]["name"]
    counts: Json = {"parallelism": 3, "completions": 3, "completionMode": "Indexed"}
    whole = {"schedulingPolicy": {"gang": {"minCount": 3}}}
    job = {"metadata": {"name": "train"}, "spec": {**counts, "scheduling": whole, "template": template}}
    stack.cp.api.call("POST", "/apis/batch/v1/namespaces/job/jobs", job)

    yield "one to say why", lambda: "it can never start here" in str([*map(place.told, place.names())])
    yield place.stays()
    yield place.all_have(CARDS)
    place.node("job-2", 1)
    yield place.number_bound(3)


def test_no_odd_group_changes_anything_for_a_neighbours_pods(stack: Stack) -> None:
    """By watch, and by a list."""
    logged = {"extender": len(stack.log("extender"))}
    create_namespace(stack.cp, "odd")
    place = Grouped(stack, "even", 1, 1)
    place.group({"gang": {"minCount": 2}})
    place.create("a")
    least = (b'{"gang":{"minCount":1}}', b'{"gang":{"minCount":2147483647}}', b'{"basic":{}}')
    group = of_spec(lambda _value, chance: b'{"schedulingPolicy":%b}' % chance.choice(least))
    with closing(RawClient(stack)) as client:
        stored = written(client, 90 * [(in_namespace(GROUPS, "podgroups"), group)])
    assert stored["podgroups"] > 20

    assert place.bound() == []
    place.create("b")
    stack.wait(*place.are_bound("a", "b"))

    stack.stop("extender")
    stack.start("extender")
    stack.wait("the extender", lambda: stack.is_ready(stack.extender_url), "extender")
    later = Grouped(stack, "later", 1, 1)
    later.group({"gang": {"minCount": 2}})
    later.create("a", "b")
    stack.wait(*later.are_bound("a", "b"))
    assert unread(stack, logged) == []
