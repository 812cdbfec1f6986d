"""Jobs and PodGroups say with how many members a gang starts."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from scheduler_ext.assembly.reporting import Reporting
from scheduler_ext.cache.pod_groups import PodGroups, read_group
from scheduler_ext.clients.gang_calls import GangCalls
from scheduler_ext.gangs.sets import GangSets
from scheduler_ext.log import EventReason
from scheduler_ext.settings import Timekeeper
from tests.scheduler_ext.gang_worlds import GangWorld, member, members, owned_by
from tests.scheduler_ext.unit.test_gang_starts import OF, ended
from tests.worlds import Json
from timekeeper.edge.events import EventRecorder
from timekeeper.runtime.api_server import Answered, Api

NEEDS = "bursar.dev/gang-needs"
JOB = {"bursar.dev/gang-key": "job/g/uid-g"}
MINIMUM = {"bursar.dev/gang-minimum": "2"}


def job(parallelism: int = 4, uid: str = "uid-g", **status: int) -> Json:
    spec = {"parallelism": parallelism, "completions": 4}
    return {"metadata": {"name": "g", "uid": uid}, "spec": spec, "status": status}


def lacking(says: Json, names: str = "abc", marks: Json = JOB, cards: int = 8) -> GangWorld:
    """A gang of four, of which these exist, and their Job."""
    world = GangWorld({"n": cards}, [member(name, 4, marks=marks) for name in names])
    world.owner = says
    return world


def noted(world: GangWorld) -> dict[str, str]:
    """What is noted on members."""
    said = {name: raw["metadata"]["annotations"].get(NEEDS) for name, raw in world.pods.items()}
    return {name: text for name, text in said.items() if text is not None}


@pytest.mark.parametrize(
    "says", [job(succeeded=1), job(3), job(3, succeeded=1)], ids=["one ended well", "made smaller", "both"]
)
def test_a_gang_starts_with_as_many_as_its_job_makes_once_members_are_missing_for_10_s(says: Json) -> None:
    world = lacking(says)

    world.steps(10)
    assert (world.planned, world.reads) == ({}, [])
    world.steps(2)

    assert (noted(world), world.planned) == ({"a": "3"}, dict.fromkeys("abc", "n"))
    assert "3 of 4 members exist, of which 3 start at least" in world.says("a")
    assert world.bind("abc") == ["", "", world.now]


def test_a_job_is_read_once_a_minute_while_its_gang_lacks_members() -> None:
    world = lacking(job())

    world.steps(200)
    assert (world.reads, noted(world), world.planned) == ([11, 71, 131, 191], {}, {})
    world.put(member("d", 4, marks=JOB))
    world.steps(100)

    assert (len(world.reads), sorted(world.planned)) == (4, list("abcd"))


@pytest.mark.parametrize(
    "says", [{}, job(3, uid="another"), {"metadata": {"name": "h"}}], ids=["none", "another's", "no Job"]
)
def test_what_is_not_said_by_the_members_job_does_not_count(says: Json) -> None:
    world = lacking(says)

    world.steps(80)

    assert (len(world.reads), noted(world), world.planned) == (2, {}, {})


def test_what_was_said_is_noted_again_where_its_pod_is_gone_and_counts_no_more_once_others_come() -> None:
    world = lacking(job(3), cards=2)
    world.steps(11)
    assert noted(world) == {"a": "3"}

    world.delete("a")
    world.steps(2)
    assert (noted(world), len(world.reads)) == ({"b": "3"}, 1)
    world.put(*(member(name, 4, marks=JOB) for name in "de"))
    world.put_node("m", 1)  # there is room for three

    assert world.step().planned == {}


def test_an_elastic_gang_made_smaller_needs_its_minimum_still() -> None:
    world = lacking(job(3), "a", JOB | MINIMUM)

    world.steps(20)
    assert (len(world.reads), noted(world), world.planned) == (1, {}, {})
    world.put(member("b", 4, marks=JOB | MINIMUM))

    assert sorted(world.step().planned) == list("ab")


@pytest.mark.parametrize(("key", "needed"), [(JOB, "1"), (OF, "3")], ids=["the Job is all", "a JobSet's Job"])
def test_of_several_owners_it_is_known_who_ended_and_not_who_was_made_less(key: Json, needed: str) -> None:
    world = lacking(job(1, succeeded=1) if key is JOB else job(2, succeeded=3), "a", key)

    world.steps(12)

    assert noted(world) == {"a": needed}


def test_a_replacement_goes_though_the_objects_of_those_that_ended_well_are_gone() -> None:
    world = GangWorld({"n": 8}, [*members("abc", size=4, marks=JOB), ended("d", 4, marks=JOB)])
    world.start("abc")
    world.owner = job(succeeded=1)
    world.delete("d", "c")
    world.put(member("e", 4, marks=JOB))

    world.step(0.5)

    assert (world.planned, world.reads) == ({"e": "n"}, [])


def test_a_start_whose_owner_wants_no_more_is_not_ended_by_its_deadline() -> None:
    """Its Job is read before its members are evicted, whenever it was before."""
    world = lacking(job(), "abcd")
    world.step()
    world.bind("abc")
    world.steps(55)
    world.delete("d")
    world.owner = job(3)

    world.steps(6)

    assert (world.evicted, noted(world)) == ("", {"a": "3"})


def test_a_job_that_makes_others_for_those_that_ended_well_starts_whole_again() -> None:
    """Of eight completions, four at once: suspended after the fourth, and resumed."""
    world = GangWorld({"n": 2}, members("ab", size=4, marks=JOB))
    world.put(*(owned_by(ended(name, 4, marks=JOB), "uid-g") for name in "wxyz"))
    world.owner = {**job(succeeded=4), "spec": {"parallelism": 4, "completions": 8}}

    world.steps(15)
    assert (world.planned, world.reads) == ({}, [11])
    world.put(*members("cd", size=4, marks=JOB))
    assert world.step(1).planned == {}
    world.put_node("m", 2)
    world.steps(6)

    assert sorted(world.planned) == list("abcd")


TEMPLATE = {
    "spec": {"containers": [{"name": "c", "resources": {"limits": {"bursar.dev/gpu-percent": "50"}}}]}
}
HEAD = {"spec": {"containers": [{"name": "head"}]}}
RAY = {"headGroupSpec": {"template": HEAD}, "workerGroupSpecs": [{"replicas": 3, "template": TEMPLATE}]}


@pytest.mark.parametrize(
    ("key", "version", "kind", "spec", "needed"),
    [
        ("statefulset", "apps/v1", "StatefulSet", {"replicas": 3}, "3"),
        ("statefulset", "apps/v1", "StatefulSet", {}, "1"),
        ("statefulset", "apps/v1", "StatefulSet", {"replicas": 9}, None),
        ("ray", "ray.io/v1", "RayCluster", {"headGroupSpec": {"template": HEAD}}, None),
        ("ray", "ray.io/v1", "RayCluster", RAY, "3"),
        ("ray", "ray.io/v1/../../x", "RayCluster", RAY, None),
        ("ray", "another.io/v1", "RayCluster", RAY, None),
        (
            "kubeflow",
            "kubeflow.org/v1",
            "PyTorchJob",
            {
                "pytorchReplicaSpecs": {
                    "Master": {"template": TEMPLATE},
                    "Worker": {"replicas": 2, "template": TEMPLATE},
                }
            },
            "3",
        ),
        ("bursar", "apps/v1", "StatefulSet", {"replicas": 3}, None),
    ],
)
def test_an_owner_that_is_all_of_its_gang_says_its_size_while_it_waits(
    key: str, version: str, kind: str, spec: Json, needed: str | None
) -> None:
    """Where it can be read; its pods without GPUs are no members."""
    marks = {"bursar.dev/gang-key": f"{key}/g/uid-g" if key != "bursar" else "bursar/g"}
    world = lacking({"metadata": {"name": "g", "uid": "uid-g"}, "spec": spec}, "abc", marks)
    world.put(*(owned_by(raw, "uid-g", version, kind) for raw in world.pods.values()))

    world.steps(20)

    assert noted(world) == ({} if needed is None else {"a": needed})
    assert bool(world.planned) is (needed is not None)
    paths = {f"/apis/{version}/namespaces/team-a/{kind.lower()}s/g"} if world.reads else set()
    assert {*world.read_paths} == paths
    assert bool(world.reads) is (key != "bursar" and version in ("apps/v1", "ray.io/v1", "kubeflow.org/v1"))


def test_the_jobs_of_bare_pods_are_not_looked_for() -> None:
    world = GangWorld({"n": 8}, [owned_by(raw, "") for raw in members("abc", size=4)])

    world.steps(30)

    assert world.reads == []


GROUPED = {"bursar.dev/gang-key": "podgroup/g"}


def grouped(names: str, cards: int = 8) -> GangWorld:
    """Pods of a PodGroup, as its user makes them."""
    pods = [member(name, 1, marks=GROUPED) for name in names]
    for raw in pods:
        del raw["metadata"]["annotations"]["bursar.dev/gang-size"]
    return GangWorld({"n": cards}, pods)


def test_pods_of_a_pod_group_start_once_its_minimum_is_there_and_fits() -> None:
    world = grouped("abc", cards=2)

    world.steps(30)
    assert (world.planned, noted(world), world.reads) == ({}, {}, [])
    assert "starts whole: 3 of 3 members exist; there is no PodGroup g in namespace team-a" in world.says("a")
    world.groups["team-a/g"] = 3
    world.steps(2)
    assert (noted(world), world.planned) == (dict.fromkeys("abc", "3"), {})
    assert "it can never start here: it needs 3 cards" in world.says("a")
    world.put_node("m", 1)
    world.steps(6)

    assert sorted(world.planned) == list("abc")


def test_all_pods_of_a_pod_group_lose_their_gates_though_one_does_not_fit() -> None:
    """kube-scheduler 1.37 tries none of them while one has a gate."""
    world = grouped("abcd", cards=3)
    world.groups["team-a/g"] = 3
    world.steps(3)
    assert (sorted(world.planned), world.open) == (["a", "b", "c"], "abcd")
    world.bind("abc")
    world.put(*grouped("e").pods.values())
    world.steps(8)
    assert (world.open, world.planned) == ("abcd", {})
    world.put_node("m", 2)
    world.steps(8)

    assert (sorted(world.planned), world.open) == (["d", "e"], "abcde")


def test_what_a_pod_group_said_counts_for_later_pods_though_it_is_gone() -> None:
    world = grouped("ab")
    world.groups["team-a/g"] = 2
    world.steps(2)
    world.bind("ab")
    world.groups.clear()
    world.put(*grouped("c").pods.values())
    world.steps(8)

    assert (noted(world), world.planned, world.evicted) == (dict.fromkeys("abc", "2"), {"c": "n"}, "")


def test_pods_of_a_pod_group_that_starts_none_together_are_no_members() -> None:
    world = grouped("ab")
    world.groups["team-a/g"] = 0

    world.steps(2)

    assert (noted(world), world.open, world.planned) == (dict.fromkeys("ab", "0"), "ab", {})
    assert [world.pod(name).gang for name in "ab"] == [None, None]


@pytest.mark.parametrize(
    ("policy", "least"),
    [
        ({"gang": {"minCount": 3}}, 3),
        ({"basic": {}}, 0),
        ({}, 0),
        ({"gang": {"minCount": "3"}}, 0),
        (None, 0),
    ],
)
def test_a_pod_group_says_its_minimum_or_starts_none_together(policy: object, least: int) -> None:
    raw = {"metadata": {"namespace": "a", "name": "g"}, "spec": {"schedulingPolicy": policy}}

    assert read_group(raw) == ("a/g", least)


def test_where_the_api_server_has_no_pod_groups_no_pod_waits_for_one() -> None:
    groups = PodGroups()
    kind = groups.kind()

    assert groups.minimum("a/g") is None
    groups.unserved()
    assert groups.minimum("a/g") == 0
    kind.listed([("a/g", 3)])
    assert (groups.minimum("a/g"), groups.minimum("a/h")) == (3, None)
    kind.seen(("a/h", 2))
    kind.gone(("a/g", 3))
    assert (groups.minimum("a/g"), groups.minimum("a/h")) == (None, 2)


def above(key: str, *answers: Json) -> list[tuple[str, ...]]:
    """What stands above a gang of this key, asked as often as there are answers of the API server."""
    world, found = GangWorld({"n": 8}, [member("a", 2, marks={"bursar.dev/gang-key": key})]), []
    api, asked = iter(answers), []

    def call(method: str, path: str, *_: object, **__: object) -> Answered:
        asked.append((method, path))
        return Answered(200 if (body := next(api)) else 403, body)

    sets = GangSets(GangCalls(cast(Api, SimpleNamespace(call=call)), lambda: 0, at_once=1))
    gang = world.gangs.state(world.cache.snapshot.pods, f"team-a/{key}")
    assert gang is not None
    found = [sets.of(gang) for _ in answers]
    leaders = "/apis/apps/v1/namespaces/team-a/statefulsets/serve"
    assert asked in ([], [("GET", leaders)], [("GET", leaders)] * 2)
    return found


def test_a_jobset_is_known_by_its_pods_and_a_leader_worker_set_by_its_leaders_stateful_set() -> None:
    lws = ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "serve", "uid-s")
    by = dict(zip(("apiVersion", "kind", "name", "uid"), lws, strict=True)) | {"controller": True}
    leaders, other = ({"metadata": {"ownerReferences": [each]}} for each in (by, {**by, "kind": "Other"}))

    assert above("jobset/train/uid-t/0", {}) == [("jobset.x-k8s.io/v1alpha2", "JobSet", "train", "uid-t")]
    assert above("leaderworkerset/serve-11", leaders, leaders) == [lws] * 2
    assert above("leaderworkerset/serve-11", {}, leaders) == [(), lws]  # 403, and later it may be read
    assert above("leaderworkerset/serve-0", other) == [()]
    assert above("bursar/g", {}) == above("jobset/train", {}) == above("jobset/train@a/uid-t", {}) == [()]


def test_a_gang_is_told_on_its_controllers_and_on_what_stands_above_them() -> None:
    world = GangWorld({"n": 8}, [member(name, 2) for name in "ab"])
    gang, told = world.gangs.state(world.cache.snapshot.pods, "team-a/bursar/g"), []
    assert gang is not None
    events = SimpleNamespace(
        post_on=lambda regarding, reason, text: told.append((regarding["kind"], regarding["name"], reason)),
        post=lambda _namespace, name, _uid, reason, *_: told.append(("Pod", name, reason)),
    )
    untold = cast(Any, None)
    reporting = Reporting(Timekeeper(), cast(EventRecorder[EventReason], events), untold, untold, untold)
    above = ("jobset.x-k8s.io/v1alpha2", "JobSet", "train", "uid-t")

    reporting.tell_gang(gang, gang.waiting, "GangWaits", "It waits.", above)

    where = [("Job", "g"), ("JobSet", "train"), ("Pod", "a"), ("Pod", "b")]
    assert told == [(*each, "GangWaits") for each in where]
