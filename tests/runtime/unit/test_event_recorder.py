"""The recorder of Kubernetes Events: their fields and names, its bounds, and its results."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.worlds import Json
from timekeeper.edge.events import (
    MAX_PER_OBJECT,
    MAX_QUEUED,
    RETRY_FOR_MS,
    SPAN_MS,
    EventRecorder,
)
from timekeeper.edge.log_events import Level
from timekeeper.runtime.api_server import Answered, Unsent, event_sender

NOW_MS = 1_795_188_600_123


class FakeEventsApi:
    """An API server for Events: stores what is posted, and gives the prepared answers."""

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)
        self.sent: list[Json] = []
        self.paths: list[str] = []

    def call(self, method: str, path: str, body: Json, *, timeout_s: float) -> Answered | Unsent:
        """One call; the answer 0 means that the API server cannot be reached."""
        status = self.answers.pop(0) if self.answers else 201
        if status == 0:
            return Unsent("the API server cannot be reached")
        self.paths.append(f"{method} {path}")
        self.sent.append(body)
        return Answered(status, {})


class Clock:
    """A clock that only a wait advances; a wait takes no real time."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS
        self.ended = False

    def __call__(self) -> int:
        return self.now_ms

    def wait(self, seconds: float) -> bool:
        """Advance the clock."""
        self.now_ms += round(seconds * 1000)
        return self.ended

    def is_set(self) -> bool:
        """Whether to stop."""
        return self.ended


def recorder(
    api: Any, clock: Callable[[], int], instance: str = "extender-0", **bounds: int
) -> tuple[EventRecorder[str], list[str]]:
    """A recorder that posts to this API server by this clock, and its log lines."""
    lines: list[str] = []

    def say(event: str, *, level: Level = "info", **fields: object) -> None:
        lines.append(f"{event} {fields}")

    return EventRecorder[str](event_sender(api), "bursar.dev/extender", instance, clock, say, **bounds), lines


def sent(events: EventRecorder[str], api: FakeEventsApi, clock: Clock, count: int) -> list[Json]:
    """What the API server has received once ``count`` more Events are posted or failed."""
    done = sum(events.results()[key] for key in ("posted", "failed"))

    class UntilDone(Clock):
        def is_set(self) -> bool:
            return sum(events.results()[key] for key in ("posted", "failed")) >= done + count

        def wait(self, seconds: float) -> bool:
            return clock.wait(seconds)

    stop: Any = UntilDone()
    events.run(stop)
    return api.sent


def test_an_event_names_its_pod_its_reason_and_the_moment() -> None:
    api, clock = FakeEventsApi(), Clock()
    events, _ = recorder(api, clock)

    events.post("team-a", "p", "uid-p", "BindTakenBack", "It did not happen.", "Warning")

    (event,) = sent(events, api, clock, 1)
    name = event["metadata"].pop("name")
    assert re.fullmatch(r"p\.[0-9a-f]{16}", name)
    assert event == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": "team-a"},
        "eventTime": "2026-11-20T15:30:00.123000Z",
        "reportingController": "bursar.dev/extender",
        "reportingInstance": "extender-0",
        "action": "BindTakenBack",
        "reason": "BindTakenBack",
        "type": "Warning",
        "regarding": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "team-a",
            "name": "p",
            "uid": "uid-p",
        },
        "note": "It did not happen.",
    }
    assert api.paths == ["POST /apis/events.k8s.io/v1/namespaces/team-a/events"]


def test_the_same_text_about_the_same_pod_is_posted_once_in_five_minutes() -> None:
    api, clock = FakeEventsApi(), Clock()
    clock.now_ms = NOW_MS - NOW_MS % SPAN_MS
    events, _ = recorder(api, clock)

    for _ in range(3):
        events.post("team-a", "p", "uid-p", "BindTakenBack", "It did not happen.")
    events.post("team-a", "p", "uid-of-its-successor", "BindTakenBack", "It did not happen.")
    assert len(sent(events, api, clock, 2)) == 2
    clock.now_ms += SPAN_MS
    events.post("team-a", "p", "uid-p", "BindTakenBack", "It did not happen.")

    assert [each["regarding"]["uid"] for each in sent(events, api, clock, 1)] == [
        "uid-p",
        "uid-of-its-successor",
        "uid-p",
    ]
    assert len({each["metadata"]["name"] for each in api.sent}) == 3
    assert events.results() == {"posted": 3, "repeated": 2, "dropped": 0, "failed": 0}


def test_at_most_ten_events_about_one_pod_are_posted_in_five_minutes() -> None:
    api, clock = FakeEventsApi(), Clock()
    events, _ = recorder(api, clock)

    for at in range(MAX_PER_OBJECT + 5):
        events.post("team-a", "p", "uid-p", "Preempting", f"victim {at}")
    events.post("team-a", "q", "uid-q", "Preempting", "victim 0")

    assert len(sent(events, api, clock, MAX_PER_OBJECT + 1)) == MAX_PER_OBJECT + 1
    assert events.results()["repeated"] == 5


def test_two_replicas_with_the_same_text_make_one_event() -> None:
    api, clock = FakeEventsApi(201, 409), Clock()
    first, second = recorder(api, clock)[0], recorder(api, clock)[0]
    for each in (first, second):
        each.post("team-a", "p", "uid-p", "Preempted", "for q")
        sent(each, api, clock, 1)

    one, other = api.sent

    assert one["metadata"] == other["metadata"]
    assert second.results()["posted"] == 1


def test_a_full_queue_drops_further_events_without_waiting() -> None:
    """Nothing is sent here, as with an API server that does not answer."""
    events, lines = recorder(FakeEventsApi(), Clock())

    for at in range(MAX_QUEUED + 7):
        events.post("team-a", f"p{at}", f"uid-{at}", "Preempted", "for q")

    assert events.results()["dropped"] == 7
    assert len(lines) == 7
    assert "event-dropped" in lines[0]


def test_a_flood_in_one_namespace_takes_no_room_and_no_turn_from_another() -> None:
    api, clock = FakeEventsApi(), Clock()
    events, lines = recorder(api, clock)

    for at in range(3 * MAX_QUEUED // 2):
        events.post("flood", f"g{at}", f"uid-g{at}", "GangWaits", "for cards")
    for at in range(27):
        events.post("neighbour", f"p{at}", f"uid-p{at}", "Preempted", "for q")

    assert len(lines) == 527
    assert all("'namespace': 'flood'" in line for line in lines)
    sent(events, api, clock, 54)
    assert [event["metadata"]["namespace"] for event in api.sent] == ["flood", "neighbour"] * 27
    assert [event["regarding"]["name"] for event in api.sent[::2]] == [f"g{at}" for at in range(27)]
    sent(events, api, clock, MAX_QUEUED - 54)
    assert events.results() == {"posted": MAX_QUEUED, "repeated": 0, "dropped": 527, "failed": 0}


def test_two_floods_share_the_room_and_neither_takes_from_the_other() -> None:
    events, _ = recorder(FakeEventsApi(), Clock())

    for namespace in ("one", "two", "one", "two"):
        for at in range(MAX_QUEUED):
            events.post(namespace, f"p{at}", f"{namespace}-{at}", "GangWaits", "for cards")

    kept = [len(waiting) for waiting in events._waiting.values()]
    assert (sum(kept), max(kept) - min(kept) <= 1) == (MAX_QUEUED, True)


@pytest.mark.parametrize("away", [0, 429, 500])
def test_an_event_that_is_tried_again_makes_no_other_wait(away: int) -> None:
    api, clock = FakeEventsApi(away), Clock()
    events, _ = recorder(api, clock)

    for name in ("again", "next", "last"):
        events.post("team-a", name, f"uid-{name}", "Preempted", "for q")
    sent(events, api, clock, 2)

    assert clock.now_ms < NOW_MS + 1_000
    assert [event["regarding"]["name"] for event in api.sent[-2:]] == ["next", "last"]
    sent(events, api, clock, 1)
    assert api.sent[-1]["regarding"]["name"] == "again"


@pytest.mark.parametrize("away", [0, 429, 500])
def test_while_the_api_server_is_away_an_event_waits_for_it(away: int) -> None:
    api, clock = FakeEventsApi(away, away, away), Clock()
    events, lines = recorder(api, clock)

    events.post("team-a", "p", "uid-p", "Preempted", "for q")
    event = sent(events, api, clock, 1)[-1]

    assert event["eventTime"] == "2026-11-20T15:30:00.123000Z"
    assert clock.now_ms > NOW_MS + 3_000
    assert events.results()["posted"] == 1
    assert lines == []


def test_an_event_that_was_not_taken_in_five_minutes_is_given_up_and_logged() -> None:
    api, clock = FakeEventsApi(*[0] * 1_000), Clock()
    events, lines = recorder(api, clock)

    events.post("team-a", "p", "uid-p", "Preempted", "for q")
    events.post("team-a", "q", "uid-q", "Preempted", "for r")

    assert sent(events, api, clock, 2) == []
    assert RETRY_FOR_MS <= clock.now_ms - NOW_MS < RETRY_FOR_MS + 10_000
    assert events.results() == {"posted": 0, "repeated": 0, "dropped": 0, "failed": 2}
    assert "cannot be reached" in lines[0]


@pytest.mark.parametrize("refused", [400, 403, 404, 422])
def test_an_event_that_is_refused_is_given_up_at_once(refused: int) -> None:
    api, clock = FakeEventsApi(refused), Clock()
    events, lines = recorder(api, clock)

    events.post("team-a", "p", "uid-p", "Preempted", "for q")

    assert len(sent(events, api, clock, 1)) == 1
    assert events.results()["failed"] == 1
    assert len(lines) == 1


@pytest.mark.parametrize("length", [1, 236, 237, 253])
def test_names_of_any_length_and_ends_give_names_that_the_api_server_takes(length: int) -> None:
    """RFC 1123: labels of letters, digits and dashes that begin and end with a letter or digit."""
    label = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    for filling in "a-.":
        clock = Clock()
        api = FakeEventsApi()
        events, _ = recorder(api, clock)
        events.post("team-a", ("b" + filling * (length - 1))[: length - 1] + "c", "u", "Preempted", "for q")

        name = sent(events, api, clock, 1)[0]["metadata"]["name"]

        assert len(name) <= 253
        if filling != ".":  # pods have no names with two dots in a row
            assert re.fullmatch(rf"{label}(\.{label})*", name)


@pytest.mark.parametrize(("letter", "most"), [("a", 1024), ("ä", 512), ("€", 341)])
def test_a_long_sentence_is_cut_to_the_bytes_that_the_api_server_takes(letter: str, most: int) -> None:
    api, clock = FakeEventsApi(), Clock()
    events, _ = recorder(api, clock)

    events.post("team-a", "p", "uid-p", "Preempted", letter * 2_000)

    assert sent(events, api, clock, 1)[0]["note"] == letter * most


def test_a_role_can_allow_more_events_about_one_object() -> None:
    api, clock = FakeEventsApi(), Clock()
    events, _ = recorder(api, clock, most_per_object=MAX_PER_OBJECT + 1)

    for at in range(MAX_PER_OBJECT + 2):
        events.post_on_config_map("bursar-system", "bursar-budgets", "u", "BrokenBudget", f"entry {at}")

    assert len(sent(events, api, clock, MAX_PER_OBJECT + 1)) == MAX_PER_OBJECT + 1
    assert events.results()["repeated"] == 1


def test_an_event_keeps_to_what_the_api_server_takes() -> None:
    api, clock = FakeEventsApi(), Clock()
    clock.now_ms = 1_795_168_800_000
    events, _ = recorder(api, clock, "settler" * 50)

    events.post("team-a", "a." + "x" * 250, "uid", "GPUMemoryEviction", "ü" * 1_000)
    events.post("team-a", "a" * 235 + ".b", "uid", "GPUMemoryEviction", "")
    event, dotted = sent(events, api, clock, 2)

    assert len(event["metadata"]["name"]) == 253
    assert event["note"] == "ü" * 512
    assert len(event["reportingInstance"]) == 128
    assert event["eventTime"] == "2026-11-20T10:00:00.000000Z"
    assert ".." not in dotted["metadata"]["name"]
