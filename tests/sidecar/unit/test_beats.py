"""When the sidecar beats, and what it reads out of an answer."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar import beats
from sidecar.beats import HeartbeatReply

fractions = st.floats(0, 1)


@given(st.integers(beats.LEAST_INTERVAL_MS, beats.MAX_INTERVAL_MS), fractions)
def test_the_next_beat_comes_within_a_tenth_of_the_interval(interval_ms: int, fraction: float) -> None:
    assert 0.9 * interval_ms - 1 <= beats.jittered_ms(interval_ms, fraction) <= 1.1 * interval_ms + 1


def test_chance_spreads_the_beats_over_a_fifth_of_the_interval() -> None:
    assert [beats.jittered_ms(10_000, fraction) for fraction in (0, 0.5, 1)] == [9_000, 10_000, 11_000]


@pytest.mark.parametrize(
    ("body", "read"),
    [
        ({"interval_ms": 5000, "in_budget": True}, HeartbeatReply(5000, True, None)),
        ({"interval_ms": 5000, "in_budget": False, "ca": "PEM"}, HeartbeatReply(5000, False, "PEM")),
        ({"interval_ms": 1, "in_budget": True}, HeartbeatReply(100, True, None)),
        ({"interval_ms": 10**9, "in_budget": True}, HeartbeatReply(300_000, True, None)),
        ({"interval_ms": True, "in_budget": 1, "ca": ["PEM"]}, HeartbeatReply(None, None, None)),
        ({"interval_ms": 2.5, "in_budget": None, "more": 1}, HeartbeatReply(None, None, None)),
        ({"interval_ms": 5000, "in_budget": True, "over": True}, HeartbeatReply(5000, True, None)),
        ({}, HeartbeatReply(None, None, None)),
    ],
)
def test_an_answer_is_read_within_bounds_and_what_is_odd_in_it_passed_over(
    body: object, read: HeartbeatReply
) -> None:
    assert beats.read_reply(json.dumps(body).encode()) == read


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b'"fine"', b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_json_object_is_no_answer_of_a_timekeeper(body: bytes) -> None:
    assert beats.read_reply(body) is None
