"""All of Bursar, which the files of this folder borrow one after another, has nothing left of the file before
but its ledger."""

from typing import Any

from deploy.local.kwok_nodes import kwok_node
from deploy.local.stack import Stack
from tests.story.cluster.test_metering import gpu_pod, set_budgets
from tests.support.control_plane import create_namespace
from tests.support.waiting import eventually
from tests.support.worker_control_plane import Lender

KINDS = ("namespaces", "nodes", "pods", "configmaps", "resourcequotas")
POLICY = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/bursar-grace"


def named(stack: Stack) -> dict[str, set[str]]:
    """The names of all objects of some kinds."""
    found: dict[str, set[str]] = {}
    for kind in KINDS:
        items: list[dict[str, Any]] = stack.cp.api.call("GET", f"/api/v1/{kind}")["items"]
        found[kind] = {each["metadata"]["name"] for each in items}
    return found


def processes(stack: Stack) -> dict[str, int]:
    """The process IDs of the roles."""
    return {role: process.pid for role, process in stack.processes.items()}


def test_the_next_file_finds_the_same_processes_and_nothing_of_the_one_before(lender: Lender) -> None:
    with lender.stack() as stack:
        before, there = named(stack), processes(stack)
        pods = create_namespace(stack.cp, "left-behind")
        stack.cp.api.call("POST", "/api/v1/nodes", kwok_node("left-behind", cards=1))
        set_budgets(stack, **{"left-behind": "gpuHours: 1\n"})
        stack.cp.api.call("POST", pods, gpu_pod("runs", 100, "1h"))
        eventually(lambda: "nodeName" in stack.cp.api.call("GET", f"{pods}/runs")["spec"], "the binding")
        stack.cp.api.call("DELETE", POLICY)

    with lender.stack() as stack:
        assert (named(stack), processes(stack)) == (before, there)
        assert stack.cp.api.answers(POLICY)
        assert stack.is_ready(stack.timekeeper_url)
