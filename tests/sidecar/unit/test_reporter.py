"""The sidecar's decisions under a clock turned by hand: outages, lost answers, crashes, a hanging NVML, the
end."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar import beats, spool
from sidecar.heartbeat_client import NOT_KNOWN, Delivered
from sidecar.reporter import GATHER_MS, Reporter, ReporterPorts
from sidecar.spool import SpooledBeat
from tests.worlds import Json
from timekeeper.edge.outbox import ENDING_MS, MAX_REASONS, NotDelivered, Post
from timekeeper.edge.saved_outbox import OutboxPorts

FINE = Delivered(beats.HeartbeatReply(1_000, True, None))
AWAY = NotDelivered("Connection refused", False)
FIGURES: tuple[Json, ...] = ({"uuid": "GPU-1", "utilisation": 37, "memory_mib": 1, "scope": "shared"},)


@dataclass(slots=True)
class World:
    """A heart, a clock, and what the heart asked of its edges. ``disk`` is what a restarted process finds."""

    cards: bool = False
    now_ms: int = 1_000_000
    runs: int = 0
    disk: str = ""
    under_way: Post[SpooledBeat] | None = None
    gauging: bool = False
    posts: list[Post[SpooledBeat]] = field(default_factory=list)
    made: set[int] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    reporter: Reporter = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A process begins, with the disk as an earlier one left it."""
        self.runs += 1
        boot = f"run-{self.runs}"
        left = spool.decode(self.disk, "n", self.now_ms) if self.disk else (None, ())
        self.under_way, self.gauging = None, False
        ports = ReporterPorts(
            OutboxPorts(self._post, self._keep),
            self._gauge if self.cards else None,
            self.chance.random,
            self._say,
        )
        self.reporter = Reporter(ports, boot, self.now_ms, left)
        self.reporter.tick(self.now_ms)

    def run(self, for_ms: int) -> None:
        """Let time pass, from one thing that is due to the next; posts under way stay so."""
        end = self.now_ms + for_ms
        while (due := self.reporter.due_ms()) <= end:
            self.now_ms = max(self.now_ms, due)
            self.reporter.tick(self.now_ms)
            if self.under_way and self.reporter.due_ms() <= self.now_ms:
                break
        self.now_ms = end

    def answer(self, outcome: Delivered | NotDelivered) -> None:
        """The post under way ends so."""
        assert self.under_way
        self.under_way = None
        self.reporter.on_posted(outcome, self.now_ms)
        self.reporter.tick(self.now_ms)

    def on_cards_read(self, devices: tuple[Json, ...]) -> None:
        """NVML answers."""
        assert self.gauging
        self.gauging = False
        self.reporter.on_cards_read(devices, self.now_ms)
        self.reporter.tick(self.now_ms)

    def end(self) -> None:
        """SIGTERM."""
        self.reporter.end(self.now_ms)
        self.reporter.tick(self.now_ms)

    def _post(self, post: Post[SpooledBeat]) -> None:
        assert self.under_way is None
        self.under_way = post
        self.posts.append(post)

    def _gauge(self) -> None:
        assert not self.gauging
        self.gauging = True

    def _keep(self, post: Post[SpooledBeat] | None, waiting: Sequence[SpooledBeat]) -> bool:
        self.disk = spool.encode(post, waiting, "n")
        self.made.update(beat.at_ms for beat in (*(post.records if post else ()), *waiting))
        return True

    def _say(self, event: str, **_: object) -> None:
        self.lines.append(event)


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.untraced
@given(
    st.lists(
        st.tuples(st.sampled_from(["delivered", "answer lost", "away", "killed"]), st.integers(1, 4_000)),
        min_size=1,
        max_size=60,
    )
)
def test_every_beat_is_counted_once_and_in_order_through_outages_lost_answers_and_crashes(
    story: list[tuple[str, int]],
) -> None:
    world = World()
    received: dict[tuple[str, int], Post[SpooledBeat]] = {}
    for event, then_ms in [*story, *[("delivered", 120_000)] * 3]:
        if event == "killed":
            world.now_ms += 1  # two processes never beat in the same millisecond
            world.start()
        elif world.under_way:
            if event != "away":
                earlier = received.setdefault(
                    (world.under_way.boot, world.under_way.sequence), world.under_way
                )
                assert earlier == world.under_way
            world.answer(FINE if event == "delivered" else AWAY)
        world.run(then_ms)
    while world.under_way:
        received.setdefault((world.under_way.boot, world.under_way.sequence), world.under_way)
        world.answer(FINE)

    counted = [beat.at_ms for post in received.values() for beat in post.records]
    assert counted == sorted(world.made)


@pytest.mark.untraced
def test_beats_go_on_while_the_timekeeper_is_away_and_a_day_of_them_fits_in_the_spool(world: World) -> None:
    world.answer(Delivered(beats.HeartbeatReply(20_000, True, None)))
    while world.now_ms < 1_000_000 + 86_400_000:
        world.run(60_000)
        if world.under_way:
            world.answer(AWAY)

    posts = len(world.posts)
    assert posts <= 86_400 / 30 + 10
    world.run(60_000)
    while world.under_way:
        world.answer(FINE)
    replayed = [beat.at_ms for post in world.posts[posts:] for beat in post.records]
    assert len(replayed) <= spool.MAX_BEATS
    assert replayed == sorted(set(replayed))
    assert replayed[-1] - replayed[0] >= 86_400_000
    assert world.lines == ["standing", "timekeeper-away", "spool-full", "timekeeper-back"]


def test_a_beat_that_is_refused_is_kept_and_sent_again(world: World) -> None:
    world.answer(NotDelivered("it answered 400", True))
    world.run(60_000)

    assert world.posts[1] == world.posts[0]


def test_pods_that_start_together_drift_apart() -> None:
    beaten = []
    for seed in range(3):
        world = World(chance=random.Random(seed))
        for _ in range(5):
            world.answer(Delivered(beats.HeartbeatReply(10_000, True, None)))
            world.run(11_000)
        beaten.append(sorted(world.made))

    assert len({tuple(moments) for moments in beaten}) == 3
    assert all(9_000 <= b - a <= 11_000 for each in beaten for a, b in pairwise(each[2:]))


def test_the_interval_that_the_timekeeper_names_holds_from_its_answer_on(world: World) -> None:
    world.answer(Delivered(beats.HeartbeatReply(60_000, True, None)))
    world.run(5_500)
    if world.under_way:
        world.answer(FINE)
    sent = len(world.posts)
    world.run(1_100)

    assert len(world.posts) == sent + 1


def test_an_interval_that_was_stretched_is_kept_to_through_an_outage(world: World) -> None:
    """As many pods ask the timekeeper for as long as it is away; none of them comes more often for that than
    the back-off says, and beats go on at the interval that was named last."""
    world.answer(Delivered(beats.HeartbeatReply(300_000, True, None)))
    world.run(6_000)
    world.answer(AWAY)
    before = len(world.made)
    for _ in range(60):
        world.run(60_000)
        if world.under_way:
            world.answer(AWAY)

    assert 10 <= len(world.made) - before <= 14
    assert world.lines == ["standing", "timekeeper-away"]


def test_the_last_beat_goes_at_once_however_far_the_next_one_was(world: World) -> None:
    world.answer(Delivered(beats.HeartbeatReply(300_000, True, None)))
    world.run(6_000)
    world.answer(Delivered(beats.HeartbeatReply(300_000, True, None)))
    world.run(20_000)
    world.end()

    assert world.posts[-1].records == (SpooledBeat(world.now_ms, ()),)
    world.answer(FINE)
    assert world.reporter.ended(world.now_ms)


def test_a_spool_is_replayed_at_once_when_the_timekeeper_is_back(world: World) -> None:
    world.answer(AWAY)
    while len(world.made) < 3 * spool.MAX_IN_A_POST:
        world.run(5_500)
        if world.under_way:
            world.answer(AWAY)
    world.run(61_000)
    began = world.now_ms
    while world.under_way:
        world.answer(FINE)

    assert world.now_ms == began
    assert len({beat.at_ms for post in world.posts for beat in post.records}) == len(world.made)


def test_figures_go_with_the_beat_that_waited_for_them() -> None:
    world = World(cards=True)
    assert world.posts == []
    world.run(GATHER_MS - 1)
    world.on_cards_read(FIGURES)

    assert [beat.devices for beat in world.posts[0].records] == [FIGURES]


def test_no_beat_waits_for_an_nvml_that_hangs_and_that_is_reported_once() -> None:
    world = World(cards=True)
    world.run(GATHER_MS)
    world.answer(FINE)
    for _ in range(3):
        world.run(1_200)
        world.answer(FINE)
    world.on_cards_read(FIGURES)

    assert {beat.devices for post in world.posts for beat in post.records} == {()}
    assert len(world.posts) == 4
    assert world.lines.count("nvml-hangs") == 1


def test_the_end_sends_a_last_beat_without_waiting_for_a_back_off(world: World) -> None:
    world.answer(AWAY)
    world.end()

    assert [post.sequence for post in world.posts] == [1, 1]
    world.answer(FINE)
    assert world.posts[-1].records == (SpooledBeat(world.now_ms, ()),)
    assert not world.reporter.ended(world.now_ms)
    world.answer(FINE)
    assert world.reporter.ended(world.now_ms)


def test_the_end_tries_once_more_after_the_post_that_was_under_way_failed(world: World) -> None:
    world.end()
    world.answer(AWAY)
    assert not world.reporter.ended(world.now_ms)
    world.answer(AWAY)

    assert world.reporter.ended(world.now_ms)
    assert len(world.posts) == 2


def test_the_end_waits_for_no_answer_that_does_not_come() -> None:
    world = World(cards=True)
    world.end()
    world.end()
    assert not world.reporter.ended(world.now_ms + ENDING_MS - 1)

    assert world.reporter.due_ms() == world.now_ms + ENDING_MS
    assert world.reporter.ended(world.now_ms + ENDING_MS)


def test_an_outage_of_ever_new_reasons_does_not_fill_the_log(world: World) -> None:
    for number in range(100):
        world.answer(NotDelivered(f"request {number} failed", False))
        world.run(60_000)

    assert [each for each in world.lines if each != "spool-full"] == ["timekeeper-away"] * MAX_REASONS


def test_a_timekeeper_that_does_not_know_the_pod_yet_is_not_away(world: World) -> None:
    for outcome in (NOT_KNOWN, NOT_KNOWN, AWAY):
        world.answer(outcome)
        world.run(60_000)

    assert world.lines == ["not-known-yet", "timekeeper-away"]


def test_each_reason_is_reported_once_in_an_outage(world: World) -> None:
    for reason in ("a", "b", "a", "b"):
        world.answer(NotDelivered(reason, False))
        world.run(60_000)
    world.answer(FINE)
    world.run(5_500)
    world.answer(NotDelivered("a", False))

    assert world.lines.count("timekeeper-away") == 3
    assert world.lines.count("timekeeper-back") == 1


def test_a_sidecar_bears_any_silence(world: World) -> None:
    began = world.now_ms
    while world.now_ms < began + 1_800_000:
        if world.under_way:
            world.answer(AWAY)
        world.run(60_000)

    assert not world.reporter.ended(world.now_ms)
