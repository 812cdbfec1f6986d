"""Elections by a Lease, with an API server in memory."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.runtime.lines import into
from tests.support.clock import SecondsClock
from timekeeper.edge.lease import (
    Lease,
    LeaseElection,
    LeaseName,
    ObservedVersion,
    holder_name,
    is_free,
    lease_spec,
    observe,
    read_lease,
)

PATH = "/apis/coordination.k8s.io/v1/namespaces/bursar-system/leases/x"
Answer = tuple[int, Mapping[str, Any], str]
AWAY: Answer = 0, {}, "the API server does not answer"


class Leases:
    """An API server that holds one Lease."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.away = False
        self.refuses_writes = 0  # a status; 0: none
        self._version = 0

    def __call__(self, method: str, path: str, body: Mapping[str, Any] | None) -> Answer:
        """As `timekeeper.edge.lease.Call`."""
        if self.away:
            return AWAY
        if method == "GET":
            assert path == PATH
            return (404, {}, "") if self.lease is None else (200, self.lease, "")
        assert body is not None
        if self.refuses_writes:
            return self.refuses_writes, {}, "no"
        sent = dict(body["metadata"]).get("resourceVersion")
        is_new = method == "POST" and path == PATH.rpartition("/")[0]
        if sent != (None if self.lease is None else self.lease["metadata"]["resourceVersion"]):
            return 409, {}, ""
        assert is_new == (self.lease is None)
        self._version += 1
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self._version)}}
        return 201 if is_new else 200, self.lease, ""

    @property
    def holder(self) -> str:
        """The Lease's."""
        assert self.lease is not None
        return str(self.lease["spec"].get("holderIdentity", ""))


LINES: list[str] = []


@pytest.fixture
def api() -> Leases:
    LINES.clear()
    return Leases()


@pytest.fixture
def clock() -> SecondsClock:
    return SecondsClock()


@pytest.fixture
def elector(api: Leases, clock: SecondsClock) -> Callable[[str], LeaseElection]:
    return lambda name: LeaseElection(api, LeaseName("bursar-system", "x"), name, 30, clock, into(LINES))


Elector = Callable[[str], LeaseElection]


def test_one_of_two_leads_and_the_other_follows_when_the_lease_has_run_out(
    api: Leases, elector: Elector, clock: SecondsClock
) -> None:
    one, other = elector("one"), elector("other")

    assert (one.look(), other.look()) == (True, False)
    for _ in range(5):
        clock.s += 29
        assert (one.look(), other.look()) == (True, False)
    clock.s += 29.9
    assert other.look() is False
    clock.s += 0.1
    assert other.look() is True
    assert one.look() is False
    assert api.holder == "other"


def test_a_restarted_container_takes_its_own_lease_at_once_and_an_older_process_of_it_stops(
    api: Leases, elector: Elector
) -> None:
    older, newer = elector("uid/timekeeper_aaaa"), elector("uid/timekeeper_bbbb")
    assert older.look() is True

    assert newer.look() is True
    assert older.look() is False

    assert (newer.look(), older.look()) == (True, False)
    assert api.holder == "uid/timekeeper_bbbb"


def test_a_leader_that_ends_gives_the_lease_back(api: Leases, elector: Elector) -> None:
    one, other = elector("one"), elector("other")
    assert (one.look(), other.look()) == (True, False)

    other.give_back()
    assert (api.holder, other.look()) == ("one", False)
    one.give_back()

    assert (api.holder, other.look()) == ("", True)


def test_an_api_server_that_does_not_answer_leaves_it_unknown_and_is_logged_once(
    api: Leases, elector: Elector
) -> None:
    one = elector("one")
    api.away = True

    assert [one.look() for _ in range(3)] == [None] * 3
    one.give_back()
    api.away = False
    assert one.look() is True
    api.away = True
    assert one.look() is None

    line = 'warning event=lease-unreachable lease=bursar-system/x error="the API server does not answer"'
    assert [line, line] == LINES


def test_a_write_that_is_refused_is_logged_once_and_leaves_it_unknown(api: Leases, elector: Elector) -> None:
    one = elector("one")
    api.refuses_writes = 403

    assert [one.look() for _ in range(3)] == [None] * 3

    assert LINES == ["warning event=lease-unreachable lease=bursar-system/x error=no"]


@pytest.mark.parametrize("status", [404, 409])
def test_a_faster_writer_holds_the_lease(api: Leases, elector: Elector, status: int) -> None:
    api.refuses_writes = status

    assert elector("one").look() is False


def test_a_lease_of_an_unknown_holder_lasts_as_long_as_it_says(
    api: Leases, elector: Elector, clock: SecondsClock
) -> None:
    spec = {"holderIdentity": "somebody", "leaseDurationSeconds": 60}
    api.lease = {"metadata": {"resourceVersion": "7"}, "spec": spec}
    one = elector("one")

    assert one.look() is False
    clock.s += 59
    assert one.look() is False
    clock.s += 1
    assert one.look() is True


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
    assert read_lease({}) == read_lease({"spec": [], "metadata": "x"}) == Lease("", 0, "", 0)
