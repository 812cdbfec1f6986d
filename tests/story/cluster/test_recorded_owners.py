"""A PyTorchJob and a RayCluster that live, on a real API server and kube-scheduler with every role of Bursar.
Their pods are created as their controllers were recorded to create them (`recorded_pods.yaml`)."""

from collections.abc import Callable
from functools import reduce
from pathlib import Path

import pytest
import yaml

from deploy.local.stack import Stack
from tests.story.cluster.test_gang_controllers import (
    definition,
    is_known,
    is_served,
    owner_of,
    starts_whole,
    template,
)
from tests.story.cluster.test_gangs import Place
from tests.story.cluster.test_gangs_live import evictions
from tests.story.cluster.test_metering import set_budget
from tests.support.control_plane import apply
from tests.support.scenes import Scene, scene
from tests.worlds import Json

RECORDED: Json = yaml.safe_load((Path(__file__).parent / "recorded_pods.yaml").read_text())


@pytest.fixture(scope="module", autouse=True)
def kinds(stack: Stack) -> None:
    """They are served."""
    for group, kind in (("kubeflow.org", "PyTorchJob"), ("ray.io", "RayCluster")):
        made = definition(group, kind)
        apply(stack.cp, made)
        name = made["metadata"]["name"]
        stack.wait(f"{name} to be served", lambda name=name: is_served(stack, name))  # type: ignore[misc]


class Owned(Place):
    """An owner whose recorded pods have a card each. ``what``: of the recorded ones."""

    def __init__(self, stack: Stack, name: str, what: str, *cards: int) -> None:
        set_budget(stack, name, "gpuHours: 100\ngangs: auto\n")
        super().__init__(stack, name, *cards)
        self._recorded, self._kind = RECORDED[what], what.partition(" ")[0]
        self._owners = f"/apis/{self._recorded['group']}/v1/namespaces/{name}/{self._kind.lower()}s"

    def begin(self, spec: Json) -> Scene:
        """The owner is created once the webhook knows that it is counted."""
        owner = owner_of(self._owners, self._kind, spec)
        yield is_known(self.stack, self._owners, owner)
        self.stack.cp.api.call("POST", self._owners, owner)

    def change(self, change: Callable[[Json], None]) -> None:
        """Its spec."""
        owner = self.stack.cp.api.call("GET", f"{self._owners}/train")
        change(owner["spec"])
        self.stack.cp.api.call("PUT", f"{self._owners}/train", owner)

    def make(self, first: int, last: int) -> None:
        """Its controller makes these pods, of the templates as they are now."""
        owner = self.stack.cp.api.call("GET", f"{self._owners}/train")
        reference = {key: owner[key] for key in ("apiVersion", "kind")}
        reference |= {"name": "train", "uid": owner["metadata"]["uid"], "controller": True}
        for pod in self._recorded["pods"][first:last]:
            steps = [int(step) if step.isdigit() else step for step in pod["at"].split(".")]
            made = reduce(lambda part, step: part[step], steps, owner["spec"])
            metadata = {
                "name": pod["name"],
                "labels": self._recorded["adds"] | pod["labels"],
                "annotations": made["metadata"]["annotations"],
                "ownerReferences": [reference],
            }
            inits = [pod["first"]] if "first" in pod else []
            spec = {**made["spec"], "initContainers": inits, "terminationGracePeriodSeconds": 1}
            self.stack.cp.api.call("POST", self.path, {"metadata": metadata, "spec": spec})

    def end(self, first: int, last: int) -> Scene:
        """Its controller deletes these."""
        names = {pod["name"] for pod in self._recorded["pods"][first:last]}
        for name in names:
            self.stack.cp.api.call("DELETE", f"{self.path}/{name}?gracePeriodSeconds=0")
        yield f"{names} to be gone", lambda: names.isdisjoint(self.names())


def spec_of(place: Place, kind: str) -> Json:
    """Of one pod beside one worker."""
    of = template(place)
    if kind == "PyTorchJob":
        return {
            "pytorchReplicaSpecs": {role: {"replicas": 1, "template": of} for role in ("Master", "Worker")}
        }
    workers = {"groupName": "w", "replicas": 1, "minReplicas": 0, "maxReplicas": 4, "template": of}
    return {"headGroupSpec": {"template": of}, "workerGroupSpecs": [workers]}


def with_workers(count: int) -> Callable[[Json], None]:
    """A change to so many."""

    def change(spec: Json) -> None:
        kubeflow = spec.get("pytorchReplicaSpecs")
        (kubeflow["Worker"] if kubeflow else spec["workerGroupSpecs"][0])["replicas"] = count

    return change


@pytest.mark.parametrize("kind", ["PyTorchJob", "RayCluster"])
@scene
def test_an_owner_grows_pod_by_pod_and_shrinks_and_restarts_with_as_many_as_it_has(
    stack: Stack, kind: str
) -> Scene:
    place = Owned(stack, f"of-{kind.lower()}", kind, 1)
    yield from place.begin(spec_of(place, kind))
    place.make(0, 2)
    yield from starts_whole(place, 2)

    place.change(with_workers(3))
    place.make(2, 4)
    yield place.says("train", "runs: 2 of 4 members have a node; 0 of 1 members fit; 1 cards missing")
    for count in (3, 4):
        place.node(f"{place.name}-{count}", 1)
        yield place.number_bound(count)

    yield from place.end(0, 4)
    place.make(0, 3)
    yield place.says("train", "starts whole: 3 of 4 members exist")
    assert place.bound() == []
    place.make(3, 4)
    yield place.number_bound(4)

    place.change(with_workers(1))
    yield from place.end(2, 4)
    left = place.names()
    place.create("a", "b", gang="other", size=2)  # on the cards of those that have gone
    yield place.are_bound(*left, "a", "b")
    yield from place.end(0, 2)
    place.make(0, 2)
    yield place.are_bound(*left, "a", "b")
    assert evictions(place) == []


@scene
def test_a_ray_cluster_starts_with_what_its_bounds_say_and_a_suspended_group_follows(stack: Stack) -> Scene:
    """One replica of two hosts; of the other group two of five pods, once it is resumed."""
    place = Owned(stack, "bounds", "RayCluster with bounds", 2)
    of = template(place)
    hosts = {"groupName": "hosts", "replicas": 0, "minReplicas": 1, "maxReplicas": 2, "numOfHosts": 2}
    off = {"groupName": "off", "replicas": 5, "minReplicas": 1, "maxReplicas": 2, "suspend": True}
    groups = [{**group, "template": of} for group in (hosts, off)]
    yield from place.begin({"headGroupSpec": {"template": of}, "workerGroupSpecs": groups})
    place.make(0, 3)
    yield from starts_whole(place, 3)

    place.change(lambda spec: spec["workerGroupSpecs"][1].pop("suspend"))
    place.make(3, 5)
    for count in (4, 5):
        place.node(f"bounds-{count}", 1)
        yield place.number_bound(count)
    assert {pod["metadata"]["annotations"]["bursar.dev/gang-size"] for pod in place.pods()} == {"3", "5"}
