"""Each part, and the API server, is killed with SIGKILL in mid-act: while a Deployment's pods are created and
bound, while they are evicted because the budget is spent, and while their replacements are released."""

import signal
from collections.abc import Callable

import pytest

from deploy.local.kwok_nodes import kwok_node
from deploy.local.limits import LONGEST_S
from deploy.local.stack import Stack
from tests.scheduler_ext.readback import inventory, overcommitted, taken
from tests.story.cluster.test_held_pods import gated, pods, running, template
from tests.story.cluster.test_metering import set_budgets
from tests.support.control_plane import create_namespace
from tests.support.waiting import eventually
from tests.worlds import Json

pytestmark = pytest.mark.soak

SIZE = 40
SETTINGS = "lookahead: 0s\nevictGrace: 1s\npdbGrace: 1s\nevictRate: 600\n"
SCHEDULER, API_SERVER = "gpu-scheduler", "kube-apiserver"


def kill(stack: Stack, part: str) -> None:
    """SIGKILL, seen from outside; then the same command again."""
    if part in (SCHEDULER, API_SERVER):
        killed = stack.cp.processes[part]
        stack.cp.stop_process(part)
        assert killed.wait(LONGEST_S) == -signal.SIGKILL
        stack.cp.restart_process(part)
        if part == API_SERVER:
            eventually(lambda: stack.cp.api.answers("/readyz"), f"{part} to be back")
        return
    assert stack.stop(part, signal.SIGKILL) == -signal.SIGKILL
    stack.start(part)
    url = stack.webhook_url if part == "webhook" else stack.extender_url
    eventually(lambda: stack.is_ready(url), f"{part} to be back")


def _log_of(part: str) -> str | None:
    """The role whose log tells most."""
    return part if part in ("webhook", "extender") else "timekeeper"


@pytest.mark.parametrize("part", ["webhook", "extender", SCHEDULER, API_SERVER])
def test_what_a_killed_part_was_doing_is_done_once_it_is_back(stack: Stack, reader: str, part: str) -> None:
    path = create_namespace(stack.cp, f"kill-{part}")
    namespace = path.split("/")[4]
    memory: dict[str, int] = {}
    # All pods together fill two. The cards of a pod whose removal no watch showed stay taken for the longest
    # grace period, and the watch is away with the API server: its replacement needs others.
    for index in range(4 if part == API_SERVER else 2):
        node = kwok_node(f"{namespace}-{index}", cards=2)
        node["metadata"].setdefault("labels", {})["of"] = namespace
        memory |= inventory(stack.cp.api.call("POST", "/api/v1/nodes", node))

    def budget(hours: str) -> None:
        set_budgets(stack, _settings=SETTINGS, **{namespace: f"gpuHours: {hours}\nonExhausted: evict\n"})

    def now_running() -> list[Json]:
        return [each for each in running(pods(stack, path)) if not each["metadata"].get("deletionTimestamp")]

    def kill_while(is_done: Callable[[], int]) -> None:
        """Something, but not all, is done when the part is killed."""
        count = eventually(is_done, "the act to begin")
        kill(stack, part)
        assert count < SIZE

    # created and bound
    budget("900")
    spec = {
        "replicas": SIZE,
        "selector": {"matchLabels": {"app": "a"}},
        "template": template(nodeSelector={"of": namespace}, terminationGracePeriodSeconds=1),
    }
    deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    stack.cp.api.call("POST", deployments, {"metadata": {"name": "d"}, "spec": spec})
    created = lambda: len(pods(stack, path))  # noqa: E731
    kill_while(created if part == "webhook" else lambda: len(now_running()))
    stack.wait("all to run", lambda: len(now_running()) == SIZE, _log_of(part))

    first = now_running()
    assert overcommitted(taken(first), memory) == {}
    assert all("bursar.dev/governed" in each["metadata"]["labels"] for each in first)

    # evicted, and their replacements created: held
    budget("0")
    kill_while(lambda: SIZE - len(now_running()))
    stack.wait("all to leave", lambda: not now_running(), "timekeeper")
    stack.wait("the replacements", lambda: len(gated(pods(stack, path))) == SIZE, _log_of(part))

    def evicted() -> set[str]:
        query = f"/v1/decisions?namespace={namespace}&kind=evicted&limit=1000"
        return {each["uid"] for each in stack.get(query, reader)["decisions"]}

    uids = {each["metadata"]["uid"] for each in first}
    stack.wait("a record of each eviction", lambda: evicted() == uids, "timekeeper")

    # released and bound again
    budget("900")
    kill_while(lambda: len(now_running()))
    stack.wait("all to run again", lambda: len(now_running()) == SIZE, "timekeeper")
    assert overcommitted(taken(now_running()), memory) == {}
