"""Nodes that never had a Lease, as those of virtual kubelets: their condition Ready is the sign of life."""

import pytest

from tests.timekeeper.worlds import GPU, HOUR, MINUTE, T0, Json, Town, budgets, gpu_pod, lease, node
from timekeeper.edge.reflector import WatchFailed
from timekeeper.settler.cluster.cluster_state import WatchUpdate
from timekeeper.settler.findings import of_clocks

BUDGET = "gpuHours: 4\nperiod: day"


def ready(status: str) -> Json:
    raw = node()
    return raw | {"status": {"conditions": [{"type": "Ready", "status": status}]}}


def run(town: Town, raw: Json) -> None:
    town.begin(("nodes", raw), ("configmaps", budgets(team_a=BUDGET)))
    town.change("pods", gpu_pod(bound_ms=T0, started_ms=T0))


def passes(town: Town, ms: int) -> None:
    """The watch of pods is alive, and no Lease is there."""
    town.clock.turn(ms)
    town.quiet()
    town.tick()


@pytest.mark.parametrize("status", ["True", "False"])
def test_its_pods_are_charged_while_it_is_ready_or_says_that_it_is_not(town: Town, status: str) -> None:
    run(town, ready(status))
    assert town.standing() == "IN_BUDGET"

    passes(town, 3 * HOUR)
    assert town.budget()["pending"] == 3 * HOUR * GPU
    passes(town, 2 * HOUR)

    assert town.standing() == "OVER_BUDGET"
    assert town.charged() == 5 * HOUR * GPU


def test_it_lives_until_the_watch_sees_that_its_condition_is_unknown(town: Town) -> None:
    run(town, ready("True"))
    passes(town, HOUR)
    town.change("nodes", ready("Unknown"))
    passes(town, HOUR)
    assert town.charged() == HOUR * GPU

    town.change("nodes", ready("True"))
    passes(town, HOUR)
    assert town.charged() == 3 * HOUR * GPU  # its pod is there, and it may have run


def test_a_settler_that_first_sees_it_as_unknown_hears_nothing_of_it(town: Town) -> None:
    run(town, ready("True"))
    passes(town, HOUR)
    town.hear("nodes", ready("Unknown"), unheard=True)
    town.clock.turn(HOUR)
    town.resume()
    passes(town, HOUR)

    assert town.charged() == HOUR * GPU


@pytest.mark.parametrize("restarts", [False, True])
def test_a_node_that_once_had_a_lease_is_silent_without_it(town: Town, restarts: bool) -> None:
    town.begin(("nodes", ready("True")), ("leases", lease(T0)))
    town.change("pods", gpu_pod(bound_ms=T0, started_ms=T0))
    town.advance(MINUTE)
    town.hear("leases", lease(T0 + MINUTE), deleted=True)
    town.resume() if restarts else town.tick()
    passes(town, HOUR)

    assert town.charged() == MINUTE * GPU


@pytest.mark.parametrize("restarts", [False, True])
def test_a_node_that_never_had_one_is_known_after_a_restart_and_follows_its_first_lease(
    town: Town, restarts: bool
) -> None:
    run(town, ready("True"))
    passes(town, HOUR)
    town.resume() if restarts else town.tick()
    passes(town, HOUR)
    assert town.charged() == 2 * HOUR * GPU

    town.change("leases", lease(town.clock()))
    town.resume() if restarts else town.tick()
    passes(town, HOUR)
    assert town.charged() == 2 * HOUR * GPU
    town.hear("leases", lease(town.clock()), deleted=True)
    town.resume() if restarts else town.tick()
    passes(town, HOUR)
    assert town.charged() == 2 * HOUR * GPU


def test_without_a_condition_ready_nothing_says_that_it_lives(town: Town) -> None:
    run(town, node())
    passes(town, HOUR)

    assert town.charged() == 0


def test_such_nodes_are_named(town: Town) -> None:
    run(town, ready("True"))
    cluster = town.settler.cluster
    assert [finding.code for finding in of_clocks({}, cluster.nodes.leaseless())] == ["no-lease"]

    town.change("leases", lease(town.clock()))
    assert list(of_clocks({}, cluster.nodes.leaseless())) == []


def test_while_nodes_cannot_be_watched_it_proves_nothing(town: Town) -> None:
    run(town, ready("True"))
    passes(town, HOUR)
    town.settler.apply(WatchUpdate("nodes", town.clock(), WatchFailed("away")))
    passes(town, HOUR)

    assert town.charged() == HOUR * GPU
