"""Decisions wait in a bounded buffer, and are posted in batches."""

import json

from tests.support.post_client import PostClient
from timekeeper.core.decisions import Decision, DecisionRun
from timekeeper.runtime.recording.decision_posts import TOGETHER, DecisionBuffer, DecisionPosts


def refused(name: str = "", at_ms: int = 0, **figures: int | str) -> Decision:
    return Decision(
        at_ms=at_ms,
        kind="refused",
        reason="SpentGrant",
        namespace="a",
        figures=figures,
        name=name,
        generate_name="train-",
    )


def test_equal_decisions_in_succession_about_one_subject_wait_as_one() -> None:
    buffer = DecisionBuffer()
    first, other = refused(at_ms=1), refused("p", at_ms=3)

    for each in (
        first,
        refused(at_ms=2),
        other,
        refused(at_ms=4),
        refused(at_ms=5, left=0),
        refused(at_ms=6),
    ):
        buffer.add(each)

    assert buffer.take(2) == [DecisionRun(first, 3, 4), DecisionRun(other, 1, 3)]
    buffer.add(refused(at_ms=7))
    assert [(run.decision.at_ms, run.count) for run in buffer.take(9)] == [(5, 1), (6, 2)]
    buffer.add(refused(at_ms=8))  # what was taken grows no more
    assert [(run.decision.at_ms, run.count) for run in buffer.take(9)] == [(8, 1)]


def test_of_too_many_the_oldest_are_dropped_and_counted() -> None:
    buffer = DecisionBuffer(most=2)
    for name in ("p", "p", "q", "r"):
        buffer.add(refused(name))

    assert [run.decision.name for run in buffer.take(9)] == ["q", "r"]
    assert (buffer.take_dropped(), buffer.take_dropped()) == (2, 0)


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
    assert posts.results() == {"sent": TOGETHER + 1, "failed": 2, "dropped": 0, "refused": 0}


def test_a_decision_that_the_timekeeper_refuses_holds_no_other_back() -> None:
    client = PostClient()
    posts = DecisionPosts(client, "webhook", lambda: 0, lambda event, **_: None)
    for at in range(9):
        posts.record(refused("bad" if at == 4 else f"p{at}"))
    client.refuses = b'"bad"'

    while posts.send():
        pass

    assert posts.results() == {"sent": 8, "failed": 0, "dropped": 0, "refused": 1}


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
