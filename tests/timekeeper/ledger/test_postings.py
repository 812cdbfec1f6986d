"""Postings: written once, exact, cut at the periods' bounds, corrected by further postings."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from tests.timekeeper.clocks import at_ms
from tests.timekeeper.worlds import HOUR, SECOND, T0, Town, budgets, gpu_pod, node
from timekeeper.accounts.posting import Posting, amount_within, still_to_post
from timekeeper.accounts.session import Session
from timekeeper.core.ledger.metering import Interval

BOTH_DATABASES = "postings are written under locks"
SESSION = Session(
    uid="u",
    namespace="team-a",
    name="p",
    owner="",
    node="n1",
    models="",
    devices="",
    rate_milli=500,
    admitted_in_budget=True,
    bound_ms=0,
    opened_ms=0,
)

intervals = st.tuples(st.integers(0, 60), st.integers(0, 60)).map(
    lambda pair: Interval(1000 + min(pair), 1000 + max(pair))
)


def whole(interval: Interval) -> Iterable[Interval]:
    return (interval,)


def tens(interval: Interval) -> Iterable[Interval]:
    """Cut at every ten milliseconds."""
    start = interval.start_ms
    while start < interval.end_ms:
        end = min(interval.end_ms, start // 10 * 10 + 10)
        yield Interval(start, end)
        start = end


def post(dues: Iterable[Interval]) -> tuple[Posting, ...]:
    posted: tuple[Posting, ...] = ()
    for due in dues:
        posted += still_to_post(SESSION, posted, due, tens, "test", 1)
    return posted


def charged_at(posted: Iterable[Posting], ms: int) -> int:
    return sum(each.rate_milli for each in posted if each.from_ms <= ms < each.to_ms)


@given(st.lists(intervals, max_size=6))
def test_whatever_was_due_before_the_last_due_is_what_is_posted(dues: list[Interval]) -> None:
    posted = post(dues)

    last = dues[-1] if dues else Interval(0, 0)
    for ms in range(995, 1065):
        assert charged_at(posted, ms) == (500 if last.start_ms <= ms < last.end_ms else 0)


@given(st.lists(intervals, max_size=6))
def test_postings_are_numbered_cut_and_settle_each_moment_once(dues: list[Interval]) -> None:
    posted = post(dues)

    assert [each.sequence for each in posted] == list(range(len(posted)))
    assert all(each.from_ms // 10 == (each.to_ms - 1) // 10 for each in posted)
    for ms in range(995, 1065):
        settled = [each for each in posted if each.kind == "settled" and each.from_ms <= ms < each.to_ms]
        assert len(settled) <= 1
        assert all(each.rate_milli > 0 for each in settled)


@given(st.lists(intervals, min_size=1, max_size=6))
def test_posting_the_same_again_writes_nothing(dues: list[Interval]) -> None:
    posted = post(dues)

    assert still_to_post(SESSION, posted, dues[-1], whole, "test", 2) == ()


@given(st.lists(intervals, max_size=6), intervals)
def test_amounts_inside_a_span_are_clipped_to_it(dues: list[Interval], span: Interval) -> None:
    posted = post(dues)

    expected = sum(charged_at(posted, ms) for ms in range(span.start_ms, span.end_ms))
    assert amount_within(posted, span) == expected


def test_a_session_over_the_end_of_summer_time_is_cut_at_local_midnight_and_in_utc(town: Town) -> None:
    """The day of 2026-10-25 has 25 hours in Berlin: from 22:00Z to 23:00Z."""
    start, midnight, in_utc, next_midnight, next_in_utc, end = (
        at_ms("2026-10-24T20:00:00Z"),
        at_ms("2026-10-24T22:00:00Z"),
        at_ms("2026-10-25T00:00:00Z"),
        at_ms("2026-10-25T23:00:00Z"),
        at_ms("2026-10-26T00:00:00Z"),
        at_ms("2026-10-26T01:00:00Z"),
    )
    town.clock.at_ms = start - HOUR
    entry = "gpuHours: 1000\nperiod: day"
    town.begin(("nodes", node()), ("configmaps", budgets(team_a=entry, _settings="timeZone: Europe/Berlin")))
    town.clock.at_ms = end + SECOND
    town.change("pods", gpu_pod(bound_ms=start, started_ms=start, ended_ms=end))

    assert [each[:2] for each in town.postings()] == [
        (start, midnight),
        (midnight, in_utc),
        (in_utc, next_midnight),
        (next_midnight, next_in_utc),
        (next_in_utc, end),
    ]
    assert town.budget()["posted"] == 1000 * (end - next_midnight)
    assert town.charged() == 1000 * (end - start)


def test_a_session_over_the_end_of_the_month_is_pending_in_both(town: Town) -> None:
    start, new_year = at_ms("2026-12-31T22:00:00Z"), at_ms("2027-01-01T00:00:00Z")
    town.clock.at_ms = start
    town.begin(("nodes", node()), ("configmaps", budgets(team_a="gpuHours: 10\nperiod: month")))
    pod = gpu_pod(bound_ms=start, started_ms=start)
    town.change("pods", pod)

    town.clock.at_ms = new_year + HOUR
    town.beat(pod, 1)
    town.tick()

    assert town.budget()["pending"] == 1000 * HOUR
    assert town.charged(span=Interval(start, new_year)) == 1000 * 2 * HOUR
    assert town.budget()["granted"] == 36_000_000_000


def test_the_same_session_posted_after_a_long_silence_begins_where_it_was_posted_to(town: Town) -> None:
    town.begin(("nodes", node()), ("configmaps", budgets(team_a="gpuHours: 10\nperiod: month")))
    pod = gpu_pod(started_ms=T0)
    town.change("pods", pod)
    for hours in (1, 3, 5):
        town.clock.at_ms = T0 + hours * HOUR
        town.beat(pod, hours)
        town.tick()
        town.advance(HOUR, heard=False)

    assert [each[:2] for each in town.postings()] == [
        (T0, T0 + HOUR),
        (T0 + HOUR, T0 + 3 * HOUR),
        (T0 + 3 * HOUR, T0 + 5 * HOUR),
    ]
