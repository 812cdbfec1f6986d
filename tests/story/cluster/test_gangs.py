"""Gangs from end to end: a real API server, kube-scheduler and controllers, kwok nodes, and every role of
Bursar. A gang has all of its cards, or none of its pods has a node."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from deploy.local.kwok_nodes import kwok_node
from deploy.local.kwok_stages import FAKE_NODE
from deploy.local.stack import Stack
from tests.support.control_plane import create_namespace, kubectl
from tests.support.scenes import Awaited, Scene, scene
from tests.worlds import Json

pytestmark = pytest.mark.make_test("starts gangs whole")

CARDS = {"name": "bursar.dev/gang"}


def member(name: str, gang: str, size: int, percent: int = 100, where: str = "", **annotations: str) -> Json:
    """A pod of a gang. ``where``: on nodes with this label alone."""
    limits = {"bursar.dev/gpu-percent": str(percent)}
    container = {"name": "main", "image": "example/app:1", "resources": {"limits": limits}}
    named = {"bursar.dev/gang": gang, "bursar.dev/gang-size": str(size), **annotations}
    # cards of a pod that is deleted by force are held for its grace period
    spec: Json = {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
    return {
        "metadata": {"name": name, "annotations": {"local.bursar.dev/run-for": "600s", **named}},
        "spec": spec | ({"nodeSelector": {"of": where}} if where else {}),
    }


class Place:
    """A namespace with nodes of its own."""

    def __init__(self, stack: Stack, name: str, *cards: int) -> None:
        self.stack, self.name = stack, name
        self.path = create_namespace(stack.cp, name)
        for at, count in enumerate(cards):
            self.node(f"{name}-{at}", count)

    def node(self, name: str, cards: int, **labels: str) -> None:
        """One more node with so many cards."""
        labels = {"of": self.name, **labels}
        self.stack.cp.api.call("POST", "/api/v1/nodes", kwok_node(name, cards=cards, labels=labels))

    def create(self, *names: str, gang: str = "train", size: int, **fields: Any) -> None:
        """Members of one gang."""
        for each in names:
            self.stack.cp.api.call("POST", self.path, member(each, gang, size, where=self.name, **fields))

    def pods(self) -> list[Json]:
        found: list[Json] = self.stack.cp.api.call("GET", self.path)["items"]
        return found

    def bound(self) -> list[str]:
        """Names of the pods that have a node."""
        return sorted(each["metadata"]["name"] for each in self.pods() if each["spec"].get("nodeName"))

    def running(self) -> list[str]:
        """Names of the pods that run and stay."""
        return [
            each["metadata"]["name"]
            for each in self.pods()
            if each["status"].get("phase") == "Running" and not each["metadata"].get("deletionTimestamp")
        ]

    def names(self) -> list[str]:
        return sorted(each["metadata"]["name"] for each in self.pods())

    def gated(self) -> list[str]:
        """Names of the pods behind the gate for cards."""
        gates = ((each["metadata"]["name"], each["spec"].get("schedulingGates", ())) for each in self.pods())
        return sorted(name for name, there in gates if CARDS in there)

    def told(self, name: str) -> list[str]:
        """The Events about a gang on the pod."""
        events = f"/apis/events.k8s.io/v1/namespaces/{self.name}/events"
        found = self.stack.cp.api.call("GET", events)["items"]
        return [
            each["note"] for each in found if each["regarding"]["name"] == name and "ang" in each["reason"]
        ]

    def are_bound(self, *names: str) -> Awaited:
        """Exactly these have nodes."""
        return f"{names} to be bound", lambda: self.bound() == sorted(names)

    def number_bound(self, count: int) -> Awaited:
        """So many have nodes."""
        return f"{count} to be bound", lambda: len(self.bound()) == count

    def says(self, name: str, text: str) -> Awaited:
        """An Event about the gang on the object of this name."""
        return f"{name} to say: {text}", lambda: any(text in note for note in self.told(name))

    def stays(self, *names: str) -> Awaited:
        """Exactly these have nodes, until cards have been looked for once more, without success."""
        looks = self._looks_without_success()

        def has_stayed() -> bool:
            assert self.bound() == sorted(names)
            return self._looks_without_success() > looks

        return "cards to be looked for once more", has_stayed

    def _looks_without_success(self) -> int:
        """How often a plan for a gang of the namespace has found too few cards."""
        lines = self.stack.log("extender").splitlines()
        return sum(f" gang={self.name}/" in line and " pods=0" in line for line in lines)


def cards_of(pod: Json) -> list[str]:
    """UUIDs of the cards that the extender gave the pod."""
    given = json.loads(pod["metadata"]["annotations"]["bursar.dev/devices"])["containers"]
    return [card["uuid"] for cards in given.values() for card in cards]


@contextmanager
def standing_still(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """The process does nothing meanwhile."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


@scene
def test_three_pods_wait_on_two_cards_and_start_together_on_three(stack: Stack, reader: str) -> Scene:
    place = Place(stack, "short", 1, 1)
    place.create("a", "b", size=3)
    yield place.says("a", "2 of 3 members exist")

    place.create("c", size=3)
    yield place.says("a", "it can never start here")
    yield place.stays()
    assert place.gated() == ["a", "b", "c"]
    explained = stack.get("/v1/explain/short/a", reader)
    assert any("it can never start here" in each["sentence"] for each in explained["steps"])

    lack = (
        "Gang train starts whole: 3 of 3 members exist; it can never start here: it needs 3 cards on nodes"
        " with of=short, which have 2."
    )

    def is_on_the_map() -> bool:
        waiting = stack.get("/v1/waiting?namespace=short", reader)["pods"]
        return {pod["reason"] for pod in waiting} == {lack}

    yield "the map to say what is missing", is_on_the_map

    place.node("short-2", 1)
    yield place.are_bound("a", "b", "c")
    assert place.gated() == []


def be_apart(pod: Json, label: str = "of") -> None:
    """It runs in no place where another one like it runs. ``label``: of nodes, its values are the places."""
    pod["metadata"]["labels"] = {"app": "apart"}
    rule = {"labelSelector": {"matchLabels": {"app": "apart"}}, "topologyKey": label}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}
    pod["spec"]["affinity"] = {"podAntiAffinity": required}


@scene
def test_pods_that_must_be_apart_wait_where_there_is_one_place(stack: Stack) -> Scene:
    place = Place(stack, "single", 2)
    for name in ("a", "b"):
        pod = member(name, "apart", 2, where="single")
        be_apart(pod)
        stack.cp.api.call("POST", place.path, pod)

    yield place.says("a", "a pod is near that their anti-affinity over of selects")
    yield place.stays()


def stranger(place: Place, node: str, **spec: Any) -> None:
    """A pod of no gang, without GPUs, that runs on this node of the place."""
    container = {"name": "main", "image": "example/app:1", **spec}
    pod: Json = {"metadata": {"name": f"stranger-on-{node}", "labels": {"app": "apart"}}}
    stranger_spec = {"nodeName": f"{place.name}-{node}", "containers": [container]}
    place.stack.cp.api.call("POST", place.path, {**pod, "spec": stranger_spec})


@scene
def test_a_host_port_that_another_pod_has_keeps_a_gang_waiting_without_a_start(stack: Stack) -> Scene:
    """As the usual one of a launcher. It starts once each member has a node with the port."""
    place, ports = Place(stack, "ports", 2, 2), [{"containerPort": 29500, "hostPort": 29500}]
    stranger(place, "0", ports=ports)
    for name in ("a", "b"):
        pod = member(name, "port", 2, where="ports")
        pod["spec"]["containers"][0]["ports"] = ports
        stack.cp.api.call("POST", place.path, pod)

    yield place.says("a", "1 of 2 members fit; on the nodes with cards for more of them host port 29500/TCP")
    yield place.stays("stranger-on-0")
    assert place.gated() == ["a", "b"]

    stack.cp.api.call("DELETE", f"{place.path}/stranger-on-0?gracePeriodSeconds=0")
    yield place.are_bound("a", "b")


@scene
def test_a_gang_is_apart_from_a_pod_that_its_anti_affinity_selects(stack: Stack) -> Scene:
    place = Place(stack, "strangers", 2, 2)
    stranger(place, "0")
    for name in ("a", "b"):
        pod = member(name, "apart", 2, where="strangers")
        be_apart(pod, "kubernetes.io/hostname")
        stack.cp.api.call("POST", place.path, pod)

    yield place.says("a", "their anti-affinity over kubernetes.io/hostname selects")
    yield place.stays("stranger-on-0")
    place.node("strangers-2", 2)
    yield place.are_bound("a", "b", "stranger-on-0")


@scene
def test_a_gang_is_spread_beside_older_pods_of_its_label(stack: Stack) -> Scene:
    """Two of them are in one zone, and one card is free in the other."""
    place, zone = Place(stack, "zones"), "topology.kubernetes.io/zone"
    for name, cards in (("zones-0", 2), ("zones-1", 2), ("zones-2", 1)):
        place.node(name, cards, **{zone: "zones-b" if name == "zones-2" else "zones-a"})
    stranger(place, "0")
    stranger(place, "1")
    for name in ("a", "b", "c", "d"):
        pod = member(name, "even", 4, where="zones")
        pod["metadata"]["labels"] = {"app": "apart"}
        rule = {"labelSelector": {"matchLabels": {"app": "apart"}}, "topologyKey": zone, "maxSkew": 1}
        pod["spec"]["topologySpreadConstraints"] = [{**rule, "whenUnsatisfiable": "DoNotSchedule"}]
        stack.cp.api.call("POST", place.path, pod)

    yield place.says("a", f"their spread over {zone} allows no more, for zone zones-b has")
    yield place.stays("stranger-on-0", "stranger-on-1")
    place.node("zones-3", 2, **{zone: "zones-b"})
    yield place.number_bound(6)


def job_of(place: Place, name: str, annotated: int = 0, **spec: Any) -> Json:
    """Creates a Job of pods with a card each. ``annotated``: the size that its template says; 0: none."""
    template = member("unused", name, annotated, where=place.name)
    named = {"bursar.dev/gang-size": str(annotated)} if annotated else {}
    template["metadata"] = {"annotations": {"local.bursar.dev/run-for": "600s", **named}}
    jobs = f"/apis/batch/v1/namespaces/{place.name}/jobs"
    job = {"metadata": {"name": name}, "spec": {"template": template, **spec}}
    return dict(place.stack.cp.api.call("POST", jobs, job))


def test_of_an_owner_that_is_deleted_in_mid_start_nothing_holds_cards(stack: Stack) -> None:
    """Its scheduler stands still until the gates are gone and the Job is deleted."""
    place = Place(stack, "dropped", 1, 1)
    with standing_still(stack.cp.processes["gpu-scheduler"]):
        job_of(place, "train", annotated=2, parallelism=2, completions=2)
        stack.wait("the gates to be removed", lambda: len(place.names()) == 2 and place.gated() == [])
        path = "/apis/batch/v1/namespaces/dropped/jobs/train"
        stack.cp.api.call("DELETE", path, {"propagationPolicy": "Background"})
        stack.wait("its pods to be gone", lambda: place.names() == [])
        place.create("a", "b", gang="other", size=2)
        stack.wait("cards for another gang", lambda: len(place.names()) == 2 and place.gated() == [])
    stack.wait(*place.are_bound("a", "b"))


@scene
def test_a_quota_that_refuses_the_third_pod_keeps_all_waiting_without_cards(stack: Stack) -> Scene:
    place = Place(stack, "few", 3)
    quotas = "/api/v1/namespaces/few/resourcequotas"
    stack.cp.api.call("POST", quotas, {"metadata": {"name": "two"}, "spec": {"hard": {"pods": "2"}}})
    yield "it to count", lambda: "used" in stack.cp.api.call("GET", f"{quotas}/two").get("status", {})
    job_of(place, "train", annotated=3, parallelism=3, completions=3)
    yield place.says("train", "2 of 3 members exist")
    assert (len(place.gated()), place.bound()) == (2, [])
    kubectl(stack.cp, "patch", "resourcequota", "two", "-n", "few", "-p", '{"spec": {"hard": {"pods": "3"}}}')
    yield place.number_bound(3)


@scene
def test_a_member_that_its_user_deletes_before_the_start_is_missed_until_there_is_another(
    stack: Stack,
) -> Scene:
    place = Place(stack, "bare", 1, 1)
    place.create("a", "b", "c", size=3)
    yield place.says("a", "it can never start here")
    stack.cp.api.call("DELETE", f"{place.path}/c?gracePeriodSeconds=0")
    yield place.says("a", "2 of 3 members exist")
    place.node("bare-2", 1)
    yield "two to wait", lambda: place.gated() == ["a", "b"]

    place.create("d", size=3)
    yield place.are_bound("a", "b", "d")


@scene
def test_pods_of_one_gang_with_other_requests_and_priorities_start_together(stack: Stack) -> Scene:
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    stack.cp.api.call("POST", classes, {"metadata": {"name": "uneven"}, "value": 7})
    place = Place(stack, "uneven", 1)
    first, second = member("a", "train", 3, 50, "uneven"), member("b", "train", 3, 200, "uneven")
    second["spec"]["priorityClassName"] = "uneven"
    for pod in (first, second, member("c", "train", 3, 30, "uneven")):
        stack.cp.api.call("POST", place.path, pod)
    yield place.says("a", "it can never start here: it needs 2.8 cards on nodes with of=uneven, which have 1")
    yield place.stays()
    place.node("uneven-1", 2)
    yield place.are_bound("a", "b", "c")


@scene
def test_a_gang_that_does_not_start_in_time_is_let_go_and_spends_no_backoff_limit(stack: Stack) -> Scene:
    """Its pods want a volume that one pod alone may use, as kube-scheduler alone finds: it binds one."""
    place = Place(stack, "spared", 1, 1)
    bound_volume(stack, "spared")
    template = member("unused", "apart", 2, where="spared")
    del template["metadata"]["name"]
    template["spec"]["volumes"] = [{"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}}]
    spec = {"parallelism": 2, "completions": 2, "backoffLimit": 0, "template": template}
    jobs = "/apis/batch/v1/namespaces/spared/jobs"
    stack.cp.api.call("POST", jobs, {"metadata": {"name": "apart"}, "spec": spec})

    yield place.number_bound(1)
    (lucky,) = place.bound()
    yield "it to be evicted", lambda: lucky not in place.names()
    yield place.says(lucky, "1 of the 2 pods")
    yield "another to take its place", lambda: len(place.names()) == 2 and place.gated()
    status = stack.cp.api.call("GET", f"{jobs}/apart")["status"]
    assert not status.get("conditions")
    assert not status.get("failed")
    place.create("free", gang="alone", size=1)  # the cards are free again
    yield place.are_bound("free")


@scene
def test_a_pod_that_an_older_extender_marked_goes(stack: Stack) -> Scene:
    place = Place(stack, "marked", 1)
    pod = member("old", "alone", 1, where="marked")
    pod["metadata"]["finalizers"] = ["bursar.dev/gang-forgiven"]
    stack.cp.api.call("POST", place.path, pod)
    stack.cp.api.call("DELETE", f"{place.path}/old")
    yield "its object to go", lambda: place.names() == []


def bound_volume(stack: Stack, namespace: str) -> None:
    """A claim "disk" with its volume, in the access mode ReadWriteOncePod."""
    shared: Json = {"accessModes": ["ReadWriteOncePod"], "storageClassName": ""}
    volume = {
        **shared,
        "capacity": {"storage": "1Gi"},
        "csi": {"driver": "disks.example.com", "volumeHandle": namespace},
        "claimRef": {"namespace": namespace, "name": "disk"},
    }
    claim = {**shared, "resources": {"requests": {"storage": "1Gi"}}, "volumeName": namespace}
    claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    stack.cp.api.call("POST", "/api/v1/persistentvolumes", {"metadata": {"name": namespace}, "spec": volume})
    stack.cp.api.call("POST", claims, {"metadata": {"name": "disk"}, "spec": claim})
    stack.wait(
        "it to be bound",
        lambda: stack.cp.api.call("GET", f"{claims}/disk").get("status", {}).get("phase") == "Bound",
    )


def test_a_gang_of_which_no_image_is_pulled_leaves_whole_where_that_is_wanted(stack: Stack) -> None:
    """Nobody acts for the node: its pods stay Pending."""
    restart(stack, "--gang-ready-for=10s")
    place, node = Place(stack, "unpulled"), kwok_node("unpulled-0", cards=2, labels={"of": "unpulled"})
    del node["metadata"]["annotations"][FAKE_NODE.partition("=")[0]]
    stack.cp.api.call("POST", "/api/v1/nodes", node)
    place.create("a", "b", size=2)
    stack.wait(*place.are_bound("a", "b"))

    stack.wait(
        "both to leave", lambda: not any("deletionTimestamp" not in pod["metadata"] for pod in place.pods())
    )
    stack.wait(*place.says("a", "of gang train has not run in time after its start"))
    restart(stack)


def restart(stack: Stack, *flags: str) -> None:
    """The extender, with these flags until its next start."""
    stack.stop("extender")
    stack.start("extender", *flags)
    stack.wait("the extender to be back", lambda: stack.is_ready(stack.extender_url), "extender")
