"""One real node for the tests of this folder, with everything of Bursar around it."""

import fcntl
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.build import binaries
from deploy.local.cleanup import LOCK, sweep
from deploy.local.cluster import ControlPlane
from deploy.local.commands import Options
from deploy.local.real_node import GATEWAY, NodeHost, RealNode, hindrance
from deploy.local.stack import Stack, Tuning
from deploy.local.tools import NODE_TOOLS, TOOLS
from tests.kubelet import agents, images
from tests.kubelet.agents import Agent
from tests.kubelet.dies import PANIC
from tests.kubelet.left import Begun, Left, is_alive, leave_behind
from tests.kubelet.worlds import CARDS, MEMORY_MIB, NAMESPACE, NODE, PODS, World, advertise, allocatable


@pytest.fixture(scope="session")
def tools() -> dict[str, Path]:
    """The binaries of control plane and node; skipped by name where this machine cannot have a node."""
    reason = hindrance()
    if reason:
        pytest.skip(reason)
    return binaries(lambda line: print(line, file=sys.stderr), (*TOOLS, *NODE_TOOLS))


@pytest.fixture(scope="session")
def archive(tools: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The images."""
    return images.write(tmp_path_factory.mktemp("images"), described())


@pytest.fixture(scope="session")
def killed_before(archive: Path) -> Iterator[Left]:
    """A node whose owner was killed while a container ran on it, before this session's own node starts. What
    it left goes in any case, also where no other node comes."""
    try:
        yield leave_behind(archive)
    finally:
        with LOCK.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            sweep()


@pytest.fixture(scope="session")
def begun(tools: dict[str, Path], archive: Path, killed_before: Left) -> Iterator[Begun]:
    """This machine with containerd and the images, and what it was like when that was there."""
    with NodeHost(tools) as machine:
        machine.load(archive)
        still_runs = killed_before.pid is not None and is_alive(killed_before.pid)
        yield Begun(machine, still_runs, PANIC.read_text().strip())


@pytest.fixture(scope="session")
def machine(begun: Begun) -> NodeHost:
    """This machine with containerd and the images."""
    return begun.machine


def described() -> str:
    """The cards that the fake NVML in the images tells of."""
    return "".join(f"card {uuid} 40 1000 {MEMORY_MIB}\n" for uuid in CARDS)


@pytest.fixture(scope="package")
def world(machine: NodeHost) -> Iterator[World]:
    """The cluster, its node Ready with two cards, its sidecars asked to beat each second."""
    options = Options(
        listen=GATEWAY, nodes=(NODE,), api_flags=("--enable-admission-plugins=NodeRestriction",)
    )
    with (
        ControlPlane(options, tools=machine.tools) as control_plane,
        Stack(control_plane, Tuning(timekeeper_address=GATEWAY)) as stack,
        RealNode(machine, control_plane, NODE) as node,
    ):
        advertise(control_plane)
        control_plane.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        stack.wait(f"namespace {NAMESPACE}", lambda: stack.exists(account))
        stack.wait("the cards to be allocatable", lambda: "bursar.dev/gpu-percent" in allocatable(stack))
        yield World(stack, node, stack.reader_token())


@pytest.fixture(scope="module")
def agent(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """The agent on a node of which nobody had told anything."""
    with agents.running_on(world, tmp_path_factory.mktemp("nvml")) as agent:
        yield agent


@pytest.fixture(autouse=True)
def emptied(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test left running, also one that failed, takes no cards from the next."""
    yield
    if "world" in request.fixturenames:
        world: World = request.getfixturevalue("world")
        world.stack.cp.api.call("DELETE", PODS, {"gracePeriodSeconds": 0})
