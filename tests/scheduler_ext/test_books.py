"""What a read may tell the books, beside what the watch shows."""

from scheduler_ext.books import Books
from tests.scheduler_ext.worlds import on, percent, read


def books() -> Books:
    """Books that nobody hears."""
    return Books(lambda: 0, lambda _names: None)


def test_a_read_tells_of_a_binding_that_the_watch_has_not_shown_yet() -> None:
    known = books()
    known.pod_seen(read(percent(50)))

    known.pod_read(read(on(percent(50), "n", "GPU-0")))

    seat = known.snapshot.seat("uid-p")
    assert seat is not None
    assert seat.held == "bound"


def test_a_read_that_is_older_than_the_end_of_the_containers_takes_no_cards_again() -> None:
    """Nothing would tell of that end a second time: the cards were lost."""
    known, raw = books(), on(percent(50), "n", "GPU-0")
    known.pod_seen(read(raw))
    known.pod_seen(read({**raw, "status": {"phase": "Succeeded"}}))

    known.pod_read(read(raw))

    assert known.snapshot.seat("uid-p") is None


def test_a_read_changes_nothing_of_a_pod_that_waits() -> None:
    known, raw = books(), percent(50)
    known.pod_seen(read(raw))

    known.pod_read(read({**raw, "metadata": {**raw["metadata"], "resourceVersion": "9"}}))

    pod = known.snapshot.pods.get("uid-p")
    assert pod is not None
    assert pod.version == "1"


def test_who_waits_for_something_is_told_when_it_is_there_or_time_is_up() -> None:
    known = books()

    assert not known.wait_for(lambda snapshot: len(snapshot.pods) > 0, 0.0)
    known.pod_seen(read(percent(50)))
    assert known.wait_for(lambda snapshot: len(snapshot.pods) > 0, 0.0)
