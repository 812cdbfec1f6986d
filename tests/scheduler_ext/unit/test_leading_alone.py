"""A leadership alone: how it divides its time between the touches and the Lease, and how it ends."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.leadership.fencing import Touch, toucher
from scheduler_ext.leadership.takeover import Leadership
from scheduler_ext.model.pod import Pod
from tests.scheduler_ext import machine
from tests.scheduler_ext.worlds import percent, read
from timekeeper.runtime.api_server import Answered


class Looked:
    """An election whose Lease lasts for some seconds of a clock that the touches turn."""

    every_s = 3.0

    def __init__(self) -> None:
        self.now_s, self.looked_s = 0.0, list[float]()
        self.given_back = 0
        self.on_look: Callable[[], object] = lambda: None

    def look(self) -> bool | None:
        """Always us."""
        self.looked_s.append(self.now_s)
        self.on_look()
        return True

    def give_back(self) -> None:
        """Another may lead."""
        self.given_back += 1


def alone(election: Looked, touch: Touch, pods: int, mark: Callable[[str], bool] | None = None) -> Leadership:
    """The leadership of a process that knows of these many pods."""
    cache = ClusterCache(lambda: 0, lambda _names: None)
    cache.nodes_listed([])
    cache.pods_listed([read(percent(50, f"p{number}")) for number in range(pods)])
    return Leadership(election, cache, mark, touch, machine.mute, now_s=lambda: election.now_s)


def test_the_lease_is_looked_at_between_touches_however_slow_they_are() -> None:
    election, touched = Looked(), list[str]()

    def touch(pods: Sequence[Pod], _word: str) -> list[Pod]:
        touched.extend(pod.uid for pod in pods)
        election.now_s += 5.0
        return []

    leadership = alone(election, touch, 256)
    while not leadership.leads():
        leadership.step()

    between = [late - early for early, late in itertools.pairwise(election.looked_s)]
    assert max(between) <= 5.0
    assert sorted(touched) == sorted(f"uid-p{number}" for number in range(256))


def test_touches_that_come_to_nothing_do_not_keep_it_from_the_lease() -> None:
    election = Looked()
    leadership = alone(election, lambda pods, _word: list(pods), 3)

    assert max(leadership.step() for _ in range(20)) <= election.every_s


def test_one_that_has_ended_leads_no_more_whatever_a_look_under_way_says() -> None:
    election, marks = Looked(), list[str]()

    def mark(word: str) -> bool:
        marks.append(word)
        return True

    leadership = alone(election, lambda _pods, _word: [], 1, mark)
    election.on_look = leadership.end  # the Lease is given back, and then taken by the look
    leadership.step()
    leadership.step()

    assert leadership.state == "follows"
    assert (marks, election.given_back) == ([], 1)
    assert len(election.looked_s) == 1


class Full:
    """An API server whose store takes nothing more of these pods."""

    def call(self, *_asked: object, **_how: object) -> Answered:
        """As etcd says it."""
        return Answered(500, {"message": "etcdserver: request is too large"})


def test_the_pods_that_are_too_large_to_be_touched_are_named() -> None:
    lines, api = list[tuple[str, object]](), Full()
    wire: Any = api
    cache = ClusterCache(lambda: 0, lambda _names: None)
    pods = [read(percent(50, name)) for name in ("p", "q")]
    touch = toucher(wire, cache, 1_000, lambda event, **fields: lines.append((event, fields.get("pod"))), map)

    assert touch(pods, "word") == pods

    assert lines == [("untouched", None), ("too-large", "team-a/p"), ("too-large", "team-a/q")]
