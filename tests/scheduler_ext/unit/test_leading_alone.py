"""A leadership alone: how it divides its time between the touches and the Lease, and how it ends."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.leadership.fencing import AT_ONCE, Touch, Touched, toucher
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

    def touch(pods: Sequence[Pod], _word: str) -> Touched:
        touched.extend(pod.uid for pod in pods)
        election.now_s += 5.0
        return Touched()

    leadership = alone(election, touch, 256)
    while not leadership.leads():
        leadership.step()

    between = [late - early for early, late in itertools.pairwise(election.looked_s)]
    assert max(between) <= 5.0
    assert sorted(touched) == sorted(f"uid-p{number}" for number in range(256))


def test_touches_that_come_to_nothing_do_not_keep_it_from_the_lease() -> None:
    election = Looked()
    leadership = alone(election, lambda pods, _word: Touched(tuple(pods), why="an error"), 3)

    assert max(leadership.step() for _ in range(20)) <= election.every_s


def test_one_that_has_ended_leads_no_more_whatever_a_look_under_way_says() -> None:
    election, marks = Looked(), list[str]()

    def mark(word: str) -> bool:
        marks.append(word)
        return True

    leadership = alone(election, lambda _pods, _word: Touched(), 1, mark)
    election.on_look = leadership.end  # the Lease is given back, and then taken by the look
    leadership.step()
    leadership.step()

    assert leadership.state == "follows"
    assert (marks, election.given_back) == ([], 1)
    assert len(election.looked_s) == 1


def test_touches_that_keep_failing_are_reported_until_they_succeed() -> None:
    """Each failure is counted from the first; a step in which all succeed ends them."""
    election, works = Looked(), False
    slow = False

    def touch(pods: Sequence[Pod], _word: str) -> Touched:
        election.now_s += 2.0 * slow
        return Touched() if works else Touched(tuple(pods), why="team-a/p0: a webhook denies it")

    leadership = alone(election, touch, 3 + AT_ONCE)
    leadership.step()
    slow = works = True
    leadership.step()  # a part of them
    slow = works = False
    assert leadership.state == "fences"
    election.now_s += 4.0
    leadership.step()
    assert (leadership.stuck, leadership.obstacle) == (0, "")
    election.now_s += 3.0
    leadership.step()
    election.now_s += 2.0
    assert leadership.stuck == 3
    assert leadership.obstacle == (
        "fencing is stuck: the status of 3 pods cannot be changed, first team-a/p0: a webhook denies it"
    )

    works = True
    leadership.step()

    assert (leadership.leads(), leadership.stuck, leadership.obstacle) == (True, 0, "")


def test_a_pod_too_large_for_the_store_is_excluded_until_its_version_changes_and_a_touch_succeeds() -> None:
    touched, full = list[tuple[str, str]](), True
    cache = ClusterCache(lambda: 0, lambda _names: None)
    cache.nodes_listed([])
    cache.pods_listed([read(percent(50, name)) for name in ("p", "q")])

    def touch(pods: Sequence[Pod], _word: str) -> Touched:
        touched.extend((pod.uid, pod.version) for pod in pods)
        return Touched(too_large=tuple(pod for pod in pods if pod.uid == "uid-p" and full))

    leadership = Leadership(Looked(), cache, None, touch, machine.mute, now_s=lambda: 0.0)
    leadership.step()
    leadership.step()
    assert leadership.leads()
    assert (leadership.excludes("uid-p"), leadership.excludes("uid-q")) == (True, False)
    assert sorted(touched) == [("uid-p", "1"), ("uid-q", "1")]

    def version(number: str) -> None:
        raw = percent(50, "p")
        raw["metadata"]["resourceVersion"] = number
        cache.pod_updated(read(raw))
        leadership.step()

    version("2")
    assert leadership.excludes("uid-p")
    full = False
    version("3")

    assert touched[2:] == [("uid-p", "2"), ("uid-p", "3")]
    assert (leadership.excludes("uid-p"), leadership.excluded) == (False, 0)


FULL = "etcdserver: request is too large"
PLACED = {"bursar.dev/devices": "a user's forgery"}


class Refusing:
    """An API server that answers every patch so."""

    def __init__(self, message: str) -> None:
        self._message = message

    def call(self, *_asked: object, **_how: object) -> Answered:
        """As the API server says it."""
        return Answered(500, {"message": self._message})


@pytest.mark.parametrize(
    ("message", "annotations", "is_too_large"),
    [
        (FULL, {}, True),
        ("rpc error: trying to send message larger than max (2097760 vs. 2097152)", {}, True),
        ("etcdserver: mvcc: database space exceeded", {}, False),
        (FULL, PLACED, False),  # a Binding would replace the annotation, and might be the smaller write
    ],
)
def test_only_a_pod_that_cannot_be_bound_either_counts_as_too_large(
    message: str, annotations: dict[str, str], *, is_too_large: bool
) -> None:
    lines, api = list[str](), Refusing(message)
    wire: Any = api
    cache = ClusterCache(lambda: 0, lambda _names: None)
    pod = read(percent(50, "p", annotations=annotations))
    touch = toucher(wire, cache, 1_000, lambda event, **_fields: lines.append(event), map)

    done = touch([pod], "word")

    assert (done.too_large, done.uncertain) == (((pod,), ()) if is_too_large else ((), (pod,)))
    assert lines == ["too-large" if is_too_large else "untouched"]


def test_waiting_pods_of_schedulers_that_do_not_call_it_are_not_touched() -> None:
    touched = list[str]()

    def touch(pods: Sequence[Pod], _word: str) -> Touched:
        touched.extend(pod.name for pod in pods)
        return Touched()

    cache = ClusterCache(lambda: 0, lambda _names: None)
    cache.nodes_listed([])
    schedulers = {"ours": "bursar-scheduler", "theirs": "default-scheduler"}
    raws = {name: percent(50, name) for name in schedulers}
    for name, scheduler in schedulers.items():
        raws[name]["spec"]["schedulerName"] = scheduler
    cache.pods_listed([read(each) for each in raws.values()])
    leadership = Leadership(
        Looked(),
        cache,
        None,
        touch,
        machine.mute,
        is_bound_here=lambda pod: pod.scheduler == "bursar-scheduler",
    )
    leadership.step()

    assert (touched, leadership.leads()) == (["ours"], True)
