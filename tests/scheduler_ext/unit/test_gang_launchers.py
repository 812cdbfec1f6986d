"""Members of a gang without GPUs that wait for it, such as a launcher: when their gate goes."""

from typing import Any

import pytest

from tests.scheduler_ext.gang_worlds import CARDS, STARTED, GangWorld, member, members, owned_by
from tests.scheduler_ext.unit.test_gang_cpu_members import cpu_node
from tests.worlds import Json, container

OF_JOB = {"training.kubeflow.org/job-name": "train"}
KEY = {"bursar.dev/gang-key": "kubeflow/train/uid-g"}
GATE = {"spec": {"schedulingGates": [{"$patch": "delete", "name": CARDS}]}}


def launcher(name: str = "l", labels: Json | None = None, **metadata: Any) -> Json:
    """Behind the gang's gate. Its own controller is a Job, as an MPIJob's is."""
    by = {"apiVersion": "batch/v1", "kind": "Job", "name": "train-launcher", "uid": "u", "controller": True}
    of = {"labels": OF_JOB if labels is None else labels, "ownerReferences": [by], **metadata}
    spec = {"containers": [container(requests={"cpu": "1"})], "schedulingGates": [{"name": CARDS}]}
    who = {"name": name, "namespace": "team-a", "uid": f"uid-{name}", "annotations": {}}
    return {"metadata": who | of, "spec": spec, "status": {"phase": "Pending"}}


def workers(names: str = "ab", **fields: Any) -> list[Json]:
    """Of an MPIJob."""
    raws = members(names, marks=KEY, **fields)
    return [owned_by(raw, "uid-g", "kubeflow.org/v2beta1", "MPIJob") for raw in raws]


def of(cards: int, raws: list[Json]) -> GangWorld:
    """These pods, a node with so many cards, and one that has room for launchers."""
    world = GangWorld({"n": cards}, raws)
    world.nodes["cpu"] = cpu_node("cpu", 8)
    world.begin()
    return world.step()


def opened(world: GangWorld) -> list[str]:
    """The pods without GPUs whose gate has gone."""
    found = (raw for raw in world.pods.values() if raw["metadata"]["name"].startswith("l"))
    return [raw["metadata"]["name"] for raw in found if not raw["spec"]["schedulingGates"]]


def test_a_launcher_waits_until_its_gang_has_started_and_goes_in_the_step_after() -> None:
    world = of(1, [*workers(), launcher()])
    assert (world.open, opened(world)) == ("", [])  # one card is missing

    world.put_node("m", 1)
    world.step()
    world.bind("a")
    world.step()
    assert opened(world) == []  # it could not reach the other worker
    world.bind("b")
    world.step()

    assert opened(world) == ["l"]
    assert world.calls[-1] == ("patch", "l", {"metadata": {"uid": "uid-l"}, **GATE})


def test_a_call_without_an_answer_is_made_again() -> None:
    world = of(2, [*workers(), launcher()])
    world.bind("ab")
    world.answers = {"l": 0}
    world.step()
    assert opened(world) == []

    world.answers = {}
    world.step()
    assert opened(world) == ["l"]
    made = len(world.calls)
    world.step()
    assert len(world.calls) == made


def started(killed: bool = False) -> GangWorld:
    """All workers run, and their launcher does."""
    world = of(3, [*workers(), launcher()])
    world.bind("ab")
    world.step()
    if killed:
        world.begin()
    return world


@pytest.mark.parametrize("killed", [False, True], ids=["the same leader", "its successor"])
def test_a_launcher_that_is_made_again_starts_at_once(killed: bool) -> None:
    world = started(killed)
    world.put(launcher("l2"))

    world.step()

    assert opened(world) == ["l", "l2"]


def test_of_very_many_some_start_in_each_step() -> None:
    """So gangs go on meanwhile."""
    world = started()
    world.put(*(launcher(f"l{at}") for at in range(70)))

    world.step()
    assert len(opened(world)) == 65
    world.step()
    assert len(opened(world)) == 71


def test_a_replica_that_does_not_lead_opens_none() -> None:
    world = started()
    world.leads = False
    world.put(launcher("l2"))
    world.step()

    assert opened(world) == ["l"]


def test_after_the_gangs_end_a_new_launcher_waits_for_its_next_start() -> None:
    world = started()
    world.delete(*"ab")
    world.put(launcher("l2"))
    world.step()
    assert opened(world) == ["l"]  # no worker is there yet

    world.put(*workers("cd"))
    world.step()
    assert opened(world) == ["l"]
    world.bind("cd")
    world.step()
    assert opened(world) == ["l", "l2"]


def test_a_launcher_that_is_made_again_once_all_workers_have_ended_starts() -> None:
    world = started()
    world.end("a")
    world.end("b", "Failed")
    world.put(launcher("l2"))

    world.step()

    assert opened(world) == ["l", "l2"]


def test_while_one_of_two_owners_of_the_name_waits_no_launcher_starts() -> None:
    """The owner was made again, and pods of the former one are still there."""
    world = started()
    other = {"bursar.dev/gang-key": "kubeflow/train/uid-new"}
    world.put(*(owned_by(raw, "uid-new") for raw in members("cd", marks=other)), launcher("l2"))
    world.step()
    assert opened(world) == ["l"]

    world.delete(*"ab")
    world.step()
    world.bind("cd")
    world.step()
    assert opened(world) == ["l", "l2"]


@pytest.mark.parametrize(
    "other",
    [
        launcher("l2", {"training.kubeflow.org/job-name": "another"}),
        launcher("l2", {"ray.io/cluster": "train"}),
        launcher("l2", namespace="elsewhere"),
        launcher("l2", deletionTimestamp="2027-01-01T00:00:00Z"),
        launcher("l2", {}),
    ],
    ids=["another name", "another kind", "another namespace", "being deleted", "no name"],
)
def test_a_gang_starts_no_other_launcher(other: Json) -> None:
    world = started()
    world.put(other)
    world.step()

    assert opened(world) == ["l"]


def test_the_driver_of_a_jobset_waits_for_the_attempt_that_it_belongs_to() -> None:
    def labels(attempt: int) -> Json:
        words = {"jobset-name": "g", "jobset-uid": "u", "restart-attempt": str(attempt)}
        return {f"jobset.sigs.k8s.io/{name}": text for name, text in words.items()}

    key = {"bursar.dev/gang-key": "jobset/g/u/0"}
    world = of(2, [*members("ab", marks=key), launcher("l", labels(0)), launcher("l2", labels(1))])
    world.bind("ab")
    world.step()

    assert opened(world) == ["l"]


def test_a_gang_of_a_user_starts_a_pod_of_its_name() -> None:
    raw = launcher("l", {}, annotations={CARDS: "g"})
    world = of(2, [*members("ab"), raw])
    world.bind("ab")
    world.step()

    assert opened(world) == ["l"]


def test_a_gang_without_its_mark_after_a_kill_opens_its_launcher_once_it_is_healed() -> None:
    """The last Binding's mark was lost with the pod that bore it."""
    raws = workers("ab")
    world = of(2, raws)
    world.bind("ab")
    for name in "ab":
        world.pods[name]["metadata"]["annotations"].pop(STARTED, None)
    world.begin()
    world.put(launcher())

    world.step()
    world.step()

    assert opened(world) == ["l"]


def test_a_single_worker_starts_its_launcher() -> None:
    world = of(1, [owned_by(member("a", 1, marks=KEY), "uid-g"), launcher()])
    assert opened(world) == []

    world.bind("a")
    world.step()

    assert opened(world) == ["l"]
