"""Evictions for overuse by a real API server: the manifests' own rights, real PodDisruptionBudgets, pods that
go."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from tests.deploy.reading import NAMESPACE, the
from tests.support.clock import Clock
from tests.support.control_plane import create_namespace
from tests.support.events import UnqueuedRecorder
from tests.support.eviction_veto import SENTENCE, vetoed
from tests.support.waiting import eventually
from tests.timekeeper.worlds import HOUR, MINUTE, Json, Town, agent_status, budgets, node, token
from timekeeper.edge.clock import now_ms
from timekeeper.edge.log import log
from timekeeper.runtime.api_server import event_sender
from timekeeper.runtime.connect import connect
from timekeeper.settler import vetoes
from timekeeper.settler.evictions.budget_round import BudgetRound
from timekeeper.settler.evictions.calls import EvictorContext, evict, result_of
from timekeeper.settler.evictions.disruptions import over_budget
from timekeeper.settler.evictions.reasons import (
    NOTICE,
    OVERUSE_PROTECTED,
    OVERUSED,
    SPENT,
    SPENT_PROTECTED,
    VETOED,
)
from timekeeper.settler.evictions.rounds import IdleRound, OveruseRound
from timekeeper.settler.process import REPORTER

pytestmark = pytest.mark.make_test("evicts who is over budget, idle or overtime")

PODS = "/api/v1/namespaces/team-a/pods"
PDBS = "/apis/policy/v1/namespaces/team-a/poddisruptionbudgets"
CARD = {"uuid": "GPU-0", "index": 0, "share_milli": 500, "memory_mib": 8_000}


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> ControlPlane:
    """The timekeeper's account with the rights that the manifests give it, a node, and users' namespace."""
    api = control_plane.api
    for name in (NAMESPACE, "team-a"):
        create_namespace(control_plane, name)
    account = the("ServiceAccount", "bursar-timekeeper")
    api.call("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", account)
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    api.call("POST", f"{rbac}/clusterroles", the("ClusterRole", "bursar-timekeeper"))
    api.call("POST", f"{rbac}/clusterrolebindings", the("ClusterRoleBinding", "bursar-timekeeper"))
    api.call("POST", "/api/v1/nodes", kwok_node("n1", cards=1))
    return control_plane


class Users:
    """Pods of team-a on a kwok node, a timekeeper that has heard of them, and its evictor."""

    def __init__(self, cluster: ControlPlane, town: Town) -> None:
        self.cluster, self.town = cluster, town
        self._sequence = 0
        self._agent = token("agent-n1", expiry_ms=town.clock() + 2 * HOUR)
        town.reviews.tokens[self._agent] = agent_status()
        town.begin(("nodes", node()), ("configmaps", budgets(_settings="overuse: evict\noveruseGrace: 1m")))
        made = cluster.kubectl("create", "token", "bursar-timekeeper", "-n", NAMESPACE, "--duration=1h")
        file = cluster.kubeconfig(made.stdout.strip(), "timekeeper")
        settler = town.settler
        api = connect(file)
        events = UnqueuedRecorder(event_sender(api), REPORTER, settler.epoch.holder, town.clock, log)
        shared = (town.store, settler.epoch, api, events, lambda: settler.view, town.clock, town.clock)
        self.evictor = OveruseRound(EvictorContext(*shared))

    def run(self, name: str, annotations: Json | None = None, **labels: str) -> Json:
        """A pod that runs with half of a card, and that the timekeeper has heard of."""
        limits = {"bursar.dev/gpu-percent": "50"}
        devices = json.dumps({"version": 1, "containers": {"main": [CARD]}})
        body = {
            "metadata": {
                "name": name,
                "labels": {"app": name, **labels},
                "annotations": {"bursar.dev/devices": devices, "bursar.dev/standing": "IN_BUDGET"}
                | (annotations or {}),
            },
            "spec": {
                "nodeName": "n1",
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "main", "image": "example", "resources": {"limits": limits}}],
            },
        }
        self._call("POST", PODS, body)
        eventually(lambda: self.pod(name)["status"].get("phase") == "Running")
        self.hear(name)
        return self.pod(name)

    def hear(self, name: str) -> None:
        """The settler hears the pod as it is now, and ticks."""
        self.town.hear("pods", self.pod(name))
        self.town.tick()

    def pod(self, name: str) -> Json:
        found: Json = self._call("GET", f"{PODS}/{name}")
        return found

    def is_gone(self, uid: str) -> bool:
        """Whether no pod of this UID is there any more."""
        return uid not in [each["metadata"]["uid"] for each in self._call("GET", PODS)["items"]]

    def overuse(self, *uids: str) -> None:
        """The node's agent tells of a minute of overuse."""
        for _ in range(5):
            self.town.clock.turn(MINUTE // 4)
            self._sequence += 1
            pods = [
                {"uid": uid, "cards": [{"uuid": "GPU-0", "utilisation": 0, "memory_mib": 9_000}]}
                for uid in uids
            ]
            uses = [{"age_ms": 0, "pods": pods, "cards": []}]
            body = {"version": 1, "boot": "run", "sequence": self._sequence, "uses": uses}
            assert self.town.post("/v1/nodeusage", body, self._agent).status_code == 200

    def rest(self, uid: str, minutes: int) -> None:
        """The node's agent tells of this time without use of the card."""
        for _ in range(minutes):
            self.town.clock.turn(MINUTE)
            self._sequence += 1
            use = {"uuid": "GPU-0", "utilisation": 0, "memory_mib": 9}
            uses = [{"age_ms": 0, "pods": [{"uid": uid, "cards": [use]}], "cards": []}]
            body = {"version": 1, "boot": "run", "sequence": self._sequence, "uses": uses}
            assert self.town.post("/v1/nodeusage", body, self._agent).status_code == 200

    def is_going(self, name: str) -> bool:
        """Whether the pod is being deleted."""
        return "deletionTimestamp" in self.pod(name)["metadata"]

    def protect(self, name: str, labels: Json | None = None, healthy: int = 1) -> None:
        """A PodDisruptionBudget that needs the pod of this name, or one of those with these labels."""
        selector = {"matchLabels": labels or {"app": name}}
        self._call(
            "POST", PDBS, {"metadata": {"name": name}, "spec": {"minAvailable": 1, "selector": selector}}
        )
        eventually(
            lambda: self._call("GET", f"{PDBS}/{name}").get("status", {}).get("currentHealthy") == healthy
        )

    def unprotect(self, name: str) -> None:
        """Without it again."""
        self._call("DELETE", f"{PDBS}/{name}")

    def events(self, uid: str) -> list[Json]:
        """Bursar's Events about the pod."""
        items = self._call("GET", "/apis/events.k8s.io/v1/namespaces/team-a/events")["items"]
        return [
            each
            for each in items
            if each["regarding"].get("uid") == uid
            and each.get("reportingController") == "bursar.dev/timekeeper"
        ]

    def clear(self) -> None:
        """Without the pods."""
        self._call("DELETE", f"{PODS}?gracePeriodSeconds=0")
        eventually(lambda: not self._call("GET", PODS)["items"])

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        return self.cluster.api.call(method, path, body)


@pytest.fixture
def users(cluster: ControlPlane, database_url: str) -> Iterator[Users]:
    town = Town(database_url, Clock(now_ms()))
    users = Users(cluster, town)
    yield users
    users.clear()
    town.close()


def attempts(result: str) -> float:
    return REGISTRY.get_sample_value("bursar_overuse_evictions_total", {"result": result}) or 0


def test_a_pod_over_its_share_goes_and_its_event_shows_why(users: Users) -> None:
    uid = users.run("greedy")["metadata"]["uid"]
    other = users.run("other")["metadata"]["uid"]
    before = attempts("evicted")

    users.overuse(uid)
    assert users.evictor.step()

    eventually(lambda: users.is_gone(uid))
    assert attempts("evicted") == before + 1
    assert not users.is_gone(other)
    (event,) = users.events(uid)
    assert (event["reason"], event["type"]) == (OVERUSED, "Warning")
    assert "now 9000 MiB of GPU-0 (share 8000 MiB); overuseGrace is 60s" in event["note"]
    described = users.cluster.kubectl(
        "get", "events", "-n", "team-a", "--field-selector", f"involvedObject.uid={uid}"
    )
    assert OVERUSED in described.stdout


def test_a_disruption_budget_keeps_the_pod_until_it_is_gone(users: Users) -> None:
    uid = users.run("kept")["metadata"]["uid"]
    users.protect("kept")
    before = attempts("protected")

    users.overuse(uid)
    assert users.evictor.step()

    assert attempts("protected") == before + 1
    assert "deletionTimestamp" not in users.pod("kept")["metadata"]
    assert [each["reason"] for each in users.events(uid)] == [OVERUSE_PROTECTED]
    users.unprotect("kept")
    users.overuse(uid)
    assert users.evictor.step()
    eventually(lambda: users.is_gone(uid))


def test_a_disruption_budget_allows_each_of_two_pods_and_not_both(users: Users) -> None:
    """By the timekeeper's own rights; a budget that selects neither changes nothing."""
    pods = []
    for name in ("one", "two"):
        uid = users.run(name, both="yes")["metadata"]["uid"]
        pods.append(users.town.settler.cluster.pods[uid])
    users.run("other")
    users.protect("other")
    api = users.evictor._context.api
    assert over_budget(api, pods) is None

    users.protect("both", {"both": "yes"}, healthy=2)

    found = over_budget(api, pods)
    assert found is not None
    assert found[:2] == (pods[1].uid, "protected")
    assert [result_of(evict(api, each, dry_run=True))[0] for each in pods] == ["evicted"] * 2
    assert not any("deletionTimestamp" in users.pod(name)["metadata"] for name in ("one", "two"))
    users.unprotect("both")
    users.unprotect("other")


def test_a_pod_of_the_same_name_that_came_meanwhile_stays(users: Users) -> None:
    old = users.run("twin")["metadata"]["uid"]
    users.overuse(old)
    users.cluster.api.call("DELETE", f"{PODS}/twin?gracePeriodSeconds=0")
    eventually(lambda: users.is_gone(old))
    users.run("twin")  # the watch tells of it before it tells of the old one's end
    before = attempts("gone")

    users.overuse(old)
    assert users.evictor.step()

    assert attempts("gone") == before + 1
    assert "deletionTimestamp" not in users.pod("twin")["metadata"]
    assert users.events(old) == []


def test_a_gang_whose_budget_is_spent_leaves_in_one_round_and_a_disruption_budget_for_one_keeps_all(
    users: Users,
) -> None:
    gang = {"bursar.dev/held": "budget", "bursar.dev/gang": "g", "bursar.dev/gang-size": "3"}
    uids = [users.run(name, gang)["metadata"]["uid"] for name in ("g-0", "g-1", "g-2")]
    users.protect("g-1")
    settings = "lookahead: 0s\nevictGrace: 1m"
    spent = budgets(_settings=settings, team_a="gpuHours: 1\nperiod: once\nonExhausted: evict")
    users.town.hear("configmaps", spent)
    evictor = BudgetRound(users.evictor._context)
    users.town.advance(3 * HOUR)
    evictor.step()
    for name in ("g-0", "g-1", "g-2"):
        users.hear(name)  # with its notice

    users.town.advance(2 * MINUTE)
    evictor.step()
    assert not any("deletionTimestamp" in users.pod(name)["metadata"] for name in ("g-0", "g-1", "g-2"))
    assert {each["reason"] for each in users.events(uids[1])} == {NOTICE, SPENT_PROTECTED}
    users.unprotect("g-1")
    users.town.advance(MINUTE)
    evictor.step()

    eventually(lambda: all(map(users.is_gone, uids)))
    assert all(SPENT in [each["reason"] for each in users.events(uid)] for uid in uids)


def spent(users: Users, name: str) -> BudgetRound:
    """The evictor of a pod whose notice is over."""
    settings = "lookahead: 0s\nevictGrace: 1m\npdbGrace: 2m"
    entry = "gpuHours: 1\nperiod: once\nonExhausted: evict"  # three hours may reach into the next month
    users.town.hear("configmaps", budgets(_settings=settings, team_a=entry))
    evictor = BudgetRound(users.evictor._context)
    users.town.advance(3 * HOUR)
    evictor.step()
    users.hear(name)
    users.town.advance(2 * MINUTE)
    return evictor


def said(users: Users, uid: str) -> dict[str, str]:
    """Reason -> note of the pod's Events."""
    return {event["reason"]: event["note"] for event in users.events(uid)}


def test_a_webhook_that_refuses_for_now_is_overruled_after_the_grace_of_disruption_budgets(
    users: Users, tmp_path: Path
) -> None:
    uid = users.run("machine")["metadata"]["uid"]
    evictor = spent(users, "machine")
    with vetoed(users.cluster, tmp_path, 429, PODS) as veto:
        evictor.step()

        assert veto.asked == ["machine"]
        assert not users.is_going("machine")
        notes = said(users, uid)
        assert SENTENCE in notes[VETOED]
        assert notes[SPENT_PROTECTED].startswith("A webhook prevents the eviction")
        users.hear("machine")
        users.town.advance(3 * MINUTE)
        evictor.step()

        eventually(lambda: users.is_gone(uid))


def test_what_refuses_for_good_stands_and_is_asked_ever_more_rarely(users: Users, tmp_path: Path) -> None:
    uid = users.run("kept")["metadata"]["uid"]
    evictor = spent(users, "kept")
    asked = []
    with vetoed(users.cluster, tmp_path, 403, PODS) as veto:
        for _ in range(2):
            del veto.asked[:]
            for _ in range(20):
                evictor.step()
                users.town.advance(MINUTE)
            asked.append(len(veto.asked))

    assert asked[0] > asked[1] >= 1
    assert not users.is_going("kept")
    notes = said(users, uid)
    assert SENTENCE in notes[VETOED]
    assert SPENT_PROTECTED not in notes
    settler = users.town.settler
    (found,) = vetoes.findings(evictor._context.vetoes, settler.view.charged, users.town.clock())
    assert (found.code, found.figures["where"]) == ("vetoed-evictions", "team-a/kept")
    assert SENTENCE in str(found.figures["why"])


@pytest.mark.parametrize("code", [429, 403])
def test_a_veto_counts_alike_for_pods_that_overuse_or_are_idle(
    users: Users, tmp_path: Path, code: int
) -> None:
    uid = users.run("machine")["metadata"]["uid"]
    idle = "idle: evict\nidleAfter: 10m\nidleGrace: 5m\nidleBelow: 0.05\noveruse: evict\noveruseGrace: 1m"
    users.town.hear("configmaps", budgets(_settings=idle, team_a="gpuHours: 100"))
    evictor = IdleRound(users.evictor._context)
    with vetoed(users.cluster, tmp_path, code, PODS) as veto:
        users.overuse(uid)
        users.evictor.step()
        assert (veto.asked, users.is_going("machine")) == (["machine"], False)
        assert SENTENCE in said(users, uid)[VETOED]

        for _ in range(4):
            users.rest(uid, 6)
            users.town.tick()
            evictor.step()
            users.hear("machine")
        assert (veto.asked[:2], users.is_going("machine")) == (["machine"] * 2, False)
        count = len(veto.asked)
        evictor.step()
        assert len(veto.asked) == count

    users.rest(uid, 15)
    users.town.tick()
    evictor.step()
    eventually(lambda: users.is_gone(uid))
