"""Events: what people read of a pod or a node with ``kubectl describe``, told without making anybody wait."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from scheduler_ext.clients.events import KEPT_MS, MOST_OF_AN_OBJECT, MOST_QUEUED, SPAN_MS, Events
from tests.scheduler_ext.conftest import Running
from timekeeper.runtime.api_server import Answered, Unsent
from timekeeper.runtime.log import Level

Json = dict[str, Any]
Start = Callable[..., Running]

NOW_MS = 1_795_188_600_123


class Told:
    """An API server as far as Events go: it keeps what it is sent, and answers as told."""

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)
        self.sent: list[Json] = []
        self.paths: list[str] = []

    def call(self, method: str, path: str, body: Json, *, timeout_s: float) -> Answered | Unsent:
        """One call; 0 among the answers is an API server that is not there."""
        status = self.answers.pop(0) if self.answers else 201
        if status == 0:
            return Unsent("the API server cannot be reached")
        self.paths.append(f"{method} {path}")
        self.sent.append(body)
        return Answered(status, {})


class Clock:
    """A clock turned by hand; a wait takes as long as is asked, and no time at all."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS
        self.ended = False

    def __call__(self) -> int:
        return self.now_ms

    def wait(self, seconds: float) -> bool:
        """The time goes by."""
        self.now_ms += round(seconds * 1000)
        return self.ended

    def is_set(self) -> bool:
        """True once it is over."""
        return self.ended


def teller(api: Any, clock: Callable[[], int]) -> tuple[Events, list[str]]:
    """Events to this API server by this clock, and the log lines about them."""
    lines: list[str] = []

    def say(event: str, *, level: Level = "info", **fields: object) -> None:
        lines.append(f"{event} {fields}")

    return Events(api, clock, say, "extender-0"), lines


def sent(events: Events, api: Told, clock: Clock, count: int) -> list[Json]:
    """What reaches the API server once so many of those queued have been sent, or given up."""
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
    api, clock = Told(), Clock()
    events, _ = teller(api, clock)

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


def test_the_same_text_about_the_same_pod_is_told_once_in_five_minutes() -> None:
    api, clock = Told(), Clock()
    clock.now_ms = NOW_MS - NOW_MS % SPAN_MS
    events, _ = teller(api, clock)

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


def test_about_one_pod_no_more_than_ten_are_told_in_five_minutes() -> None:
    api, clock = Told(), Clock()
    events, _ = teller(api, clock)

    for at in range(MOST_OF_AN_OBJECT + 5):
        events.post("team-a", "p", "uid-p", "Preempting", f"victim {at}")
    events.post("team-a", "q", "uid-q", "Preempting", "victim 0")

    assert len(sent(events, api, clock, MOST_OF_AN_OBJECT + 1)) == MOST_OF_AN_OBJECT + 1
    assert events.results()["repeated"] == 5


def test_two_replicas_that_tell_the_same_make_one_event() -> None:
    api, clock = Told(201, 409), Clock()
    first, second = teller(api, clock)[0], teller(api, clock)[0]
    for each in (first, second):
        each.post("team-a", "p", "uid-p", "Preempted", "for q")
        sent(each, api, clock, 1)

    one, other = api.sent

    assert one["metadata"] == other["metadata"]
    assert second.results()["posted"] == 1


def test_a_full_queue_drops_what_comes_and_nobody_waits() -> None:
    """Nothing sends here: as with an API server that does not answer."""
    events, _ = teller(Told(), Clock())

    for at in range(MOST_QUEUED + 7):
        events.post("team-a", f"p{at}", f"uid-{at}", "Preempted", "for q")

    assert events.results()["dropped"] == 7


@pytest.mark.parametrize("away", [0, 429, 500])
def test_while_the_api_server_is_away_an_event_waits_for_it(away: int) -> None:
    api, clock = Told(away, away, away), Clock()
    events, lines = teller(api, clock)

    events.post("team-a", "p", "uid-p", "Preempted", "for q")
    event = sent(events, api, clock, 1)[-1]

    assert event["eventTime"] == "2026-11-20T15:30:00.123000Z"
    assert clock.now_ms > NOW_MS + 3_000
    assert events.results()["posted"] == 1
    assert lines == []


def test_an_event_that_was_not_taken_in_five_minutes_is_given_up_and_logged() -> None:
    api, clock = Told(*[0] * 1_000), Clock()
    events, lines = teller(api, clock)

    events.post("team-a", "p", "uid-p", "Preempted", "for q")
    events.post("team-a", "q", "uid-q", "Preempted", "for r")

    assert sent(events, api, clock, 2) == []
    assert KEPT_MS <= clock.now_ms - NOW_MS < KEPT_MS + 10_000
    assert events.results() == {"posted": 0, "repeated": 0, "dropped": 0, "failed": 2}
    assert "cannot be reached" in lines[0]


@pytest.mark.parametrize("refused", [400, 403, 404, 422])
def test_an_event_that_is_refused_is_given_up_at_once(refused: int) -> None:
    api, clock = Told(refused), Clock()
    events, lines = teller(api, clock)

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
        api = Told()
        events, _ = teller(api, clock)
        events.post("team-a", ("b" + filling * (length - 1))[: length - 1] + "c", "u", "Preempted", "for q")

        name = sent(events, api, clock, 1)[0]["metadata"]["name"]

        assert len(name) <= 253
        if filling != ".":  # pods have no names with two dots in a row
            assert re.fullmatch(rf"{label}(\.{label})*", name)


@pytest.mark.parametrize(("letter", "most"), [("a", 1024), ("ä", 512), ("€", 341)])
def test_a_long_sentence_is_cut_to_the_bytes_that_the_api_server_takes(letter: str, most: int) -> None:
    api, clock = Told(), Clock()
    events, _ = teller(api, clock)

    events.post("team-a", "p", "uid-p", "Preempted", letter * 2_000)

    assert sent(events, api, clock, 1)[0]["note"] == letter * most
