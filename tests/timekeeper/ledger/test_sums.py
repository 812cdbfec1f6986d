"""The law of what the settler keeps: sums, rates and statements that are carried from tick to tick are those
that the sessions, grants and postings make one by one, whatever happened in between."""

import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.profile import examples
from tests.timekeeper.bare import ALWAYS, NODES, PROTECTING, SPANS, Life
from tests.timekeeper.worlds import HOUR, MINUTE, SECOND, T0, lease
from timekeeper.accounts.budget_history import DEFAULTS
from timekeeper.accounts.changes import Changes
from timekeeper.edge.reflector import WatchProgress
from timekeeper.settler.cluster.cluster_state import WatchUpdate

BOTH_DATABASES = "the sums of open sessions are read by another statement on each database"
OFTEN = ("bind", "node_lives", "beat", "time_passes", "start", "end")
SELDOM = (
    "place",
    "delete",
    "lose",
    "clock_is_turned_back",
    "budget",
    "cards_change",
    "database_is_away",
    "given",
)
acts = st.tuples(
    st.sampled_from(OFTEN + OFTEN + SELDOM), st.integers(0, 3), st.sampled_from(SPANS), st.integers(0, 99)
)


def lived(history: Iterable[tuple[str, int, int, int]], tick_each: int = 1) -> Life:
    """A life in which these things happen, with a tick after each so many."""
    life = Life()
    life.tick()
    for at, (act, which, span, more) in enumerate(history):
        getattr(life, act)(which, span, more)
        if at % tick_each == 0:
            life.tick()
    life.tick()
    return life


@settings(max_examples=examples(50, soak=1_000), deadline=None)
@given(st.lists(acts, min_size=10, max_size=50), st.sampled_from((1, 1, 3)))
def test_what_is_kept_is_what_everything_together_makes(
    history: list[tuple[str, int, int, int]], tick_each: int
) -> None:
    lived(history, tick_each)


@pytest.mark.parametrize("seed", range(examples(12, soak=1_000)))
def test_what_selected_pods_used_and_hold_is_what_their_sessions_make(seed: int) -> None:
    """See `Life.check_protected`."""
    rng = random.Random(seed)
    acts = [each for each in OFTEN * 3 + SELDOM if each not in ("budget", "clock_is_turned_back")]
    drawn = [(rng.choice(acts), rng.randrange(4), rng.choice(SPANS), rng.randrange(100)) for _ in range(80)]

    life = lived([("budget", 0, 0, PROTECTING), *drawn])

    assert life.ledger.protected.keys() == {"team-a", "team-b"}


def test_what_a_pod_with_grace_owes_grows_by_time_alone() -> None:
    life = lived([("bind", 0, HOUR, 5), ("node_lives", 0, SECOND, 1), ("delete", 0, 0, 0)])
    (session,) = life.ledger.sessions.values()
    before = life.ledger.table.pending("team-b", ALWAYS)
    assert session.vanished_ms == life.now

    life.now += 7 * SECOND
    life.tick()

    assert life.ledger.table.pending("team-b", ALWAYS) == before + 7 * SECOND * session.rate_milli


def test_evidence_ahead_of_a_clock_that_was_turned_back_counts_as_the_clock_comes_to_it() -> None:
    life = lived([("bind", 0, HOUR, 5), ("beat", 0, 0, 0), ("clock_is_turned_back", 0, 40 * SECOND, 0)])
    (session,) = life.ledger.sessions.values()
    before = life.ledger.table.pending("team-b", ALWAYS)

    life.now += 7 * SECOND
    life.tick()

    assert life.ledger.table.pending("team-b", ALWAYS) == before + 7 * SECOND * session.rate_milli


def test_a_session_that_falls_silent_is_posted_when_its_time_has_come() -> None:
    """Its end moved on by evidence since the look at it was planned."""
    life = lived([("bind", 0, SECOND, 5), ("node_lives", 0, 40 * SECOND, 1)])
    life.node_lives(0, 9 * 60 * SECOND, 1)
    life.tick()

    life.now += HOUR - 1
    assert life.tick().changes.postings == ()
    life.now += 1
    assert len(life.tick().changes.postings) == 1


def test_what_is_reserved_shrinks_towards_the_end_of_the_period_by_time_alone() -> None:
    life = lived([("budget", 0, 0, 0), ("bind", 0, 0, 4)])
    life.now = T0 + 55 * MINUTE
    life.tick()
    before = life.statement("team-a").balance.reserved

    life.now += SECOND
    life.tick()

    (session,) = life.ledger.sessions.values()
    assert before - life.statement("team-a").balance.reserved == SECOND * session.rate_milli > 0


def test_a_pod_that_waits_for_longer_than_the_lookahead_counts_no_more_by_time_alone() -> None:
    life = lived([("budget", 0, 0, 0), ("bind", 0, 0, 28)])
    assert life.ledger.without_node.rates.keys() == {"team-a"}

    life.now += 10 * MINUTE
    life.tick()

    assert life.ledger.without_node.rates == {}
    assert life.statement("team-a").balance.reserved == 0


def test_what_could_not_be_written_is_decided_again() -> None:
    life = lived([("bind", 0, SECOND, 5), ("node_lives", 0, 40 * SECOND, 1)])
    life.now += HOUR
    lost = life.tick(is_written=False).changes.postings

    assert life.tick().changes.postings == lost
    assert len(lost) == 1


def test_a_quiet_tick_makes_no_statement_anew() -> None:
    life = lived([("bind", 0, HOUR, 1), ("bind", 1, HOUR, 2), ("budget", 0, 0, 0)])
    before = life.ledger.statement_cache

    decision = life.tick()

    assert decision.changes == Changes()
    assert life.ledger.statement_cache is before


def test_new_evidence_of_one_namespace_makes_no_other_statement_anew() -> None:
    life = lived([("bind", 0, HOUR, 1), ("bind", 1, HOUR, 2), ("budget", 0, 0, 2)])

    life.node_lives(0, SECOND, 1)
    life.tick()

    assert life.ledger.statement_cache is not None
    assert life.ledger.statement_cache.fresh == {"team-b", DEFAULTS}


@pytest.mark.parametrize("many", [2, 40])
def test_a_tick_in_which_all_nodes_report_reads_each_session_once(many: int) -> None:
    life = lived([("bind", each, HOUR, 1 + each % 6) for each in range(many)])
    for name in NODES:
        life.hear("leases", lease(life.now + 5, name))
    life.now += 10
    life.cluster.apply(WatchUpdate("pods", life.now, WatchProgress()))

    life.tick()

    assert life.ledger.watermarks.keys() == {each.node for each in life.ledger.sessions.values()}
