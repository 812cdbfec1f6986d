"""What the agent reports to the timekeeper: each interval once, through outages, within bounds."""

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest

from sidecar.beats import HeartbeatReply
from sidecar.heartbeat_client import Delivered
from sidecar.node.state import report_spool
from sidecar.node.state.reports import (
    DEFAULT_INTERVAL_MS,
    MAX_IN_A_POST,
    MAX_WAITING,
    UsageInterval,
    UsagePorts,
    UsageReports,
    document,
    figures_in,
)
from sidecar.node.state.use import PodLoad, UsageReading
from sidecar.node.values import CardLoad
from timekeeper.edge.outbox import ENDING_MS, NotDelivered, Post
from timekeeper.edge.saved_outbox import OutboxPorts

STEP = 5_000


def seen(utilisation: int = 50, pods: int = 1, uid: str = "uid-p") -> UsageReading:
    """A look at a node of one card and some pods on it."""
    named = (uid if number == 0 else f"{uid}-{number}" for number in range(pods))
    cards = (CardLoad("GPU-0", utilisation, 8_000),)
    return UsageReading(tuple(PodLoad(each, cards) for each in named), cards)


class World:
    """Reports with a clock turned by hand, and what went out."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.posts: list[Post[UsageInterval]] = []
        self.said: list[str] = []
        self.disk: tuple[Post[UsageInterval] | None, tuple[UsageInterval, ...]] = (None, ())
        self.disk_is_well = True
        self._ports = UsagePorts(OutboxPorts(self.posts.append, self._keep), lambda: 0.5, self._say)
        self.reports = UsageReports(self._ports, "run", self.now_ms)

    def _say(self, event: str, **pairs: object) -> None:
        self.said.append(event)

    def _keep(self, post: Post[UsageInterval] | None, waiting: Sequence[UsageInterval]) -> bool:
        if self.disk_is_well:
            self.disk = post, tuple(waiting)
        return self.disk_is_well

    def die(self) -> None:
        """The process is killed, and another goes on from what is on the disk."""
        left = report_spool.decode(report_spool.encode(*self.disk, "boot"), "boot", self.now_ms)
        self.reports = UsageReports(self._ports, f"run-{len(self.posts)}", self.now_ms, left)

    def turn(self, ms: int, *, look: UsageReading | None = None, answer: Any = None) -> None:
        """So much time, with a look each 5 s; every post is answered so at once."""
        until = self.now_ms + ms
        while self.now_ms < until:
            self.now_ms += STEP
            if look is not None:
                self.reports.add(look)
            self.reports.tick(self.now_ms)
            if answer is not None and len(self.posts) > self.answered:
                self.answered = len(self.posts)
                self.reports.on_posted(answer, self.now_ms)
                self.reports.tick(self.now_ms)

    answered = 0

    def kept(self) -> list[int]:
        """The moments of the uses that were acknowledged, given that all posts were, in order."""
        first: dict[tuple[str, int], Post[UsageInterval]] = {}
        for post in self.posts:
            key = post.boot, post.sequence
            assert first.setdefault(key, post) == post, "a repeat must be the same post"
        return [each.at_ms for post in first.values() for each in post.records]


@pytest.fixture
def world() -> World:
    return World()


FINE = Delivered(HeartbeatReply(15_000, None, None))
AWAY = NotDelivered("no answer within 10 s", False)


def test_an_intervals_looks_go_out_as_one_mean(world: World) -> None:
    for utilisation in (10, 20, 60):
        world.turn(STEP, look=seen(utilisation))

    (post,) = world.posts
    assert (post.boot, post.sequence) == ("run", 1)
    assert post.records == (UsageInterval(world.now_ms, seen(30)),)


def test_intervals_of_an_outage_all_arrive_once_it_is_over(world: World) -> None:
    world.turn(3_600_000, look=seen(), answer=AWAY)
    waiting = world.reports.waiting
    world.turn(120_000, look=seen(), answer=FINE)

    assert waiting == 240
    assert world.reports.waiting == world.reports.dropped == 0
    kept = world.kept()
    gaps = [later - sooner for sooner, later in itertools.pairwise(kept)]
    assert gaps == [15_000] * (len(kept) - 1)
    assert world.said == ["timekeeper-away", "timekeeper-back"]


def test_a_post_without_an_answer_is_sent_again_as_it_was(world: World) -> None:
    world.turn(15_000, look=seen())
    world.reports.on_posted(AWAY, world.now_ms)
    world.turn(60_000, look=seen())

    assert len(world.posts) >= 2
    assert {post.sequence for post in world.posts} == {1}
    assert len({post.records for post in world.posts}) == 1


def test_it_backs_off_while_the_timekeeper_is_away(world: World) -> None:
    world.turn(3_600_000, look=seen(), answer=AWAY)

    assert len(world.posts) < 3_600_000 / 30_000


def test_one_post_at_a_time_is_under_way(world: World) -> None:
    world.turn(600_000, look=seen())

    assert len(world.posts) == 1


def test_the_interval_is_the_one_that_the_timekeeper_asks_for(world: World) -> None:
    slower = Delivered(HeartbeatReply(60_000, None, None))

    world.turn(615_000, look=seen(), answer=slower)

    assert len(world.posts) == 11


@pytest.mark.untraced
def test_no_post_is_larger_than_the_timekeeper_takes(world: World) -> None:
    busy = seen(pods=110, uid="12345678-1234-1234-1234-123456789012")
    world.turn(3_600_000, look=busy, answer=AWAY)
    world.turn(600_000, answer=FINE)

    assert world.reports.waiting == 0
    for post in world.posts:
        assert sum(map(figures_in, post.records)) <= MAX_IN_A_POST
        assert len(json.dumps(document(post, world.now_ms))) < 256 * 1024


def test_what_cannot_be_kept_is_counted_and_reported_once(world: World) -> None:
    busy, hours = seen(pods=100), 2
    world.turn(hours * 3_600_000, look=busy, answer=AWAY)

    assert world.reports.dropped > 200
    assert world.reports.waiting * figures_in(UsageInterval(0, busy)) <= MAX_WAITING + MAX_IN_A_POST
    assert world.reports.waiting + world.reports.dropped == hours * 240
    assert world.said.count("use-lost") == 1


@pytest.mark.parametrize("status", [400, 413])
def test_what_will_never_be_taken_is_given_up_and_does_not_hold_up_the_rest(
    world: World, status: int
) -> None:
    world.turn(15_000, look=seen())
    world.reports.on_posted(NotDelivered(f'it answered {status} {{"detail": "no"}}', True), world.now_ms)
    world.turn(30_000, look=seen(), answer=FINE)

    assert world.posts[-1].sequence > 1
    assert (world.reports.dropped, world.said) == (1, ["use-lost"])


def test_each_reason_for_a_loss_is_reported_once(world: World) -> None:
    for status in (400, 400, 413, 400):
        world.turn(15_000, look=seen())
        world.reports.on_posted(NotDelivered(f"it answered {status}", True), world.now_ms)

    assert (world.reports.dropped, world.said) == (4, ["use-lost", "use-lost"])


def test_at_the_end_the_last_looks_are_sent_and_the_process_waits_for_the_answer_a_little(
    world: World,
) -> None:
    world.turn(STEP, look=seen())

    world.reports.end(world.now_ms)
    world.reports.tick(world.now_ms)

    assert [each.at_ms for each in world.posts[0].records] == [world.now_ms]
    assert not world.reports.ended(world.now_ms + ENDING_MS - 1)
    assert world.reports.ended(world.now_ms + ENDING_MS)
    world.reports.on_posted(FINE, world.now_ms + 10)
    assert world.reports.ended(world.now_ms + 10)


@pytest.mark.parametrize("seconds", [15, 20, 300])
def test_a_killed_process_loses_no_more_than_the_interval_that_had_not_ended(
    world: World, seconds: int
) -> None:
    world.turn(60_000, look=seen(), answer=FINE)
    world.turn(1_000 * seconds, look=seen(), answer=AWAY)
    world.die()
    world.turn(120_000, look=seen(), answer=FINE)

    moments = world.kept()
    assert moments == sorted(moments)
    gaps = [later - sooner for sooner, later in itertools.pairwise(moments)]
    assert set(gaps) <= {15_000, 20_000, 25_000}
    assert sum(gap > 15_000 for gap in gaps) <= 1
    assert world.disk == (None, ())


def test_a_post_that_was_under_way_is_sent_again_under_its_own_name(world: World) -> None:
    world.turn(15_000, look=seen())
    (sent,) = world.posts
    world.die()
    world.turn(STEP)

    assert world.posts == [sent, sent]


def test_what_was_acknowledged_is_kept_no_longer(world: World) -> None:
    world.turn(15_000, look=seen())
    sent = world.disk

    world.reports.on_posted(FINE, world.now_ms)
    world.reports.tick(world.now_ms)

    assert (sent, world.disk) == ((world.posts[0], ()), (None, ()))


def test_what_the_end_keeps_is_reported(world: World) -> None:
    world.turn(60_000, look=seen(), answer=AWAY)

    world.reports.end(world.now_ms)
    world.reports.tick(world.now_ms)
    world.reports.on_posted(AWAY, world.now_ms)
    world.reports.log_rest()

    assert (world.said[-1], world.reports.dropped) == ("use-kept", 0)
    post, waiting = world.disk
    assert post is not None
    assert len(post.records) + len(waiting) == world.reports.waiting == 4


def test_what_the_end_loses_is_reported(world: World) -> None:
    world.disk_is_well = False
    world.turn(60_000, look=seen(), answer=AWAY)

    world.reports.end(world.now_ms)
    world.reports.tick(world.now_ms)
    world.reports.on_posted(AWAY, world.now_ms)
    world.reports.log_rest()

    assert world.reports.ended(world.now_ms)
    assert world.said[-1] == "use-lost"
    assert world.reports.dropped == world.reports.waiting


def test_without_a_look_nothing_is_sent(world: World) -> None:
    world.turn(600_000)

    assert world.posts == []
    assert DEFAULT_INTERVAL_MS == 15_000
