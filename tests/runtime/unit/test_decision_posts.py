"""Decisions wait in an outbox, and are posted in batches."""

import json
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.support.post_client import PostClient
from timekeeper.core.decisions import Decision, DecisionRun
from timekeeper.edge.memory_outbox import OutboxEvents
from timekeeper.edge.outbox import NotDelivered
from timekeeper.runtime.recording.decision_posts import MAX_WAITING, TOGETHER, DecisionOutbox, DecisionPosts


def refused(name: str = "", at_ms: int = 0, namespace: str = "a", **figures: int | str) -> Decision:
    return Decision(
        at_ms=at_ms,
        kind="refused",
        reason="SpentGrant",
        namespace=namespace,
        figures=figures,
        name=name,
        generate_name="train-",
    )


def written(most: int = 9) -> tuple[DecisionOutbox, list[DecisionRun]]:
    """An outbox of decisions that is not sent before it is asked to, and what it has sent."""
    runs: list[DecisionRun] = []
    events = OutboxEvents[str]("failed", "sent", "refused", "dropped")

    def write(taken: Sequence[DecisionRun]) -> NotDelivered | None:
        runs.extend(taken)
        return None

    return DecisionOutbox(
        write, events, lambda *_, **__: None, together=2, count=lambda *_: None, most=most
    ), runs


def test_equal_decisions_in_succession_about_one_subject_wait_as_one() -> None:
    outbox, runs = written()
    first, other = refused(at_ms=1), refused("p", at_ms=3)

    for each in (
        first,
        refused(at_ms=2),
        other,
        refused(at_ms=4),
        refused(at_ms=5, left=0),
        refused(at_ms=6),
    ):
        outbox.record(each)
    outbox.send()
    outbox.record(refused(at_ms=7))
    outbox.send()
    outbox.record(refused(at_ms=8))  # what was taken grows no more
    outbox.send()

    assert runs[:2] == [DecisionRun(first, 3, 4), DecisionRun(other, 1, 3)]
    assert [(run.decision.at_ms, run.count) for run in runs[2:]] == [(5, 1), (6, 2), (8, 1)]


def test_of_too_many_the_oldest_are_dropped_and_counted() -> None:
    outbox, runs = written(most=2)
    for name in ("p", "p", "q", "r", "p"):
        outbox.record(refused(name))
    outbox.send()

    assert [(run.decision.name, run.count) for run in runs] == [("r", 1), ("p", 1)]
    assert outbox.results == {"sent": 2, "dropped": 3, "refused": 0, "failed": 0}


def test_a_decision_that_repeats_one_in_flight_begins_a_run_of_its_own() -> None:
    client = PostClient()
    posts = DecisionPosts(client, "webhook", lambda: 0, lambda event, **_: None)
    posts.record(refused())
    client.away = True
    posts.send()
    posts.record(refused())
    client.away = False
    while posts.send():
        pass

    counts = [entry["count"] for body in client.posts for entry in json.loads(body)["decisions"]]
    assert counts == [1, 1]


def test_what_was_decided_while_the_timekeeper_was_away_is_posted_with_its_age() -> None:
    now, client, lines = [1_000], PostClient(), list[str]()
    posts = DecisionPosts(client, "webhook", lambda: now[0], lambda event, **_: lines.append(event))
    client.away = True
    for at in range(TOGETHER + 1):
        posts.record(refused(f"p{at}", at_ms=1_000, left=at))
    assert not posts.send()
    assert not posts.send()
    now[0], client.away = 61_000, False

    assert posts.send()
    assert not posts.send()

    bodies = [json.loads(each) for each in client.posts]
    assert [len(each["decisions"]) for each in bodies] == [TOGETHER, 1]
    assert (bodies[0]["source"], bodies[0]["decisions"][1]["figures"]) == ("webhook", {"left": 1})
    assert {(each["first_age_ms"], each["count"]) for each in bodies[0]["decisions"]} == {(60_000, 1)}
    assert lines == ["decisions-failed", "decisions-sent"]
    assert posts.results == {"sent": TOGETHER + 1, "failed": 2, "dropped": 0, "refused": 0}


def test_a_decision_that_the_timekeeper_refuses_holds_no_other_back() -> None:
    client = PostClient()
    posts = DecisionPosts(client, "webhook", lambda: 0, lambda event, **_: None)
    for at in range(9):
        posts.record(refused("bad" if at == 4 else f"p{at}"))
    client.refuses = b'"bad"'

    while posts.send():
        pass

    assert posts.results == {"sent": 8, "failed": 0, "dropped": 0, "refused": 1}


def test_of_many_bad_decisions_each_goes_alone() -> None:
    client = PostClient()
    posts = DecisionPosts(client, "webhook", lambda: 0, lambda event, **_: None)
    for at in range(TOGETHER):
        posts.record(refused("bad" if at % 20 == 7 else f"p{at}", left=at))
    client.refuses = b'"bad"'

    while posts.send():
        pass

    entries = [entry["name"] for body in client.posts for entry in json.loads(body)["decisions"]]
    assert posts.results == {"sent": TOGETHER - 10, "failed": 0, "dropped": 0, "refused": 10}
    assert {f"p{at}" for at in range(TOGETHER) if at % 20 != 7} <= {*entries}


@pytest.mark.parametrize("nobody", ["no-such", "No Such", ""])
def test_a_flood_of_decisions_of_nobody_is_not_posted_and_loses_no_others(nobody: str) -> None:
    client, there = PostClient(), {"a", "b"}
    posts = DecisionPosts(
        client, "webhook", lambda: 0, lambda event, **_: None, exists=lambda name: name in there
    )
    for at in range(MAX_WAITING + 1_000):
        if at % 100 == 0:
            posts.record(refused(f"p{at}", namespace="ab"[at % 200 // 100]))
        posts.record(refused(f"n{at}", namespace=f"{nobody}{at}"))
    while posts.send():
        pass

    entries = [entry for body in client.posts for entry in json.loads(body)["decisions"]]
    assert Counter(entry["namespace"] for entry in entries) == {"a": 55, "b": 55}
    assert posts.results == {"sent": 110, "dropped": 0, "refused": 0, "failed": 0}


def test_a_namespace_that_is_made_a_moment_later_has_its_decision() -> None:
    client, there = PostClient(), set[str]()
    posts = DecisionPosts(
        client, "webhook", lambda: 0, lambda event, **_: None, exists=lambda name: name in there
    )
    posts.record(refused())
    there.add("a")
    posts.send()

    assert len(client.posts) == 1


def test_a_flood_of_decisions_of_one_namespace_loses_no_others() -> None:
    client = PostClient()
    posts = DecisionPosts(client, "webhook", lambda: 0, lambda event, **_: None)
    for at in range(MAX_WAITING + 1_000):
        if at % 100 == 0:
            posts.record(refused(f"p{at}", namespace="b"))
        posts.record(refused(f"n{at}"))
    while posts.send():
        pass

    entries = [entry for body in client.posts for entry in json.loads(body)["decisions"]]
    assert Counter(entry["namespace"] for entry in entries)["b"] == 110


def test_no_text_of_a_pod_makes_a_decision_that_the_timekeeper_refuses() -> None:
    client = PostClient()
    posts = DecisionPosts(client, "webhook", lambda: 0, lambda event, **_: None)
    posts.record(
        Decision(
            at_ms=0,
            kind="refused",
            reason="X",
            namespace="a",
            figures={"message": "a\0\n" + 2_000 * "b"},
            generate_name="\0" * 999,
        )
    )

    posts.send()

    (entry,) = json.loads(client.posts[0])["decisions"]
    assert entry["figures"] == {"message": ("a? " + 2_000 * "b")[:1_000]}
    assert entry["generate_name"] == "?" * 320
