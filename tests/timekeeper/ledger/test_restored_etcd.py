"""etcd is restored from a backup: pods that it forgot, and pods that live twice under their UID."""

import pytest

from tests.timekeeper.worlds import GPU, HOUR, MINUTE, SECOND, T0, Json, Town, gpu_pod, lease, node
from timekeeper.operations.audit.audit import audit
from timekeeper.operations.audit.finding import Finding

ENDED = gpu_pod(started_ms=T0, ended_ms=T0 + 30 * MINUTE)
RUNS_AGAIN = T0 + 62 * MINUTE


def restored(started_ms: int = T0, name: str = "n1") -> Json:
    """As the backup has it, bound at T0, with a start of its first or its second life."""
    return gpu_pod(node=name, bound_ms=T0, started_ms=started_ms)


@pytest.fixture
def ended(town: Town) -> Town:
    """A pod ran for half an hour and was deleted; an hour after its beginning etcd is restored."""
    town.begin(("nodes", node()), ("nodes", node("n2")), ("leases", lease(T0)), ("leases", lease(T0, "n2")))
    town.change("pods", gpu_pod(started_ms=T0))
    town.advance(30 * MINUTE)
    town.change("pods", ENDED)
    town.change("pods", ENDED, deleted=True)
    town.advance(30 * MINUTE)
    return town


def lists(town: Town, *pods: Json) -> None:
    """The watch found out, and the list is what the backup has."""
    town.objects["pods"] = {pod["metadata"]["uid"]: pod for pod in pods}
    town.hear_all("pods")
    town.tick()


def both_lives(town: Town) -> int:
    """The total of the pod's sessions."""
    return town.charged() // GPU // MINUTE


@pytest.mark.parametrize("restarts", [False, True])
def test_a_pod_that_lives_twice_under_its_uid_is_charged_for_both_lives_and_not_for_the_time_between(
    ended: Town, restarts: bool
) -> None:
    lists(ended, restored())
    ended.advance(2 * MINUTE)
    ended.change("pods", restored(RUNS_AGAIN))
    ended.advance(10 * MINUTE)
    assert both_lives(ended) == 30 + 12  # while it runs
    ended.resume() if restarts else None
    ended.advance(20 * MINUTE)
    ended.change("pods", gpu_pod(bound_ms=T0, started_ms=RUNS_AGAIN, ended_ms=RUNS_AGAIN + 30 * MINUTE))
    ended.advance(HOUR)

    assert both_lives(ended) == 30 + 32
    faults: list[Finding] = []
    with ended.store.reading() as connection:
        audit(connection, ended.clock(), faults.append)
    assert faults == []


def test_a_settler_that_did_not_run_at_the_restore_counts_from_the_second_start(ended: Town) -> None:
    ended.clock.turn(12 * MINUTE)
    ended.objects["pods"] = {"p": restored(RUNS_AGAIN)}
    ended.resume()
    ended.advance(20 * MINUTE)
    ended.change("pods", gpu_pod(bound_ms=T0, started_ms=RUNS_AGAIN, ended_ms=RUNS_AGAIN + 30 * MINUTE))

    assert both_lives(ended) == 60


def test_a_container_that_its_kubelet_knows_to_be_over_costs_nothing_more(ended: Town) -> None:
    lists(ended, restored())
    ended.advance(30 * SECOND)
    ended.change("pods", ENDED)
    ended.advance(HOUR)

    assert both_lives(ended) == 30


def test_a_pod_that_was_removed_while_it_ran_lives_again(town: Town) -> None:
    town.begin(("nodes", node()), ("leases", lease(T0)))
    town.change("pods", gpu_pod(started_ms=T0, grace_s=60))
    town.advance(30 * MINUTE)
    town.change("pods", gpu_pod(started_ms=T0, grace_s=60), deleted=True)
    town.advance(30 * MINUTE)
    lists(town, restored())
    town.advance(10 * MINUTE)

    assert both_lives(town) == 31 + 10


def test_a_pod_that_is_on_another_node_after_the_restore_ended_on_the_first_with_its_last_evidence(
    town: Town,
) -> None:
    town.begin(("nodes", node()), ("nodes", node("n2")), ("leases", lease(T0)), ("leases", lease(T0, "n2")))
    town.change("pods", gpu_pod(started_ms=T0))
    town.advance(30 * MINUTE)
    town.clock.turn(5 * MINUTE)
    lists(town, restored(town.clock(), "n2"))
    for _ in range(2):
        town.clock.turn(10 * MINUTE)
        town.node_heard("n2")
        town.tick()

    assert both_lives(town) == 30 + 20


def test_what_etcd_forgot_ends_by_its_last_evidence_and_grace(town: Town) -> None:
    town.begin(("nodes", node()), ("leases", lease(T0)))
    town.change("pods", gpu_pod(started_ms=T0))
    town.advance(30 * MINUTE)
    town.hear("leases", lease(T0 - HOUR))  # of yesterday, until it is renewed
    lists(town)
    town.advance(10 * HOUR)

    assert both_lives(town) == 30 + 10
    assert "p" not in str(town.settler.cluster.pods)


def test_a_pod_that_is_back_within_its_grace_is_charged_once(town: Town) -> None:
    """Its life before ends when it was seen again, and no later."""
    town.begin(("nodes", node()), ("leases", lease(T0)))
    town.change("pods", gpu_pod(started_ms=T0, grace_s=300))
    town.advance(30 * MINUTE)
    town.change("pods", gpu_pod(started_ms=T0, grace_s=300), deleted=True)
    lists(town, restored())
    assert both_lives(town) == 30

    town.advance(10 * MINUTE)
    assert both_lives(town) == 40
