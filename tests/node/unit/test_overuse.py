"""A pod over its memory share: when it is told of, how often, and when no more."""

import json

import pytest

from sidecar.node.state.overuse import (
    OVER,
    OVER_FOR_MS,
    TELL_AGAIN_MS,
    WITHIN,
    AgentEvent,
    OveruseEpisode,
    detect,
    shares,
)
from sidecar.node.state.use import PodLoad, UsageReading
from sidecar.node.values import CardLoad, PodState

POD = PodState("u", "team", "p", ("G0",), False, (("main", ("G0",)),))
GIVEN = {"u": {"G0": 8_000}}
STEP = 5_000


class Readings:
    """A watchdog and a clock that goes on a step with each look."""

    def __init__(self) -> None:
        self.episodes: dict[str, OveruseEpisode] = {}
        self.now_ms = 0
        self.told: list[tuple[int, str]] = []

    def look(self, memory_mib: int | None, times: int = 1, step_ms: int = STEP) -> tuple[AgentEvent, ...]:
        """So many looks at the pod that use so much; the notices of the last."""
        notices: tuple[AgentEvent, ...] = ()
        for _ in range(times):
            self.now_ms += step_ms
            seen = UsageReading(
                (PodLoad("u", (CardLoad("G0", 0, memory_mib), CardLoad("G9", 0, 9_999_999))),), ()
            )
            self.episodes, notices = detect(self.episodes, seen, (POD,), GIVEN, self.now_ms)
            self.told += [(self.now_ms, each.reason) for each in notices]
        return notices


@pytest.fixture
def looks() -> Readings:
    return Readings()


def test_a_pod_that_stays_over_its_share_is_reported_once_with_the_figures(looks: Readings) -> None:
    looks.look(8_001, times=100)

    assert looks.told == [(STEP + OVER_FOR_MS, OVER)]
    assert Readings().look(9_000, times=4) == (
        AgentEvent("u", "team", "p", "Warning", OVER, "uses 9000 MiB of G0 (its share is 8000 MiB)"),
    )


def test_all_of_its_share_is_not_over_it(looks: Readings) -> None:
    looks.look(8_000, times=100)

    assert (looks.told, looks.episodes) == ([], {})


def test_a_short_peak_is_no_alarm(looks: Readings) -> None:
    for _ in range(10):
        looks.look(20_000, times=3)
        looks.look(1)

    assert looks.told == []


def test_it_is_reported_again_each_hour_while_it_lasts(looks: Readings) -> None:
    looks.look(9_000, times=2 * TELL_AGAIN_MS // STEP + 10)

    first = STEP + OVER_FOR_MS
    assert looks.told == [(first + hour * TELL_AGAIN_MS, OVER) for hour in range(3)]


def test_the_end_of_an_excess_is_reported_where_its_beginning_was(looks: Readings) -> None:
    looks.look(9_000, times=5)
    looks.look(7_000, times=5)

    assert [reason for _, reason in looks.told] == [OVER, WITHIN]
    looks.look(7_000, step_ms=TELL_AGAIN_MS)
    assert looks.episodes == {}


def test_a_pod_that_comes_and_goes_is_reported_once_an_hour(looks: Readings) -> None:
    while looks.now_ms < 3 * TELL_AGAIN_MS:
        looks.look(9_000, times=5)
        looks.look(1)

    at = [(reason, now_ms // TELL_AGAIN_MS) for now_ms, reason in looks.told]
    assert at == [(reason, hour) for hour in range(3) for reason in (OVER, WITHIN)]


def test_a_short_peak_an_hour_after_the_last_is_no_alarm_either(looks: Readings) -> None:
    looks.look(9_000, times=4)
    looks.look(1, times=TELL_AGAIN_MS // STEP - 1)
    looks.look(9_000, times=3)
    looks.look(1)

    assert [reason for _, reason in looks.told] == [OVER, WITHIN]


def test_an_excess_that_was_not_reported_within_the_hour_is_reported_after_it_if_it_lasts(
    looks: Readings,
) -> None:
    looks.look(9_000, times=5)
    looks.look(1)
    looks.look(9_000, times=TELL_AGAIN_MS // STEP)

    first = STEP + OVER_FOR_MS
    assert looks.told == [(first, OVER), (6 * STEP, WITHIN), (first + TELL_AGAIN_MS, OVER)]


def test_a_look_without_a_figure_neither_ends_nor_begins_anything(looks: Readings) -> None:
    looks.look(None, times=10)
    assert looks.episodes == {}

    looks.look(9_000)
    looks.look(None, times=3)

    assert looks.told == [(11 * STEP + OVER_FOR_MS, OVER)]


def test_a_pod_that_is_gone_is_forgotten(looks: Readings) -> None:
    looks.look(9_000, times=5)

    assert detect(looks.episodes, UsageReading((), ()), (), GIVEN, looks.now_ms + 1) == ({}, ())


def test_a_pod_without_a_known_share_is_never_over_it() -> None:
    seen = UsageReading((PodLoad("u", (CardLoad("G0", 0, 9_000),)),), ())

    assert detect({}, seen, (POD,), {}, 1) == ({}, ())


def test_shares_are_the_annotations_memory_by_card_all_containers_together() -> None:
    def slice_(uuid: str, memory_mib: int) -> dict[str, object]:
        return {"uuid": uuid, "index": 0, "share_milli": 100, "memory_mib": memory_mib}

    text = json.dumps(
        {"version": 1, "containers": {"a": [slice_("G0", 5), slice_("G1", 7)], "b": [slice_("G0", 2)]}}
    )

    assert shares(text) == (("G0", 7), ("G1", 7))


@pytest.mark.parametrize(
    "text",
    [
        *("", "no", "[]", "{}", '{"containers": 1}', '{"containers": {"a": [{}]}}'),
        '{"containers": {"a": [{"uuid": "G0", "memory_mib": 1e999}]}}',
    ],
)
def test_an_unreadable_annotation_gives_no_shares(text: str) -> None:
    assert shares(text) == ()
