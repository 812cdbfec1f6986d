"""A value that takes long is made for callers that accept no older one, once for all of them."""

import threading

import pytest

from deploy.local.limits import LONGEST_S
from tests.support.clock import SecondsClock
from tests.support.waiting import eventually
from timekeeper.api.ledger.recent_value import RecentValue, RecentValues, oldest_ms


def test_a_value_is_given_again_until_it_is_too_old_and_renewed_before_that() -> None:
    clock, made = SecondsClock(), list[int]()

    def make() -> int:
        made.append(len(made))
        return made[-1]

    value = RecentValue(make, clock)
    assert (value.get(10_000), value.get(10_000)) == (0, 0)
    assert (value.get(0), value.get(10_000)) == (1, 1)

    clock.s = 6
    assert value.get(10_000) == 1
    eventually(lambda: made == [0, 1, 2])
    eventually(lambda: value.get(10_000) == 2)
    clock.s = 17
    assert value.get(10_000) == 3


def test_callers_at_the_same_time_share_one_value_and_an_error_reaches_its_caller() -> None:
    release, started = threading.Event(), threading.Event()
    made: list[int] = []

    def make() -> int:
        made.append(1)
        started.set()
        release.wait(LONGEST_S)
        if len(made) == 1:
            raise ValueError("away")
        return len(made)

    value = RecentValue(make, SecondsClock())
    found: list[int] = []
    release.set()
    with pytest.raises(ValueError, match="away"):
        value.get(5_000)
    release.clear()
    started.clear()
    callers = [threading.Thread(target=lambda: found.append(value.get(5_000))) for _ in range(4)]
    for each in callers:
        each.start()
    started.wait(LONGEST_S)
    release.set()
    for each in callers:
        each.join(LONGEST_S)

    assert (found, len(made)) == ([2, 2, 2, 2], 2)


def test_a_value_of_each_key_is_kept_of_those_that_were_asked_for_last() -> None:
    values, made = RecentValues[str](2, SecondsClock()), list[str]()

    def value_of(key: str, oldest_ms: int = 5_000) -> str:
        def make() -> str:
            made.append(key)
            return f"{key} {len(made)}"

        return values.get(key, make, oldest_ms)

    assert [value_of(each) for each in ("a", "b", "a", "c", "a")] == ["a 1", "b 2", "a 1", "c 3", "a 1"]
    assert value_of("b") == "b 4"  # it was forgotten
    assert (value_of("d", 0), value_of("d", 0), value_of("a")) == ("d 5", "d 6", "a 1")  # d was not kept


@pytest.mark.parametrize(("given", "found"), [(None, 0), (0, 0), (-5, 0), (30, 30_000), (10**9, 60_000)])
def test_a_request_accepts_a_minute_at_most(given: int | None, found: int) -> None:
    assert oldest_ms(given) == found
