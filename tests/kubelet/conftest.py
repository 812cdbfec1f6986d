"""One real node for the whole session, with everything of Bursar around it."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.build import binaries
from deploy.local.cluster import ControlPlane
from deploy.local.commands import Options
from deploy.local.node import GATEWAY, Machine, RealNode, hindrance
from deploy.local.stack import Stack, Tuning
from deploy.local.tools import NODE_TOOLS, TOOLS
from tests.kubelet import images
from tests.kubelet.left import PANIC, Begun, Left, is_alive, leave_behind
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
def killed_before(archive: Path) -> Left:
    """A node whose owner was killed while a container ran on it, before this session's own node starts."""
    return leave_behind(archive)


@pytest.fixture(scope="session")
def begun(request: pytest.FixtureRequest, tools: dict[str, Path], archive: Path) -> Iterator[Begun]:
    """This machine with containerd and the images, and what it was like when that was there."""
    left: Left | None = None
    if os.environ.get("BURSAR_SOAK") == "1":
        left = request.getfixturevalue("killed_before")
    with Machine(tools) as machine:
        machine.load(archive)
        yield Begun(machine, left is not None and is_alive(left.pid), PANIC.read_text())


@pytest.fixture(scope="session")
def machine(begun: Begun) -> Machine:
    """This machine with containerd and the images."""
    return begun.machine


def described() -> str:
    """The cards that the fake NVML in the images tells of."""
    return "".join(f"card {uuid} 40 1000 {MEMORY_MIB}\n" for uuid in CARDS)


@pytest.fixture(scope="session")
def world(machine: Machine) -> Iterator[World]:
    """The cluster, its node Ready with two cards, its sidecars asked to beat each second."""
    options = Options(
        listen=GATEWAY, nodes=(NODE,), api_flags=("--enable-admission-plugins=NodeRestriction",)
    )
    with (
        ControlPlane(options, tools=machine.tools) as control_plane,
        Stack(control_plane, Tuning(timekeeper_address=GATEWAY)) as stack,
        RealNode(machine, control_plane, NODE) as node,
    ):
        advertise(stack)
        control_plane.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        stack.wait(f"namespace {NAMESPACE}", lambda: stack.exists(account))
        stack.wait("the cards to be allocatable", lambda: "bursar.dev/gpu-percent" in allocatable(stack))
        yield World(stack, node, stack.reader_token())


@pytest.fixture(autouse=True)
def emptied(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test left running, also one that failed, takes no cards from the next."""
    yield
    if "world" in request.fixturenames:
        world: World = request.getfixturevalue("world")
        world.stack.cp.api.call("DELETE", PODS, {"gracePeriodSeconds": 0})
