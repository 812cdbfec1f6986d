"""The table of open sessions computes what `metering.witnessed` says of each, whatever is known of it."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.profile import examples
from tests.timekeeper.one_by_one import figures_of, pending
from tests.timekeeper.worlds import HOUR
from timekeeper.accounts.balance import BalanceFigures, UnsettledSession
from timekeeper.accounts.posting import Posting
from timekeeper.accounts.session import CLAIMS, Charge, Session, evidence
from timekeeper.core.ledger.metering import Interval
from timekeeper.settler.state.session_table import SessionTable

NOW = 1_000
NAMES = tuple(f"team-{each}" for each in range(12))
HUGE = 10**15  # of a rate: a charge for a few hours does not fit into 63 bits

moments = st.integers(1, 2 * NOW)
known = st.none() | moments
rates = st.sampled_from([0, 1, 250, 8_000])


@st.composite
def open_sessions(draw: st.DrawFn, rate: st.SearchStrategy[int] = rates) -> tuple[UnsettledSession, bool]:
    """A session with what is known of it, of a node of three or of a claim; and whether its pod is listed."""
    charge: Charge = draw(st.sampled_from(("pod", "claim")))
    bound_ms = draw(moments)
    declares, is_listed = draw(st.booleans()), draw(st.booleans())
    session = Session(
        uid="",
        namespace=draw(st.sampled_from(NAMES)),
        name="p",
        owner="",
        node=draw(st.sampled_from(("n1", "n2", "n3"))),
        models="",
        devices="",
        rate_milli=draw(rate),
        admitted_in_budget=draw(st.booleans()),
        bound_ms=bound_ms,
        opened_ms=bound_ms,
        started_ms=draw(known),
        ended_ms=draw(st.none() | st.integers(0, 2 * NOW)),
        vanished_ms=draw(known),
        grace_ms=draw(st.integers(0, NOW)),
        watermark_ms=draw(known),
        reserves_until_ms=bound_ms + draw(moments) if declares else None,
        charge=charge,
    )
    bounds = sorted(draw(st.lists(moments, max_size=4)))
    posted = tuple(
        Posting("", at, session.namespace, *span, draw(rate), "settled", "", NOW)
        for at, span in enumerate(pairwise(bounds))
    )
    beat_ms = draw(known)
    return UnsettledSession(session, evidence(session, None, beat_ms, is_listed), posted), is_listed


def filled(
    found: Sequence[tuple[UnsettledSession, bool]], marks: dict[str, int], now_ms: int
) -> SessionTable:
    """The table with all of them, in the order in which a settler would add them."""
    table = SessionTable()
    for each, _ in found:
        table.put(each.session, each.posted, each.evidence.beat_ms or 0, marks.get(each.session.witness, 0))
    table.hear({}, marks, [each.session.uid for each, is_listed in found if is_listed])
    table.compute(now_ms, HOUR)
    table.note_changes()
    return table


def named(
    found: list[tuple[UnsettledSession, bool]], marks: dict[str, int]
) -> list[tuple[UnsettledSession, bool]]:
    """Each with a UID of its own, and with its witness's watermark."""
    made = []
    for at, (each, is_listed) in enumerate(found):
        session, posted = replace(each.session, uid=f"u{at}"), each.posted
        now = evidence(session, marks.get(session.witness), each.evidence.beat_ms, is_listed)
        made.append(
            (
                UnsettledSession(session, now, tuple(replace(one, session_uid=f"u{at}") for one in posted)),
                is_listed,
            )
        )
    return made


def check(
    table: SessionTable, found: list[tuple[UnsettledSession, bool]], now_ms: int, span: Interval
) -> None:
    for name in (*NAMES, "nobody"):
        mine = [each for each, _ in found if each.session.namespace == name]
        said = BalanceFigures(
            pending=table.pending(name, span), rates=table.rates(name, 0), declared=table.declared(name, span)
        )
        assert said == figures_of(span, mine, now_ms)
    for each, _ in found:
        assert table.pending_of(each.session.uid, span) == pending(each, span, now_ms)


marked = st.dictionaries(st.sampled_from(("n1", "n2", CLAIMS)), moments)
spans = st.tuples(st.integers(0, 3 * NOW), st.integers(0, 3 * NOW)).map(lambda both: Interval(*both))


@settings(max_examples=examples(150, soak=5_000), deadline=None)
@given(st.lists(open_sessions(), max_size=30), marked, st.integers(1, 3 * NOW), spans)
def test_every_sum_is_that_of_the_sessions_one_by_one(
    found: list[tuple[UnsettledSession, bool]], marks: dict[str, int], now_ms: int, span: Interval
) -> None:
    """Also of more namespaces than are computed one by one, and after some of the sessions are gone."""
    held = named(found, marks)
    table = filled(held, marks, now_ms)

    check(table, held, now_ms, span)

    gone, left = held[::3], [each for at, each in enumerate(held) if at % 3]
    table.remove([each.session.uid for each, _ in gone])
    table.compute(now_ms, HOUR)
    check(table, left, now_ms, span)
    assert len(table) == len(left)


@settings(max_examples=examples(30, soak=500), deadline=None)
@given(st.lists(open_sessions(st.just(HUGE)), min_size=1, max_size=20), marked, spans)
def test_sums_beyond_63_bits_are_exact(
    found: list[tuple[UnsettledSession, bool]], marks: dict[str, int], span: Interval
) -> None:
    """Each session is charged for ten seconds, which alone is more."""
    assert HUGE * 10_000 > 2**63
    ended = [
        (replace(each, session=replace(each.session, ended_ms=each.session.bound_ms + 10_000)), is_listed)
        for each, is_listed in found
    ]
    held = named(ended, marks)

    table = filled(held, marks, 3 * NOW)

    check(table, held, 3 * NOW, Interval(0, 20_000))
    check(table, held, 3 * NOW, span)


@pytest.mark.parametrize("settle_after_ms", [0, 500, HOUR])
@settings(max_examples=examples(50, soak=500), deadline=None)
@given(st.lists(open_sessions(), max_size=20), marked, st.integers(1, 3 * NOW))
def test_what_may_have_to_be_posted_is_named(
    settle_after_ms: int, found: list[tuple[UnsettledSession, bool]], marks: dict[str, int], now_ms: int
) -> None:
    """A proved end; an end without evidence for so long; one that is closed and was never charged; and what
    is posted from before the beginning. Once that is written, no more, as long as nothing changes."""
    held = named(found, marks)
    table = filled(held, marks, now_ms)

    def is_due(each: UnsettledSession) -> bool:
        now = each.witnessed(now_ms)
        length_ms = now.interval.length_ms
        is_silent = length_ms > 0 and now_ms - now.interval.end_ms >= settle_after_ms
        before = Interval(0, each.session.bound_ms)
        is_before = sum(one.rate_milli * one.interval.within(before).length_ms for one in each.posted)
        return now.proven or is_silent or (now.closed and not length_ms) or is_before != 0

    assert set(table.compute(now_ms, settle_after_ms)) == {
        each.session.uid for each, _ in held if is_due(each)
    }
    table.note_changes()
    table.mark_written(lambda _: True)
    assert table.compute(now_ms, settle_after_ms) == []
    table.note_changes()
    assert table.changed_since == {}
