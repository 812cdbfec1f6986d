"""The spool: what is read from the disk and sent is what the timekeeper takes."""

import json
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar import spool
from sidecar.spool import SpooledBeat
from tests.support.profile import examples
from tests.worlds import Json
from timekeeper.api.http.routes import LARGEST_BODY
from timekeeper.api.resources.heartbeats import BODY
from timekeeper.edge.outbox import Outbox, Post

RECORDED = Path(__file__).parent.parent / "recorded" / "spool.json"  # before the outbox was shared
FIGURE: Json = {"uuid": "GPU-1", "utilisation": 37, "memory_mib": None, "scope": "shared"}

figures = st.builds(
    lambda uuid, utilisation, memory_mib: {
        "uuid": uuid,
        "utilisation": utilisation,
        "memory_mib": memory_mib,
        "scope": "shared",
    },
    st.text(min_size=1, max_size=40),
    st.none() | st.integers(0, 100),
    st.none() | st.integers(0, 10**6),
)
beats = st.lists(
    st.builds(SpooledBeat, st.integers(0, 10**9), st.lists(figures, max_size=2).map(tuple)), max_size=20
).map(tuple)
posts = st.builds(Post, st.just("run"), st.integers(0, 10**6), beats.filter(len))
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def outbox(post: Post[SpooledBeat] | None = None, waiting: Sequence[SpooledBeat] = ()) -> Outbox[SpooledBeat]:
    """The outbox of a run "r"."""
    return Outbox(spool.limits(lambda: 0.5), lambda *_: None, "r", (post, waiting))


@settings(max_examples=examples(20, soak=1_000))
@given(st.integers(449, 3_000), st.integers(100, 60_000))
def test_a_long_outage_is_covered_in_even_steps(count: int, interval_ms: int) -> None:
    at = [number * interval_ms for number in range(count)]
    sent = outbox()
    for each in at:
        sent.add(SpooledBeat(each, ()))
    held = [beat.at_ms for beat in sent.unacknowledged()]

    assert len(held) == spool.MAX_WAITING
    assert (held[0], held[-1]) == (at[0], at[-1])
    even_ms = at[-1] / (len(held) - 1)
    assert max(later - earlier for earlier, later in pairwise(held)) <= 4 * even_ms


def test_the_spool_of_an_earlier_sidecar_is_read_and_its_post_is_repeated() -> None:
    text = RECORDED.read_text()
    sent = outbox(*spool.decode(text, "11111111-2222-3333-4444-555555555555", 1_020_000))

    first = sent.next(0)
    assert first is not None
    body = spool.document(first, 1_020_000)
    sent.on_posted(None, 0)

    assert body == {
        "version": 1,
        "boot": "run-of-before",
        "sequence": 2,
        "beats": [
            {
                "age_ms": 14_980,
                "devices": [
                    {
                        "uuid": "GPU-8f3c2a51-0000-4000-8000-000000000001",
                        "utilisation": 37,
                        "memory_mib": 2048,
                        "scope": "shared",
                    },
                    {
                        "uuid": "GPU-8f3c2a51-0000-4000-8000-000000000002",
                        "utilisation": None,
                        "memory_mib": None,
                        "scope": "exclusive",
                    },
                ],
            }
        ],
    }
    assert [(beat.at_ms, len(beat.devices)) for beat in sent.waiting] == [(1_010_030, 0), (1_015_040, 1)]
    assert spool.encode(first, sent.waiting, "11111111-2222-3333-4444-555555555555") == text


def test_a_beat_is_as_old_as_the_clock_says_when_it_is_sent() -> None:
    post = Post("r", 7, (SpooledBeat(1_000, (FIGURE,)), SpooledBeat(4_500, ())))

    assert spool.document(post, 5_000) == {
        "version": 1,
        "boot": "r",
        "sequence": 7,
        "beats": [{"age_ms": 4_000, "devices": [FIGURE]}, {"age_ms": 500, "devices": []}],
    }


@given(st.none() | posts, beats)
def test_another_process_goes_on_with_what_the_disk_holds(
    post: Post[SpooledBeat] | None, waiting: tuple[SpooledBeat, ...]
) -> None:
    assert spool.decode(spool.encode(post, waiting, "boot"), "boot", 10**9) == (post, waiting)


def test_a_beat_that_is_still_to_come_is_none_of_ours() -> None:
    with pytest.raises(ValueError, match="no records"):
        spool.decode(spool.encode(None, [SpooledBeat(11, ())], "boot"), "boot", 10)


@given(
    anything
    | st.fixed_dictionaries(
        {"version": st.just(1), "node_boot": st.just("b"), "post": anything, "waiting": anything}
    )
)
def test_a_spool_of_nonsense_is_a_value_error_and_nothing_else(read: object) -> None:
    text = json.dumps(read)

    with suppress(ValueError):
        spool.decode(text, "b", 10)


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
        sent = outbox(*spool.decode(text, "b", 10))
        while post_ := sent.next(0):
            body = json.dumps(spool.document(post_, 10)).encode()
            assert len(BODY.read(body).beats) == len(post_.records)
            sent.on_posted(None, 0)


@pytest.mark.parametrize("cards", [1, 8, 56, spool.MAX_CARDS])
def test_however_many_cards_a_pod_has_no_post_is_too_large_and_the_spool_fits_in_its_folder_twice(
    cards: int,
) -> None:
    figure = {"uuid": "MIG-" + "x" * 90, "utilisation": 100, "memory_mib": 1_000_000, "scope": "exclusive"}
    sent = outbox()
    for number in range(2 * spool.MAX_BEATS):
        sent.add(SpooledBeat(10**12 + number, (figure,) * cards))
        sent.next(0)
    first, *_, last = sent.unacknowledged()
    text = spool.encode(sent.post, sent.waiting, "b" * 36)

    assert 2 * len(text) < 4 << 20
    assert (first.at_ms, last.at_ms) == (10**12, 10**12 + 2 * spool.MAX_BEATS - 1)
    assert outbox(*spool.decode(text, "b" * 36, 10**13)).unacknowledged() == sent.unacknowledged()
    while sent.post:
        body = json.dumps(spool.document(sent.post, 10**13)).encode()
        assert len(body) <= LARGEST_BODY
        BODY.read(body)
        sent.on_posted(None, 0)
        sent.next(0)


def test_no_age_is_sent_that_the_timekeeper_would_not_take() -> None:
    """After an outage of months the beats are still delivered, as old as may be."""
    post = Post(
        "r",
        1,
        (SpooledBeat(0, ()), SpooledBeat(spool.MAX_AGE_MS, ()), SpooledBeat(3 * spool.MAX_AGE_MS, ())),
    )

    told = spool.document(post, 3 * spool.MAX_AGE_MS)["beats"]

    assert [beat["age_ms"] for beat in told] == [spool.MAX_AGE_MS, spool.MAX_AGE_MS, 0]
