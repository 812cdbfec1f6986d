"""The node agent as it is deployed: cards that appear, fail and recover, and who is really on them."""

import json

from tests.kubelet.agents import Agent
from tests.kubelet.worlds import (
    CARDS,
    MEMORY_MIB,
    NODE,
    PODS,
    World,
    allocatable,
    container,
    gpu_pod,
    runs_for,
    status_of,
)


def test_the_cards_that_nvml_shows_appear_on_the_node(world: World, agent: Agent) -> None:
    world.until("the inventory", lambda: set(agent.inventory()) == set(CARDS))
    world.until("the kubelet to count them", lambda: "bursar.dev/gpu-percent" in allocatable(world.stack))

    (first, second) = (agent.inventory()[uuid] for uuid in CARDS)
    assert (first["index"], first["model"], first["memory_mib"], first["healthy"]) == (
        0,
        "T4",
        MEMORY_MIB,
        True,
    )
    assert second["index"] == 1
    assert allocatable(world.stack)["bursar.dev/gpu-percent"] == "200"
    assert allocatable(world.stack)["bursar.dev/gpu-memory"] in (str(2 * MEMORY_MIB), "32k")


def test_a_removed_inventory_is_written_again(world: World, agent: Agent) -> None:
    world.until("the inventory", lambda: set(agent.inventory()) == set(CARDS))
    before = agent.inventory()

    done = world.stack.cp.kubectl("annotate", "node", NODE, "bursar.dev/inventory-", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert "bursar.dev/inventory" not in json.loads(done.stdout)["metadata"]["annotations"]
    world.until("the inventory again", lambda: agent.inventory() == before)


def test_a_card_that_fails_gets_no_new_pods_until_it_recovers(world: World, agent: Agent) -> None:
    world.until("the inventory", lambda: set(agent.inventory()) == set(CARDS))
    world.create(gpu_pod("on-it", container("main", runs_for(600), gpu_count="2")))
    pod = world.running("on-it")

    agent.tell([f"fail * GPU_IS_LOST {CARDS[0]}"])
    world.until("the card to be unhealthy", lambda: not agent.is_healthy(CARDS[0]))

    assert agent.is_healthy(CARDS[1])
    assert allocatable(world.stack)["bursar.dev/gpu-percent"] == "200", "its pod's amounts stay"
    world.until("an Event on its pod", lambda: "GPUUnhealthy" in events_of(world, pod["metadata"]["name"]))
    world.delete("on-it")
    world.create(gpu_pod("whole", container("main", runs_for(1), gpu_count="2")))
    world.create(gpu_pod("one", container("main", runs_for(1), gpu_count="1")))
    world.ended("one")
    assert "nodeName" not in world.pod("whole")["spec"]

    agent.tell()
    world.until("the card to be healthy", lambda: agent.is_healthy(CARDS[0]))
    world.ended("whole")


def events_of(world: World, pod: str) -> str:
    """The reasons of the Events on a pod."""
    return world.stack.cp.kubectl(
        *("get", "events", "-n", "gpus", "-o", "jsonpath={.items[*].reason}"),
        f"--field-selector=involvedObject.name={pod}",
    ).stdout


TRAPS = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: print('asked')); print('begun')\n"
LONG_GRACE_S = 60


def test_the_agents_report_lists_a_force_deleted_pod_until_its_processes_are_gone(
    world: World, agent: Agent
) -> None:
    """Its cards are free when it ends, long before its grace period does."""
    obeys_late = TRAPS + "time.sleep(12)"
    main = container("main", obeys_late, gpu_count="2")
    world.create(gpu_pod("forced", main, terminationGracePeriodSeconds=LONG_GRACE_S))
    pod = world.running("forced")
    uid = pod["metadata"]["uid"]
    world.said(pod, "main", "begun")
    world.until("the holder", lambda: uid in agent.holders()["pods"])
    (pid, *_) = world.node.pids(status_of(pod, "main")["containerID"])

    world.stack.cp.api.call("DELETE", f"{PODS}/forced", {"gracePeriodSeconds": 0})
    world.create(gpu_pod("next", container("main", runs_for(1), gpu_count="2")))
    world.said(pod, "main", "asked")
    assert uid in agent.holders()["pods"]
    assert "nodeName" not in world.pod("next")["spec"]

    def is_gone() -> bool:
        is_bound = "nodeName" in world.pod("next")["spec"]  # read before, or it might be bound in between
        is_held = uid in agent.holders()["pods"]
        assert not (is_bound and is_held), "the next has the cards of one that is still there"
        return not is_held

    world.until("the processes to be gone", is_gone)
    assert pid not in world.node.pids(status_of(pod, "main")["containerID"])
    world.until("the next to be bound", lambda: "nodeName" in world.pod("next")["spec"])
    world.ended("next")
