"""A failed start: what pods of a gang were charged that Bursar evicted because it did not start."""

import json
from typing import Any, cast

import pytest

from tests.timekeeper.clocks import iso
from tests.timekeeper.ledger.test_ends import Extender
from tests.timekeeper.ledger.test_holders import told
from tests.timekeeper.worlds import DAY, GPU, HOUR, MINUTE, SECOND, T0, Json, Town, budgets, gpu_pod, lease
from timekeeper.operations.audit.audit import audit
from timekeeper.operations.audit.cluster import ClusterComparison, read_compared_pod
from timekeeper.operations.audit.finding import Finding
from timekeeper.runtime.api_server import Answered, Api
from timekeeper.settler.evictions.calls import EvictorContext, view_of
from timekeeper.settler.evictions.rounds import NoteRound
from timekeeper.store.engine.upgrade import snapshot

ONE_DATABASE = "decisions about values; test_machine and test_export store the same on both"

DEADLINE = 60 * SECOND
FREE = {"bursar.dev/gang-forgiven": iso(T0 + DEADLINE)}


def unstarted(name: str = "p", bound_ms: int = T0, noted: bool = True, **fields: object) -> Json:
    """A pod that the extender evicts a deadline after its Binding; it may run for 30 s more."""
    note = {"bursar.dev/gang-forgiven": iso(bound_ms + DEADLINE)} if noted else {}
    raw = gpu_pod(name, bound_ms=bound_ms, started_ms=bound_ms + SECOND, annotations=note, **fields)  # type: ignore[arg-type]
    stamped = {"deletionTimestamp": iso(bound_ms + DEADLINE + 30 * SECOND), "deletionGracePeriodSeconds": 30}
    return {**raw, "metadata": raw["metadata"] | stamped}


def ended(raw: Json, at_ms: int) -> Json:
    """The pod at its end, which is 10 s after its eviction in most tests."""
    last = gpu_pod(started_ms=T0, ended_ms=at_ms)["status"]
    return {**raw, "status": {**last, "conditions": raw["status"]["conditions"]}}


def lived(town: Town, *raws: Json, after: int = DEADLINE + 10 * SECOND) -> None:
    """These pods are bound, evicted for their start, and end so long after their Binding."""
    for raw in raws:
        town.change("pods", raw)
    town.advance(after)
    for raw in raws:
        town.change("pods", ended(raw, town.clock()))
        town.change("pods", ended(raw, town.clock()), deleted=True)


@pytest.fixture
def here(town: Town) -> Town:
    town.begin(
        ("nodes", told()), ("leases", lease(T0)), ("configmaps", budgets(team_a="gpuHours: 10\nperiod: day"))
    )
    return town


def charged(town: Town, name: str) -> int:
    return sum(rate * (until - since) for since, until, rate, _ in town.postings(f"uid-{name}"))


def test_a_failed_start_is_not_charged_and_what_follows_it_is(here: Town) -> None:
    lived(here, unstarted("a"), unstarted("b", card=1))

    assert here.postings("uid-a") == [(T0 + DEADLINE, T0 + DEADLINE + 10 * SECOND, GPU, "settled")]
    assert here.charged() == 2 * GPU * 10 * SECOND
    (session, _) = here.get("/v1/sessions?namespace=team-a").get_json()["sessions"]
    # bound = charged + forgiven
    assert (session["bound"], session["forgivenMs"]) == (T0, DEADLINE)
    assert GPU * (session["ended"] - T0) == session["amount"] + GPU * session["forgivenMs"]
    said = here.get("/v1/explain/team-a/a").get_json()["charges"][0]["sentence"]
    assert "The 60 s before that are not charged: its gang's start came to nothing." in said
    rows = here.get(f"/v1/usage?from=0&to={T0 + DAY}&group=pod").get_json()["rows"]
    assert [row["amount"] for row in rows] == [GPU * 10 * SECOND] * 2


def test_what_was_posted_of_it_is_taken_back_by_a_correction(here: Town) -> None:
    """Its node was silent for so long that an estimate was posted."""
    here.change("pods", {**unstarted(), "metadata": gpu_pod()["metadata"]})
    here.advance(MINUTE)
    here.advance(2 * HOUR, heard=False)
    assert here.postings() == [(T0, T0 + MINUTE, GPU, "settled")]

    here.change("pods", ended(unstarted(), T0 + 70 * SECOND))

    assert here.postings()[1:] == [
        (T0, T0 + DEADLINE, -GPU, "correction"),
        (T0 + MINUTE, T0 + 70 * SECOND, GPU, "settled"),
    ]


def test_an_audit_counts_what_is_forgiven_as_held_and_rightly_not_charged(here: Town) -> None:
    raw = unstarted()
    raw["metadata"]["labels"] = {"bursar.dev/governed": "true"}
    last = ended(raw, T0 + 70 * SECOND)
    lived(here, raw)

    cluster = ClusterComparison(filter(None, [read_compared_pod(last)]), here.clock(), {}, None)
    findings: list[Finding] = []
    with snapshot(here.store) as connection:
        audit(connection, here.clock(), findings.append, cluster)

    assert (cluster.compared, cluster.gaps, findings) == (1, [], [])


@pytest.mark.parametrize(
    ("apart", "is_free"), [(0, True), (50 * SECOND, True), (2 * MINUTE, False), (HOUR + SECOND, True)]
)
def test_a_namespace_is_forgiven_once_an_hour_whatever_owners_its_pods_have(
    here: Town, apart: int, is_free: bool
) -> None:
    lived(here, unstarted("a"))
    here.clock.turn(max(0, T0 + apart - here.clock()))
    other = unstarted("b", bound_ms=T0 + apart, card=1)
    other["metadata"]["ownerReferences"] = [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "new", "uid": "u", "controller": True}
    ]
    here.restart()
    here.change("pods", other)
    here.advance(max(0, T0 + apart + 70 * SECOND - here.clock()))
    here.change("pods", ended(other, T0 + apart + 70 * SECOND))

    assert charged(here, "a") == GPU * 10 * SECOND
    assert charged(here, "b") == GPU * (10 if is_free else 70) * SECOND


@pytest.mark.parametrize(
    "case", ["its user deletes it later", "it ends by itself", "it is metered", "no note", "a note for days"]
)
def test_nothing_else_is_forgiven(here: Town, case: str) -> None:
    raw, end, free = unstarted(), T0 + 70 * SECOND, 0
    if case == "its user deletes it later":
        end = T0 + HOUR
        raw["metadata"]["deletionTimestamp"] = iso(end)
    elif case == "it ends by itself":
        del raw["metadata"]["deletionTimestamp"]
    elif case == "it is metered":
        here.change("configmaps", budgets(team_a="gpuHours: 10\nperiod: day\nmode: meter"))
    elif case == "no note":
        raw = unstarted(noted=False)
    else:  # at most the longest deadline of a start
        raw["metadata"]["annotations"]["bursar.dev/gang-forgiven"] = iso(T0 + 9 * DAY)
        end, free = T0 + HOUR, 10 * MINUTE

    lived(here, raw, after=end - T0)

    assert charged(here, "p") == GPU * (end - T0 - free)


@pytest.mark.parametrize("when", ["before", "after", "twice", "late"])
def test_an_extenders_report_says_it_where_no_settler_ran(here: Town, when: str) -> None:
    here.change("pods", gpu_pod(started_ms=T0))
    here.advance(SECOND)
    replicas = [Extender(here), Extender(here)]
    last = ended(unstarted(), T0 + 70 * SECOND)
    for replica in replicas:
        replica.sees(gpu_pod(started_ms=T0))
        replica.sees(unstarted())
        replica.sees(last, deleted=True)
    here.clock.turn(2 * MINUTE)
    here.objects["pods"].clear()

    if when in ("before", "twice"):
        replicas[0].posts()
    here.resume()
    if when == "late":
        here.advance(3 * HOUR, heard=False)
    for replica in replicas if when == "twice" else replicas[1:] if when != "before" else []:
        replica.posts()
    for _ in range(15):
        here.advance(SECOND, heard=False)

    assert charged(here, "p") == GPU * 10 * SECOND


def test_cpu_and_memory_of_the_pod_are_forgiven_as_its_cards_are(here: Town) -> None:
    """It costs a whole node of two cards, of which it has half a card."""
    size = {**told(), "status": {"allocatable": {"cpu": "4", "memory": "64Gi"}}}
    here.change("nodes", size)
    here.change("configmaps", budgets(team_a="gpuHours: 10", _settings="chargeBy: dominant-host"))
    raw = unstarted(percent=50)
    raw["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "4", "memory": "1Gi"}

    lived(here, raw)

    assert charged(here, "p") == 500 * 10 * SECOND
    assert charged(here, f"p:host:{T0}") == 1_500 * 10 * SECOND
    assert here.charged() == 2_000 * 10 * SECOND


NOTE = "bursar.dev/gang-forgiven"
STEPS = ("bound", "noted", "evicted", "ended", "removed")


class Noted:
    """The API server's part of a pod's life. An object goes once its grace is over and no finalizer keeps
    it; ``call`` carries out the patch that takes one away."""

    def __init__(self, town: Town, name: str, is_forced: bool) -> None:
        self.town, self.is_forced, self.is_there = town, is_forced, True
        self.raw = gpu_pod(name, started_ms=T0)
        self.ends_ms, self.removed_ms = T0 + DEADLINE + 10 * SECOND, 0

    def do(self, step: str, is_heard: bool) -> None:
        metadata = self.raw["metadata"]
        if step == "noted":
            metadata["annotations"] = metadata["annotations"] | FREE
            metadata["finalizers"] = ["tests.example/other", NOTE]
        elif step == "evicted":
            metadata |= {
                "deletionTimestamp": iso(self.town.clock() + 30 * SECOND),
                "deletionGracePeriodSeconds": 30,
            }
        elif step == "ended" and not self.is_forced:
            self.raw = ended(self.raw, self.ends_ms)
        elif step == "removed":
            self.removed_ms = self.town.clock()
            self.raw["metadata"] |= {
                "deletionTimestamp": iso(self.town.clock()),
                "deletionGracePeriodSeconds": 0,
                "finalizers": [NOTE],
            }
        self.town.hear("pods", json.loads(json.dumps(self.raw)), unheard=not is_heard)

    def call(self, method: str, path: str, body: Json, **more: object) -> Answered:
        assert (method, path) == ("PATCH", f"/api/v1/namespaces/team-a/pods/{self.raw['metadata']['name']}")
        assert body["metadata"] == {
            "uid": self.raw["metadata"]["uid"],
            "$deleteFromPrimitiveList/finalizers": [NOTE],
        }
        self.raw["metadata"]["finalizers"].remove(NOTE)
        self.is_there = bool(self.raw["metadata"]["finalizers"])
        return Answered(200, {})


def stays(town: Town, pod: Noted) -> bool:
    """Whether its object does, after a round of the timekeeper."""
    shared = town.store, town.settler.epoch, cast(Api, pod), cast(Any, None)
    NoteRound(EvictorContext(*shared, view_of(town.settler), town.clock)).run()
    return pod.is_there


@pytest.mark.parametrize("end", ["proved", "forced", "forced, and the timekeeper is killed again"])
@pytest.mark.parametrize("away", ["11111", "01111", "00111", "00011", "00001", "00010", "00100", "00110"])
def test_no_absence_of_the_timekeeper_changes_what_is_forgiven(here: Town, away: str, end: str) -> None:
    """No extender is there that could report the end. The pod's object is kept until the ledger has it."""
    pod, is_forced = Noted(here, "p", end != "proved"), end != "proved"
    for at, (step, seconds) in enumerate(zip(STEPS, (0, 60, 0, 10, 0), strict=True)):
        here.clock.turn(seconds * SECOND)
        is_away, comes_back = away[at] == "1", "1" not in away[at + 1 :]
        if not is_away:
            here.node_heard()
        pod.do(step, is_heard=not is_away)
        if is_away and comes_back:
            here.clock.turn(3 * SECOND)
            here.restart()
            assert stays(here, pod)  # before the first tick nothing is known
        elif not is_away:
            assert stays(here, pod)  # nor before the tick that writes what was heard
            here.tick()
    here.advance(SECOND)
    assert not stays(here, pod)

    here.hear("pods", pod.raw, deleted=True, unheard="again" in end)
    if "again" in end:
        here.restart()
    here.advance(2 * MINUTE)

    ends_ms = pod.removed_ms + 30 * SECOND if is_forced else pod.ends_ms
    assert here.charged() == GPU * (ends_ms - T0 - DEADLINE)
    assert here.budget()["pending"] == (here.charged() if is_forced else 0)


def test_a_pod_that_stays_loses_its_note_once_that_does_not_count(here: Town) -> None:
    """A PodDisruptionBudget keeps it. While its note counts, or it is being ended, the object is kept."""
    pod = Noted(here, "p", False)
    for step in ("bound", "noted"):
        pod.do(step, is_heard=True)
    here.advance(DEADLINE + 10 * MINUTE - SECOND)
    assert stays(here, pod)
    assert NOTE in pod.raw["metadata"]["finalizers"]

    here.advance(SECOND)
    assert stays(here, pod)

    assert pod.raw["metadata"]["finalizers"] == ["tests.example/other"]
