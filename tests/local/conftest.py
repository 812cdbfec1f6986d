"""The control plane that the tests of this folder share."""

from collections.abc import Iterator

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.commands import Options
from deploy.local.kwok_nodes import kwok_node


@pytest.fixture(scope="package")
def control_plane() -> Iterator[ControlPlane]:
    """A control plane with a plain scheduler and the node `shared`, for all tests of this folder."""
    with ControlPlane(Options(node_lease_s=4)) as running:
        running.start_scheduler()
        running.api.call("POST", "/api/v1/nodes", kwok_node("shared", cards=8))
        yield running
