"""Gangs from end to end: a real API server, kube-scheduler and controllers, kwok nodes, and every role of
Bursar. A gang has all of its cards, or none of its pods has a node."""

import json
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from deploy.local.api import ApiError
from deploy.local.kwok_nodes import kwok_node
from deploy.local.stack import Stack
from tests.story.cluster.test_metering import set_budgets
from tests.support.control_plane import create_namespace

Json = dict[str, Any]
GATE = [{"name": "bursar.dev/budget"}]


def member(name: str, gang: str, size: int, percent: int = 100, where: str = "", **annotations: str) -> Json:
    """A pod of a gang. ``where``: on nodes with this label alone."""
    limits = {"bursar.dev/gpu-percent": str(percent)}
    container = {"name": "main", "image": "example/app:1", "resources": {"limits": limits}}
    named = {"bursar.dev/gang": gang, "bursar.dev/gang-size": str(size), **annotations}
    spec = {"containers": [container], "restartPolicy": "Never"}
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
        """Names of the pods behind the gate."""
        return sorted(
            each["metadata"]["name"] for each in self.pods() if each["spec"].get("schedulingGates") == GATE
        )

    def told(self, name: str) -> list[str]:
        """The Events about a gang on the pod."""
        events = f"/apis/events.k8s.io/v1/namespaces/{self.name}/events"
        found = self.stack.cp.api.call("GET", events)["items"]
        return [
            each["note"] for each in found if each["regarding"]["name"] == name and "ang" in each["reason"]
        ]

    def wait_bound(self, *names: str) -> None:
        """Wait until exactly these have nodes."""
        self.stack.wait(f"{names} to be bound", lambda: self.bound() == sorted(names))


def reserved_on(pod: Json) -> str:
    """The node where cards are reserved for the pod."""
    for each in pod.get("status", {}).get("conditions", []):
        if each["type"] == "bursar.dev/CardsHeld" and each["status"] == "True":
            return str(json.loads(each["message"])["node"])
    return ""


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


def stays_unbound(place: Place, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert place.bound() == []
        time.sleep(0.2)


def test_three_pods_wait_on_two_cards_and_start_together_on_three(stack: Stack, reader: str) -> None:
    place = Place(stack, "short", 1, 1)
    place.create("a", "b", size=3)
    stack.wait(
        "it to say that a member is missing",
        lambda: any("2 of 3 members exist" in e for e in place.told("a")),
    )

    place.create("c", size=3)
    stack.wait(
        "it to say what is missing", lambda: any("1 cards missing" in each for each in place.told("a"))
    )
    stays_unbound(place, 4)
    assert place.gated() == ["a", "b", "c"]
    explained = stack.get("/v1/explain/short/a", reader)
    assert any("2 of 3 members fit" in each["sentence"] for each in explained["steps"])

    lack = "gang train starts whole: 2 of 3 members fit; 1 cards missing; no node has room for more of them"

    def is_on_the_map() -> bool:
        waiting = stack.get("/v1/waiting?namespace=short", reader)["pods"]
        return {pod["reason"] for pod in waiting} == {lack}

    stack.wait("the map to say what is missing", is_on_the_map)

    place.node("short-2", 1)
    place.wait_bound("a", "b", "c")
    assert place.gated() == []


def test_two_gangs_that_cross_start_one_after_the_other(stack: Stack) -> None:
    """Each needs three of four cards; their pods are created in turn. Neither gets a part."""
    place = Place(stack, "crossing", 2, 2)
    for at in range(3):
        for gang in ("one", "two"):
            place.create(f"{gang}-{at}", gang=gang, size=3)

    def whole() -> set[str]:
        return {gang for gang in ("one", "two") if sum(name.startswith(gang) for name in place.bound()) == 3}

    stack.wait("a gang to start", lambda: len(whole()) == 1)
    (first,) = whole()
    for _ in range(15):  # as long as the deadline
        assert len(place.bound()) == 3
        time.sleep(1)
    for at in range(3):
        stack.cp.api.call("DELETE", f"{place.path}/{first}-{at}", {"gracePeriodSeconds": 0})
    second = {"one": "two", "two": "one"}[first]
    place.wait_bound(*(f"{second}-{at}" for at in range(3)))


def test_a_budget_that_pays_for_two_of_three_starts_none(stack: Stack) -> None:
    """The lookahead of ten minutes takes a sixth of an hour for each."""
    set_budgets(stack, poor="gpuHours: 0.4\nonExhausted: hold\n")
    place = Place(stack, "poor", 4)
    place.create("a", "b", "c", size=3)
    stack.wait("it to wait", lambda: any("3 of 3 members exist" in each for each in place.told("a")))
    stays_unbound(place, 4)
    place.create("d", "e", size=2, gang="small")  # which it could pay

    set_budgets(stack, poor="gpuHours: 0.6\nonExhausted: hold\n")
    place.wait_bound("a", "b", "c")
    assert place.gated() == ["d", "e"]


def test_a_gang_of_which_a_pod_finds_no_node_in_time_is_let_go_whole(stack: Stack) -> None:
    """The pods may not run in one place, which only kube-scheduler reads: it binds one of them alone."""
    place = Place(stack, "late", 1, 1)
    selector = {"matchLabels": {"app": "apart"}}
    apart = {
        "requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": selector, "topologyKey": "of"}]
    }
    for name in ("a", "b"):
        pod = member(name, "apart", 2, where="late")
        pod["metadata"]["labels"] = {"app": "apart"}
        pod["spec"]["affinity"] = {"podAntiAffinity": apart}
        stack.cp.api.call("POST", place.path, pod)

    stack.wait("one to be bound", lambda: len(place.bound()) == 1)
    (lucky,) = place.bound()
    stack.wait(
        "it to be evicted", lambda: not any(each["metadata"]["name"] == lucky for each in place.pods())
    )

    stays_unbound(place, 3)
    assert any("1 of the 2 pods" in each for each in place.told(lucky))
    create = member("other", "alone", 1, where="late")
    stack.cp.api.call("POST", place.path, create)
    place.wait_bound("other")  # the cards are free again


def job_of(place: Place, name: str, annotated: int = 0, **spec: Any) -> Json:
    """Creates a Job of pods with a card each. ``annotated``: the size that its template says; 0: none."""
    template = member("unused", name, annotated, where=place.name)
    named = {"bursar.dev/gang-size": str(annotated)} if annotated else {}
    template["metadata"] = {"annotations": {"local.bursar.dev/run-for": "600s", **named}}
    jobs = f"/apis/batch/v1/namespaces/{place.name}/jobs"
    job = {"metadata": {"name": name}, "spec": {"template": template, **spec}}
    return dict(place.stack.cp.api.call("POST", jobs, job))


# how many kills, and the seed: a hundred under `make soak`, in parts that fit its slices
KILLS = (
    (3, 0),
    *(pytest.param(20, seed, marks=pytest.mark.soak) for seed in range(1, 6)),
)


@pytest.mark.parametrize(("kills", "seed"), KILLS)
def test_a_part_that_is_killed_between_decision_and_release_leaves_no_half_gang(
    stack: Stack, kills: int, seed: int
) -> None:
    """Timekeeper and extender in turn, within a second after cards are reserved, for a Job that no pod may
    fail. No card has two pods."""
    place, chance = Place(stack, f"killed-{seed}", 2, 2), random.Random(seed)
    for number in range(kills):
        job = job_of(place, f"train-{number}", annotated=4, parallelism=4, completions=4, backoffLimit=0)
        stack.wait("cards to be reserved", lambda: any(map(reserved_on, place.pods())) or place.bound() != [])
        time.sleep(chance.random())
        part, url = (("timekeeper", stack.timekeeper_url), ("extender", stack.extender_url))[number % 2]
        stack.stop(part, signal.SIGKILL)
        stack.start(part)

        stack.wait("all to run", lambda: len(place.running()) == 4, part)
        stack.wait(f"{part} to be back", lambda url=url: stack.is_ready(url), part)  # type: ignore[misc]
        assert len(place.running()) == len(place.names()) == 4
        assert len({card for each in place.pods() for card in cards_of(each)}) == 4
        path = f"/apis/batch/v1/namespaces/{place.name}/jobs/{job['metadata']['name']}"
        assert not stack.cp.api.call("GET", path)["status"].get("failed")
        stack.cp.api.call("DELETE", path, {"propagationPolicy": "Background"})
        stack.wait("its pods to be gone", lambda: place.names() == [])


def test_of_a_gang_that_loses_a_pod_in_mid_release_none_keeps_a_node(stack: Stack) -> None:
    """Its scheduler stands still until the gates are gone and a pod is deleted: then it binds the others."""
    place = Place(stack, "lost", 1, 1, 1)
    with standing_still(stack.cp.processes["gpu-scheduler"]):
        place.create("a", "b", "c", size=3)
        stack.wait("the gates to be removed", lambda: place.gated() == [])
        assert place.bound() == []
        stack.cp.api.call("DELETE", f"{place.path}/c", {"gracePeriodSeconds": 0})
        stack.wait("one to be gone", lambda: place.names() == ["a", "b"])

    place.wait_bound("a", "b")
    stack.wait("both to be evicted", lambda: place.names() == [])
    stack.wait("an Event that says why", lambda: any("2 of the 3 pods" in each for each in place.told("a")))
    place.create("other", gang="alone", size=1)
    place.wait_bound("other")


def test_a_jobs_pods_start_together_with_fewer_than_all_where_the_minimum_says_so(stack: Stack) -> None:
    """Four pods on three cards, of which two suffice; the fourth starts when there is a card for it."""
    place = Place(stack, "elastic", 1, 1, 1)
    template = member("unused", "train", 4, where="elastic")
    template["metadata"]["annotations"]["bursar.dev/gang-minimum"] = "2"
    del template["metadata"]["name"]
    job = {
        "metadata": {"name": "train"},
        "spec": {"parallelism": 4, "completions": 4, "backoffLimit": 0, "template": template},
    }
    stack.cp.api.call("POST", "/apis/batch/v1/namespaces/elastic/jobs", job)

    stack.wait("three to be bound", lambda: len(place.bound()) == 3)
    assert len(place.gated()) == 1

    place.node("elastic-3", 1)
    stack.wait("the fourth to be bound", lambda: len(place.bound()) == 4)


def test_a_gang_starts_in_one_rack_and_says_what_it_lacks_there(stack: Stack) -> None:
    """Four cards are free, and no rack has three: kube-scheduler would place it."""
    place = Place(stack, "near")
    place.node("near-a", 2, rack="r1")
    place.node("near-b", 1, rack="r2")
    place.node("near-c", 1)
    template = member("unused", "train", 3, where="near")
    template["metadata"]["annotations"]["bursar.dev/gang-topology"] = "rack"
    del template["metadata"]["name"]
    spec = {"parallelism": 3, "completions": 3, "template": template}
    jobs = "/apis/batch/v1/namespaces/near/jobs"
    stack.cp.api.call("POST", jobs, {"metadata": {"name": "train"}, "spec": spec})

    said = "2 of 3 members fit in rack r1; 1 cards missing"
    stack.wait("its Job to say it", lambda: any(said in each for each in place.told("train")))
    stays_unbound(place, 3)
    place.node("near-d", 2, rack="r2")

    stack.wait("three to be bound", lambda: len(place.bound()) == 3)
    assert {each["spec"]["nodeName"] for each in place.pods()} == {"near-b", "near-d"}
    assert any("in rack r2" in each for each in place.told("train"))


def test_a_launcher_without_room_for_its_cpu_keeps_its_gang_waiting(stack: Stack) -> None:
    place = Place(stack, "beside", 1, 1)
    container = {"name": "main", "image": "app", "resources": {"requests": {"cpu": "100k"}}}
    metadata = {"name": "launcher", "annotations": {"bursar.dev/gang": "train"}}
    stack.cp.api.call("POST", place.path, {"metadata": metadata, "spec": {"containers": [container]}})
    place.create("a", "b", size=2)

    said = "no node has the CPU and memory of launcher, of this gang"
    stack.wait("it to say it", lambda: any(said in each for each in place.told("a")))
    stays_unbound(place, 4)
    stack.cp.api.call("DELETE", f"{place.path}/launcher?gracePeriodSeconds=0")

    place.wait_bound("a", "b")


def test_cards_are_kept_for_members_that_are_created_after_the_first_ones_run(stack: Stack) -> None:
    """A JobSet's driver and two workers on three cards, while two single pods wait for any of them."""
    place = Place(stack, "follows", 3)
    spec = member("unused", "g", 1, where="follows")["spec"]
    late = json.dumps([{"count": 2, "template": {"spec": spec}}])

    def create(name: str, labels: Json, **annotations: str) -> None:
        annotations["local.bursar.dev/run-for"] = "600s"
        metadata = {"name": name, "labels": labels, "annotations": annotations}
        stack.cp.api.call("POST", place.path, {"metadata": metadata, "spec": spec})

    def of(jobset: str) -> Json:
        return {"jobset.sigs.k8s.io/jobset-name": jobset}

    def start(driver: str, jobset: str) -> None:
        create(driver, of(jobset), **{"bursar.dev/gang-size": "1", "bursar.dev/gang-late": late})
        stack.wait(f"{driver} to be bound", lambda: driver in place.bound())

    def create_refused(name: str) -> None:
        create(name, {})
        path = f"{place.path}/{name}"

        def is_refused() -> bool:
            conditions = stack.cp.api.call("GET", path)["status"].get("conditions", [])
            return any((each["type"], each["status"]) == ("PodScheduled", "False") for each in conditions)

        stack.wait(f"{name} to be refused", is_refused)

    start("first", "stopped")
    create_refused("single-a")
    create_refused("single-b")
    assert place.bound() == ["first"]
    stack.cp.api.call("DELETE", f"{place.path}/first?gracePeriodSeconds=0")
    place.wait_bound("single-a", "single-b")  # nothing is kept for a gang that has ended
    for name in ("single-a", "single-b"):
        stack.cp.api.call("DELETE", f"{place.path}/{name}?gracePeriodSeconds=0")

    start("second", "trains")
    create_refused("single-c")
    create("worker-0", of("trains"))
    create("worker-1", of("trains"))
    place.wait_bound("second", "worker-0", "worker-1")


def test_with_gangs_auto_a_parallel_jobs_pods_start_together_without_annotations(stack: Stack) -> None:
    set_budgets(stack, found="gpuHours: 100\ngangs: auto\n")
    place = Place(stack, "found", 1, 1)
    stack.wait("the webhook to know the entry", lambda: is_found(place))

    job_of(place, "train", parallelism=3, completions=3)
    stack.wait("three to wait", lambda: len(place.gated()) == 3)
    said = "2 of 3 members fit; 1 cards missing"
    stack.wait("its Job to say why", lambda: any(said in each for each in place.told("train")))
    stays_unbound(place, 3)
    place.node("found-2", 1)
    stack.wait("three to be bound", lambda: len(place.bound()) == 3)


def is_found(place: Place) -> bool:
    """Whether a Job that would be created now were a gang."""
    template = {"metadata": {}, "spec": member("unused", "g", 2)["spec"]}
    job = {"metadata": {"name": "dry"}, "spec": {"parallelism": 2, "completions": 2, "template": template}}
    jobs = f"/apis/batch/v1/namespaces/{place.name}/jobs?dryRun=All"
    created = place.stack.cp.api.call("POST", jobs, job)
    return "bursar.dev/gang-size" in created["spec"]["template"]["metadata"].get("annotations", {})


def test_a_size_that_a_jobs_parallelism_contradicts_is_refused(stack: Stack) -> None:
    place = Place(stack, "contrary")
    template = member("unused", "g", 2)
    job = {"metadata": {"name": "g"}, "spec": {"parallelism": 4, "completions": 4, "template": template}}

    with pytest.raises(ApiError, match="this Job creates 4 pods of the template"):
        stack.cp.api.call("POST", "/apis/batch/v1/namespaces/contrary/jobs", job)
    assert place.names() == []


def test_letting_go_does_not_spend_a_jobs_backoff_limit(stack: Stack) -> None:
    """Its two pods may not run in one place, which only kube-scheduler reads: it binds one of them alone."""
    place = Place(stack, "spared", 1, 1)
    template = member("unused", "apart", 2, where="spared")
    del template["metadata"]["name"]
    template["metadata"]["labels"] = {"app": "apart"}
    rule = {"labelSelector": {"matchLabels": {"app": "apart"}}, "topologyKey": "of"}
    apart = {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}
    template["spec"]["affinity"] = {"podAntiAffinity": apart}
    spec = {"parallelism": 2, "completions": 2, "backoffLimit": 0, "template": template}
    jobs = "/apis/batch/v1/namespaces/spared/jobs"
    stack.cp.api.call("POST", jobs, {"metadata": {"name": "apart"}, "spec": spec})

    stack.wait("one to be bound", lambda: len(place.bound()) == 1)
    (lucky,) = place.bound()
    stack.wait("it to be evicted", lambda: lucky not in place.names())
    stack.wait("another to take its place", lambda: len(place.names()) == 2 and len(place.gated()) >= 1)
    status = stack.cp.api.call("GET", f"{jobs}/apart")["status"]
    assert not status.get("conditions")
    assert not status.get("failed")
