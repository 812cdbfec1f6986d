"""A real kube-scheduler and API server with our extender beside them, with the rights that it has in a
cluster: one for each module's tests."""

from collections.abc import Iterator

import pytest

from deploy.local.cluster import ControlPlane
from tests.scheduler_ext.clusters import World, extender_with
from tests.scheduler_ext.processes import ROOT, Process
from tests.support.control_plane import apply, apply_files
from tests.support.simulated_timekeeper import SimulatedTimekeeper
from tests.support.tls import Tls


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> ControlPlane:
    """The control plane with our roles, and an account for the extender."""
    manifests = ROOT / "deploy" / "manifests"
    apply_files(control_plane, [manifests / "00-namespace.yaml", manifests / "rbac.yaml"])
    account = {"name": "extender", "namespace": "bursar-system"}
    rbac = "rbac.authorization.k8s.io"
    role = {"apiGroup": rbac, "kind": "ClusterRole", "name": "bursar-extender"}
    subjects = [{"kind": "ServiceAccount"} | account]
    binding = {"metadata": {"name": "x"}, "roleRef": role, "subjects": subjects}
    apply(
        control_plane,
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRoleBinding"} | binding,
    )
    return control_plane


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
