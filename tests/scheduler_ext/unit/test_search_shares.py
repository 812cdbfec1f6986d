"""A namespace whose pods are hard to place takes a fifth of the time of the searches, and no other's."""

from scheduler_ext.fit import refusal
from scheduler_ext.verbs.fit_cache import CALL_STEPS, FilterResult
from scheduler_ext.verbs.protocol import ExtenderArgs
from scheduler_ext.verbs.verbs import MAX_SEARCH_MS, SEARCH_PART, SearchShares
from tests.scheduler_ext.machine import Cluster, Replica
from tests.scheduler_ext.unit.test_leading import verbs_of
from tests.scheduler_ext.worlds import asking, node, percent
from tests.worlds import card, container


class Clock:
    """A clock that stands still."""

    now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


def test_a_namespace_that_always_searches_has_a_fifth_of_the_time_and_what_it_had_saved() -> None:
    clock, searched_ms, refused = Clock(), 0, 0
    shares = SearchShares(clock)
    while clock.now_ms < 100_000:
        with shares.steps_of("hard") as steps:
            if steps.left == 0:
                refused += 1
                clock.now_ms += 5  # the calls of other pods
            else:
                steps.left = 0
                clock.now_ms += 600
                searched_ms += 600

    assert refused > 0
    assert clock.now_ms // SEARCH_PART <= searched_ms <= clock.now_ms // SEARCH_PART + MAX_SEARCH_MS + 600
    with shares.steps_of("easy") as steps:
        assert steps.left == CALL_STEPS


def test_a_call_that_does_not_search_costs_nothing() -> None:
    clock = Clock()
    shares = SearchShares(clock)
    for _ in range(1000):
        with shares.steps_of("easy") as steps:
            clock.now_ms += 100
        assert steps.left == CALL_STEPS


def test_pods_of_a_namespace_without_time_are_not_searched_for_until_it_has_time_again() -> None:
    clock, cluster = Clock(), Cluster()
    shares = SearchShares(clock)
    cluster.put("nodes", node("n", card(0), card(1)))
    hard, other = asking(*(container(f"c{at}", gpu_percent="40") for at in range(4))), percent(40, "other")
    hard["metadata"]["namespace"], other["metadata"]["namespace"] = "hard", "other"
    hard, other = cluster.put("pods", hard), cluster.put("pods", other)
    replica = Replica(cluster, "x", "x")
    replica.deliver()
    verbs = verbs_of(replica, waits=bool, search_shares=shares)
    with shares.steps_of("hard") as steps:
        steps.left, clock.now_ms = 0, clock.now_ms + 10_000

    not_tried = FilterResult([], {}, {"n": refusal.NOT_TRIED})
    assert verbs.filter(ExtenderArgs(hard, ["n"], None)) == not_tried
    assert verbs.filter(ExtenderArgs(hard, ["n"], None)) == not_tried
    assert verbs.filter(ExtenderArgs(other, ["n"], None)) == FilterResult(["n"], {}, {})
    clock.now_ms += 100_000
    assert verbs.filter(ExtenderArgs(hard, ["n"], None)) == FilterResult(["n"], {}, {})
