"""What a read may tell the books, beside what the watch shows."""

import pytest

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.fit.fit import fit
from scheduler_ext.model.node import read_node
from tests.scheduler_ext.worlds import node, on, percent, read
from tests.worlds import card
from timekeeper.core.values import Placement


def cache() -> ClusterCache:
    """Books that nobody hears."""
    return ClusterCache(lambda: 0, lambda _names: None)


def test_a_read_shows_a_binding_that_the_watch_has_not_shown_yet() -> None:
    known = cache()
    known.pod_updated(read(percent(50)))

    known.pod_read(read(on(percent(50), "n", "GPU-0")))

    allocation = known.snapshot.allocation("uid-p")
    assert allocation is not None
    assert allocation.state == "bound"


def test_a_read_that_is_older_than_the_end_of_the_containers_takes_no_cards_again() -> None:
    """Nothing would tell of that end a second time: the cards were lost."""
    known, raw = cache(), on(percent(50), "n", "GPU-0")
    known.pod_updated(read(raw))
    known.pod_updated(read({**raw, "status": {"phase": "Succeeded"}}))

    known.pod_read(read(raw))

    assert known.snapshot.allocation("uid-p") is None


def test_a_read_changes_nothing_of_a_pod_that_waits() -> None:
    known, raw = cache(), percent(50)
    known.pod_updated(read(raw))

    known.pod_read(read({**raw, "metadata": {**raw["metadata"], "resourceVersion": "9"}}))

    pod = known.snapshot.pods.get("uid-p")
    assert pod is not None
    assert pod.version == "1"


def test_a_waiter_returns_when_the_event_is_there_or_time_is_up() -> None:
    known = cache()

    assert not known.wait_for(lambda snapshot: len(snapshot.pods) > 0, 0.0)
    known.pod_updated(read(percent(50)))
    assert known.wait_for(lambda snapshot: len(snapshot.pods) > 0, 0.0)


@pytest.mark.parametrize("now", ["bound", "orphaned", "ended", "gone"])
def test_nothing_is_assumed_for_a_pod_that_is_bound_or_gone_by_now(now: str) -> None:
    """It would displace the cards that the pod holds, or take some that nothing frees."""
    known, raw = cache(), percent(50)
    known.node_updated(read_node(node("a", card(0))))
    waiting, bound = read(raw), read(on(raw, "b", "b-GPU-0"))
    known.pod_updated(waiting)
    if now != "gone":
        known.pod_updated(bound)
    if now == "orphaned":
        known.pod_deleted(bound)
    if now == "ended":
        known.pod_updated(read({**on(raw, "b", "b-GPU-0"), "status": {"phase": "Succeeded"}}))
    if now == "gone":
        known.pod_deleted(waiting)
    held, a = known.snapshot.allocation("uid-p"), known.snapshot.node("a")
    placement = fit(waiting.request or pytest.fail("malformed"), a)
    assert isinstance(placement, Placement)

    assert not known.assume(waiting, a, placement)

    assert known.is_superseded("uid-p")
    assert known.snapshot.allocation("uid-p") == held
    assert known.snapshot.node("a") is a


def test_nothing_is_assumed_anew_for_a_pod_that_only_a_read_has_shown_to_be_gone() -> None:
    """The watch will show its end; so long its cards are held for its grace period."""
    known, waiting = cache(), read(percent(50))
    known.node_updated(read_node(node("a", card(0), card(1))))
    known.pod_updated(waiting)
    placement = fit(waiting.request or pytest.fail("malformed"), known.snapshot.node("a"))
    assert isinstance(placement, Placement)
    assert known.assume(waiting, known.snapshot.node("a"), placement)
    known.orphan("uid-p")

    assert not known.assume(waiting, known.snapshot.node("a"), placement)

    allocation = known.snapshot.allocation("uid-p")
    assert allocation is not None
    assert allocation.state == "orphaned"
