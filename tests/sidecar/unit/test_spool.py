"""The spool: bounded, and yet no interval that the beats covered is ever given up."""

import json
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar import spool
from sidecar.spool import Spool, SpooledBeat, SpooledPost
from tests.support.profile import examples
from timekeeper.api.http.routes import LARGEST_BODY
from timekeeper.api.resources.heartbeats import read_heartbeats
from timekeeper.core.wire import BeatDevice

FIGURE: BeatDevice = {"uuid": "GPU-1", "utilisation": 37, "memory_mib": None, "scope": "shared"}

moments = st.lists(st.integers(0, 10**9), max_size=100).map(sorted)
figures = st.builds(
    lambda uuid, utilisation, memory_mib: BeatDevice(
        uuid=uuid, utilisation=utilisation, memory_mib=memory_mib, scope="shared"
    ),
    st.text(min_size=1, max_size=40),
    st.none() | st.integers(0, 100),
    st.none() | st.integers(0, 10**6),
)
beats = st.lists(
    st.builds(SpooledBeat, st.integers(0, 10**9), st.lists(figures, max_size=2).map(tuple)), max_size=20
).map(tuple)
posts = st.builds(
    SpooledPost,
    st.text("abz019._:-", min_size=1, max_size=16),
    st.integers(0, 10**6),
    beats.filter(len),
)
spools = st.builds(Spool, st.just("now"), st.just(1), st.none() | posts, beats)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def beaten(at: list[int]) -> Spool:
    """A spool of a run "r" that took beats at these moments and sent none."""
    taken = spool.empty("r")
    for each in at:
        taken = spool.add(taken, SpooledBeat(each, ()))
    return taken


@given(moments, st.integers(2, 12))
def test_folding_is_bounded_and_loses_neither_end_nor_order_of_what_the_beats_cover(
    at: list[int], most: int
) -> None:
    held = [beat.at_ms for beat in spool.fold(tuple(SpooledBeat(each, ()) for each in at), most)]

    assert len(held) == min(len(at), most)
    assert held == sorted(held)
    assert set(held) <= set(at)
    assert (held[:1], held[-1:]) == (at[:1], at[-1:])
    assert len(at) > most or held == at


@given(st.lists(st.integers(0, 10**6), min_size=3, max_size=30, unique=True).map(sorted))
def test_folding_one_beat_leaves_the_smallest_gap_that_it_could(at: list[int]) -> None:
    held = [beat.at_ms for beat in spool.fold(tuple(SpooledBeat(each, ()) for each in at), len(at) - 1)]

    (dropped,) = set(at) - set(held)
    place = at.index(dropped)
    assert at[place + 1] - at[place - 1] == min(
        later - earlier for earlier, _, later in zip(at, at[1:], at[2:], strict=False)
    )


@settings(max_examples=examples(20, soak=1_000))
@given(st.integers(449, 3_000), st.integers(100, 60_000))
def test_a_long_outage_is_covered_in_even_steps(count: int, interval_ms: int) -> None:
    at = [number * interval_ms for number in range(count)]
    held = [beat.at_ms for beat in beaten(at).beats()]

    assert len(held) == spool.MAX_WAITING
    assert (held[0], held[-1]) == (at[0], at[-1])
    even_ms = at[-1] / (len(held) - 1)
    assert max(later - earlier for earlier, later in pairwise(held)) <= 4 * even_ms


@given(moments.filter(len), st.integers(0, 20))
def test_a_post_under_way_keeps_its_beats_and_number_whatever_comes_after_it(
    at: list[int], later: int
) -> None:
    sent = spool.sending(beaten(at))
    waited = sent
    for number in range(later):
        waited = spool.add(waited, SpooledBeat(10**9 + number, ()))

    assert spool.sending(waited) == waited
    assert waited.post == sent.post
    assert len(waited.beats()) <= spool.MAX_BEATS


def test_posts_carry_the_oldest_beats_first_and_count_up() -> None:
    first = spool.sending(beaten(list(range(100))))
    second = spool.sending(spool.delivered(first))
    third = spool.sending(spool.delivered(second))

    assert first.post == SpooledPost("r", 1, tuple(SpooledBeat(at, ()) for at in range(64)))
    assert second.post == SpooledPost("r", 2, tuple(SpooledBeat(at, ()) for at in range(64, 100)))
    assert third.post is None


def test_a_beat_is_as_old_as_the_clock_says_when_it_is_sent() -> None:
    post = SpooledPost("r", 7, (SpooledBeat(1_000, (FIGURE,)), SpooledBeat(4_500, ())))

    assert spool.document(post, 5_000) == {
        "version": 1,
        "boot": "r",
        "sequence": 7,
        "beats": [{"age_ms": 4_000, "devices": [FIGURE]}, {"age_ms": 500, "devices": []}],
    }


@given(spools)
def test_another_process_goes_on_with_what_the_disk_holds(held: Spool) -> None:
    assert spool.decode(spool.encode(held, "boot-1"), "boot-1", "now", 10**9) == held


def test_another_process_repeats_the_unanswered_post_and_counts_its_own_from_one() -> None:
    left = spool.add(spool.sending(beaten([1, 2])), SpooledBeat(3, ()))

    taken = spool.sending(spool.decode(spool.encode(left, "boot-1"), "boot-1", "s", 10))
    own = spool.sending(spool.delivered(taken))

    assert taken.post == SpooledPost("r", 1, (SpooledBeat(1, ()), SpooledBeat(2, ())))
    assert own.post == SpooledPost("s", 1, (SpooledBeat(3, ()),))


def test_beats_from_before_the_node_booted_have_no_age() -> None:
    left = spool.encode(beaten([1]), "boot-1")

    with pytest.raises(ValueError, match="another boot"):
        spool.decode(left, "boot-2", "s", 10)


def test_a_beat_that_is_still_to_come_is_none_of_ours() -> None:
    with pytest.raises(ValueError, match="not a spool"):
        spool.decode(spool.encode(beaten([11]), "boot-1"), "boot-1", "s", 10)


@given(
    anything
    | st.fixed_dictionaries(
        {"version": st.just(1), "node_boot": st.just("b"), "post": anything, "waiting": anything}
    )
)
def test_a_spool_of_nonsense_is_a_value_error_and_nothing_else(read: object) -> None:
    text = json.dumps(read)

    with suppress(ValueError):
        spool.decode(text, "b", "s", 10)


odd: st.SearchStrategy[object] = st.sampled_from(
    ["", "x" * 200, -1, 2**60, 1.5, None, True, [], {}, "\u0660", "run-1", 0, 7]
)


@settings(max_examples=examples(300))
@given(
    st.fixed_dictionaries({"boot": odd | st.just("r"), "sequence": odd | st.just(1), "beats": st.none()}),
    st.lists(
        st.tuples(odd | st.just(5), st.lists(odd | st.just(FIGURE), max_size=2)), min_size=0, max_size=3
    ),
    st.sampled_from(["uuid", "utilisation", "memory_mib", "scope"]),
    odd,
)
def test_a_spool_that_is_read_holds_no_post_that_the_timekeeper_would_refuse_for_ever(
    post: dict[str, object], rows: list[tuple[object, list[object]]], name: str, value: object
) -> None:
    changed = [
        (at, [each if each != FIGURE else {**FIGURE, name: value} for each in row]) for at, row in rows
    ]
    text = json.dumps(
        {"version": 1, "node_boot": "b", "post": {**post, "beats": changed}, "waiting": changed}
    )
    with suppress(ValueError):
        held = spool.decode(text, "b", "s", 10)
        while (held := spool.sending(held)).post:
            sent = json.dumps(spool.document(held.post, 10)).encode()
            assert len(read_heartbeats(sent).ages_ms) == len(held.post.beats)
            held = spool.delivered(held)


@pytest.mark.parametrize("cards", [1, 8, 56, spool.MAX_CARDS])
def test_however_many_cards_a_pod_has_no_post_is_too_large_and_the_spool_fits_in_its_folder_twice(
    cards: int,
) -> None:
    figure = {"uuid": "MIG-" + "x" * 90, "utilisation": 100, "memory_mib": 1_000_000, "scope": "exclusive"}
    held = spool.empty("x" * 16)
    for number in range(2 * spool.MAX_BEATS):
        held = spool.sending(spool.add(held, SpooledBeat(10**12 + number, (figure,) * cards)))  # type: ignore[arg-type]
    first, last = held.beats()[0], held.beats()[-1]

    assert 2 * len(spool.encode(held, "b" * 36)) < 4 << 20
    assert (first.at_ms, last.at_ms) == (10**12, 10**12 + 2 * spool.MAX_BEATS - 1)
    assert spool.decode(spool.encode(held, "b"), "b", held.boot, 10**13).waiting == held.waiting
    while held.post:
        body = json.dumps(spool.document(held.post, 10**13)).encode()
        assert len(body) <= LARGEST_BODY
        read_heartbeats(body)
        held = spool.sending(spool.delivered(held))


def test_no_age_is_sent_that_the_timekeeper_would_not_take() -> None:
    """After an outage of months the beats are still delivered, as old as may be."""
    post = SpooledPost(
        "r",
        1,
        (SpooledBeat(0, ()), SpooledBeat(spool.MAX_AGE_MS, ()), SpooledBeat(3 * spool.MAX_AGE_MS, ())),
    )

    told = spool.document(post, 3 * spool.MAX_AGE_MS)["beats"]

    assert [beat["age_ms"] for beat in told] == [spool.MAX_AGE_MS, spool.MAX_AGE_MS, 0]
