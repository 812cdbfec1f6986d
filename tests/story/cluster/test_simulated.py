"""A simulation is compared with what happens: on a real API server and kube-scheduler, by the command of
people."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.local.kwok_nodes import kwok_node
from deploy.local.limits import LONGEST_S
from deploy.local.stack import Stack
from tests.story.cluster.test_held_pods import template
from tests.story.cluster.test_metering import set_budgets
from tests.support.control_plane import create_namespace, refused
from tests.worlds import Json


def one(name: str, percent: int = 100) -> Json:
    return {"kind": "Pod", "apiVersion": "v1", **template(percent=percent), "metadata": {"name": name}}


def job(parallelism: int) -> Json:
    """A Job named train."""
    spec = {"parallelism": parallelism, "template": template(percent=100)}
    return {"kind": "Job", "apiVersion": "batch/v1", "metadata": {"name": "train"}, "spec": spec}


def replicas(count: int) -> Json:
    """A ReplicaSet of pods like those of `one`."""
    spec = {"replicas": count, "template": template(percent=100)}
    return {"kind": "ReplicaSet", "apiVersion": "apps/v1", "metadata": {"name": "set"}, "spec": spec}


def simulated(stack: Stack, folder: Path, token: str, manifest: Json) -> Any:
    """The answer to ``kubectl bursar simulate``, without a kubeconfig; 1 says that not all pods fit."""
    (folder / "token").write_text(token)
    flags = ["--server", stack.timekeeper_url, "--ca-file", str(stack.ca_file)]
    flags += ["--token-file", str(folder / "token"), "-n", "payer", "-o", "json", "-f", "-"]
    command = [sys.executable, "-m", "timekeeper.cli.main", "simulate", *flags]
    done = subprocess.run(
        command, input=json.dumps(manifest), capture_output=True, text=True, timeout=LONGEST_S
    )
    answer = json.loads(done.stdout)
    fits = all(pod["outcome"] == "fits" for pod in answer["pods"])
    assert done.returncode == (0 if fits else 1), done.stderr
    return answer


@pytest.fixture(scope="module")
def planner(stack: Stack) -> str:
    """A token that may read everything."""
    create_namespace(stack.cp, "payer")
    return stack.reader_token()


def test_what_a_simulation_says_is_what_happens(stack: Stack, planner: str, tmp_path: Path) -> None:
    """A pod that fits runs there; one that waits may yet run, where a debtor's pod leaves for it."""
    mine, theirs, token = "/api/v1/namespaces/payer/pods", create_namespace(stack.cp, "debtor"), planner
    stack.cp.api.call("POST", "/api/v1/nodes", kwok_node("only", cards=2))
    budgets = {"payer": "gpuHours: 100\n", "debtor": "gpuHours: 100\nonExhausted: reclaim\n"}
    set_budgets(stack, **budgets)

    def runs(path: str, name: str) -> bool:
        return bool(stack.cp.api.call("GET", f"{path}/{name}")["status"].get("phase") == "Running")

    stack.cp.api.call("POST", theirs, one("holder"))
    stack.wait("the debtor to run", lambda: runs(theirs, "holder"))
    set_budgets(stack, **budgets | {"debtor": "gpuHours: 0.00000001\nonExhausted: reclaim\n"})
    stack.wait(
        "the debtor to be over budget",
        lambda: stack.get("/v1/budgets/debtor", token)["standing"] == "OVER_BUDGET",
    )
    decided = stack.get("/v1/decisions?namespace=payer", token)["decisions"]

    answer = simulated(stack, tmp_path, token, replicas(2))

    assert [(pod["outcome"], pod["node"]) for pod in answer["pods"]] == [("fits", "only"), ("waits", "")]
    assert (answer["cost"]["gpuHoursPerDay"], answer["note"]) == ("24", "")
    assert stack.cp.api.call("GET", mine)["items"] == []
    assert stack.get("/v1/decisions?namespace=payer", token)["decisions"] == decided

    for name in ("first", "second"):
        stack.cp.api.call("POST", mine, one(name))
        stack.wait(f"{name} to run", lambda name=name: runs(mine, name))  # type: ignore[misc]
    stack.wait("the debtor's pod to be gone", lambda: not stack.exists(f"{theirs}/holder"))
    set_budgets(stack, payer="gpuHours: 0.00000001\nonExhausted: hold\ngangs: auto\n")

    def held() -> tuple[str, str]:
        (pod,) = simulated(stack, tmp_path, token, one("x"))["pods"]
        return pod["standing"], pod["held"]

    stack.wait("a new pod to be held", lambda: held() == ("OVER_BUDGET", "budget"))
    gang = simulated(stack, tmp_path, token, job(3))["pods"]
    whys = {member["reasons"][0]["reason"] for member in gang}
    never = "it can never start here: it needs 3 cards on nodes that it may use, which have 2"
    assert whys == {f"gang train starts whole: {never}"}


def hog(name: str, cpu: str, node: str) -> Json:
    """One per cent of one card, and CPUs."""
    made = one(name, percent=1)
    made["spec"] |= {"nodeSelector": {"kubernetes.io/hostname": node}}
    made["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpu, "memory": "1Gi"}
    return made


def test_a_pod_that_takes_a_nodes_cpu_is_refused(stack: Stack) -> None:
    """One per cent of a card with 62 of a node's 64 CPUs, where another node has 8 for each of its cards."""
    pods = create_namespace(stack.cp, "hogs")
    for name, cards in (("two", 2), ("eight", 8)):
        stack.cp.api.call("POST", "/api/v1/nodes", kwok_node(name, cards=cards, cpu=64))
    entries = {"payer": "gpuHours: 100\n", "hogs": "gpuHours: 100\n", "free": "gpuHours: 1\nhostShare: 800\n"}
    set_budgets(stack, **entries, _settings="rules: {host-share: enforce}\n")
    free = create_namespace(stack.cp, "free")

    def refusal(path: str, each: Json) -> str:
        return refused(stack.cp, "POST", f"{path}?dryRun=All", each)

    stack.wait("the rule", lambda: "at most 160m together" in refusal(pods, hog("next", "62", "two")))
    assert refusal(pods, hog("next", "160m", "two")) == ""
    stack.wait("the namespace's own figure", lambda: refusal(free, hog("next", "62", "two")) == "")
    deployment = {
        "metadata": {"name": "hogs"},
        "spec": {
            "selector": {"matchLabels": {"app": "a"}},
            "template": {"metadata": {"labels": {"app": "a"}}, "spec": hog("x", "62", "two")["spec"]},
        },
    }
    workloads = "/apis/apps/v1/namespaces/hogs/deployments"
    assert "spec.template.spec.containers[0].resources.requests.cpu" in refusal(workloads, deployment)
