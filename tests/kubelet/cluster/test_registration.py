"""What the node agent has told of its node outlives the kubelet's restart and the Node object itself."""

import pytest

from tests.kubelet import agents
from tests.kubelet.agents import Agent
from tests.kubelet.worlds import (
    CARDS,
    NODE,
    Json,
    World,
    allocatable,
    container,
    gpu_pod,
    runs_for,
    status_of,
)

KNOWS = "Node was previously registered"


@pytest.fixture
def told(world: World, agent: Agent) -> dict[str, Json]:
    """What the agent tells of the cards, once the kubelet counts them."""
    world.until("the inventory", lambda: set(agent.inventory()) == set(CARDS))
    world.until("the cards to be allocatable", lambda: are_all_there(world))
    return agent.inventory()


def are_all_there(world: World) -> bool:
    return allocatable(world.stack).get("bursar.dev/gpu-percent") == "200"


def runs_on(before: Json, now: Json) -> bool:
    """Whether the same container runs that ran before."""
    ids = [status_of(pod, "main").get("containerID") for pod in (before, now)]
    return bool(ids[0] == ids[1] and "running" in status_of(now, "main").get("state", {}))


def test_a_restarted_kubelet_loses_no_capacity_and_no_pod(
    world: World, agent: Agent, told: dict[str, Json]
) -> None:
    """Also while a card is away: a kubelet that starts fails the pods that its node has no room for."""
    world.create(gpu_pod("through", container("main", runs_for(600), gpu_percent="150", gpu_count="2")))
    pod = world.running("through")
    agent.tell(cards=CARDS[:1])
    world.until("the card to be unhealthy", lambda: not agent.is_healthy(CARDS[1]))
    away = agent.inventory()

    world.node.stop_kubelet()
    world.node.start_kubelet()
    world.until("the kubelet", lambda: world.node.machine.processes.has_said("kubelet", KNOWS))
    assert are_all_there(world)
    world.create(gpu_pod("after", container("main", runs_for(1), gpu_percent="25")))
    world.ended("after")

    assert are_all_there(world)
    assert agent.inventory() == away
    assert runs_on(pod, world.pod("through")), world.pod("through")["status"]
    agent.tell()
    world.until("the card again", lambda: agent.inventory() == told)


def test_a_node_that_was_deleted_and_registers_anew_has_its_cards_again(
    world: World, agent: Agent, told: dict[str, Json]
) -> None:
    world.create(gpu_pod("stays", container("main", runs_for(600), gpu_percent="50")))
    pod = world.running("stays")
    before = agents.node(world)["metadata"]["uid"]

    world.node.stop_kubelet()
    world.stack.cp.api.call("DELETE", f"/api/v1/nodes/{NODE}")
    world.node.start_kubelet()
    world.until("the node", lambda: world.stack.exists(f"/api/v1/nodes/{NODE}"))
    agents.label(world)
    world.until("the inventory again", lambda: agent.inventory() == told)
    world.until("the cards to be allocatable again", lambda: are_all_there(world))
    world.create(gpu_pod("after", container("main", runs_for(1), gpu_percent="50")))
    world.ended("after")

    assert agents.node(world)["metadata"]["uid"] != before
    assert runs_on(pod, world.pod("stays")), world.pod("stays")["status"]
