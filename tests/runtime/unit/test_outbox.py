"""The outbox: in order, bounded, one post at a time, and each record once for a reader that knows posts by
their boot and sequence."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.edge import saved_outbox
from timekeeper.edge.memory_outbox import MemoryOutbox, OutboxEvents
from timekeeper.edge.outbox import ENDING_MS, NEVER, NotDelivered, Outbox, OutboxLimits, Post
from timekeeper.edge.saved_outbox import OutboxPorts, SavedOutbox
from timekeeper.edge.value import value

AWAY, REFUSED = NotDelivered("away", False), NotDelivered("it answered 400", True)


@value
class Beat:
    """A record with a moment."""

    at_ms: int


class Sending(Outbox[Any]):
    """Starts each post that is due."""

    def send(self, now_ms: int) -> Post[Any] | None:
        post = self.next(now_ms)
        if post:
            self.start()
        return post


def outbox(
    most: int = 1_000, together: int = 3, *, gives_up: bool = True, **more: Any
) -> tuple[Sending, list[tuple[str, tuple[Any, ...], str]]]:
    """An outbox that drops the oldest, and what it noticed, without what is taken."""
    noticed: list[tuple[str, tuple[Any, ...], str]] = []

    def notice(result: str, records: Sequence[Any], reason: str) -> None:
        if result != "taken":
            noticed.append((result, tuple(records), reason))

    limits = OutboxLimits[Any](
        batch=lambda _: together,
        spare=lambda waiting: 0 if len(waiting) > most else None,
        pause_ms=lambda failures: 1_000 * failures,
        gives_up=gives_up,
    )
    return Sending(limits, notice, "run", **more), noticed


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5), st.sampled_from(["delivered", "reply lost", "away", "refused", "killed"])
        ),
        max_size=40,
    )
)
def test_each_record_arrives_once_and_in_order_through_outages_lost_replies_and_crashes(
    story: list[tuple[int, str]],
) -> None:
    sent, _ = outbox(gives_up=False)
    received: dict[tuple[str, int], tuple[int, ...]] = {}
    now_ms = made = 0
    for number, (records, event) in enumerate([*story, *[(0, "delivered")] * 100]):
        now_ms += 3_600_000
        for _ in range(records):
            sent.add(made)
            made += 1
        if event == "killed":
            sent, _ = outbox(gives_up=False, left=(sent.post, tuple(sent.waiting)))
            sent._boot = f"run-{number}"
        elif post := sent.send(now_ms):
            if event in ("delivered", "reply lost"):
                assert received.setdefault((post.boot, post.sequence), post.records) == post.records
            failure = {"delivered": None, "refused": REFUSED}.get(event, AWAY)
            sent.on_posted(failure, now_ms)

    assert [record for records in received.values() for record in records] == list(range(made))


def test_one_post_is_in_flight_and_stays_as_it_is_while_more_records_come() -> None:
    sent, noticed = outbox()
    for record in "abcd":
        sent.add(record)

    post = sent.send(0)
    assert sent.send(0) is None
    sent.add("e")
    sent.on_posted(AWAY, 0)

    assert sent.send(999) is None
    assert sent.send(1_000) == post == Post("run", 1, ("a", "b", "c"))
    sent.on_posted(None, 1_000)
    assert sent.send(1_000) == Post("run", 2, ("d", "e"))
    assert noticed == [
        ("failed", (), "away"), ("away", (), "away"), ("back", (), ""), ("sent", ("a", "b", "c"), ""),
    ]  # fmt: skip


@given(st.integers(1, 20), st.sets(st.integers(0, 19)))
def test_of_a_refused_post_half_goes_alone_until_one_record_is_given_up(number: int, bad: set[int]) -> None:
    sent, noticed = outbox(together=7)
    for record in range(number):
        sent.add(record)

    while post := sent.send(0):
        sent.on_posted(REFUSED if bad & set(post.records) else None, 0)

    ends = [(record, result) for result, records, _ in noticed for record in records]
    assert ends == [(record, "refused" if record in bad else "sent") for record in range(number)]


def test_what_is_kept_although_it_is_refused_is_tried_again_later() -> None:
    sent, _ = outbox(gives_up=False)
    sent.add("a")

    sent.send(0)
    sent.on_posted(REFUSED, 0)

    assert sent.send(1_000) == Post("run", 1, ("a",))


def test_of_too_many_the_oldest_are_dropped_but_none_that_is_in_flight() -> None:
    sent, noticed = outbox(most=2, together=1)
    for record in "ab":
        sent.add(record)
    sent.send(0)
    for record in "cde":
        sent.add(record)

    assert sent.unacknowledged() == ("a", "d", "e")
    assert noticed == [("dropped", ("b",), ""), ("dropped", ("c",), "")]


def test_what_an_earlier_process_left_is_within_the_bounds_too() -> None:
    sent, noticed = outbox(most=2, left=(None, ("a", "b", "c")))

    assert sent.unacknowledged() == ("b", "c")
    assert noticed == [("dropped", ("a",), "")]


def test_each_reason_of_an_outage_is_noticed_once_and_not_more_than_eight() -> None:
    sent, noticed = outbox()
    sent.add("a")
    for reason in ("a", "b", "a", *"cdefghijkl"):
        sent.send(NEVER)
        sent.on_posted(NotDelivered(reason, False), 0)

    assert [reason for result, _, reason in noticed if result == "away"] == list("abcdefgh")
    assert sent.failures == 13


def test_the_end_tries_once_more_at_once_and_waits_a_little_for_the_reply() -> None:
    sent, _ = outbox()
    sent.add("a")
    sent.send(0)
    sent.on_posted(AWAY, 0)
    sent.end(10)

    assert sent.due_ms() == 0
    assert sent.send(10) is not None
    assert (sent.due_ms(), sent.ended(10)) == (10 + ENDING_MS, False)
    assert sent.ended(10 + ENDING_MS)
    sent.on_posted(AWAY, 20)
    assert sent.ended(20)
    assert sent.send(20) is None


def test_the_end_waits_for_nothing_where_all_is_acknowledged() -> None:
    sent, _ = outbox()
    sent.end(10)

    assert sent.ended(10)


def test_a_post_is_on_the_disk_before_it_is_sent_and_a_disk_that_fails_holds_none_back() -> None:
    done: list[tuple[str, object]] = []

    def save(post: object, waiting: Sequence[str]) -> bool:
        done.append(("save", (post, tuple(waiting))))
        return False

    limits = OutboxLimits[str](lambda _: 1, lambda _: None, lambda _: 0, gives_up=False)
    ports = OutboxPorts[str](lambda post: done.append(("post", post)), save)
    sent = SavedOutbox(ports, limits, lambda *_: None, "run")
    sent.add("a")
    sent.add("b")
    for _ in range(3):
        sent.tick(0)

    first = Post("run", 1, ("a",))
    assert done == [("save", (first, ("b",))), ("post", first)]
    assert not sent.is_saved
    sent.on_posted(None, 0)
    sent.tick(0)
    assert done[2:] == [("save", (Post("run", 2, ("b",)), ())), ("post", Post("run", 2, ("b",)))]


moments = st.lists(st.integers(0, 10**9), min_size=3, max_size=40, unique=True).map(sorted)


@given(moments)
def test_the_record_that_goes_leaves_the_smallest_gap_and_is_neither_the_first_nor_the_last(
    at: list[int],
) -> None:
    place = saved_outbox.smallest_gap([Beat(each) for each in at])

    assert 0 < place < len(at) - 1
    assert at[place + 1] - at[place - 1] == min(b - a for a, b in zip(at, at[2:], strict=False))


@given(st.integers(1, 10**6), st.floats(0, 1))
def test_a_pause_is_never_longer_than_a_minute_nor_shorter_than_half_a_second(
    failures: int, fraction: float
) -> None:
    assert 500 <= saved_outbox.pause_ms(failures, fraction) <= 60_000


def test_a_pause_doubles_and_its_upper_half_is_by_chance() -> None:
    seconds = [saved_outbox.pause_ms(failures, 1) // 1_000 for failures in range(1, 9)]

    assert seconds == [1, 2, 4, 8, 16, 32, 60, 60]
    assert [saved_outbox.pause_ms(failures, 0) for failures in (1, 8)] == [500, 30_000]


def read(text: str, node_boot: str = "boot", most: int = 9) -> Any:
    """The text's post and waiting records, which are whole numbers."""
    return saved_outbox.decode(text, node_boot, "beats", lambda _: lambda number: int(number), most)


records = st.lists(st.integers(0, 99), max_size=9).map(tuple)
posts = st.none() | st.builds(
    Post, st.text("abz019._:-", min_size=1, max_size=64), st.integers(0, 2**53), records.filter(bool)
)


@given(posts, records)
def test_another_process_goes_on_with_what_the_disk_holds(
    post: Post[int] | None, waiting: tuple[int, ...]
) -> None:
    assert read(saved_outbox.encode(post, waiting, "boot", "beats", str)) == (post, waiting)


GOOD: dict[str, Any] = {
    "version": 1,
    "node_boot": "boot",
    "post": {"boot": "r", "sequence": 1, "beats": [1]},
    "waiting": [2],
}


def changed(**fields: Any) -> str:
    """A good text with other fields."""

    return json.dumps({**GOOD, **fields})


def of_post(**fields: Any) -> str:
    """A good text with other fields in its post."""
    return changed(post={**GOOD["post"], **fields})


def test_the_good_text_is_read() -> None:
    assert read(changed()) == (Post("r", 1, (1,)), (2,))


@pytest.mark.parametrize("text", [changed(version=2), changed(node_boot="other")])
def test_a_text_of_another_version_or_boot_of_the_node_says_so(text: str) -> None:
    with pytest.raises(ValueError, match="another boot of the node or another version"):
        read(text)


BAD: Mapping[str, Sequence[Any]] = {
    "post": ([1], "x", {"boot": "r"}),
    "waiting": (None, {}, ["x"], [None], [1] * 10),
    "boot": (None, 1, "", "two words", "x" * 65, "\u0660"),
    "sequence": (None, "1", True, -1, 1.0, 2**53 + 1),
    "beats": (None, [], {}, ["x"], [1] * 10),
}


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "[" * 100_000, changed()[:-9]),
        *(changed(**{name: bad}) for name in ("post", "waiting") for bad in BAD[name]),
        *(of_post(**{name: bad}) for name in ("boot", "sequence", "beats") for bad in BAD[name]),
    ],
    ids=lambda text: text[:60],
)
def test_any_other_text_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(ValueError, match="it contains no records"):
        read(text)


def in_memory(
    send: Callable[[Sequence[str]], NotDelivered | None], most: int = 3, **more: Any
) -> tuple[MemoryOutbox[str], list[str]]:
    """An outbox in memory that sends two together, and the events of its log."""
    lines: list[str] = []
    events = OutboxEvents[str]("failed", "back", "refused", "dropped")
    log = lambda event, **_: lines.append(event)  # noqa: E731
    return MemoryOutbox(send, events, log, most=most, together=2, about=lambda _: {}, **more), lines


def test_in_memory_the_log_says_once_that_records_are_dropped_until_none_waits() -> None:
    sent, lines = in_memory(lambda _: None)
    for record in "abcde":
        sent.add(record)
    while sent.send():
        pass
    for record in "abcd":
        sent.add(record)

    assert lines == ["dropped", "dropped"]
    assert sent.results == {"sent": 3, "dropped": 3, "refused": 0, "failed": 0}


def test_in_memory_the_oldest_of_the_namespace_that_has_most_are_dropped_a_hundredth_at_once() -> None:
    few, many = ["b0", "c0"], [f"a{number}" for number in range(300)]
    sent, _ = in_memory(lambda _: None, most=200, namespace=lambda record: record[0])
    for record in (*few, *many):
        sent.add(record)

    kept = sent._outbox.unacknowledged()
    assert kept[:2] == tuple(few)
    assert kept[2:] == tuple(many[-len(kept[2:]) :])
    assert 198 <= len(kept) <= 200
    assert sent.results["dropped"] == 302 - len(kept)


def test_in_memory_what_waits_at_the_end_is_sent_until_a_post_fails() -> None:
    took: list[str] = []

    def send(records: Sequence[str]) -> NotDelivered | None:
        if len(took) >= 4:
            return AWAY
        took.extend(records)
        return None

    sent, lines = in_memory(send, most=9)
    for record in "abcdefg":
        sent.add(record)
    stop = threading.Event()
    stop.set()

    sent.run(stop)

    assert took == list("abcd")
    assert lines == ["failed"]
