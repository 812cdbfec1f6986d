"""Metering from end to end: real tokens, real RBAC, a budget that is edited, a charge that is exact, and a
timekeeper that is killed in the middle of its transactions."""

import datetime
import json
import os
import signal
import sqlite3
import time
import urllib.error
from collections.abc import Callable
from typing import Any

import pytest

from deploy.local.api import ApiError
from deploy.local.kwok_nodes import kwok_node
from deploy.local.limits import LONGEST_S
from deploy.local.sidecars import Sidecars
from deploy.local.stack import Stack
from tests.support.control_plane import MERGE, apply, create_namespace, kubectl
from tests.support.scenes import Scene, scene

Json = dict[str, Any]

CONFIG_MAPS = "/api/v1/namespaces/bursar-system/configmaps"


def gpu_pod(name: str, percent: int, run_for: str) -> Json:
    limits = {"bursar.dev/gpu-percent": str(percent)}
    return {
        "metadata": {"name": name, "annotations": {"local.bursar.dev/run-for": run_for}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "example/app:1", "resources": {"limits": limits}}],
        },
    }


def set_budgets(stack: Stack, **entries: str) -> None:
    """The whole ConfigMap anew."""
    body = {
        "metadata": {"name": "bursar-budgets"},
        "data": {k.replace("__", "-"): v for k, v in entries.items()},
    }
    if stack.exists(f"{CONFIG_MAPS}/bursar-budgets"):
        stack.cp.api.call("PUT", f"{CONFIG_MAPS}/bursar-budgets", body)
    else:
        stack.cp.api.call("POST", CONFIG_MAPS, body)


def set_budget(stack: Stack, namespace: str, entry: str) -> None:
    """The namespace's entry, in a ConfigMap of its own."""
    name = f"budget-{namespace.lstrip('_')}"  # of a group: `_group.lab`
    metadata = {"name": name, "labels": {"bursar.dev/budgets": "true"}}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {namespace: entry}}
    apply(stack.cp, body, namespace="bursar-system")


def status_of(call: Callable[[], object]) -> int:
    """The HTTP status that a call of the REST API ends with."""
    try:
        call()
    except urllib.error.HTTPError as error:
        return error.code
    return 200


def held_ms(pod: Json) -> int:
    """From the pod's binding to the last finish of its containers, by the timestamps in its status."""
    status = pod["status"]
    (bound,) = (each["lastTransitionTime"] for each in status["conditions"] if each["type"] == "PodScheduled")
    listed = [*status.get("initContainerStatuses", []), *status["containerStatuses"]]
    finished = max(each["state"]["terminated"]["finishedAt"] for each in listed)
    start, end = (datetime.datetime.fromisoformat(text) for text in (bound, finished))
    return int((end - start).total_seconds() * 1000)


@scene
def test_a_caller_sees_what_its_rbac_allows_and_nothing_else(stack: Stack, reader: str) -> Scene:
    stack.cp.kubectl("create", "serviceaccount", "nobody", "-n", "default")
    nobody = stack.token("default", "nobody", audience="bursar")
    foreign = stack.token("default", "nobody", audience="somebody-else")

    assert status_of(lambda: stack.get("/v1/budgets/default", reader)) == 200
    assert status_of(lambda: stack.get("/v1/budgets/default", nobody)) == 403
    assert status_of(lambda: stack.get("/v1/usage", nobody)) == 403
    assert status_of(lambda: stack.get("/v1/standings", reader)) == 403
    assert status_of(lambda: stack.get("/v1/budgets/default", foreign)) == 401
    assert status_of(lambda: stack.get("/v1/budgets/default", "junk")) == 401

    rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
    rule = {"apiGroups": ["bursar.dev"], "resources": ["budgets"], "verbs": ["get"]}
    stack.cp.api.call("POST", f"{rbac}/roles", {"metadata": {"name": "see"}, "rules": [rule]})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "see"}
    subjects = [{"kind": "ServiceAccount", "name": "nobody", "namespace": "default"}]
    binding = {"metadata": {"name": "see"}, "roleRef": role, "subjects": subjects}
    stack.cp.api.call("POST", f"{rbac}/rolebindings", binding)
    seen = stack.token("default", "nobody", audience="bursar")

    yield "the new right", lambda: status_of(lambda: stack.get("/v1/budgets/default", seen)) == 200
    assert status_of(lambda: stack.get("/v1/budgets/kube-system", seen)) == 403


@scene
def test_an_edited_budget_turns_the_next_pods_class(stack: Stack, sidecars: Sidecars) -> Scene:
    pods = create_namespace(stack.cp, "edited")

    def klass() -> str:
        pod = stack.cp.api.call("POST", f"{pods}?dryRun=All", gpu_pod("dry", 10, "1s"))
        return str(pod["spec"]["priorityClassName"])

    for hours, wanted in (("0", "gpu-lower-priority"), ("5", "gpu-default-priority")):
        set_budget(stack, "edited", f"gpuHours: {hours}\nonExhausted: deprioritize\n")
        yield wanted, lambda wanted=wanted: [klass() for _ in range(6)] == 6 * [wanted]  # type: ignore[misc]


@scene
def test_a_copy_of_a_pod_is_charged_beside_it(stack: Stack, sidecars: Sidecars, reader: str) -> Scene:
    node = kwok_node("copied-0", cards=1, memory_mib=16_000, model="T4", labels={"of": "copied"})
    stack.cp.api.call("POST", "/api/v1/nodes", node)
    set_budget(stack, "copied", "gpuHours: 100\n")
    path = create_namespace(stack.cp, "copied")
    pod = gpu_pod("first", 50, "1h")
    pod["spec"]["nodeSelector"] = {"of": "copied"}
    stack.cp.api.call("POST", path, pod)

    def read(name: str) -> Json:
        return dict(stack.cp.api.call("GET", f"{path}/{name}"))

    yield "the pod to run", lambda: read("first")["status"]["phase"] == "Running"

    command = ("debug", "first", "-n", "copied", "--copy-to=second", "--image=example/tools:1", "-c", "shell")
    kubectl(stack.cp, *command, "--", "sleep", "1")

    for name in ("first", "second"):
        ends = {"metadata": {"annotations": {"local.bursar.dev/run-for": "1s"}}}
        stack.cp.api.call("PATCH", f"{path}/{name}", ends, MERGE)
        yield f"{name} to end", lambda name=name: read(name)["status"]["phase"] == "Succeeded"  # type: ignore[misc]

    def posted() -> dict[str, int]:
        rows = stack.get("/v1/usage?namespace=copied&group=pod", reader)["rows"]
        return {each["pod"]: each["posted"] for each in rows if not each["pending"]}

    yield "both to be posted", lambda: posted().keys() == {"first", "second"}
    assert posted() == {name: 500 * held_ms(read(name)) for name in ("first", "second")}
    cards = [json.loads(read(name)["metadata"]["annotations"]["bursar.dev/devices"]) for name in posted()]
    assert [each["containers"].keys() for each in cards] == [{"main"}, {"main"}]


def test_a_mistaken_entry_is_reported_and_the_last_good_one_holds(stack: Stack, reader: str) -> None:
    """Written while the webhook is down, for it would have refused it."""
    set_budgets(stack, kept="gpuHours: 7\nonExhausted: deprioritize\n", other="gpuHours: 1\n")
    stack.wait("the good entry", lambda: stack.get("/v1/budgets/kept", reader)["gpuHours"]["granted"] == "7")

    with pytest.raises(ApiError, match=r"data\[kept\].*gpuHours"):
        set_budgets(stack, kept="gpuHours: lots\n", other="gpuHours: 2\nevictRate: 4\n")
    stack.stop("webhook")
    set_budgets(stack, kept="gpuHours: lots\n", other="gpuHours: 2\nevictRate: 4\n")
    stack.start("webhook")
    stack.wait("the webhook to be back", lambda: stack.is_ready(stack.webhook_url), "webhook")
    stack.wait(
        "the other entry", lambda: stack.get("/v1/budgets/other", reader)["gpuHours"]["granted"] == "2"
    )

    kept = stack.get("/v1/budgets/kept", reader)
    assert kept["gpuHours"]["granted"] == "7"
    assert "gpuHours" in str(kept["lastError"])
    assert any(
        "evictRate: it has no effect" in each for each in stack.get("/v1/budgets/other", reader)["warnings"]
    )
    events = stack.cp.kubectl("get", "events", "-n", "bursar-system").stdout
    assert "gpuHours" in events


def kill_inside_a_transaction(stack: Stack) -> bool:
    """Kill the timekeeper, all its processes at once, when somebody is seen to hold the database's write
    lock; whether that was so at the kill."""
    group = stack.processes["timekeeper"].pid
    probe = sqlite3.connect(stack.folder / "bursar.db", timeout=0, isolation_level=None)
    locked, until = False, time.monotonic() + LONGEST_S
    try:
        while not locked and time.monotonic() < until:
            try:
                probe.execute("BEGIN IMMEDIATE")
                probe.execute("ROLLBACK")
            except sqlite3.OperationalError:
                locked = True
    finally:
        os.killpg(group, signal.SIGKILL)
        probe.close()
    stack.processes.pop("timekeeper").wait()
    return locked


@pytest.mark.parametrize("kills", [2, pytest.param(12, marks=pytest.mark.soak)])
def test_killed_in_its_transactions_the_timekeeper_loses_and_doubles_nothing(
    stack: Stack, sidecars: Sidecars, reader: str, kills: int
) -> None:
    namespace = f"killed-{kills}"
    stack.cp.api.call("POST", "/api/v1/nodes", kwok_node(namespace, cards=16, memory_mib=16_000, model="T4"))
    pods = create_namespace(stack.cp, namespace)
    inside = 0
    for at in range(kills):
        for copy in range(3):
            stack.cp.api.call(
                "POST", pods, gpu_pod(f"p{at}-{copy}", 10 * (copy + 1), f"{2 + (at + copy) % 5}s")
            )
        inside += kill_inside_a_transaction(stack)
        stack.start("timekeeper")
        stack.wait(
            "the timekeeper to be ready again", lambda: stack.is_ready(stack.timekeeper_url), "timekeeper"
        )

    def usage() -> list[Json]:
        rows: list[Json] = stack.get(f"/v1/usage?namespace={namespace}&group=pod", reader)["rows"]
        return rows

    def all_posted() -> bool:
        rows = usage()
        return len(rows) == 3 * kills and not any(row["pending"] for row in rows)

    stack.wait("every pod to be posted", all_posted, "timekeeper")
    charged = {row["pod"]: row["posted"] for row in usage()}
    truth = {
        pod["metadata"]["name"]: held_ms(pod) * 100 * (int(pod["metadata"]["name"][-1]) + 1)
        for pod in stack.cp.api.call("GET", pods)["items"]
    }
    assert charged == truth
    assert inside >= kills // 2, f"only {inside} of {kills} kills fell inside a transaction"
    assert stack.get(f"/v1/budgets/{namespace}", reader)["posted"] == sum(truth.values())
