"""Cards enter containers by NRI, on the real containerd: each opens the cards of its placement alone.

The device nodes have the numbers of NVIDIA's driver, which this machine lacks. So to open one fails with
ENXIO where the kernel's device cgroup allows it, and with EPERM where it does not.
"""

import json
import os
import stat
from collections.abc import Iterator

import pytest

from tests.kubelet.agents import Agent
from tests.kubelet.worlds import CARDS, Json, World, container, gpu_pod

pytestmark = pytest.mark.timeout(600)

MAJOR = 195
# Makes each device node itself, as root may, and prints the cards that the kernel lets it open.
OPENS = """
import errno, os, time
found = []
for number in range(4):
    path = f"/tmp/card{number}"
    os.mknod(path, 0o666 | 0o020000, os.makedev(195, number))
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        if error.errno == errno.ENXIO:
            found.append(number)
        elif error.errno != errno.EPERM:
            print("unexpected", error)
nodes = sorted(name for name in os.listdir("/dev") if name.startswith("nvidia"))
print("opens", found, "has", nodes, flush=True)
"""


@pytest.fixture(scope="module")
def nri(world: World, agent: Agent) -> Iterator[Agent]:
    """The agent, with device nodes of two cards, once it answers the runtime."""
    dev = agent.description.parent / "dev"
    dev.mkdir()
    for name, minor in (("nvidia0", 0), ("nvidia1", 1), ("nvidiactl", 255)):
        os.mknod(dev / name, 0o666 | stat.S_IFCHR, os.makedev(MAJOR, minor))
    world.until("the agent to answer the runtime", lambda: nri_of(agent).get("plugins") == ["bursar"])
    return agent


def nri_of(agent: Agent) -> Json:
    """What the inventory says of NRI."""
    told: Json = json.loads(agent.annotation("inventory") or "{}").get("nri", {})
    return told


def opened(world: World, name: str, which: str = "main") -> str:
    """What the container printed."""
    lines = world.node.output(world.ended(name), which)
    return next(line for line in lines if line.startswith("opens"))


def number_of(world: World, name: str, which: str = "main") -> list[int]:
    """The numbers of the cards in the placement."""
    placed = json.loads(world.pod(name)["metadata"]["annotations"]["bursar.dev/devices"])
    return sorted(CARDS.index(each["uuid"]) for each in placed["containers"].get(which, []))


def test_each_container_opens_the_cards_of_its_placement_by_device_nodes(world: World, nri: Agent) -> None:
    world.create(gpu_pod("half", container("main", OPENS, gpu_percent="50"), container("none", OPENS)))
    world.create(gpu_pod("whole", container("main", OPENS, gpu_count="1")))

    (card,) = number_of(world, "half") if world.ended("half") else []
    assert opened(world, "half") == f"opens [{card}] has ['nvidia{card}', 'nvidiactl']"
    assert opened(world, "half", "none") == "opens [] has []"
    (card,) = number_of(world, "whole") if world.ended("whole") else []
    assert opened(world, "whole") == f"opens [{card}] has ['nvidia{card}', 'nvidiactl']"
    assert nri_of(nri) == {"plugins": ["bursar"], "enforced": True}
