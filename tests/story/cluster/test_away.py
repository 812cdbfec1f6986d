"""What happens while the timekeeper is away: it is killed once for all of these scenes. Why? asked of real
pods: refused, placed, waiting and deleted; pods of another scheduler under a cap; and what ends meanwhile."""

import json
import re

import pytest

from deploy.local.kwok_nodes import kwok_node
from deploy.local.sidecars import Sidecars
from deploy.local.stack import Stack
from tests.docs.shell import run
from tests.story.cluster.test_held_pods import gated, pods, template
from tests.story.cluster.test_metering import gpu_pod, held_ms, set_budget
from tests.story.conftest import Absence
from tests.support.control_plane import create_namespace, refused
from tests.support.scenes import Scene, scene
from tests.support.waiting import at_once
from tests.timekeeper.cluster.test_metering import Lived, Recorder
from tests.timekeeper.oracle import kubelet_says, moment
from tests.worlds import Json
from timekeeper.core.texts import WORK_WITHOUT_TIMEKEEPER

pytestmark = pytest.mark.make_test("explains why a pod waits")


def whole_card(namespace: str) -> Json:
    """A pod for a node of the namespace."""
    return template(percent=100, nodeSelector={"of": namespace})


def is_refused(stack: Stack, path: str, name: str) -> bool:
    """Whether the creation of a pod that asks for a whole card is refused because of the budget."""
    pod = whole_card("asked") | {"metadata": {"name": name}}
    return "has used its GPU budget" in refused(stack.cp, "POST", path, pod)


@scene
def test_every_answer_to_a_pods_creator_can_be_looked_up_later(
    stack: Stack, reader: str, absence: Absence
) -> Scene:
    path = create_namespace(stack.cp, "asked")
    stack.cp.api.call("POST", "/api/v1/nodes", kwok_node("asked-0", cards=1, labels={"of": "asked"}))
    set_budget(stack, "asked", "gpuHours: 0\nonExhausted: deny\n")

    def steps(subject: str) -> list[Json]:
        found: list[Json] = stack.get(f"/v1/explain/asked/{subject}", reader)["steps"]
        return found

    def kinds(subject: str) -> list[tuple[str, str]]:
        return [(each["kind"], each["reason"]) for each in steps(subject)]

    yield (
        "both workers to know the budget",
        lambda: all(is_refused(stack, f"{path}?dryRun=All", "dry") for _ in range(6)),
    )
    web = {"replicas": 1, "selector": {"matchLabels": {"app": "a"}}, "template": whole_card("asked")}
    deployment = {"metadata": {"name": "web"}, "spec": web}
    stack.cp.api.call("POST", "/apis/apps/v1/namespaces/asked/deployments", deployment)
    refusal = ("refused", "BudgetExhausted")
    yield "why the Deployment has no pods", lambda: refusal in kinds("deployment/web")
    stack.cp.api.call("DELETE", "/apis/apps/v1/namespaces/asked/deployments/web")

    yield "the timekeeper to be killed", absence.begins
    assert is_refused(stack, path, "early")
    yield "the timekeeper to be back", absence.ends

    yield "what was refused meanwhile", lambda: kinds("early") == [refusal]
    assert kinds("dry") == []
    (refused,) = steps("early")
    assert "has used its GPU budget" in refused["sentence"]
    assert refused["budget"].startswith("asked@")

    set_budget(stack, "asked", "gpuHours: 100\n")
    yield "the first pod to be created", lambda: not is_refused(stack, path, "first")
    yield "its placement", lambda: ("placed", "Bound") in kinds("first")
    yield "the second pod to be created", lambda: not is_refused(stack, path, "second")
    yield "why the other waits", lambda: ("waiting", "Unschedulable") in kinds("second")
    second = stack.get("/v1/explain/asked/second", reader)
    assert second["waitsFor"][0] == "the one card of the one node that it may use is held"
    assert re.match(r"kube-scheduler says: 0/\d+ nodes are available: ", second["waitsFor"][-1])
    (placed,) = (each for each in steps("first") if each["kind"] == "placed")
    assert placed["figures"]["node"] == "asked-0"
    pod = stack.cp.api.call("GET", f"{path}/first")
    assert placed["uid"] == pod["metadata"]["uid"]
    changes = stack.get("/v1/decisions?namespace=asked&kind=budget", reader)["decisions"]
    assert [each["reason"] for each in changes] == ["EntryChanged", "EntryAdded"]


ARGUMENTS = {
    "kubectl get gpubudgets": "-n goes-on",
    "kubectl bursar check": "pod.json",
    "kubectl bursar audit": "-n goes-on",
}
ANSWERS = {
    "kubectl get gpubudgets": "IN_BUDGET",
    "kubectl bursar check": "1 admitted",
    "kubectl bursar audit": "no findings",
}


@scene
def test_what_is_said_to_need_no_timekeeper_is_typed_while_there_is_none(
    stack: Stack, absence: Absence, tmp_path_factory: pytest.TempPathFactory
) -> Scene:
    folder = tmp_path_factory.mktemp("goes-on")
    create_namespace(stack.cp, "goes-on")
    set_budget(stack, "goes-on", "gpuHours: 10\n")
    pod = whole_card("goes-on") | {"metadata": {"name": "p", "namespace": "goes-on"}}
    (folder / "pod.json").write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", **pod}))
    shown = f"kubectl get gpubudgets {ARGUMENTS['kubectl get gpubudgets']}"
    yield "the GPUBudget", lambda: "IN_BUDGET" in run(stack.cp, shown, folder)

    yield "the timekeeper to be killed", absence.begins
    assert set(WORK_WITHOUT_TIMEKEEPER) == set(ARGUMENTS)
    for command in WORK_WITHOUT_TIMEKEEPER:
        assert ANSWERS[command] in run(stack.cp, f"{command} {ARGUMENTS[command]}", folder)
    yield "the timekeeper to be back", absence.ends


@scene
def test_what_the_groups_budget_decided_names_it_also_of_a_pod_that_goes_while_no_timekeeper_runs(
    stack: Stack, reader: str, absence: Absence
) -> Scene:
    path = create_namespace(stack.cp, "member")
    set_budget(stack, "_group.lab", "gpuHours: 0\nonExhausted: hold\n")
    set_budget(stack, "member", "gpuHours: 100\ngroup: lab\n")

    def is_held() -> bool:
        body = whole_card("member") | {"metadata": {"name": "dry"}}
        return bool(gated([stack.cp.api.call("POST", f"{path}?dryRun=All", body)]))

    def explained() -> Json:
        found: Json = stack.get("/v1/explain/member/p", reader)
        return found

    def step(kind: str) -> Json | None:
        return next((each for each in explained()["steps"] if each["kind"] == kind), None)

    yield "both workers to know the group's budget", lambda: all(at_once(is_held))
    stack.cp.api.call("POST", path, whole_card("member") | {"metadata": {"name": "p"}})
    yield "the record", lambda: step("held") is not None
    held = step("held")
    assert held is not None
    assert held["budget"].startswith("_group.lab@")
    yield "its place in the queue", lambda: any("held pods" in each for each in explained()["waitsFor"])

    yield "the timekeeper to be killed", absence.begins
    stack.cp.api.call("DELETE", f"{path}/p")
    yield "the timekeeper to be back", absence.ends

    yield "the record of its deletion", lambda: step("deleted") is not None
    assert explained()["waitsFor"] == []


@scene
def test_pods_of_another_scheduler_are_released_within_the_cap_across_a_kill(
    stack: Stack, absence: Absence
) -> Scene:
    path = create_namespace(stack.cp, "theirs")
    set_budget(stack, "theirs", "gpuHours: unlimited\nmaxGPUs: 2\n")
    container = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}

    def pod(name: str) -> Json:
        return {"metadata": {"name": name}, "spec": {"schedulerName": "volcano", "containers": [container]}}

    def is_gated() -> bool:
        made = stack.cp.api.call("POST", f"{path}?dryRun=All", pod("dry"))
        return bool(gated([made]))

    yield "both workers to know the cap", lambda: all(at_once(is_gated))
    for name in ("p0", "p1", "p2"):
        stack.cp.api.call("POST", path, pod(name))

    yield "two releases", lambda: len(gated(pods(stack, path))) == 1
    yield "the timekeeper to be killed", absence.begins
    stack.cp.api.call("POST", path, pod("p3"))
    yield "the timekeeper to be back", absence.ends
    assert {len(gated(pods(stack, path))) for _ in range(40)} <= {1, 2}
    free = next(each["metadata"]["name"] for each in pods(stack, path) if not gated([each]))
    stack.cp.api.call("DELETE", f"{path}/{free}")

    yield "the next release", lambda: len(gated(pods(stack, path))) == 1
    assert {len(gated(pods(stack, path))) for _ in range(40)} == {1}


@scene
def test_what_ends_while_the_timekeeper_is_away_is_charged_as_the_objects_proved(
    stack: Stack, sidecars: Sidecars, reader: str, absence: Absence
) -> Scene:
    """The extender saw them end. One pod of each kind: it ended by itself and was removed, was deleted by
    force, came and went meanwhile; or its object is still there, which was always exact."""
    node = kwok_node("unwatched-0", cards=4, memory_mib=16_000, model="T4", labels={"of": "unwatched"})
    stack.cp.api.call("POST", "/api/v1/nodes", node)
    path = create_namespace(stack.cp, "unwatched")

    def create(name: str, run_for: str) -> None:
        body = gpu_pod(name, 50, run_for)
        body["spec"] |= {"terminationGracePeriodSeconds": 3, "nodeSelector": {"of": "unwatched"}}
        stack.cp.api.call("POST", path, body)

    def sessions() -> set[str]:
        found = stack.get("/v1/sessions?namespace=unwatched", reader)["sessions"]
        return {each["pod"] for each in found}

    with Recorder(stack.cp, path) as seen:

        def lived(name: str) -> Lived:
            (found,) = [each for each in seen.pods.values() if each.raw["metadata"]["name"] == name]
            return found

        def has_ended(name: str) -> bool:
            return any(name == each.raw["metadata"]["name"] for each in seen.there()) and bool(
                kubelet_says(lived(name).raw)[1]
            )

        for name in ("ends", "forced", "stays"):
            create(name, "1h")
        yield "their sessions", lambda: sessions() == {"ends", "forced", "stays"}
        yield "the timekeeper to be killed", absence.begins
        create("comes-and-goes", "1s")
        for name in ("ends", "stays"):
            ends = {"metadata": {"annotations": {"local.bursar.dev/run-for": "1s"}}}
            stack.cp.api.call("PATCH", f"{path}/{name}", ends, "application/merge-patch+json")
        yield "their ends", lambda: all(map(has_ended, ("ends", "stays", "comes-and-goes")))
        for name in ("ends", "comes-and-goes", "forced"):
            stack.cp.api.call("DELETE", f"{path}/{name}", {"gracePeriodSeconds": 0})
            yield f"{name} to be gone", lambda name=name: lived(name).gone  # type: ignore[misc]
        yield "the timekeeper to be back", absence.ends

        def surplus() -> dict[str, int]:
            """By pod, the milliseconds that are charged beyond what the objects said."""
            rows = stack.get("/v1/usage?namespace=unwatched&group=pod", reader)["rows"]
            return {row["pod"]: row["amount"] // 500 - proved_ms(lived(row["pod"])) for row in rows}

        exact = dict.fromkeys(("ends", "stays", "comes-and-goes"), 0)
        yield (
            "what was proved",
            # the API server dates a removal to the second; a heartbeat may prove that it was later in it
            lambda: (found := surplus()).items() >= exact.items() and 0 <= found.get("forced", -1) < 1000,
        )


def proved_ms(pod: Lived) -> int:
    """The hold of a pod by all that its object ever said; of one deleted by force, with its grace period."""
    ended = kubelet_says(pod.raw)[1]
    if ended:
        return held_ms(pod.raw)
    (bound,) = [each for each in pod.raw["status"]["conditions"] if each["type"] == "PodScheduled"]
    removed, since = moment(pod.raw["metadata"]["deletionTimestamp"]), moment(bound["lastTransitionTime"])
    assert removed
    assert since
    return removed - since + 1000 * int(pod.raw["spec"]["terminationGracePeriodSeconds"])
