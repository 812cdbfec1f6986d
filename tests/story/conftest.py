"""All of Bursar on a control plane of its own, for one module's tests."""

from collections.abc import Iterator

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.sidecars import Sidecars
from deploy.local.stack import Stack, Tuning


@pytest.fixture(scope="module")
def stack(control_plane: ControlPlane) -> Iterator[Stack]:
    """Every role as a process, ready; sidecars are asked to beat five times a second."""
    with Stack(control_plane, Tuning(heartbeat_interval="200ms")) as running:
        yield running


@pytest.fixture(scope="module")
def sidecars(stack: Stack) -> Iterator[Sidecars]:
    """A real sidecar for each governed pod that runs."""
    with Sidecars(stack) as running:
        yield running


@pytest.fixture(scope="module")
def reader(stack: Stack) -> str:
    """A token that may read budgets and usage."""
    return stack.reader_token()
