"""etcd is put back to a backup under all roles, which run on: what it has forgotten is given up by each, and
no card and no charge stays with it."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from deploy.local.stack import Stack, Tuning
from tests.story.cluster.test_metering import gpu_pod, set_budgets
from tests.support.control_plane import create_namespace
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(1_140)

TEAM = "team-restored"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
WRITES = 3_000  # so many versions lie between the backup and what is lost
KUBERNETES = ("gpu-scheduler", "kube-scheduler", "kube-controller-manager", "kwok", "kube-apiserver", "etcd")
GRACE_MS = 30_000  # for so long a pod that nobody knows any more may run


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    """Its etcd is changed, so it is of this test alone."""
    with ControlPlane() as running:
        yield running


@pytest.fixture
def stack(plane: ControlPlane) -> Iterator[Stack]:
    """Every role, ready; a node with two cards."""
    with Stack(plane, Tuning(flags=(("extender", ("--max-grace-period=30s",)),))) as running:
        plane.api.call("POST", "/api/v1/nodes", kwok_node("gpu-1", cards=2))
        create_namespace(plane, TEAM)
        set_budgets(running, **{TEAM: "gpuHours: 100\nperiod: month", "_settings": "maxGracePeriod: 30s"})
        yield running


def make(stack: Stack, name: str) -> None:
    stack.cp.api.call("POST", f"/api/v1/namespaces/{TEAM}/pods", gpu_pod(name, 100, "1h"))


def pod(stack: Stack, name: str) -> Any:
    return stack.cp.api.call("GET", f"/api/v1/namespaces/{TEAM}/pods/{name}")


def runs(stack: Stack, name: str) -> bool:
    return bool(pod(stack, name)["status"]["phase"] == "Running")


def session(stack: Stack, name: str) -> dict[str, Any]:
    """The pod's session; empty: there is none."""
    rows = stack.get(f"/v1/sessions?namespace={TEAM}", stack.reader_token())["sessions"]
    return next((row for row in rows if row["pod"] == name), {})


def charged_ms(stack: Stack, name: str) -> int:
    row = session(stack, name)
    return (row["posted"] + row["pending"]) // row["rateMilli"] if row else 0


def back_up(plane: ControlPlane) -> None:
    plane.stop_process("etcd")
    shutil.copytree(plane.folder / "etcd", plane.folder / "backup")
    plane.restart_process("etcd")
    eventually(lambda: plane.api.answers("/readyz"), "the API server")


def restore(plane: ControlPlane) -> None:
    """The backup is put back, and all of Kubernetes begins anew, as its documentation demands."""
    for name in KUBERNETES:
        plane.stop_process(name)
    shutil.rmtree(plane.folder / "etcd")
    shutil.move(plane.folder / "backup", plane.folder / "etcd")
    for name in reversed(KUBERNETES):
        plane.restart_process(name)
    eventually(lambda: plane.api.answers("/readyz"), "the API server")


def write(plane: ControlPlane, first: int) -> None:
    """So many versions pass."""
    for number in range(first, first + WRITES):
        plane.api.call("POST", CONFIG_MAPS, {"metadata": {"name": f"write-{number}"}})


def test_a_pod_that_etcd_forgot_leaves_its_card_and_its_charge_ends(stack: Stack) -> None:
    """Its pods are in motion: soon after the restore etcd has newer versions than before, and no watch is
    silent."""
    plane = stack.cp
    make(stack, "runs")
    stack.wait("its container", lambda: runs(stack, "runs"))
    back_up(plane)
    make(stack, "forgotten")
    stack.wait("its container", lambda: runs(stack, "forgotten"))
    stack.wait("its charge", lambda: charged_ms(stack, "forgotten") > 0, "timekeeper")
    write(plane, 0)
    make(stack, "waits")
    stack.wait("its condition", lambda: "Unschedulable" in str(pod(stack, "waits")["status"]))

    restore(plane)
    write(plane, WRITES)
    make(stack, "follows")
    stack.wait("its card", lambda: runs(stack, "follows"), "extender")

    stack.wait("its end", lambda: session(stack, "forgotten")["vanished"], "timekeeper")
    forgotten = session(stack, "forgotten")
    most = forgotten["rateMilli"] * (forgotten["vanished"] - forgotten["bound"] + GRACE_MS)
    assert forgotten["amount"] <= most
    before = charged_ms(stack, "runs")
    stack.wait("more", lambda: charged_ms(stack, "runs") > before, "timekeeper")
