"""A budget with `onExhausted: evict` runs out under a Deployment, a Job and a pod, and is raised again:
notices, evictions in order, a PodDisruptionBudget that is respected and then overruled, replacements that
wait, and a timekeeper that is killed in mid-act."""

import datetime
import signal
from typing import Any

import pytest

from deploy.local.api import ApiError
from deploy.local.kwok_nodes import kwok_node
from deploy.local.limits import LONGEST_S
from deploy.local.stack import Stack
from tests.story.cluster.test_metering import set_budgets
from tests.support.control_plane import MERGE, create_namespace
from tests.worlds import Json
from timekeeper.runtime.api_server import STRATEGIC_MERGE, Answered
from timekeeper.runtime.connect import connect

PODS = "/api/v1/namespaces/shop/pods"
SETTINGS = "lookahead: 0s\nevictGrace: 8s\npdbGrace: 8s\nevictRate: 60\n"
GATE = {"name": "bursar.dev/budget"}
KEEP = "test.example/keep"  # a finalizer: the object of an evicted pod can be read


def template(app: str, **metadata: Any) -> Json:
    """Half a card for ever."""
    limits = {"bursar.dev/gpu-percent": "50"}
    container = {"name": "main", "image": "example/app:1", "resources": {"limits": limits}}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 1}
    return {"metadata": {"labels": {"app": app}, **metadata}, "spec": spec}


class Shop:
    """The namespace whose budget runs out."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        call = stack.cp.api.call
        for index in range(2):
            call("POST", "/api/v1/nodes", kwok_node(f"shop-{index}", cards=2))
        for name in ("shop", "rich"):
            create_namespace(stack.cp, name)
        self.budget("100")

    def budget(self, hours: str) -> None:
        entry = f"gpuHours: {hours}\nonExhausted: evict\n"
        set_budgets(self.stack, _settings=SETTINGS, shop=entry, rich="gpuHours: 100\nonExhausted: evict\n")

    def open(self) -> None:
        """A Deployment of two under a PodDisruptionBudget, a Job, and a pod of lower priority."""
        call = self.stack.cp.api.call
        web = {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template("web")}
        call("POST", "/apis/apps/v1/namespaces/shop/deployments", {"metadata": {"name": "web"}, "spec": web})
        budget = {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}}
        pdbs = "/apis/policy/v1/namespaces/shop/poddisruptionbudgets"
        call("POST", pdbs, {"metadata": {"name": "web"}, "spec": budget})
        ignore = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
        pod = template("batch")
        pod["spec"]["restartPolicy"] = "Never"
        job = {"backoffLimit": 0, "podFailurePolicy": {"rules": [ignore]}, "template": pod}
        call("POST", "/apis/batch/v1/namespaces/shop/jobs", {"metadata": {"name": "batch"}, "spec": job})
        classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
        call("POST", classes, {"metadata": {"name": "least"}, "value": -100})
        lone = template("lone", name="lone", finalizers=[KEEP])
        lone["spec"]["priorityClassName"] = "least"
        self.stack.wait("the API server to know the class", lambda: self._is_taken(lone))
        call("POST", PODS, lone)
        call("POST", "/api/v1/namespaces/rich/pods", template("rich", name="rich"))
        self.stack.wait("all to run", lambda: len(self.running()) == 4)
        self.stack.wait("the budget to allow none", lambda: self._allowed(pdbs) == 0)

    def _is_taken(self, pod: Json) -> bool:
        """Whether the API server would create this pod."""
        try:
            self.stack.cp.api.call("POST", f"{PODS}?dryRun=All", pod)
        except ApiError:
            return False
        return True

    def _allowed(self, pdbs: str) -> int:
        status = self.stack.cp.api.call("GET", f"{pdbs}/web").get("status", {})
        return int(status.get("disruptionsAllowed", -1)) if status.get("currentHealthy") == 2 else -1

    def pods(self) -> dict[str, Json]:
        """By UID."""
        return {each["metadata"]["uid"]: each for each in self.stack.cp.api.call("GET", PODS)["items"]}

    def running(self) -> dict[str, Json]:
        return {
            uid: each
            for uid, each in self.pods().items()
            if each["status"].get("phase") == "Running" and not each["metadata"].get("deletionTimestamp")
        }

    def gated(self) -> list[Json]:
        return [each for each in self.pods().values() if GATE in each["spec"].get("schedulingGates", [])]

    def noticed(self, name: str = "evict-after") -> dict[str, datetime.datetime]:
        """UID -> the time in the annotation, of pods that run."""
        found = {
            uid: each["metadata"].get("annotations", {}).get(f"bursar.dev/{name}")
            for uid, each in self.running().items()
        }
        return {uid: datetime.datetime.fromisoformat(text) for uid, text in found.items() if text}

    def kill(self) -> None:
        """The timekeeper, all of its processes at once; and another one takes over."""
        self.stack.stop("timekeeper", signal.SIGKILL)
        self.stack.start("timekeeper")
        url = self.stack.timekeeper_url
        self.stack.wait("the timekeeper to be back", lambda: self.stack.is_ready(url), "timekeeper")

    def job(self) -> Json:
        found: Json = self.stack.cp.api.call("GET", "/apis/batch/v1/namespaces/shop/jobs/batch")
        return found

    def log(self) -> list[Json]:
        """The timekeeper's lines about evictions of pods that left: pod, result, and when."""
        lines = [
            line for line in self.stack.log("timekeeper").splitlines() if "event=budget-eviction" in line
        ]
        fields = [dict(each.split("=", 1) for each in line.split() if "=" in each) for line in lines]
        return [each for each in fields if each["result"] in ("evicted", "deleted")]


@pytest.fixture(scope="module")
def shop(stack: Stack) -> Shop:
    return Shop(stack)


def test_an_exhausted_budget_ends_its_pods_and_a_raised_one_brings_them_back(shop: Shop) -> None:
    stack = shop.stack
    shop.open()
    first = shop.running()

    # exhausted: every pod gets its notice; the timekeeper is killed in mid-grace, and keeps its word
    shop.budget("0")
    stack.wait("the notices", lambda: len(shop.noticed()) == 4, "timekeeper")
    told = shop.noticed()
    shop.kill()
    kept = shop.noticed()
    assert kept
    assert kept.items() <= told.items()

    # the Job's and the lone pod leave, the Deployment's are protected, also across another kill
    stack.wait("the protected", lambda: len(shop.noticed("delete-after")) == 2, "timekeeper")
    protected = shop.noticed("delete-after")
    assert {first[uid]["metadata"]["labels"]["app"] for uid in protected} == {"web"}
    shop.kill()
    stack.wait("all to have left", lambda: not shop.running(), "timekeeper")
    stack.wait("the last line", lambda: len(shop.log()) >= 4, "timekeeper")  # written after the call

    left = shop.log()
    assert left[0]["pod"] == "lone"  # the lowest priority
    assert sorted(each["result"] for each in left) == ["deleted", "deleted", "evicted", "evicted"]
    assert {each["uid"] for each in left} == set(first)
    for each in left:
        due = protected.get(each["uid"], told[each["uid"]])
        assert datetime.datetime.fromisoformat(each["time"]) >= due
    (lone,) = (each for each in shop.pods().values() if each["metadata"]["name"] == "lone")
    (target,) = (each for each in lone["status"]["conditions"] if each["type"] == "DisruptionTarget")
    assert (target["status"], target["reason"]) == ("True", "BursarBudgetExhausted")
    stack.cp.api.call("PATCH", f"{PODS}/lone", {"metadata": {"finalizers": None}}, MERGE)

    # replacements wait behind the gate, and the Job has not failed
    stack.wait("the replacements", lambda: len(shop.gated()) == 3)
    assert not shop.job()["status"].get("failed")
    assert stack.cp.api.call("GET", "/api/v1/namespaces/rich/pods/rich")["status"]["phase"] == "Running"
    assert len(shop.log()) == 4

    # budget again: they are released and stay
    shop.budget("100")
    stack.wait("the released", lambda: len(shop.running()) == 3, "timekeeper")

    # exhausted again, and raised within the grace: nobody leaves
    shop.budget("0")
    stack.wait("the notices", lambda: len(shop.noticed()) == 3, "timekeeper")
    shop.budget("100")
    stack.wait("the notices to be withdrawn", lambda: not shop.noticed(), "timekeeper")
    assert len(shop.log()) == 4
    assert len(shop.running()) == 3


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"metadata": {"annotations": {"bursar.dev/idle-until": "2026-11-22T10:00:00Z"}}}, 200),
        ({"metadata": {"annotations": {"bursar.dev/reclaimable": "idle"}}}, 200),
        ({"metadata": {"annotations": {"bursar.dev/standing": "OVER_BUDGET"}}}, 403),
        ({"metadata": {"annotations": {"anybody/else": "1"}}}, 403),
        ({"metadata": {"labels": {"app": "other"}}}, 403),
        ({"status": {"phase": "Failed"}}, 403),
        ({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, 403),
    ],
    ids=[
        "idle",
        "reclaimable",
        "our other annotation",
        "another annotation",
        "a label",
        "phase",
        "condition",
    ],
)
def test_the_timekeeper_writes_nothing_else_on_a_pod(shop: Shop, change: Json, status: int) -> None:
    stack = shop.stack
    token = stack.token("bursar-system", "bursar-timekeeper")
    api = connect(stack.cp.kubeconfig(token, "as-timekeeper"))
    path = "/api/v1/namespaces/rich/pods/rich/status"

    reply = api.call("PATCH", path, change, content_type=STRATEGIC_MERGE, timeout_s=LONGEST_S)

    assert isinstance(reply, Answered)
    assert reply.status == status, reply
