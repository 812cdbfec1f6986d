"""Ends that extenders report: a pod that ended while no settler ran is charged as if one had watched."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.clients.end_reports import EndReports
from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import Pod, read_pod
from tests.support.post_client import PostClient
from tests.timekeeper.clocks import iso
from tests.timekeeper.ledger.test_bindings import bound
from tests.timekeeper.ledger.test_holders import told
from tests.timekeeper.worlds import (
    GPU,
    HOUR,
    MINUTE,
    SECOND,
    T0,
    Json,
    Town,
    gpu_pod,
    lease,
    token,
    user_status,
)

ONE_DATABASE = "decisions about values; test_postings, test_heartbeats and the machine store the same on both"

LONGEST_GRACE = 10 * MINUTE
END = T0 + 3 * MINUTE


class Extender:
    """A replica's cache and its reports: what it is told goes into the reports as in a running extender."""

    def __init__(self, town: Town) -> None:
        self.town, self.client = town, PostClient()
        self.reports = EndReports(self.client, town.clock, lambda *_, **__: None)
        self.cache = ClusterCache(
            town.clock, lambda _nodes: None, removed=self.reports.removed, left=self.reports.left
        )
        self.cache.pods_listed([])
        self.cache.nodes_listed([read_node(told())])

    def sees(self, raw: Json, deleted: bool = False) -> None:
        (self.cache.pod_deleted if deleted else self.cache.pod_updated)(_read(raw))

    def posts(self) -> int:
        """All that waits goes to the timekeeper; how many posts it took."""
        while self.reports.send():
            pass
        for body in self.client.posts:
            assert self.town.post("/v1/ends", body).status_code == 200
        count = len(self.client.posts)
        self.client.posts.clear()
        return count


def _read(raw: Json) -> Pod:
    pod = read_pod(raw)
    assert pod is not None
    return pod


def removed(raw: Json, at_ms: int, grace_s: int = 0) -> Json:
    """The last state of a pod whose object is removed at that time."""
    stamped = {"deletionTimestamp": iso(at_ms), "deletionGracePeriodSeconds": grace_s}
    return {**raw, "metadata": raw["metadata"] | stamped}


RUNNING = gpu_pod(started_ms=T0)
ENDED = gpu_pod(started_ms=T0, ended_ms=END)


@pytest.fixture
def extender(town: Town) -> Extender:
    """A pod has run for a minute, watched by settler and extender; then the settler is away."""
    town.begin(("nodes", told()), ("leases", lease(T0)), ("pods", RUNNING))
    town.advance(MINUTE)
    seen = Extender(town)
    seen.sees(RUNNING)
    return seen


def is_back(town: Town, after: int = MINUTE) -> None:
    """The settler runs again, after this time."""
    town.clock.turn(after)
    town.objects["pods"].clear()
    town.resume()


def settled(town: Town) -> None:
    for _ in range(15):
        town.clock.turn(SECOND)
        town.tick()
    town.advance(3 * HOUR, heard=False)


def charged(town: Town) -> int:
    """Of the settled pod; its postings together."""
    settled(town)
    return sum(rate * (until - since) for since, until, rate, _ in town.postings())


def ends_by_proof(town: Town, extender: Extender) -> None:
    town.clock.turn(END + SECOND - town.clock())
    extender.sees(ENDED)
    town.clock.turn(SECOND)
    extender.sees(removed(ENDED, town.clock()), deleted=True)


def test_without_a_report_such_a_pod_is_charged_through_the_longest_grace_period(
    town: Town, extender: Extender
) -> None:
    ends_by_proof(town, extender)

    is_back(town)

    assert charged(town) == GPU * (MINUTE + LONGEST_GRACE)


@pytest.mark.parametrize("when", ["before", "after", "both", "late"])
def test_an_end_that_the_extender_saw_is_charged_by_its_proof_whenever_the_report_arrives(
    town: Town, extender: Extender, when: str
) -> None:
    ends_by_proof(town, extender)
    other = Extender(town)  # another replica
    other.sees(removed(ENDED, town.clock()), deleted=True)

    if when in ("before", "both"):
        extender.posts()
    is_back(town)
    if when == "late":
        settled(town)
        assert town.postings() == [(T0, T0 + MINUTE + LONGEST_GRACE, GPU, "settled")]
    assert extender.posts() + other.posts() == (1 if when in ("before", "both") else 2)

    assert charged(town) == GPU * (END - T0)
    assert [kind for *_, kind in town.postings()] == ["settled"] + ["correction"] * (when == "late")


def test_a_report_that_arrives_between_two_settlers_counts(town: Town, extender: Extender) -> None:
    """The first has given the pod up, and ended before the report came."""
    ends_by_proof(town, extender)
    is_back(town)
    town.advance(MINUTE)

    extender.posts()
    is_back(town, after=MINUTE)

    assert charged(town) == GPU * (END - T0)


def test_a_silent_node_makes_no_end_too_early(town: Town, extender: Extender) -> None:
    """The end is later than all evidence of the ledger and than its longest grace period."""
    late = T0 + MINUTE + LONGEST_GRACE + 5 * SECOND
    raw = gpu_pod(started_ms=T0, ended_ms=late)
    town.clock.turn(late + SECOND - town.clock())
    extender.sees(raw)
    extender.sees(removed(raw, town.clock()), deleted=True)

    is_back(town)
    extender.posts()

    assert charged(town) == GPU * (late - T0)


@pytest.mark.parametrize("grace_s", [0, 40])
def test_a_forced_deletion_is_charged_for_its_own_grace_period(
    town: Town, extender: Extender, grace_s: int
) -> None:
    """An earlier deletion may have had a longer one than the last."""
    town.clock.turn(MINUTE)
    if grace_s:
        extender.sees(removed(RUNNING, town.clock() + grace_s * SECOND, grace_s))
    extender.sees(removed(RUNNING, at := town.clock()), deleted=True)

    is_back(town, after=5 * MINUTE)
    extender.posts()
    extender.posts()

    assert charged(town) == GPU * (at - T0 + max(30, grace_s) * SECOND)


@pytest.mark.parametrize("listed_s", [7, 900])
def test_a_vanished_pod_is_charged_until_its_nodes_agent_ceases_to_list_it(
    town: Town, extender: Extender, listed_s: int
) -> None:
    town.clock.turn(MINUTE)
    extender.cache.node_updated(read_node(told("uid-p")))
    extender.sees(removed(RUNNING, town.clock()), deleted=True)
    extender.posts()
    town.clock.turn(listed_s * SECOND)
    extender.cache.expire()
    extender.cache.node_updated(read_node(told()))
    left = town.clock()

    is_back(town)
    extender.posts()

    assert charged(town) == GPU * (left - T0)


def test_a_settler_that_saw_the_removal_learns_when_the_pod_left(town: Town, extender: Extender) -> None:
    town.change("nodes", told("uid-p"))
    extender.cache.node_updated(read_node(told("uid-p")))
    last = removed(RUNNING, town.clock())
    town.change("pods", last, deleted=True)
    extender.sees(last, deleted=True)
    town.clock.turn(9 * SECOND)
    town.objects["nodes"]["/n1"] = told()
    extender.cache.node_updated(read_node(told()))
    left = town.clock()

    town.start_anew()
    town.clock.turn(SECOND)
    extender.posts()
    town.list_all()
    town.tick()

    assert charged(town) == GPU * (left - T0)


def test_what_a_running_settler_saw_stays(town: Town, extender: Extender) -> None:
    """Its agent listed the pod for four seconds, and the report, which comes later, knows only the grace."""
    town.change("nodes", told("uid-p"))
    last = removed(RUNNING, town.clock())
    town.change("pods", last, deleted=True)
    town.clock.turn(4 * SECOND)
    town.change("nodes", told())
    extender.sees(last, deleted=True)
    left = town.clock()
    town.advance(3 * HOUR, heard=False)
    assert town.postings() == [(T0, left, GPU, "settled")]
    town.advance(SECOND, heard=False)  # a tick that knows nothing of it any more

    extender.posts()

    assert charged(town) == GPU * (left - T0)
    assert len(town.postings()) == 1


@pytest.mark.parametrize("way", ["by itself", "by force"])
def test_a_pod_whose_session_its_binding_opened_begins_as_its_object_says(
    town: Town, extender: Extender, way: str
) -> None:
    """The end comes long after the report of the Binding, by which the pod was bound 300 ms later."""
    town.clock.turn(MINUTE)
    start = town.clock()
    raw = gpu_pod("q", card=1, started_ms=start)
    extender.sees(raw)
    town.clock.turn(20 * SECOND)
    if way == "by itself":
        raw = gpu_pod("q", card=1, started_ms=start, ended_ms=town.clock())
        extender.sees(raw)
    extender.sees(removed(raw, town.clock()), deleted=True)
    body = {"version": 1, "bindings": [bound("q", age_ms=MINUTE + 19_700)]}
    is_back(town)
    assert town.post("/v1/bindings", body).status_code == 200
    settled(town)
    assert town.postings("uid-q")[0][0] == start + 300

    extender.posts()
    settled(town)

    held = 20 * SECOND + (0 if way == "by itself" else 30 * SECOND)
    found = town.postings("uid-q")
    assert sum(rate * (until - since) for since, until, rate, _ in found) == GPU * held
    assert (start, start + 300, GPU, "correction") in found
    sessions = town.get("/v1/sessions?namespace=team-a").get_json()["sessions"]
    assert [each["bound"] for each in sessions if each["pod"] == "q"] == [start]


@pytest.mark.parametrize("first", ["binding", "end"])
def test_a_pod_that_was_bound_and_ended_while_no_settler_ran_is_charged_exactly(
    town: Town, extender: Extender, first: str
) -> None:
    town.clock.turn(MINUTE)
    start = town.clock()
    raw = gpu_pod("q", card=1, started_ms=start)
    extender.sees(raw)
    ended = gpu_pod("q", card=1, started_ms=start, ended_ms=start + 20 * SECOND)
    town.clock.turn(21 * SECOND)
    extender.sees(ended)
    extender.sees(removed(ended, town.clock()), deleted=True)
    body = {"version": 1, "bindings": [bound("q", age_ms=20_700)]}

    is_back(town)
    posts: list[Callable[[], Any]] = [lambda: town.post("/v1/bindings", body), extender.posts]
    for post in posts if first == "binding" else posts[::-1]:
        post()
        town.tick()
    settled(town)

    assert town.postings("uid-q") == [(start, start + 20 * SECOND, GPU, "settled")]


def test_a_pod_with_the_name_of_another_is_charged_by_its_own_end(town: Town, extender: Extender) -> None:
    ends_by_proof(town, extender)
    successor = gpu_pod(started_ms=town.clock())
    successor["metadata"]["uid"] = "uid-second"
    successor["status"]["conditions"][0]["lastTransitionTime"] = iso(town.clock())
    began = town.clock()
    extender.sees(successor)
    extender.posts()
    is_back(town, after=SECOND)
    town.hear("pods", successor)
    town.advance(MINUTE)

    assert town.charged() == GPU * (END - T0 + town.clock() - began)


def test_a_report_about_a_pod_that_the_ledger_does_not_know_changes_nothing(
    town: Town, extender: Extender
) -> None:
    stranger = gpu_pod("stranger", namespace="team-b", started_ms=T0, ended_ms=END)
    extender.sees(removed(stranger, END), deleted=True)
    extender.posts()
    town.advance(MINUTE)
    settled(town)

    assert town.postings("uid-stranger") == []
    assert town.charged("team-b") == 0


def test_a_pod_that_the_watch_still_shows_is_charged_by_the_watch(town: Town, extender: Extender) -> None:
    extender.sees(removed(ENDED, END), deleted=True)
    extender.posts()

    town.advance(10 * MINUTE)

    assert town.charged() == GPU * 11 * MINUTE


def test_a_watch_that_missed_the_removal_is_told_by_the_report(town: Town, extender: Extender) -> None:
    """The report comes while the watch still shows the pod, and the list that lacks it much later."""
    ends_by_proof(town, extender)
    extender.posts()
    town.advance(MINUTE)
    town.objects["pods"].clear()
    town.clock.turn(SECOND)

    town.list_all()

    assert charged(town) == GPU * (END - T0)


def test_an_end_without_a_time_counts_as_it_was_first_reported(town: Town, extender: Extender) -> None:
    evicted = json.loads(json.dumps(RUNNING))
    evicted["status"] |= {"phase": "Failed", "reason": "Evicted", "containerStatuses": []}
    at = T0 + 2 * MINUTE
    fields: Json = {"f:status": {"f:phase": {}}}
    evicted["metadata"]["managedFields"] = [{"time": iso(at), "fieldsV1": fields}]
    town.clock.turn(2 * MINUTE)
    extender.sees(removed(evicted, town.clock()), deleted=True)

    is_back(town)
    town.node_heard()
    town.tick()
    extender.posts()

    assert charged(town) == GPU * (at - T0)


def test_what_neither_saw_stays_an_estimate(town: Town, extender: Extender) -> None:
    """The extender's watch missed the removal, too."""
    town.clock.turn(MINUTE)
    extender.cache.pods_listed([])

    is_back(town)
    assert extender.posts() == 0

    assert charged(town) == GPU * (MINUTE + LONGEST_GRACE)


def report(**fields: object) -> Json:
    return {
        **{"uid": "uid-p", "namespace": "team-a", "pod": "p", "node": "n1", "bound_ms": T0, "over": True},
        **{"ended_ms": END, "reported_ms": None, "witnessed_ms": T0, "grace_ms": 30_000},
        **{"deletion_ms": None, "removed_age_ms": 0, "left_age_ms": None},
        **fields,
    }


def test_what_an_older_extender_says_of_a_failed_start_is_answered_and_changes_no_charge(
    town: Town, extender: Extender
) -> None:
    ends_by_proof(town, extender)
    extender.reports.send()
    post = json.loads(extender.client.posts.pop())
    post["ends"][0]["forgiven_ms"] = T0 + MINUTE

    assert town.post("/v1/ends", post).status_code == 200
    is_back(town)

    assert charged(town) == GPU * (END - T0)


def test_a_caller_without_the_right_to_report_bindings_reports_no_end(town: Town, extender: Extender) -> None:
    tenant = token("tenant")
    town.reviews.tokens[tenant] = user_status("tenant")
    town.reviews.denied.add(("tenant", "create", "bindings", ""))
    body = {"version": 1, "ends": [report(ended_ms=T0 + SECOND)]}

    assert town.post("/v1/ends", body, tenant).status_code == 403
    assert town.post("/v1/ends", body, token("nobody")).status_code == 401
    is_back(town)

    assert charged(town) == GPU * (MINUTE + LONGEST_GRACE)
