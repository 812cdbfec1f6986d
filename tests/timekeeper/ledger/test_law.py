"""Laws of charging, for random pods: what a session costs, and what all the sessions on a card cost together.

That postings and pending are the witnessed time x rate, in every mode and through every fault, is the state
machine's (test_machine.py); here are the laws of rates, and the same sum for single sessions."""

import json
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests import worlds
from tests.timekeeper import oracle, truth
from timekeeper.accounts.pods import LedgerPod, read_pod
from timekeeper.accounts.posting import amount_within, still_to_post
from timekeeper.accounts.session import open_session
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.ledger.metering import Evidence, Interval, period_at, witnessed
from timekeeper.core.rating.nodes import NodeCards
from timekeeper.core.request.cards import decode_inventory

MODES = ("dominant", "compute", "memory", "mean")
MEMORY_FLOOR_MIB = 64

Taken = tuple[int, int]  # per mille of the compute, MiB


def asking(number: int, share_milli: int, memory_mib: int) -> dict[str, Any]:
    """A pod on the one card; shares are whole percents."""
    part = truth.Part("main", (0,), share_milli // 10, memory_mib)
    raw = truth.Pod(f"uid-{number}", f"p{number}", "team-a", "n1", (part,), 0, 30).raw()
    placed = {
        "uuid": "GPU-0",
        "index": 0,
        "share_milli": share_milli,
        "memory_mib": memory_mib,
    }
    raw["metadata"]["annotations"]["bursar.dev/devices"] = json.dumps(
        {"version": 1, "containers": {"main": [placed]}}
    )
    return raw


@st.composite
def packings(draw: st.DrawFn) -> tuple[int, list[Taken]]:
    """A card's memory, and pods that share it without ever taking more than there is."""
    whole = draw(st.integers(1_000, 200_000))
    compute, memory, pods = 100, whole, []
    for _ in range(draw(st.integers(1, 12))):
        percent = draw(st.integers(0, compute))
        asked = draw(st.integers(MEMORY_FLOOR_MIB, max(MEMORY_FLOOR_MIB, memory)))
        given_by_share = draw(st.booleans()) and 0 < percent < 100
        taken = whole * 10 * percent // 1000 if given_by_share else asked
        if taken < MEMORY_FLOOR_MIB or taken > memory or percent == 100:
            continue
        pods.append((10 * percent, taken))
        compute, memory = compute - percent, memory - taken
    return whole, pods


def rates(whole: int, pods: list[Taken], mode: str, weight_milli: int) -> list[int]:
    """What our ledger charges for each of these pods by the millisecond."""
    cards = decode_inventory(worlds.inventory(worlds.card(0, whole, "H100")))
    settings = BudgetSettings(charge_by=mode, weights=(("H100", weight_milli),))
    found = []
    for number, (share, memory) in enumerate(pods):
        pod = read_pod(asking(number, share, memory))
        assert isinstance(pod, LedgerPod)
        opened = open_session(pod, NodeCards(cards), settings, 0)
        assert not opened.doubt
        found.append(opened.rate_milli)
    return found


@given(packings(), st.sampled_from(MODES), st.integers(0, 10_000))
def test_pods_that_share_a_card_never_cost_more_than_its_weight_allows(
    packing: tuple[int, list[Taken]], mode: str, weight_milli: int
) -> None:
    whole, pods = packing

    charged = rates(whole, pods, mode, weight_milli)

    weight = Fraction(weight_milli, 1000)
    # by compute too: a pod that takes memory alone is charged by it, beside those that take the compute
    most = 1000 * weight * (2 if mode in ("dominant", "compute") else 1)
    assert not pods or sum(charged) < most + len(pods) * (weight + 1)


@given(packings(), st.sampled_from(MODES), st.integers(0, 10_000))
def test_a_pods_rate_is_its_part_of_the_card_x_weight_rounded_up_once_for_all(
    packing: tuple[int, list[Taken]], mode: str, weight_milli: int
) -> None:
    whole, pods = packing
    card = {"GPU-0": {"memory_mib": whole, "model": "H100"}}
    terms = oracle.Terms(mode, weights=(("H100", Fraction(weight_milli, 1000)),))

    charged = rates(whole, pods, mode, weight_milli)

    assert charged == [oracle.rate(asking(0, *taken), card, terms) for taken in pods]


@given(packings(), st.sampled_from(MODES))
def test_a_whole_card_in_parts_costs_no_less_than_the_card(
    packing: tuple[int, list[Taken]], mode: str
) -> None:
    """Rounding never favours those who cut a card into pieces."""
    whole, pods = packing
    share, memory = (sum(taken[i] for taken in pods) for i in (0, 1))
    exact = {
        "compute": Fraction(share),
        "memory": Fraction(1000 * memory, whole),
        "mean": (share + Fraction(1000 * memory, whole)) / 2,
        "dominant": max(Fraction(share), Fraction(1000 * memory, whole)),
    }

    assert sum(rates(whole, pods, mode, 1000)) >= exact[mode]


MOMENTS = st.integers(1_000_000_000_000, 1_000_000_100_000)
PERHAPS = st.none() | MOMENTS


@st.composite
def evidences(draw: st.DrawFn) -> Evidence:
    """Any evidence that there can be of one pod, all within a hundred seconds."""
    bound, ended, vanished = draw(MOMENTS), draw(st.none() | st.just(0) | MOMENTS), draw(PERHAPS)
    return Evidence(
        bound_ms=bound,
        started_ms=draw(PERHAPS),
        ended_ms=ended,
        beat_ms=draw(PERHAPS),
        watermark_ms=draw(PERHAPS),
        vanished_ms=None if ended is not None else vanished,
        grace_ms=draw(st.integers(0, 60_000)) if vanished else 0,
    )


@given(evidences(), MOMENTS)
def test_what_counts_follows_from_the_evidence_by_its_ranks(known: Evidence, now: int) -> None:
    raw, times = {"spec": {"nodeName": "n"}}, (known.bound_ms, known.started_ms, known.ended_ms)
    pod = oracle.Seen(raw, oracle.Terms(), 1, *times)
    pod.at_rest = known.watermark_ms or 0
    pod.last = None if known.vanished_ms is None else known.vanished_ms + known.grace_ms
    told = oracle.Known({"p": pod}, marks={"n": known.watermark_ms or 0})

    seen = witnessed(known, now)

    start, end = told.counts("p", now, {"p": known.beat_ms or 0})
    assert seen.interval.length_ms == end - start
    assert not seen.interval.length_ms or seen.interval == Interval(start, end)
    assert seen.proven == bool(known.ended_ms)
    assert seen.closed == (known.ended_ms is not None or (pod.last is not None and now >= pod.last))


spans = st.tuples(st.integers(0, 5_000), st.integers(0, 5_000)).map(
    lambda each: Interval(min(each), max(each))
)


@given(
    st.lists(spans, min_size=1, max_size=6),
    st.integers(1, 4_000),
    st.integers(1, 10**5),
    st.sampled_from(("hour", "day")),
)
def test_whatever_was_posted_before_postings_become_exactly_what_is_due(
    dues: list[Interval], rate_milli: int, scale: int, kind: str
) -> None:
    """Evidence comes and goes; after each posting the sum is the newest due x rate, in every part of time."""
    cards = decode_inventory(worlds.inventory(worlds.card(0)))
    pod = read_pod(asking(0, 500, 8_000))
    assert isinstance(pod, LedgerPod)
    session = open_session(pod, NodeCards(cards), BudgetSettings(weights=(("A100", 2 * rate_milli),)), 0)
    posted: tuple[Any, ...] = ()
    for due in dues:
        due = Interval(due.start_ms * scale, due.end_ms * scale)
        more = still_to_post(session, posted, due, lambda span: _split(span, kind), "test", 0)
        posted += more
        assert [each.sequence for each in posted] == list(range(len(posted)))
        assert all(each.rate_milli and each.interval.length_ms for each in more)
        for part in (due, Interval(0, due.start_ms), Interval(due.end_ms, 10**12)):
            assert amount_within(posted, part) == rate_milli * part.within(due).length_ms


def _split(interval: Interval, kind: str) -> Iterator[Interval]:
    """The interval cut at the bounds of periods."""
    start = interval.start_ms
    while start < interval.end_ms:
        end = min(interval.end_ms, period_at(kind, "Europe/Berlin", start).end_ms)
        yield Interval(start, end)
        start = end
