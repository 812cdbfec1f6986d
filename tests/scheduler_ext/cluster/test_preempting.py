"""Making room on cards beside a real kube-scheduler and API server: what kube-scheduler cannot see is done by
the preemptor, with the rights that it has in a cluster, and no more than that."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local.api import ApiError
from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import card_uuid, kwok_node
from deploy.local.kwok_stages import FAKE_NODE
from tests.scheduler_ext.clusters import PROFILE, SCHEDULER, World, plane
from tests.scheduler_ext.processes import ROOT, Process
from tests.scheduler_ext.readback import holds, taken
from tests.support.control_plane import create_namespace, kubectl
from tests.support.simulated_timekeeper import SimulatedTimekeeper, entry, standings
from tests.support.tls import Tls
from tests.support.waiting import eventually, seconds_until

__all__ = ["plane"]

Json = dict[str, Any]

PDB_GRACE_S = 4
CLASSES = {"high": (1000, "PreemptLowerPriority"), "first": (2000, "Never"), "over": (-5, "Never")}


@pytest.fixture(scope="module")
def timekeeper(tls: Tls) -> Iterator[SimulatedTimekeeper]:
    """One that says what it is told to."""
    with SimulatedTimekeeper(tls) as running:
        yield running


@pytest.fixture(scope="module")
def extender(
    plane: ControlPlane, timekeeper: SimulatedTimekeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Process]:
    """The extender, which asks that timekeeper, and a kube-scheduler that asks it."""
    for name, (value, policy) in CLASSES.items():
        body = {"metadata": {"name": name}, "value": value, "preemptionPolicy": policy}
        plane.api.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
    policy = (ROOT / "deploy" / "manifests" / "admission-holds.yaml").read_text()
    kubectl(plane, "apply", "-f", "-", input=policy.replace("system:bursar-scheduler", "system:extender"))
    process = _process(plane, timekeeper, tmp_path_factory.mktemp("extender"))
    process.start()
    plane.start_scheduler(SCHEDULER, profiles=(PROFILE,), extender_url=process.url)
    process.ready()
    yield process
    process.kill()


def _process(plane: ControlPlane, timekeeper: SimulatedTimekeeper, folder: Path) -> Process:
    token = plane.kubectl("create", "token", "extender", "-n", "bursar-system", "--duration=1h").stdout
    return Process(
        folder,
        f"--kubeconfig={plane.kubeconfig(token.strip(), 'extender')}",
        *timekeeper.flags,
        f"--pdb-grace={PDB_GRACE_S}s",
    )


@pytest.fixture
def teams(plane: ControlPlane, extender: Process, timekeeper: SimulatedTimekeeper) -> Iterator["Teams"]:
    """An empty cluster before and after, and namespaces of which the extender remembers no evictions; team-b
    is within its budget."""
    teams = Teams(plane, extender, timekeeper)
    teams.say("IN_BUDGET")
    yield teams
    teams.clear()


GOVERNED = {"bursar.dev/governed": "true"}


class Teams(World):
    """Two namespaces: team-a, which is in budget, and team-b, whose standing the test says. The cluster has
    other names for them in each test."""

    _numbers = itertools.count()

    def __init__(self, plane: ControlPlane, extender: Process, timekeeper: SimulatedTimekeeper) -> None:
        super().__init__(plane, extender)
        self.timekeeper = timekeeper
        self._revision = len(timekeeper.answered)
        self._said_before = len(extender.said())
        self._number = next(self._numbers)
        for namespace in ("team-a", "team-b"):
            create_namespace(plane, self.own(namespace))

    def own(self, namespace: str) -> str:
        """The cluster's name for it."""
        return f"{namespace}-{self._number}"

    def pods_of(self, namespace: str) -> str:
        """The path of its pods."""
        return f"/api/v1/namespaces/{self.own(namespace)}/pods"

    def say(self, standing: str, **fields: Any) -> None:
        """How team-b stands from now on; the extender has heard it."""
        self._revision += 1
        self.timekeeper.document = standings(
            revision=str(self._revision),
            **{
                self.own("team-a"): entry("IN_BUDGET", onExhausted="reclaim"),
                self.own("team-b"): entry(standing, **{"onExhausted": "reclaim"} | fields),
            },
        )
        self.polls(2)

    def polls(self, times: int) -> None:
        """So many more polls of the timekeeper, one a second, have been answered."""
        goal = len(self.timekeeper.answered) + times
        eventually(lambda: len(self.timekeeper.answered) >= goal)

    def make(self, namespace: str, name: str, percent: int, **fields: Any) -> None:
        """A pod of our profile."""
        metadata = {"name": name, "labels": GOVERNED}
        body = {"metadata": metadata, "spec": spec(percent) | {"restartPolicy": "Never"} | fields}
        self.plane.api.call("POST", self.pods_of(namespace), body)

    def hog(self, name: str, cpu: int, memory: str = "1Gi") -> None:
        """A pod of team-b with 1 % of a card and so much beside it, which is bound before this returns."""
        self.make("team-b", name, 1, containers=[beside_cards(1, cpu, memory)])
        eventually(lambda: self.where(name, "team-b"))

    def deploy(self, name: str, replicas: int, percent: int) -> None:
        """A Deployment in team-b, whose pods are all bound before this returns."""
        labels = {"app": name}
        body = {
            "metadata": {"name": name},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": GOVERNED | labels}, "spec": spec(percent)},
            },
        }
        self.plane.api.call("POST", f"/apis/apps/v1/namespaces/{self.own('team-b')}/deployments", body)
        eventually(lambda: len(self.running("team-b")) == replicas)

    def protect(self, name: str) -> None:
        """A PodDisruptionBudget of team-b that lets none of a Deployment's pods go."""
        body = {
            "metadata": {"name": name},
            "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": name}}},
        }
        path = self._budgets()
        self.plane.api.call("POST", path, body)
        eventually(lambda: self.plane.api.call("GET", f"{path}/{name}").get("status", {}).get("expectedPods"))

    def unprotect(self, name: str) -> None:
        """Without it again."""
        self.plane.api.call("DELETE", f"{self._budgets()}/{name}")

    def _budgets(self) -> str:
        return f"/apis/policy/v1/namespaces/{self.own('team-b')}/poddisruptionbudgets"

    def of(self, namespace: str) -> list[Json]:
        """Its pods."""
        items: list[Json] = self.plane.api.call("GET", self.pods_of(namespace))["items"]
        return items

    def pods(self) -> list[Json]:
        """Those of both."""
        return [*self.of("team-a"), *self.of("team-b")]

    def running(self, namespace: str) -> set[str]:
        """The UIDs of those that hold cards, and are not leaving."""
        return {
            pod["metadata"]["uid"]
            for pod in self.of(namespace)
            if holds(pod) and "deletionTimestamp" not in pod["metadata"]
        }

    def where(self, name: str, namespace: str = "team-a") -> str:
        """The node the pod is bound to, or ""."""
        pod = self.plane.api.call("GET", f"{self.pods_of(namespace)}/{name}")
        bound_to: str = pod["spec"].get("nodeName", "")
        return bound_to

    def waits(self, name: str, namespace: str = "team-a") -> None:
        """Wait until kube-scheduler has tried the pod in vain."""
        eventually(lambda: "Unschedulable" in str(self._status(name, namespace).get("conditions")))

    def held(self, name: str, namespace: str = "team-a") -> bool:
        """Whether the pod's object says that cards are held for it."""
        conditions = self._status(name, namespace).get("conditions", [])
        return any(each["type"] == "bursar.dev/CardsHeld" and each["status"] == "True" for each in conditions)

    def _status(self, name: str, namespace: str) -> Json:
        status: Json = self.plane.api.call("GET", f"{self.pods_of(namespace)}/{name}")["status"]
        return status

    def patch(self, name: str, condition: Json, namespace: str = "team-b") -> str:
        """What an administrator is told who patches a condition of the pod; "" where it is done."""
        path = f"{self.pods_of(namespace)}/{name}/status"
        body = {"status": {"conditions": [condition]}}
        try:
            self.plane.api.call("PATCH", path, body, "application/strategic-merge-patch+json")
        except ApiError as error:
            return str(error)
        return ""

    def said(self, event: str) -> int:
        """How often the extender has logged it since the test began."""
        return self.extender.said()[self._said_before :].count(f"event={event} ")

    def tidy(self, **nodes: int) -> None:
        """The objects alone: no card has more on it than there is."""
        total = taken(pod for pod in self.pods() if holds(pod))
        cards = {card_uuid(name, at) for name, count in nodes.items() for at in range(count)}
        assert total.keys() <= cards
        assert all(share <= 1000 and memory <= 16_000 for share, memory in total.values()), total

    def clear(self) -> None:
        """Remove everything, and wait until the extender knows."""
        for namespace in map(self.own, ("team-a", "team-b")):
            self.plane.api.call("DELETE", f"/apis/apps/v1/namespaces/{namespace}/deployments")
            self.plane.api.call("DELETE", f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets")
            self.plane.api.call("DELETE", f"/api/v1/namespaces/{namespace}/pods")
        eventually(self._is_empty)
        nodes = [node["metadata"]["name"] for node in self.plane.api.call("GET", "/api/v1/nodes")["items"]]
        self.plane.api.call("DELETE", "/api/v1/nodes")
        eventually(lambda: not self.extender.known(*nodes))

    def _is_empty(self) -> bool:
        """Pods of a Deployment that is on its way out are made once more at times."""
        for each in self.pods():
            meta = each["metadata"]
            if "deletionTimestamp" not in meta:
                self.plane.kubectl("delete", "pod", meta["name"], "-n", meta["namespace"], "--wait=false")
        return not self.pods()


def spec(percent: int) -> Json:
    """Of a pod with one GPU container."""
    resources = {"limits": {"bursar.dev/gpu-percent": str(percent)}}
    return {
        "schedulerName": PROFILE,
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "x", "resources": resources}],
    }


def fragmented(teams: Teams) -> None:
    """Three cards, on each of which a pod of low priority leaves too little."""
    teams.node("n", cards=3)
    for name in ("x", "y", "z"):
        teams.make("team-b", name, 65)
        eventually(lambda name=name: teams.where(name, "team-b") == "n")  # type: ignore[misc]


def test_where_the_sums_fit_and_no_card_does_one_pod_leaves_and_no_other_takes_its_card(
    teams: Teams,
) -> None:
    fragmented(teams)
    for at in range(3):
        teams.make("team-a", f"thief{at}", 60, priorityClassName="first")
        teams.waits(f"thief{at}")
    filters = teams.filters()

    teams.make("team-a", "high", 90, priorityClassName="high")

    eventually(lambda: teams.where("high") == "n")
    assert len(teams.running("team-b")) == 2
    eventually(lambda: teams.said("preempted") == 1)
    assert [teams.where(f"thief{at}") for at in range(3)] == ["", "", ""]
    teams.polls(3)
    eventually(lambda: teams.said("preempted") == 1)
    assert not teams.held("high") or teams.where("high") == "n"
    assert teams.filters() - filters < 40
    events = teams.plane.api.call("GET", f"/api/v1/namespaces/{teams.own('team-b')}/events")["items"]
    assert "Preempted" in [each["reason"] for each in events]
    teams.tidy(n=3)


def test_a_namespace_that_goes_over_budget_gives_its_cards_to_one_that_has_budget_left(teams: Teams) -> None:
    teams.node("n1", cards=2)
    teams.node("n2", cards=2)
    teams.deploy("trainers", replicas=4, percent=100)
    for name in ("a1", "a2"):
        teams.make("team-a", name, 100)
        teams.waits(name)
    teams.polls(3)
    assert teams.said("preempted") == 0

    teams.say("OVER_BUDGET")

    eventually(lambda: teams.where("a1") and teams.where("a2"))
    teams.polls(4)  # the Deployment has made others in their place, which wait
    assert len(teams.of("team-b")) == 4
    assert len(teams.running("team-b")) == 2
    eventually(lambda: teams.said("preempted") == 2)
    teams.tidy(n1=2, n2=2)


def test_one_that_is_back_in_budget_is_spared_and_takes_nothing_back(teams: Teams) -> None:
    teams.node("n", cards=2)
    teams.deploy("trainers", replicas=2, percent=100)
    teams.say("OVER_BUDGET")
    teams.make("team-a", "a1", 100)
    eventually(lambda: teams.where("a1"))
    there = teams.running("team-b")

    teams.say("IN_BUDGET")
    teams.make("team-a", "a2", 100)
    teams.waits("a2")
    teams.polls(4)

    assert teams.running("team-b") == there
    assert teams.where("a2") == ""
    eventually(lambda: teams.said("preempted") == 1)
    teams.tidy(n=2)


def test_a_pod_disruption_budget_is_honoured_and_then_no_longer(teams: Teams) -> None:
    teams.node("n", cards=2)
    teams.deploy("trainers", replicas=2, percent=100)
    teams.protect("trainers")
    there = teams.running("team-b")
    teams.say("OVER_BUDGET")
    teams.make("team-a", "a1", 100)
    eventually(lambda: teams.held("a1"))
    filters = teams.filters()

    eventually(lambda: teams.said("stays") >= 2)
    assert teams.running("team-b") == there
    waited = seconds_until(lambda: teams.where("a1"))

    assert waited > 0.5
    assert teams.filters() - filters < 20
    eventually(lambda: teams.said("preempted") == 1)
    assert "how=deleted" in teams.extender.said()
    assert len(teams.running("team-b") & there) == 1
    teams.tidy(n=2)


def test_a_debtor_that_deletes_itself_with_a_long_grace_period_gets_that_of_an_eviction(
    teams: Teams,
) -> None:
    # with a name of its own: its cards are held to the end of the grace periods, also when it is gone
    kubelets = kwok_node("of-kubelet", cards=2, memory_mib=16_000)
    kubelets["metadata"]["annotations"].pop(FAKE_NODE.partition("=")[0])  # nothing ends a pod there
    teams.plane.api.call("POST", "/api/v1/nodes", kubelets)
    anywhere = [{"operator": "Exists"}]  # without a kubelet the node is not ready
    path, names = teams.pods_of("team-b"), ("debtor", "neighbour")
    for name in names:
        teams.make("team-b", name, 100, terminationGracePeriodSeconds=7, tolerations=anywhere)
        eventually(lambda name=name: teams.where(name, "team-b"))  # type: ignore[misc]
    teams.plane.api.call("DELETE", f"{path}/debtor?gracePeriodSeconds=1000000")
    teams.make("team-a", "a1", 100, tolerations=anywhere)
    teams.waits("a1")
    teams.polls(3)
    before = graces(teams)

    teams.say("OVER_BUDGET")
    eventually(lambda: teams.said("preempted"))
    after = graces(teams)
    for name in names:
        teams.plane.api.call("DELETE", f"{path}/{name}?gracePeriodSeconds=0")

    assert before == {"debtor": 1_000_000, "neighbour": None}  # in budget it may
    assert after == {"debtor": 7, "neighbour": None}
    eventually(lambda: teams.said("preempted") == 1)
    assert "how=shortened" in teams.extender.said()
    assert teams.held("a1")


def test_no_debtor_is_evicted_for_a_pod_that_can_run_nowhere_and_one_is_for_its_neighbour(
    teams: Teams,
) -> None:
    teams.node("n", cards=2)
    teams.deploy("trainers", replicas=2, percent=100)
    nowhere = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"no": "pod"}}}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [nowhere]}
    for name in ("impossible", "renewed"):
        teams.make("team-a", name, 100, affinity={"podAffinity": required})
        teams.waits(name)
    there = teams.running("team-b")

    teams.say("OVER_BUDGET")
    teams.polls(4)
    assert teams.running("team-b") == there
    assert teams.said("hold") == 0

    teams.make("team-a", "neighbour", 100)
    eventually(lambda: teams.where("neighbour") == "n")
    eventually(lambda: teams.said("preempted") == 1)
    assert not teams.held("impossible")
    teams.tidy(n=2)


def test_no_debtor_is_evicted_for_a_pod_of_more_memory_than_there_is_however_it_is_written(
    teams: Teams,
) -> None:
    teams.node("n", cards=2)
    total = teams.plane.api.call("GET", "/api/v1/nodes/n")["status"]["allocatable"]["memory"]
    teams.deploy("trainers", replicas=2, percent=100)
    there = teams.running("team-b")
    beside = {"name": "beside", "image": "x", "restartPolicy": "Always"}
    first = {"name": "first", "image": "x"}
    half = f"{int(total.removesuffix('Gi')) // 2 + 1}Gi"
    for name, listed in {
        "vast": [first | memory("9Pi")],
        "in-parts": [beside | memory(half), first | memory(half)],
    }.items():
        teams.make("team-a", name, 100, initContainers=listed)
        teams.waits(name)

    teams.say("OVER_BUDGET")
    teams.polls(4)
    assert teams.running("team-b") == there
    assert teams.said("hold") == 0

    teams.make("team-a", "neighbour", 100, initContainers=[first | memory(half)])
    eventually(lambda: teams.where("neighbour") == "n")
    eventually(lambda: teams.said("preempted") == 1)


def memory(amount: str) -> Json:
    """The resources of a container that requests this memory."""
    return {"resources": {"requests": {"memory": amount}}}


def test_a_pod_for_whose_cpu_kube_schedulers_sum_overflows_saves_no_debtor(teams: Teams) -> None:
    teams.node("n", cards=2)
    teams.deploy("trainers", replicas=2, percent=100)
    asked = {"resources": {"requests": {"cpu": "5P"}}}
    body = {"schedulerName": PROFILE, "containers": [{"name": n, "image": "x"} | asked for n in ("a", "b")]}
    teams.plane.api.call("POST", teams.pods_of("team-b"), {"metadata": {"name": "vast"}, "spec": body})
    eventually(lambda: teams.where("vast", "team-b") == "n")  # kube-scheduler counts it as nothing
    teams.make("team-a", "a1", 100)
    teams.waits("a1")

    teams.say("OVER_BUDGET")

    eventually(lambda: teams.where("a1") == "n")
    eventually(lambda: teams.said("preempted") == 1)


def test_who_takes_the_cpu_beside_free_cards_leaves_for_a_pod_that_then_fits_and_for_no_other(
    teams: Teams,
) -> None:
    teams.node("n", cards=2)  # and 64 CPUs
    teams.hog("hog", cpu=62)
    teams.make("team-a", "one-card", 100, containers=[beside_cards(100, cpu=8)])
    teams.waits("one-card")
    teams.polls(3)
    assert teams.said("hold") == 0  # the hog is in budget, and of equal priority

    teams.say("OVER_BUDGET")
    eventually(lambda: teams.where("one-card") == "n")
    eventually(lambda: teams.said("preempted") == 1)
    assert teams.of("team-b") == []
    teams.tidy(n=2)


def test_who_takes_the_cpu_stays_where_a_pod_without_gpus_would_still_take_too_much(teams: Teams) -> None:
    teams.node("n", cards=2)
    teams.hog("hog", cpu=30)
    without_gpu = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "30"}}}
    teams.make("team-b", "beside", 0, containers=[without_gpu])
    eventually(lambda: teams.where("beside", "team-b"))
    teams.say("OVER_BUDGET")
    teams.make("team-a", "too-large", 100, containers=[beside_cards(100, cpu=40)])
    teams.waits("too-large")
    teams.polls(4)
    assert teams.said("hold") == 0

    teams.make("team-a", "neighbour", 100, containers=[beside_cards(100, cpu=32)])
    eventually(lambda: teams.where("neighbour") == "n")
    eventually(lambda: teams.said("preempted") == 1)
    teams.tidy(n=2)


def test_the_cpu_of_an_evicted_pod_is_kept_from_a_pod_of_equal_priority_that_came_first(teams: Teams) -> None:
    teams.node("n", cards=2)
    teams.hog("hog", cpu=62)
    thief = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "60"}}}
    teams.make("team-a", "thief", 0, containers=[thief])
    teams.waits("thief")
    teams.make("team-a", "one-card", 100, containers=[beside_cards(100, cpu=8)])
    teams.waits("one-card")

    teams.say("OVER_BUDGET")

    eventually(lambda: teams.where("one-card") == "n")
    assert teams.where("thief") == ""


def beside_cards(percent: int, cpu: int, memory: str = "1Gi") -> Json:
    """A container that requests so many CPUs beside its cards."""
    limits = {"bursar.dev/gpu-percent": str(percent)}
    requests = {"cpu": str(cpu), "memory": memory}
    return {"name": "main", "image": "x", "resources": {"limits": limits, "requests": requests}}


def graces(teams: Teams) -> dict[str, int | None]:
    """The grace period of each deletion in team-b, in seconds."""
    found = teams.of("team-b")
    return {each["metadata"]["name"]: each["metadata"].get("deletionGracePeriodSeconds") for each in found}


def test_killed_between_reservation_and_eviction_it_goes_on_where_it_was(teams: Teams) -> None:
    teams.node("n", cards=2)
    teams.deploy("trainers", replicas=2, percent=100)
    teams.protect("trainers")
    teams.say("OVER_BUDGET")
    there = teams.running("team-b")
    teams.make("team-a", "a1", 100)
    eventually(lambda: teams.said("stays") >= 1)

    teams.extender.kill()
    assert teams.held("a1")
    assert teams.running("team-b") == there
    teams.unprotect("trainers")
    teams.extender.start_ready()

    eventually(lambda: teams.where("a1") == "n")
    teams.polls(3)
    eventually(lambda: teams.said("preempted") == 1)
    assert len(teams.running("team-b") & there) == 1
    teams.tidy(n=2)


def test_killed_right_after_an_eviction_it_evicts_no_further_pod(teams: Teams) -> None:
    fragmented(teams)
    teams.make("team-a", "high", 90, priorityClassName="high")
    eventually(lambda: teams.said("preempted") == 1)

    teams.extender.kill()
    teams.extender.start_ready()

    eventually(lambda: teams.where("high") == "n")
    teams.polls(3)
    eventually(lambda: teams.said("preempted") == 1)
    assert len(teams.running("team-b")) == 2
    teams.tidy(n=3)


def test_only_the_extender_reserves_cards_for_a_pod_and_others_may_remove_the_reservation(
    teams: Teams,
) -> None:
    teams.node("n", cards=2)
    teams.deploy("trainers", replicas=2, percent=100)
    teams.protect("trainers")
    teams.make("team-b", "forger", 100)
    teams.waits("forger", "team-b")
    hold = {"type": "bursar.dev/CardsHeld", "status": "True", "message": "{}"}
    assert "forged-hold" in teams.patch("forger", hold)
    assert teams.patch("forger", {"type": "example.com/other", "status": "True"}) == ""

    teams.say("OVER_BUDGET")
    teams.make("team-a", "a1", 100)
    eventually(lambda: teams.held("a1"))

    assert "forged-hold" in teams.patch("a1", hold, "team-a")
    assert teams.patch("a1", {"type": "example.com/other", "status": "True"}, "team-a") == ""
    assert teams.held("a1")
    assert teams.patch("a1", {"type": "bursar.dev/CardsHeld", "$patch": "delete"}, "team-a") == ""


DENIED = "the namespace has spent its GPU budget"


def test_pods_stockpiled_behind_gates_wait_while_the_grant_is_spent_under_deny(teams: Teams) -> None:
    teams.node("n", cards=2)
    for namespace in ("team-a", "team-b"):
        teams.make(namespace, "stock", 100, schedulingGates=[{"name": "example.com/later"}])
    teams.say("OVER_BUDGET", onExhausted="deny", spent=True)

    for namespace in ("team-a", "team-b"):
        path = f"{teams.pods_of(namespace)}/stock"
        teams.plane.api.call(
            "PATCH", path, {"spec": {"schedulingGates": None}}, "application/merge-patch+json"
        )

    eventually(lambda: teams.where("stock") == "n")  # its neighbour, in budget
    eventually(lambda: DENIED in str(teams._status("stock", "team-b").get("conditions")))
    filters = teams.filters()
    teams.polls(3)
    assert teams.filters() - filters < 5
    assert teams.where("stock", "team-b") == ""

    teams.say("IN_BUDGET", onExhausted="deny", spent=False)

    eventually(lambda: teams.where("stock", "team-b") == "n")
    teams.tidy(n=2)
