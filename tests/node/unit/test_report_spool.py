"""Reports as a text on the disk: what was written is read, and nothing else is."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.node.state import report_spool
from sidecar.node.state.reports import MAX_WAITING, UsageInterval, document, figures_in
from sidecar.node.state.use import PodLoad, UsageReading
from sidecar.node.values import CardLoad
from timekeeper.edge.outbox import Post

RECORDED = Path(__file__).parent.parent / "recorded" / "uses.json"  # by an agent before the outbox was shared
NODE_BOOT = "11111111-2222-3333-4444-555555555555"
NOW = 1_000_000
figure = st.none() | st.integers(0, 10**9)
loads = st.lists(st.builds(CardLoad, st.text(max_size=4), figure, figure), max_size=3).map(tuple)
pods = st.lists(st.builds(PodLoad, st.text(max_size=4), loads), max_size=3).map(tuple)
uses = st.lists(
    st.builds(UsageInterval, st.integers(0, NOW), st.builds(UsageReading, pods, loads)), max_size=4
).map(tuple)
posts = st.none() | st.builds(Post, st.just("run"), st.integers(0, 10**9), uses.filter(bool))

ONE = UsageInterval(
    5, UsageReading((PodLoad("uid", (CardLoad("GPU-a", 7, None),)),), (CardLoad("GPU-a", 50, 8_000),))
)
TEXT = report_spool.encode(Post("run", 3, (ONE,)), (ONE,), "boot")


@given(posts, uses)
def test_what_was_written_is_read(
    post: Post[UsageInterval] | None, waiting: tuple[UsageInterval, ...]
) -> None:
    assert report_spool.decode(report_spool.encode(post, waiting, "boot"), "boot", NOW) == (post, waiting)


def test_the_reports_that_an_earlier_agent_has_saved_are_read() -> None:
    text = RECORDED.read_text()
    post, waiting = report_spool.decode(text, NODE_BOOT, 1_061_000)

    assert post is not None
    assert document(post, 1_061_000) == {
        "version": 1,
        "boot": "run-of-before",
        "sequence": 2,
        "uses": [
            {
                "age_ms": 31_000,
                "pods": [
                    {
                        "uid": "uid-p",
                        "cards": [{"uuid": "GPU-0", "utilisation": 20, "memory_mib": None}],
                    },
                    {
                        "uid": "uid-q",
                        "cards": [{"uuid": "GPU-0", "utilisation": None, "memory_mib": 512}],
                    },
                ],
                "cards": [
                    {"uuid": "GPU-0", "utilisation": 20, "memory_mib": 8000},
                    {"uuid": "GPU-1", "utilisation": 0, "memory_mib": 0},
                ],
            }
        ],
    }
    assert [use.at_ms for use in waiting] == [1_045_000, 1_060_000]
    assert report_spool.encode(post, waiting, NODE_BOOT) == text


def changed(**fields: Any) -> str:
    """The text with other fields at its top."""
    return json.dumps(json.loads(TEXT) | fields)


@pytest.mark.parametrize(
    "text",
    [
        changed(names=[]),
        changed(names=[1, 2]),
        changed(waiting=[[5, [], [], 1]]),
        changed(waiting=[[NOW + 1, [], []]]),
        changed(waiting=[[-1, [], []]]),
        changed(waiting=[[5, [[0, -1, 1]], []]]),
        changed(waiting=[[5, [[-1, 1, 1]], []]]),
        changed(waiting=[[5, [[0, 1.5, True]], []]]),
    ],
    ids=lambda text: text[:40],
)
def test_what_we_did_not_write_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(ValueError, match="it contains no records"):
        report_spool.decode(text, "boot", NOW)


@given(st.text())
def test_no_text_does_more_than_be_refused(text: str) -> None:
    with pytest.raises(ValueError, match="it"):
        report_spool.decode(text, "boot", NOW)


def test_all_that_may_wait_fits_into_the_folder_of_the_manifest_twice() -> None:
    """The file is replaced by another that is written first."""
    cards = tuple(CardLoad(f"GPU-{at}-1111-2222-3333-444455556666", 100, 81_920) for at in range(8))
    seen = tuple(PodLoad(f"{at:08}-1111-2222-3333-444455556666", cards[:1]) for at in range(64))
    one = UsageInterval(NOW * 1_000, UsageReading(seen, cards))
    text = report_spool.encode(None, (one,) * (MAX_WAITING // figures_in(one)), "boot")

    assert 2 * len(text) < 4 << 20
