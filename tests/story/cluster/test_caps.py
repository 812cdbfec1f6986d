"""Caps from end to end: a real API server, kube-scheduler and controllers, kwok nodes; and parts of Bursar
that are killed meanwhile."""

import re
import signal
from typing import Any

from deploy.local.kwok_nodes import kwok_node
from deploy.local.stack import Stack
from tests.story.cluster.test_held_pods import pods, running, template
from tests.story.cluster.test_metering import set_budgets
from tests.support.control_plane import create_namespace, refused
from tests.support.waiting import at_once
from tests.worlds import Json


def one(name: str, **fields: Any) -> Json:
    return template(**fields) | {"metadata": {"name": name}}


def kill(stack: Stack, role: str) -> None:
    """kill -9, and another process."""
    stack.stop(role, signal.SIGKILL)
    stack.start(role)


def wait_for_standings(stack: Stack) -> None:
    """The extender has asked for the standings, and had an answer, since this moment: the second poll that
    ends from now on began after it."""

    def heard() -> float:
        text = stack.get("/metrics", "", stack.extender_url)
        (count,) = re.findall(r'^bursar_extender_standings_polls_total\{outcome="heard"\} (\S+)$', text, re.M)
        return float(count)

    before = heard()
    stack.wait("the extender to ask for the standings", lambda: heard() >= before + 2)


def test_a_deployment_runs_up_to_its_cap_across_a_kill_and_on_when_the_cap_is_raised(stack: Stack) -> None:
    path = create_namespace(stack.cp, "capped")
    for index in range(2):
        stack.cp.api.call("POST", "/api/v1/nodes", kwok_node(f"capped-{index}", cards=4))
    set_budgets(stack, capped="gpuHours: unlimited\nmaxGPUs: 1.5\n")

    def is_refused() -> bool:
        said = refused(stack.cp, "POST", f"{path}?dryRun=All", one("large", percent=200))
        return "the budget of the namespace allows no pod so much at one time (maxGPUs)" in said

    stack.wait("both workers to know the cap", lambda: all(at_once(is_refused)))
    wait_for_standings(stack)
    deployment = {
        "metadata": {"name": "d"},
        "spec": {
            "replicas": 5,
            "selector": {"matchLabels": {"app": "a"}},
            "template": template(percent=50),
        },
    }
    stack.cp.api.call("POST", "/apis/apps/v1/namespaces/capped/deployments", deployment)

    def bound() -> list[Json]:
        return [each for each in pods(stack, path) if each["spec"].get("nodeName")]

    def capped(cards: str) -> list[Json]:
        text = f"above the cap of namespace capped (maxGPUs: {cards})"
        return [each for each in pods(stack, path) if text in str(each["status"].get("conditions"))]

    stack.wait("three to run", lambda: len(running(pods(stack, path))) == 3)
    stack.wait("two to wait for the cap", lambda: len(capped("1.5")) == 2)
    kill(stack, "extender")
    first = bound()[0]["metadata"]["name"]
    stack.cp.api.call("DELETE", f"{path}/{first}")

    def is_replaced() -> bool:
        found = bound()  # one look: while the first ends, there are three with it
        names = {each["metadata"]["name"] for each in found}
        return len(running(found)) == len(found) == 3 and first not in names

    stack.wait("another in its place", is_replaced)
    assert max(len(bound()) for _ in range(40)) == 3

    set_budgets(stack, capped="gpuHours: unlimited\nmaxGPUs: 2.5\n")

    stack.wait("all to run", lambda: len(running(pods(stack, path))) == 5)
