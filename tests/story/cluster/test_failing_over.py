"""What all roles make of a database that fails over: nothing is lost or charged twice, and new pods go on."""

from collections.abc import Iterator
from typing import Any

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from deploy.local.stack import Stack, Tuning
from tests.story.cluster.test_metering import gpu_pod, held_ms, set_budgets
from tests.support.control_plane import create_namespace
from tests.timekeeper.failover import Servers, servers

pytestmark = pytest.mark.timeout(1_140)

TEAM = "team-restored"
LONG = "1h"


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """Its timekeeper has a database of its own, so it is of this file alone."""
    with ControlPlane() as running:
        yield running


@pytest.fixture(scope="module")
def two() -> Iterator[Servers]:
    with servers() as both:
        both.wait_for_each_other()
        yield both


@pytest.fixture(scope="module")
def stack(plane: ControlPlane, two: Servers) -> Iterator[Stack]:
    """Every role, ready; a node with two cards."""
    tuning = Tuning(flags=(("timekeeper", (f"--database={two.url}", "--pod-uid=the-replica")),))
    with Stack(plane, tuning) as running:
        plane.api.call("POST", "/api/v1/nodes", kwok_node("gpu-1", cards=2))
        create_namespace(plane, TEAM)
        set_budgets(running, **{TEAM: "gpuHours: 100\nperiod: month"})
        yield running


def make(stack: Stack, name: str, run_for: str = LONG) -> None:
    stack.cp.api.call("POST", f"/api/v1/namespaces/{TEAM}/pods", gpu_pod(name, 100, run_for))


def phase(stack: Stack, name: str) -> str:
    return str(stack.cp.api.call("GET", f"/api/v1/namespaces/{TEAM}/pods/{name}")["status"]["phase"])


def session(stack: Stack, name: str) -> dict[str, Any]:
    """The pod's session; empty: there is none."""
    found = stack.get(f"/v1/sessions?namespace={TEAM}", stack.reader_token())["sessions"]
    return next((row for row in found if row["pod"] == name), {})


def charged_ms(stack: Stack, name: str) -> int:
    row = session(stack, name)
    return (row["posted"] + row["pending"]) // row["rateMilli"] if row else 0


def is_heard(stack: Stack, name: str, more_than_ms: int) -> bool:
    return charged_ms(stack, name) > more_than_ms


def test_a_database_that_fails_over_loses_no_charge_and_no_role_ends(stack: Stack, two: Servers) -> None:
    make(stack, "runs")
    make(stack, "ends", "20s")
    stack.wait("a charge", lambda: is_heard(stack, "runs", 0), "timekeeper")

    two.address.leads_to = two.standby.port  # nothing can be written there yet
    two.primary.stop()
    stack.wait("its word", lambda: not stack.is_ready(stack.timekeeper_url), "timekeeper")
    assert stack.is_ready(stack.webhook_url)
    stack.wait("its end", lambda: phase(stack, "ends") == "Succeeded")
    make(stack, "created-meanwhile")
    stack.wait("its cards", lambda: phase(stack, "created-meanwhile") == "Running", "extender")
    two.standby.promote()

    stack.wait("its word", lambda: stack.is_ready(stack.timekeeper_url), "timekeeper")
    ended = stack.cp.api.call("GET", f"/api/v1/namespaces/{TEAM}/pods/ends")
    stack.wait("the charge", lambda: charged_ms(stack, "ends") == held_ms(ended), "timekeeper")
    before = charged_ms(stack, "runs")
    stack.wait("more", lambda: is_heard(stack, "runs", before), "timekeeper")
    stack.wait("its charge", lambda: is_heard(stack, "created-meanwhile", 0), "timekeeper")
    stack.cp.api.call("DELETE", f"/api/v1/namespaces/{TEAM}/pods/created-meanwhile?gracePeriodSeconds=0")
