"""What is told late, twice, or out of turn changes no charge."""

from tests.timekeeper.clocks import iso
from tests.timekeeper.worlds import GPU, HOUR, MINUTE, SECOND, T0, Json, Town, gpu_pod, lease, node

LONGEST_GRACE = 10 * MINUTE  # the default of maxGracePeriod


def began(town: Town) -> Json:
    """A pod that runs, a minute after its binding, on a node that is heard."""
    pod = gpu_pod(started_ms=T0)
    town.begin(("nodes", node()), ("leases", lease(T0)), ("pods", pod))
    town.advance(MINUTE)
    return pod


def test_a_removal_that_arrives_late_counts_from_when_it_happened(town: Town) -> None:
    pod = began(town)
    pod["metadata"]["deletionTimestamp"] = iso(T0 + MINUTE)
    town.clock.turn(10 * MINUTE)
    town.hear("leases", lease(town.clock()))

    town.change("pods", pod, deleted=True)

    assert town.charged() == GPU * (MINUTE + 30 * SECOND)


def test_a_removal_that_is_reported_twice_counts_from_the_first_time(town: Town) -> None:
    pod = began(town)
    town.change("pods", pod, deleted=True)
    town.clock.turn(10 * SECOND)

    town.hear("pods", pod, deleted=True)
    town.advance(MINUTE, heard=False)

    assert town.charged() == GPU * (MINUTE + 30 * SECOND)


def test_a_removal_that_is_reported_again_by_a_clock_turned_back_counts_from_the_first_time(
    town: Town,
) -> None:
    pod = began(town)
    town.hear("pods", pod, deleted=True)
    town.clock.turn(-HOUR)

    town.change("pods", pod, deleted=True)
    town.advance(2 * HOUR, heard=False)

    assert town.charged() == GPU * (MINUTE + 30 * SECOND)


def test_a_pod_that_a_list_does_not_contain_is_charged_for_the_longest_grace_period(town: Town) -> None:
    """A deletion with a longer grace period than the pod's own may have been missed."""
    began(town)
    town.objects["pods"].clear()
    town.clock.turn(SECOND)

    town.list_all()
    town.advance(HOUR, heard=False)

    assert town.charged() == GPU * (MINUTE + LONGEST_GRACE)


def test_an_older_lease_takes_nothing_back(town: Town) -> None:
    began(town)

    town.change("leases", lease(T0 + SECOND))

    assert town.charged() == GPU * MINUTE


def test_a_pod_that_was_given_up_and_is_listed_again_goes_on(town: Town) -> None:
    """A list from an API server that was behind had it not; by then all of it was settled."""
    pod = began(town)
    town.objects["pods"].clear()
    town.list_all()
    town.advance(2 * HOUR, heard=False)
    assert town.postings() == [(T0, T0 + MINUTE + LONGEST_GRACE, GPU, "settled")]

    town.hear("pods", pod)
    town.advance()

    assert town.charged() == GPU * (MINUTE + 2 * HOUR)


def test_a_nodes_report_between_an_end_and_the_next_tick_is_not_charged(town: Town) -> None:
    pod = gpu_pod()
    town.begin(("nodes", node()), ("leases", lease(T0)), ("pods", pod))
    town.advance(HOUR)

    town.hear("pods", {**pod, "status": pod["status"] | {"phase": "Failed", "reason": "Evicted"}})
    town.advance(7 * SECOND)

    assert town.charged() == GPU * HOUR


def test_a_node_that_lives_on_is_no_evidence_for_a_pod_that_ended(town: Town) -> None:
    """No status says when it ended, also not a later one that says that a container ran."""
    pod = began(town)
    town.hear("pods", gpu_pod("other", namespace="team-b", card=1, started_ms=T0))
    evicted = {"phase": "Failed", "reason": "Evicted"}
    town.change("pods", {**pod, "status": pod["status"] | evicted | {"containerStatuses": []}})
    assert town.charged() == GPU * MINUTE
    town.advance(HOUR)

    ran = {"name": "main", "state": {"terminated": {"startedAt": iso(T0), "exitCode": 137}}}
    town.change("pods", {**pod, "status": pod["status"] | evicted | {"containerStatuses": [ran]}})

    assert town.charged() == GPU * MINUTE
