"""`idle: evict` from end to end: a real node agent that reads the cards' use from the library of a fake
driver, and a real timekeeper, API server and scheduler."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from deploy.local.stack import Stack, Tuning
from tests.node.cluster.test_on_api_server import Agent, World, running
from tests.story.cluster.test_held_pods import template
from tests.story.cluster.test_metering import set_budgets
from tests.support.control_plane import create_namespace
from tests.worlds import Json

pytestmark = pytest.mark.soak

BUSY, RESTING = 90, 0


@pytest.fixture(scope="module")
def stack(control_plane: ControlPlane) -> Iterator[Stack]:
    """Every role as a process, ready."""
    with Stack(control_plane, Tuning()) as started:
        yield started


def used(agent: Agent, **use: int) -> None:
    """The use of each card from now on, in percent."""
    agent.cards("".join(f"card GPU-{card} {percent} 1200 81920\n" for card, percent in sorted(use.items())))


def test_a_pod_that_does_not_use_its_card_is_warned_and_then_evicted_and_one_that_does_is_not(
    stack: Stack, tmp_path: Path, reader: str
) -> None:
    path = create_namespace(stack.cp, "rests")
    stack.cp.api.call("POST", "/api/v1/nodes", kwok_node("idle-node"))
    set_budgets(
        stack,
        _settings="idleAfter: 6s\nidleGrace: 8s\n",
        rests="gpuHours: 100\nidle: evict\n",
    )
    token = tmp_path / "for-timekeeper"
    token.write_text(stack.token("bursar-node", "bursar-node", "bursar", pod=agents_pod(stack, "idle-node")))
    more = {
        "timekeeper_url": stack.timekeeper_url,
        "token_file": str(token),
        "ca": str(stack.ca_file),
        "spool": str(tmp_path / "spool"),
    }

    def pod(name: str) -> Json:
        listed = stack.cp.api.call("GET", path)["items"]
        return next((each for each in listed if each["metadata"]["name"] == name), {})

    def is_warned(name: str) -> bool:
        return "bursar.dev/idle-until" in pod(name).get("metadata", {}).get("annotations", {})

    def runs(name: str) -> bool:
        return bool(pod(name).get("status", {}).get("phase") == "Running")

    with running(World(stack.cp), tmp_path, "idle-node", **more) as agent:
        used(agent, a=BUSY, b=BUSY)
        stack.wait("the inventory", agent.is_whole)
        for name in ("one", "two"):
            body = template(percent=100) | {"metadata": {"name": name}}
            stack.cp.api.call("POST", path, body)
        stack.wait("both to run", lambda: runs("one") and runs("two"))
        card_of_one = "a" if "GPU-a" in pod("one")["metadata"]["annotations"]["bursar.dev/devices"] else "b"
        card_of_two = "b" if card_of_one == "a" else "a"

        used(agent, **{card_of_one: RESTING, card_of_two: BUSY})
        stack.wait("the warning", lambda: is_warned("one"), "timekeeper")
        stack.wait("the eviction", lambda: not pod("one"), "timekeeper")
        assert runs("two")
        assert not is_warned("two")

    def kinds() -> list[str]:
        return [each["kind"] for each in stack.get("/v1/explain/rests/one", reader)["steps"]]

    stack.wait("the record", lambda: kinds().count("evicted") == 1, "timekeeper")
    assert kinds().count("warned") == 1


def agents_pod(stack: Stack, node: str) -> Json:
    """The pod in which the agent of a node would run."""
    containers = [{"name": "agent", "image": "example"}]
    spec = {"nodeName": node, "serviceAccountName": "bursar-node", "containers": containers}
    body = {"metadata": {"generateName": "bursar-node-"}, "spec": spec}
    made: Json = stack.cp.api.call("POST", "/api/v1/namespaces/bursar-node/pods", body)
    return made
