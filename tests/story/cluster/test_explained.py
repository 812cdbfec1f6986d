"""Why? asked of real pods: refused, placed and waiting, also where the timekeeper was killed meanwhile."""

import os
import signal
from typing import Any

from deploy.local.api import ApiError
from deploy.local.kwok_nodes import kwok_node
from deploy.local.stack import Stack
from tests.story.cluster.test_held_pods import gated, template
from tests.story.cluster.test_metering import set_budgets
from tests.support.control_plane import create_namespace
from tests.support.waiting import at_once

Json = dict[str, Any]


def is_refused(stack: Stack, path: str, name: str) -> bool:
    """Whether the creation of a pod that asks for a whole card is refused because of the budget."""
    try:
        stack.cp.api.call("POST", path, template(percent=100) | {"metadata": {"name": name}})
    except ApiError as error:
        return "has used its GPU budget" in str(error)
    return False


def test_every_answer_to_a_pods_creator_can_be_looked_up_later(stack: Stack, reader: str) -> None:
    path = create_namespace(stack.cp, "asked")
    stack.cp.api.call("POST", "/api/v1/nodes", kwok_node("asked-0", cards=1))
    set_budgets(stack, asked="gpuHours: 0\nonExhausted: deny\n")

    def steps(subject: str) -> list[Json]:
        found: list[Json] = stack.get(f"/v1/explain/asked/{subject}", reader)["steps"]
        return found

    def kinds(subject: str) -> list[tuple[str, str]]:
        return [(each["kind"], each["reason"]) for each in steps(subject)]

    stack.wait(
        "both workers to know the budget",
        lambda: all(is_refused(stack, f"{path}?dryRun=All", "dry") for _ in range(6)),
    )
    web = {"replicas": 1, "selector": {"matchLabels": {"app": "a"}}, "template": template(percent=100)}
    deployment = {"metadata": {"name": "web"}, "spec": web}
    stack.cp.api.call("POST", "/apis/apps/v1/namespaces/asked/deployments", deployment)
    refusal = ("refused", "BudgetExhausted")
    stack.wait("why the Deployment has no pods", lambda: refusal in kinds("deployment/web"))
    stack.cp.api.call("DELETE", "/apis/apps/v1/namespaces/asked/deployments/web")

    os.killpg(stack.processes["timekeeper"].pid, signal.SIGKILL)  # no worker of it answers for a moment
    stack.processes.pop("timekeeper").wait()
    assert is_refused(stack, path, "early")
    stack.start("timekeeper")
    stack.wait("the timekeeper to be back", lambda: stack.is_ready(stack.timekeeper_url), "timekeeper")

    stack.wait("what was refused meanwhile", lambda: kinds("early") == [refusal])
    assert kinds("dry") == []
    (refused,) = steps("early")
    assert "has used its GPU budget" in refused["sentence"]
    assert refused["budget"].startswith("asked@")

    set_budgets(stack, asked="gpuHours: 100\n")
    stack.wait("the first pod to be created", lambda: not is_refused(stack, path, "first"))
    stack.wait("its placement", lambda: ("placed", "Bound") in kinds("first"))
    stack.wait("the second pod to be created", lambda: not is_refused(stack, path, "second"))
    stack.wait("why the other waits", lambda: ("waiting", "Unschedulable") in kinds("second"))
    second = stack.get("/v1/explain/asked/second", reader)
    decides, needs = second["waitsFor"][:2]
    assert decides.startswith("kube-scheduler says: 0/1 nodes are available: ")
    assert needs.startswith("needs 1 card with 100% of the compute; ")
    (placed,) = (each for each in steps("first") if each["kind"] == "placed")
    assert placed["figures"]["node"] == "asked-0"
    pod = stack.cp.api.call("GET", f"{path}/first")
    assert placed["uid"] == pod["metadata"]["uid"]
    changes = stack.get("/v1/decisions?namespace=asked&kind=budget", reader)["decisions"]
    assert [each["reason"] for each in changes] == ["EntryChanged", "EntryAdded"]


def test_what_the_groups_budget_decided_names_it_also_of_a_pod_that_goes_while_no_timekeeper_runs(
    stack: Stack, reader: str
) -> None:
    path = create_namespace(stack.cp, "member")
    lab = {"_group.lab": "gpuHours: 0\nonExhausted: hold\n"}
    set_budgets(stack, member="gpuHours: 100\ngroup: lab\n", **lab)

    def is_held() -> bool:
        body = template(percent=100) | {"metadata": {"name": "dry"}}
        return bool(gated([stack.cp.api.call("POST", f"{path}?dryRun=All", body)]))

    def explained() -> Json:
        found: Json = stack.get("/v1/explain/member/p", reader)
        return found

    def step(kind: str) -> Json | None:
        return next((each for each in explained()["steps"] if each["kind"] == kind), None)

    stack.wait("both workers to know the group's budget", lambda: all(at_once(is_held)))
    stack.cp.api.call("POST", path, template(percent=100) | {"metadata": {"name": "p"}})
    stack.wait("the record", lambda: step("held") is not None)
    held = step("held")
    assert held is not None
    assert held["budget"].startswith("_group.lab@")
    stack.wait("its place in the queue", lambda: any("held pods" in each for each in explained()["waitsFor"]))

    stack.stop("timekeeper", signal.SIGKILL)
    stack.cp.api.call("DELETE", f"{path}/p")
    stack.start("timekeeper")
    stack.wait("the timekeeper", lambda: stack.is_ready(stack.timekeeper_url), "timekeeper")

    stack.wait("the record of its deletion", lambda: step("deleted") is not None, "timekeeper")
    assert explained()["waitsFor"] == []
