"""Making room on cards beside a real kube-scheduler and API server: what kube-scheduler cannot see is done by
the preemptor, with the rights that it has in a cluster, and no more than that."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from deploy.local.api import ApiError
from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import card_uuid, kwok_node
from deploy.local.kwok_stages import FAKE_NODE
from tests.scheduler_ext.clusters import PROFILE, World, scheduling
from tests.scheduler_ext.processes import ROOT, Process
from tests.scheduler_ext.readback import holds, taken
from tests.support.control_plane import create_namespace, kubectl
from tests.support.eviction_veto import SENTENCE, vetoed
from tests.support.scenes import Awaited, Lived, Part, Scene, alone, lived_by, scene
from tests.support.simulated_timekeeper import SimulatedTimekeeper, entry, standings
from tests.worlds import Json

pytestmark = pytest.mark.make_test("makes room for a pod")

PDB_GRACE_S = 4
CLASSES = {"high": (1000, "PreemptLowerPriority"), "first": (2000, "Never"), "over": (-5, "Never")}


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
    with scheduling(plane, tmp_path_factory.mktemp("extender"), *timekeeper.flags) as process:
        yield process


@pytest.fixture(scope="module")
def scenes(request: pytest.FixtureRequest, plane: ControlPlane) -> dict[str, Lived]:
    """The module's scenes, lived together."""
    return lived_by(request, plane.check)


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane, extender: Process, timekeeper: SimulatedTimekeeper) -> "Cluster":
    """Where each scene has its teams."""
    return Cluster(plane, extender, timekeeper)


GOVERNED = {"bursar.dev/governed": "true"}


class Cluster:
    """The real cluster, and a timekeeper that says what each scene has told it."""

    def __init__(self, plane: ControlPlane, extender: Process, timekeeper: SimulatedTimekeeper) -> None:
        self.plane, self.extender, self.timekeeper = plane, extender, timekeeper
        self.numbers = itertools.count()
        self._entries: dict[str, Json] = {}
        self._revision = 0

    def teams(self) -> Part:
        """New ones, both within their budgets."""
        teams = Teams(self)
        yield teams.say("IN_BUDGET")
        return teams

    def say(self, **entries: Json) -> None:
        """What the timekeeper says of these namespaces from now on; of others, what it has said."""
        self._entries |= entries
        self._revision += 1
        settings = {"pdbGraceMs": 1000 * PDB_GRACE_S}
        self.timekeeper.document = standings(settings, str(self._revision), **self._entries)


class Teams(World):
    """Two namespaces with nodes of their own: team-a, which is in budget, and team-b, whose standing the test
    says. The cluster has other names for all of them in each test."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster.plane, cluster.extender)
        self._cluster = cluster
        self._number = next(cluster.numbers)
        for namespace in ("team-a", "team-b"):
            create_namespace(self.plane, self.own(namespace))

    def own(self, name: str) -> str:
        """The cluster's name for a namespace or a node."""
        return f"{name}-{self._number}"

    def pods_of(self, namespace: str) -> str:
        """The path of its pods."""
        return f"/api/v1/namespaces/{self.own(namespace)}/pods"

    def say(self, standing: str, **fields: Any) -> Awaited:
        """How team-b stands from now on; until the extender has heard it."""
        self._cluster.say(
            **{
                self.own("team-a"): entry("IN_BUDGET", onExhausted="reclaim"),
                self.own("team-b"): entry(standing, **{"onExhausted": "reclaim"} | fields),
            }
        )
        return self.polls(2)

    def polls(self, times: int) -> Awaited:
        """So many more polls of the timekeeper, one a second, have been answered."""
        answered = self._cluster.timekeeper.answered
        goal = len(answered) + times
        return f"{times} polls", lambda: len(answered) >= goal

    def node(self, name: str, cards: int, memory_mib: int = 16_000, **fields: Any) -> None:
        """A node for its pods alone; it has this name in the cluster, with the number of the test."""
        super().node(self.own(name), cards, memory_mib, labels={"of": self.own("teams")}, **fields)

    def spec(self, percent: int) -> Json:
        """Of a pod with one GPU container, for its own nodes."""
        resources = {"limits": {"bursar.dev/gpu-percent": str(percent)}}
        return {
            "schedulerName": PROFILE,
            "terminationGracePeriodSeconds": 1,
            "nodeSelector": {"of": self.own("teams")},
            "containers": [{"name": "main", "image": "x", "resources": resources}],
        }

    def make(self, namespace: str, name: str, percent: int, **fields: Any) -> None:
        """A pod of our profile."""
        metadata = {"name": name, "labels": GOVERNED}
        body = {"metadata": metadata, "spec": self.spec(percent) | {"restartPolicy": "Never"} | fields}
        self.plane.api.call("POST", self.pods_of(namespace), body)

    def hog(self, name: str, cpu: int, memory: str = "1Gi") -> Awaited:
        """A pod of team-b with 1 % of a card and so much beside it; until it is bound."""
        self.make("team-b", name, 1, containers=[beside_cards(1, cpu, memory)])
        return self.is_bound(name, "team-b")

    def deploy(self, name: str, replicas: int, percent: int) -> Awaited:
        """A Deployment in team-b; until all of its pods are bound."""
        labels = {"app": name}
        body = {
            "metadata": {"name": name},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": GOVERNED | labels}, "spec": self.spec(percent)},
            },
        }
        self.plane.api.call("POST", f"/apis/apps/v1/namespaces/{self.own('team-b')}/deployments", body)
        return "the Deployment's pods", lambda: len(self.running("team-b")) == replicas

    def protect(self, name: str) -> Awaited:
        """A PodDisruptionBudget of team-b that lets none of a Deployment's pods go; until it does so."""
        body = {
            "metadata": {"name": name},
            "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": name}}},
        }
        path = self._budgets()
        self.plane.api.call("POST", path, body)
        budget = f"{path}/{name}"
        return "the budget", lambda: self.plane.api.call("GET", budget).get("status", {}).get("expectedPods")

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

    def is_bound(self, name: str, namespace: str = "team-a") -> Awaited:
        """The pod has a node."""
        return f"a node for {name}", lambda: self.where(name, namespace)

    def waits(self, name: str, namespace: str = "team-a") -> Awaited:
        """kube-scheduler has tried the pod without success."""
        return f"{name} to be refused", lambda: "Unschedulable" in str(self.conditions(name, namespace))

    def held(self, name: str, namespace: str = "team-a") -> bool:
        """Whether the pod's object says that cards are held for it."""
        conditions = self.conditions(name, namespace)
        return any(each["type"] == "bursar.dev/CardsHeld" and each["status"] == "True" for each in conditions)

    def conditions(self, name: str, namespace: str = "team-a") -> list[Json]:
        """Those of the pod."""
        status: Json = self.plane.api.call("GET", f"{self.pods_of(namespace)}/{name}")["status"]
        return list(status.get("conditions", []))

    def patch(self, name: str, condition: Json, namespace: str = "team-b") -> str:
        """What an administrator is told who patches a condition of the pod; "" where it is done."""
        path = f"{self.pods_of(namespace)}/{name}/status"
        body = {"status": {"conditions": [condition]}}
        try:
            self.plane.api.call("PATCH", path, body, "application/strategic-merge-patch+json")
        except ApiError as error:
            return str(error)
        return ""

    def said(self, event: str) -> list[str]:
        """The extender's lines of this event about pods of the two."""
        own = tuple(f" pod={self.own(namespace)}/" for namespace in ("team-a", "team-b"))
        lines = self.extender.said().splitlines()
        return [line for line in lines if f" event={event} " in line and any(name in line for name in own)]

    def filters(self) -> int:
        """How often the extender was asked to filter for them."""
        return len(self.said("filter"))

    def has_preempted(self, times: int) -> Awaited:
        """The extender has said so often that a pod has left."""
        return f"{times} to have left", lambda: len(self.said("preempted")) == times

    def tidy(self, **nodes: int) -> None:
        """The objects alone: no card has more on it than there is."""
        total = taken(pod for pod in self.pods() if holds(pod))
        cards = {card_uuid(self.own(name), at) for name, count in nodes.items() for at in range(count)}
        assert total.keys() <= cards
        assert all(share <= 1000 and memory <= 16_000 for share, memory in total.values()), total


def fragmented(teams: Teams) -> Scene:
    """Three cards, on each of which a pod of low priority leaves too little."""
    teams.node("n", cards=3)
    for name in ("x", "y", "z"):
        teams.make("team-b", name, 65)
        yield teams.is_bound(name, "team-b")


@alone
def test_where_the_sums_fit_and_no_card_does_one_pod_leaves_and_no_other_takes_its_card(
    cluster: Cluster,
) -> Scene:
    teams = yield from cluster.teams()
    yield from fragmented(teams)
    for at in range(3):
        teams.make("team-a", f"thief{at}", 60, priorityClassName="first")
        yield teams.waits(f"thief{at}")
    filters = teams.filters()

    teams.make("team-a", "high", 90, priorityClassName="high")

    yield teams.is_bound("high")
    assert len(teams.running("team-b")) == 2
    yield teams.has_preempted(1)
    assert [teams.where(f"thief{at}") for at in range(3)] == ["", "", ""]
    yield teams.polls(3)
    yield teams.has_preempted(1)
    assert not teams.held("high") or teams.where("high") == teams.own("n")
    assert teams.filters() - filters < 40
    events = teams.plane.api.call("GET", f"/api/v1/namespaces/{teams.own('team-b')}/events")["items"]
    assert "Preempted" in [each["reason"] for each in events]
    teams.tidy(n=3)


@scene
def test_a_namespace_that_goes_over_budget_gives_its_cards_to_one_that_has_budget_left(
    cluster: Cluster,
) -> Scene:
    teams = yield from cluster.teams()
    teams.node("n1", cards=2)
    teams.node("n2", cards=2)
    yield teams.deploy("trainers", replicas=4, percent=100)
    for name in ("a1", "a2"):
        teams.make("team-a", name, 100)
        yield teams.waits(name)
    yield teams.polls(3)
    assert teams.said("preempted") == []

    yield teams.say("OVER_BUDGET")

    yield teams.is_bound("a1")
    yield teams.is_bound("a2")
    yield teams.polls(4)  # the Deployment has made others in their place, which wait
    assert len(teams.of("team-b")) == 4
    assert len(teams.running("team-b")) == 2
    yield teams.has_preempted(2)
    teams.tidy(n1=2, n2=2)


@scene
def test_one_that_is_back_in_budget_is_spared_and_takes_nothing_back(cluster: Cluster) -> Scene:
    teams = yield from cluster.teams()
    teams.node("n", cards=2)
    yield teams.deploy("trainers", replicas=2, percent=100)
    yield teams.say("OVER_BUDGET")
    teams.make("team-a", "a1", 100)
    yield teams.is_bound("a1")
    there = teams.running("team-b")

    yield teams.say("IN_BUDGET")
    teams.make("team-a", "a2", 100)
    yield teams.waits("a2")
    yield teams.polls(4)

    assert teams.running("team-b") == there
    assert teams.where("a2") == ""
    yield teams.has_preempted(1)
    teams.tidy(n=2)


@alone
def test_a_pod_disruption_budget_is_honoured_and_then_no_longer(cluster: Cluster) -> Scene:
    teams = yield from cluster.teams()
    teams.node("n", cards=2)
    yield teams.deploy("trainers", replicas=2, percent=100)
    yield teams.protect("trainers")
    there = teams.running("team-b")
    yield teams.say("OVER_BUDGET")
    teams.make("team-a", "a1", 100)
    yield "cards to be held", lambda: teams.held("a1")
    filters = teams.filters()

    yield "an eviction to be refused again", lambda: len(teams.said("stays")) >= 2
    assert teams.running("team-b") == there
    assert teams.said("preempted") == []
    yield teams.is_bound("a1")
    assert teams.filters() - filters < 20
    yield teams.has_preempted(1)
    assert "how=deleted" in str(teams.said("preempted"))
    assert len(teams.running("team-b") & there) == 1
    teams.tidy(n=2)


@alone
def test_a_webhook_that_refuses_stands_and_one_that_refuses_for_now_is_a_disruption_budget(
    cluster: Cluster,
) -> Scene:
    teams = yield from cluster.teams()
    teams.node("n", cards=1)
    yield teams.deploy("trainers", replicas=1, percent=100)
    there = teams.running("team-b")
    pods = teams.pods_of("team-b")
    with TemporaryDirectory() as folder, vetoed(cluster.plane, Path(folder), 403, pods) as veto:
        yield teams.say("OVER_BUDGET")
        teams.make("team-a", "a1", 100)
        events = f"/apis/events.k8s.io/v1/namespaces/{teams.own('team-b')}/events"
        (event,) = yield (
            "the Event",
            lambda: [
                event
                for event in cluster.plane.api.call("GET", events)["items"]
                if event["reason"] == "EvictionRefused"
            ],
        )
        assert SENTENCE in event["note"]
        assert len(veto.asked) == 1
        yield teams.polls(3)
        assert (len(veto.asked), teams.running("team-b")) == (1, there)

        veto.code = 429  # asked again after the pause
        yield teams.is_bound("a1")
        assert len(veto.asked) >= 2
    yield teams.has_preempted(1)
    assert "how=deleted" in str(teams.said("preempted"))
    teams.tidy(n=1)


@scene
def test_a_debtor_that_deletes_itself_with_a_long_grace_period_gets_that_of_an_eviction(
    cluster: Cluster,
) -> Scene:
    teams = yield from cluster.teams()
    labels = {"of": teams.own("teams")}
    kubelets = kwok_node(teams.own("of-kubelet"), cards=2, memory_mib=16_000, labels=labels)
    kubelets["metadata"]["annotations"].pop(FAKE_NODE.partition("=")[0])  # nothing ends a pod there
    teams.plane.api.call("POST", "/api/v1/nodes", kubelets)
    anywhere = [{"operator": "Exists"}]  # without a kubelet the node is not ready
    path, names = teams.pods_of("team-b"), ("debtor", "neighbour")
    for name in names:
        teams.make("team-b", name, 100, terminationGracePeriodSeconds=60, tolerations=anywhere)
        yield teams.is_bound(name, "team-b")
    teams.plane.api.call("DELETE", f"{path}/debtor?gracePeriodSeconds=1000000")
    teams.make("team-a", "a1", 100, tolerations=anywhere)
    yield teams.waits("a1")
    yield teams.polls(3)
    before = graces(teams)

    yield teams.say("OVER_BUDGET")
    yield "one to have left", lambda: teams.said("preempted")
    after = graces(teams)
    for name in names:
        teams.plane.api.call("DELETE", f"{path}/{name}?gracePeriodSeconds=0")

    assert before == {"debtor": 1_000_000, "neighbour": None}  # in budget it may
    assert after == {"debtor": 60, "neighbour": None}
    yield teams.has_preempted(1)
    assert "how=shortened" in str(teams.said("preempted"))
    assert teams.held("a1")


@scene
def test_no_debtor_is_evicted_for_a_pod_that_can_run_nowhere_and_one_is_for_its_neighbour(
    cluster: Cluster,
) -> Scene:
    teams = yield from cluster.teams()
    teams.node("n", cards=2)
    yield teams.deploy("trainers", replicas=2, percent=100)
    nowhere = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"no": "pod"}}}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [nowhere]}
    for name in ("impossible", "renewed"):
        teams.make("team-a", name, 100, affinity={"podAffinity": required})
        yield teams.waits(name)
    there = teams.running("team-b")

    yield teams.say("OVER_BUDGET")
    yield teams.polls(4)
    assert teams.running("team-b") == there
    assert teams.said("hold") == []

    teams.make("team-a", "neighbour", 100)
    yield teams.is_bound("neighbour")
    yield teams.has_preempted(1)
    assert not teams.held("impossible")
    teams.tidy(n=2)


@scene
def test_no_debtor_is_evicted_for_a_pod_of_more_memory_than_there_is_however_it_is_written(
    cluster: Cluster,
) -> Scene:
    teams = yield from cluster.teams()
    teams.node("n", cards=2)
    total = teams.plane.api.call("GET", f"/api/v1/nodes/{teams.own('n')}")["status"]["allocatable"]["memory"]
    yield teams.deploy("trainers", replicas=2, percent=100)
    there = teams.running("team-b")
    beside = {"name": "beside", "image": "x", "restartPolicy": "Always"}
    first = {"name": "first", "image": "x"}
    half = f"{int(total.removesuffix('Gi')) // 2 + 1}Gi"
    for name, listed in {
        "vast": [first | memory("9Pi")],
        "in-parts": [beside | memory(half), first | memory(half)],
    }.items():
        teams.make("team-a", name, 100, initContainers=listed)
        yield teams.waits(name)

    yield teams.say("OVER_BUDGET")
    yield teams.polls(4)
    assert teams.running("team-b") == there
    assert teams.said("hold") == []

    teams.make("team-a", "neighbour", 100, initContainers=[first | memory(half)])
    yield teams.is_bound("neighbour")
    yield teams.has_preempted(1)


def memory(amount: str) -> Json:
    """The resources of a container that requests this memory."""
    return {"resources": {"requests": {"memory": amount}}}


@scene
def test_a_pod_for_whose_cpu_kube_schedulers_sum_overflows_saves_no_debtor(cluster: Cluster) -> Scene:
    teams = yield from cluster.teams()
    teams.node("n", cards=2)
    yield teams.deploy("trainers", replicas=2, percent=100)
    asked = {"resources": {"requests": {"cpu": "5P"}}}
    spec = teams.spec(0) | {"containers": [{"name": name, "image": "x"} | asked for name in ("a", "b")]}
    teams.plane.api.call("POST", teams.pods_of("team-b"), {"metadata": {"name": "vast"}, "spec": spec})
    yield teams.is_bound("vast", "team-b")  # kube-scheduler counts it as nothing
    teams.make("team-a", "a1", 100)
    yield teams.waits("a1")

    yield teams.say("OVER_BUDGET")

    yield teams.is_bound("a1")
    yield teams.has_preempted(1)


@scene
def test_who_takes_the_cpu_beside_free_cards_leaves_for_a_pod_that_then_fits_and_for_no_other(
    cluster: Cluster,
) -> Scene:
    teams = yield from cluster.teams()
    teams.node("n", cards=2)  # and 64 CPUs
    yield teams.hog("hog", cpu=62)
    teams.make("team-a", "one-card", 100, containers=[beside_cards(100, cpu=8)])
    yield teams.waits("one-card")
    yield teams.polls(3)
    assert teams.said("hold") == []  # the hog is in budget, and of equal priority

    yield teams.say("OVER_BUDGET")
    yield teams.is_bound("one-card")
    yield teams.has_preempted(1)
    assert teams.of("team-b") == []
    teams.tidy(n=2)


@scene
def test_who_takes_the_cpu_stays_where_a_pod_without_gpus_would_still_take_too_much(
    cluster: Cluster,
) -> Scene:
    teams = yield from cluster.teams()
    teams.node("n", cards=2)
    yield teams.hog("hog", cpu=30)
    without_gpu = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "30"}}}
    teams.make("team-b", "beside", 0, containers=[without_gpu])
    yield teams.is_bound("beside", "team-b")
    yield teams.say("OVER_BUDGET")
    teams.make("team-a", "too-large", 100, containers=[beside_cards(100, cpu=40)])
    yield teams.waits("too-large")
    yield teams.polls(4)
    assert teams.said("hold") == []

    teams.make("team-a", "neighbour", 100, containers=[beside_cards(100, cpu=32)])
    yield teams.is_bound("neighbour")
    yield teams.has_preempted(1)
    teams.tidy(n=2)


@alone
def test_the_cpu_of_an_evicted_pod_is_kept_from_a_pod_of_equal_priority_that_came_first(
    cluster: Cluster,
) -> Scene:
    teams = yield from cluster.teams()
    teams.node("n", cards=2)
    yield teams.hog("hog", cpu=62)
    thief = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "60"}}}
    teams.make("team-a", "thief", 0, containers=[thief])
    yield teams.waits("thief")
    teams.make("team-a", "one-card", 100, containers=[beside_cards(100, cpu=8)])
    yield teams.waits("one-card")

    yield teams.say("OVER_BUDGET")

    yield teams.is_bound("one-card")
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


@alone
def test_killed_between_reservation_and_eviction_it_goes_on_where_it_was(cluster: Cluster) -> Scene:
    teams = yield from cluster.teams()
    teams.node("n", cards=2)
    yield teams.deploy("trainers", replicas=2, percent=100)
    yield teams.protect("trainers")
    yield teams.say("OVER_BUDGET")
    there = teams.running("team-b")
    teams.make("team-a", "a1", 100)
    yield "an eviction to be refused", lambda: teams.said("stays")

    teams.extender.kill()
    assert teams.held("a1")
    assert teams.running("team-b") == there
    teams.unprotect("trainers")
    teams.extender.start_ready()

    yield teams.is_bound("a1")
    yield teams.polls(3)
    yield teams.has_preempted(1)
    assert len(teams.running("team-b") & there) == 1
    teams.tidy(n=2)


@alone
def test_killed_right_after_an_eviction_it_evicts_no_further_pod(cluster: Cluster) -> Scene:
    teams = yield from cluster.teams()
    yield from fragmented(teams)
    teams.make("team-a", "high", 90, priorityClassName="high")
    yield teams.has_preempted(1)

    teams.extender.kill()
    teams.extender.start_ready()

    yield teams.is_bound("high")
    yield teams.polls(3)
    yield teams.has_preempted(1)
    assert len(teams.running("team-b")) == 2
    teams.tidy(n=3)


@scene
def test_only_the_extender_reserves_cards_for_a_pod_and_others_may_remove_the_reservation(
    cluster: Cluster,
) -> Scene:
    teams = yield from cluster.teams()
    teams.node("n", cards=2)
    yield teams.deploy("trainers", replicas=2, percent=100)
    yield teams.protect("trainers")
    teams.make("team-b", "forger", 100)
    yield teams.waits("forger", "team-b")
    hold = {"type": "bursar.dev/CardsHeld", "status": "True", "message": "{}"}
    assert "forged-hold" in teams.patch("forger", hold)
    assert teams.patch("forger", {"type": "example.com/other", "status": "True"}) == ""

    yield teams.say("OVER_BUDGET")
    teams.make("team-a", "a1", 100)
    yield "cards to be held", lambda: teams.held("a1")

    assert "forged-hold" in teams.patch("a1", hold, "team-a")
    assert teams.patch("a1", {"type": "example.com/other", "status": "True"}, "team-a") == ""
    assert teams.held("a1")
    assert teams.patch("a1", {"type": "bursar.dev/CardsHeld", "$patch": "delete"}, "team-a") == ""


DENIED = "has spent its GPU budget"


@alone
def test_pods_stockpiled_behind_gates_wait_while_the_grant_is_spent_under_deny(cluster: Cluster) -> Scene:
    teams = yield from cluster.teams()
    teams.node("n", cards=2)
    for namespace in ("team-a", "team-b"):
        teams.make(namespace, "stock", 100, schedulingGates=[{"name": "example.com/later"}])
    yield teams.say("OVER_BUDGET", onExhausted="deny", spent=True)

    for namespace in ("team-a", "team-b"):
        path = f"{teams.pods_of(namespace)}/stock"
        teams.plane.api.call(
            "PATCH", path, {"spec": {"schedulingGates": None}}, "application/merge-patch+json"
        )

    yield teams.is_bound("stock")  # its neighbour, in budget
    yield "the other to be refused", lambda: DENIED in str(teams.conditions("stock", "team-b"))
    filters = teams.filters()
    yield teams.polls(3)
    assert teams.filters() - filters < 5
    assert teams.where("stock", "team-b") == ""

    yield teams.say("IN_BUDGET", onExhausted="deny", spent=False)

    yield teams.is_bound("stock", "team-b")
    teams.tidy(n=2)
