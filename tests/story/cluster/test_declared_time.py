"""`reserve: declared` from end to end: a real API server, scheduler and Job controller, kwok nodes, and a
timekeeper that is killed while it releases."""

import os
import signal
import urllib.error
from typing import Any

from deploy.local.kwok_nodes import kwok_node
from deploy.local.stack import Stack
from tests.story.cluster.test_held_pods import GATE, gated, pods
from tests.story.cluster.test_metering import gpu_pod, held_ms, set_budgets
from tests.support.control_plane import create_namespace, refused
from tests.support.waiting import at_once
from tests.worlds import Json

BUDGET = "gpuHours: 0.1\nreserve: declared\nrequireDuration: true\n"
WHOLE = 100 * 630_000  # a tenth of a card for ten minutes and half a minute of grace
MOST = int(0.1 * 3_600_000_000) // WHOLE  # five pods


def job(name: str, **fields: Any) -> Json:
    """Twelve pods at a time, each a tenth of a card, that end after 10 s of the ten minutes they declare."""
    template = gpu_pod("", 10, "10s")
    template["metadata"].pop("name")
    spec = {"parallelism": 12, "completions": 12, "template": template} | fields
    return {"metadata": {"name": name}, "spec": spec}


def balance(stack: Stack, reader: str) -> Json:
    """The namespace's account; empty while the timekeeper starts."""
    try:
        found: Json = stack.get("/v1/balances/planned", reader)
    except urllib.error.URLError:
        return {}
    return found


def alive(found: list[Json]) -> list[Json]:
    """Released pods that have not ended."""
    ended = ("Succeeded", "Failed")
    return [each for each in found if each not in gated(found) and each["status"].get("phase") not in ended]


def test_a_job_runs_as_many_pods_as_its_budget_can_pay_whole_across_a_kill(stack: Stack, reader: str) -> None:
    """What ends early makes room for the next; at no time more is reserved and charged than granted."""
    path = create_namespace(stack.cp, "planned")
    jobs = "/apis/batch/v1/namespaces/planned/jobs"
    stack.cp.api.call("POST", "/api/v1/nodes", kwok_node("planned-1", cards=4, memory_mib=16_000, model="T4"))
    set_budgets(stack, planned=BUDGET)

    def refusal() -> str:
        return refused(stack.cp, "POST", f"{jobs}?dryRun=All", job("undeclared"))

    stack.wait("both workers to refuse", lambda: all(at_once(refusal)))
    assert "spec.template.spec.activeDeadlineSeconds: the budget of the namespace asks" in refusal()

    made = stack.cp.api.call("POST", jobs, job("timed", activeDeadlineSeconds=600))
    assert made["spec"]["template"]["spec"]["activeDeadlineSeconds"] == 600
    stack.wait("the first releases", lambda: bool(alive(pods(stack, path))))
    first = pods(stack, path)
    assert {each["metadata"]["annotations"]["bursar.dev/declared"] for each in first} == {"600"}
    os.killpg(stack.processes["timekeeper"].pid, signal.SIGKILL)
    stack.processes.pop("timekeeper").wait()
    stack.start("timekeeper")
    stack.wait("the timekeeper", lambda: bool(balance(stack, reader)), "timekeeper")

    counts, shares = [], []

    def is_complete() -> bool:
        found = pods(stack, path)
        counts.append(len(alive(found)))
        said = balance(stack, reader)
        shares.append(said["posted"] + said["pending"] + said["reserved"])
        status = stack.cp.api.call("GET", f"{jobs}/timed")["status"]
        return bool(status.get("succeeded") == 12)

    stack.wait("the Job to complete", is_complete, "timekeeper")
    assert max(counts) == MOST
    assert max(shares) <= 360_000_000
    stack.wait("nothing to be reserved", lambda: balance(stack, reader)["reserved"] == 0, "timekeeper")
    spent = balance(stack, reader)
    found = pods(stack, path)
    assert spent["posted"] + spent["pending"] == 100 * sum(map(held_ms, found))
    assert all(each["spec"].get("schedulingGates") != GATE for each in found)
