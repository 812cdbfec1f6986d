"""A real kube-scheduler and API server with our extender beside them, with the rights that it has in a
cluster: one for each module's tests."""

from collections.abc import Iterator

import pytest

from deploy.local.cluster import ControlPlane
from tests.scheduler_ext.clusters import World, extender_with, with_roles
from tests.scheduler_ext.processes import Process
from tests.support.simulated_timekeeper import SimulatedTimekeeper
from tests.support.tls import Tls


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> ControlPlane:
    """The control plane with our roles, and an account for the extender."""
    return with_roles(control_plane)


@pytest.fixture(scope="module")
def timekeeper(tls: Tls) -> Iterator[SimulatedTimekeeper]:
    """One that knows no namespace until a test says so."""
    with SimulatedTimekeeper(tls) as running:
        yield running


extender = extender_with()


@pytest.fixture
def world(plane: ControlPlane, extender: Process) -> Iterator[World]:
    """An empty cluster before and after."""
    made = World(plane, extender)
    yield made
    made.clear()
