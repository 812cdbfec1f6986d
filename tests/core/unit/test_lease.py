"""A Lease by which processes elect: the pure part."""

from timekeeper.core.kube.lease import (
    Lease,
    ObservedVersion,
    holder_name,
    is_free,
    lease_spec,
    observe,
    read_lease,
)

THEIRS = Lease("you", 15, "7", 3)


def test_a_lease_is_free_if_it_is_mine_unheld_or_unrenewed_for_its_duration_by_our_clock() -> None:
    seen = ObservedVersion("7", 100.0)

    assert is_free(None, "me", None, 0.0)
    assert is_free(Lease("", 15, "7"), "me", None, 0.0)
    assert is_free(Lease("me", 15, "7"), "me", None, 0.0)
    assert not is_free(THEIRS, "me", None, 1_000.0)
    assert not is_free(THEIRS, "me", seen, 114.9)
    assert is_free(THEIRS, "me", seen, 115.0)


def test_a_lease_of_an_earlier_process_of_the_same_container_is_free_to_one_that_has_not_held_it() -> None:
    first, next_, other_pod, other_role = (
        holder_name("host", *place)
        for place in (("u1", "c", "aa"), ("u1", "c", "bb"), ("u2", "c", "bb"), ("u1", "d", "bb"))
    )
    held = Lease(first, 15, "7")
    here, again = holder_name("host", "", "c", "aa"), holder_name("host", "", "c", "bb")

    assert is_free(held, next_, None, 0.0)
    assert not is_free(held, next_, None, 0.0, has_held=True)
    assert not is_free(held, other_pod, None, 0.0)
    assert not is_free(held, other_role, None, 0.0)
    assert not is_free(Lease(here, 15, "7"), again, None, 0.0)


def test_a_version_counts_from_when_we_first_saw_it() -> None:
    first = observe(THEIRS, None, 5.0)

    assert first == ObservedVersion("7", 5.0)
    assert observe(THEIRS, first, 9.0) == first
    assert observe(Lease("you", 15, "8"), first, 9.0) == ObservedVersion("8", 9.0)
    assert observe(None, first, 9.0) is None


def test_what_is_written_is_read_back_and_counts_the_changes_of_holder() -> None:
    for lease, holder, changes in ((None, "me", 0), (THEIRS, "me", 4), (THEIRS, "you", 3), (THEIRS, "", 4)):
        spec = lease_spec(lease, holder, 15, "2026-11-20T00:00:00.000000Z")
        assert read_lease({"metadata": {"resourceVersion": "9"}, "spec": spec}) == Lease(
            holder, 15, "9", changes
        )


def test_whatever_stands_in_a_lease_it_is_read() -> None:
    strange = {"leaseDurationSeconds": "x", "leaseTransitions": True, "holderIdentity": None}

    assert read_lease({"spec": strange}) == Lease("", 0, "", 0)
    assert read_lease({}) == Lease("", 0, "", 0)
