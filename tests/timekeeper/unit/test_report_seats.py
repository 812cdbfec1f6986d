"""Who may read a report: one caller's reports keep nobody else out."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread

from tests.support.waiting import eventually
from timekeeper.api.ledger.report_seats import MOST_WAITING_EACH, ReportSeats
from timekeeper.api.problem import Problem

TENANT, OTHER, DASHBOARD = "system:serviceaccount:team-a", "system:serviceaccount:team-b", "grafana"


def status(seats: ReportSeats, caller: str, is_whole: bool = False) -> int:
    try:
        with seats.taken(caller, is_whole, 1):
            return 200
    except Problem as problem:
        return problem.status


def test_six_loops_of_one_tenant_leave_seats_to_every_other_caller() -> None:
    seats = ReportSeats(3, wait_s=0.05)
    with seats.taken(TENANT, False, 10_000), ThreadPoolExecutor(6) as loops:
        assert {*loops.map(lambda _: status(seats, TENANT), range(6))} == {503}
        assert status(seats, OTHER) == 200
        assert status(seats, DASHBOARD, is_whole=True) == 200


def test_one_seat_is_kept_for_readers_of_the_whole_cluster() -> None:
    seats = ReportSeats(2, wait_s=0.05)
    with seats.taken(TENANT, False, 1):
        assert status(seats, OTHER) == 503
        with seats.taken(DASHBOARD, True, 1):
            assert status(seats, DASHBOARD, is_whole=True) == 503
    assert status(seats, OTHER) == 200


def test_of_those_that_wait_the_cheapest_comes_first() -> None:
    seats, order, threads = ReportSeats(2, wait_s=20), [], []

    def read(cost: int) -> None:
        with seats.taken(f"caller-{cost}", False, cost):
            order.append(cost)

    with seats.taken(TENANT, False, 1):
        for cost in (300, 100, 200):
            threads.append(Thread(target=read, args=(cost,)))
            threads[-1].start()
            eventually(lambda: seats.waiting() == len(threads))
    for thread in threads:
        thread.join(20)

    assert order == [100, 200, 300]


def test_a_caller_waits_with_a_few_requests_only() -> None:
    """Each of them holds a thread of the process."""
    seats, release = ReportSeats(2, wait_s=20), Event()

    def read() -> None:
        with seats.taken(TENANT, False, 1):
            release.wait(20)

    threads = [Thread(target=read) for _ in range(1 + MOST_WAITING_EACH)]
    for thread in threads:
        thread.start()
    eventually(lambda: seats.waiting() == MOST_WAITING_EACH)

    assert status(seats, TENANT) == 503

    release.set()
    for thread in threads:
        thread.join(20)
