"""The workload of charges: whose Jobs, ReplicaSets and StatefulSets they are, by names and labels. The
expected rows are written by hand."""

import csv
import io
from collections.abc import Iterator

import pytest

from tests.timekeeper.books import Books, Json, Run, days
from tests.timekeeper.worlds import DAY, GPU, HOUR, MINUTE, T0, Town, gpu_pod, node

BOTH_DATABASES = "workloads are SQL over names and labels"
JOBSET = (("jobset.sigs.k8s.io/jobset-name", "sweep"),)
LWS = (("leaderworkerset.sigs.k8s.io/name", "llm_1"),)
RAY = (("ray.io/cluster", "r-x1"), ("ray.io/originated-from-cr-name", "r"))
OF_RAY = "ray.io/originated-from-crd"
ROLLOUT = (("rollouts-pod-template-hash", "7f9c"),)
NIGHTLY = "CronJob/nightly"
OWNERS: tuple[tuple[str, tuple[tuple[str, str], ...], str], ...] = (
    # a CronJob's Jobs: the minute since 1970
    *((f"Job/nightly-{29_400_000 + 1_440 * at}", (), NIGHTLY) for at in range(4)),
    ("Job/train-2-29400000", (), "CronJob/train-2"),
    ("Job/v1.2-29400000", (), "CronJob/v1.2"),
    # what only looks like one: a day, other numbers, no number, no Job
    *((name, (), name) for name in ("Job/train-20261101", "Job/train-2", "Job/train", "Job/29400000")),
    *((name, (), name) for name in ("Job/x-294000001", "Job/x29400000", "Job/x-2940000", "Job/x-29400000-a")),
    *((name, (), name) for name in ("job/x-29400000", "PyTorchJob/x-29400000", "Deployment/web-29400000")),
    # sets, whose label alone says it, whatever makes the pods
    ("Job/sweep-worker-0", JOBSET, "JobSet/sweep"),
    ("Job/other-29400000", JOBSET, "JobSet/sweep"),
    ("StatefulSet/llm_1", LWS, "LeaderWorkerSet/llm_1"),
    ("StatefulSet/llm_1-0", LWS, "LeaderWorkerSet/llm_1"),
    ("RayCluster/r-x1", (*RAY, (OF_RAY, "RayJob")), "RayJob/r"),
    ("RayCluster/s-x1", (*RAY, (OF_RAY, "RayService")), "RayCluster/s-x1"),
    ("RayCluster/r-raycluster-abcde", (), "RayCluster/r-raycluster-abcde"),
    ("ReplicaSet/web-7f9c", ROLLOUT, "Rollout/web"),
    ("ReplicaSet/web-api-7f9c", ROLLOUT, "Rollout/web-api"),
    ("ReplicaSet/web-7f9d", ROLLOUT, "ReplicaSet/web-7f9d"),
    ("ReplicaSet/-", (("rollouts-pod-template-hash", ""),), "ReplicaSet/-"),
    ("Deployment/web", (("pod-template-hash", "7f9c"),), "Deployment/web"),
    ("", (), ""),
    ("", JOBSET, ""),
)


@pytest.fixture
def books(database_url: str) -> Iterator[Books]:
    built = Books(database_url)
    yield built
    built.close()


def write(books: Books) -> dict[str, int]:
    """A run of each owner, of 1, 2, 3 ... hours; some run, some were rolled up. Hours by workload."""
    hours: dict[str, int] = {}
    for at, (owner, labels, workload) in enumerate(OWNERS, 1):
        end = T0 - DAY + at * HOUR
        if at % 3 == 1:
            run = Run(f"u{at}", owner=owner, labels=labels, started_ms=T0 - DAY, heard_ms=end, settled=False)
            books.write(run)
        else:
            run = Run(f"u{at}", owner=owner, labels=labels, started_ms=T0 - DAY, posted=days(T0 - DAY, end))
            (books.write if at % 3 else books.roll_up)(run)
        hours[workload] = hours.get(workload, 0) + at
    books.clock.at_ms = T0 + 2 * DAY
    return hours


def test_charges_are_summed_by_the_topmost_controller_that_names_and_labels_tell(books: Books) -> None:
    hours = write(books)

    rows = books.rows("group=workload")

    assert {row["workload"]: row["amount"] for row in rows} == {
        workload: GPU * HOUR * each for workload, each in hours.items()
    }
    assert [row["workload"] for row in rows] == sorted(hours, key=str.encode)
    assert hours[NIGHTLY] == 1 + 2 + 3 + 4
    assert {row["namespace"] for row in rows} == {"team-a"}
    by_owner = books.rows("group=owner")
    assert {row["owner"] for row in by_owner} == {owner for owner, _, _ in OWNERS}  # it stays what it is
    assert sum(row["amount"] for row in rows) == sum(row["amount"] for row in by_owner)


def test_workloads_are_ordered_and_paged_by_the_database(books: Books) -> None:
    hours = write(books)
    by_size = sorted(hours.values(), reverse=True)

    largest = books.rows("group=workload&sort=-gpuHours&limit=5")
    pages, after = [], ""
    while True:
        answer: Json = books.get(f"/v1/usage?group=workload&limit=7{after}").get_json()
        pages.append([row["workload"] for row in answer["rows"]])
        if answer["next"] is None:
            break
        after = f"&after={answer['next']}"

    assert [row["amount"] // (GPU * HOUR) for row in largest] == by_size[:5]
    assert [each for page in pages for each in page] == sorted(hours, key=str.encode)
    assert {len(page) for page in pages[:-1]} == {7}


def test_a_workload_stands_beside_the_owner_by_pod_with_use_and_in_files(books: Books) -> None:
    write(books)
    books.used("u2", T0 - DAY, "node", HOUR, HOUR * 500)
    books.used("u3", T0 - DAY, "node", HOUR, HOUR * 250)

    pods = books.rows("group=pod,workload&use=true")
    used = {row["workload"]: row["used"] for row in books.rows("group=workload&use=true")}
    text = books.get("/v1/usage?group=workload&format=csv").get_data(as_text=True)
    focus = books.get("/v1/usage?format=focus").get_json()["rows"]

    expected = {f"u{at}": (owner, workload) for at, (owner, _, workload) in enumerate(OWNERS, 1)}
    assert {row["uid"]: (row["owner"], row["workload"]) for row in pods} == expected
    assert used[NIGHTLY] == HOUR * 750
    assert {row["ResourceId"]: (row["x_Owner"] or "", row["x_Workload"] or "") for row in focus} == expected
    assert {row["workload"] for row in csv.DictReader(io.StringIO(text))} == {each for _, _, each in OWNERS}


def test_a_correction_has_the_workload_of_the_pod_that_it_names(books: Books) -> None:
    write(books)
    body = {"namespace": "team-a", "gpuHours": "-1", "reason": "x", "pod": "u2"}
    assert books.post("/v1/corrections", body, **{"Idempotency-Key": "k"}).status_code == 200
    books.clock.at_ms += 1_000

    rows = books.get("/v1/usage?format=focus").get_json()["rows"]
    (row,) = (row for row in rows if row["ChargeClass"])

    assert (row["x_Owner"], row["x_Workload"]) == ("Job/nightly-29401440", NIGHTLY)


@pytest.mark.parametrize(
    ("asked", "kind", "name", "labels"),
    [
        ("Rollout/web", "ReplicaSet", "web-7f9c", dict(ROLLOUT)),
        ("rollout/web", "ReplicaSet", "web-7f9c", dict(ROLLOUT)),
        ("rayjob/r", "RayCluster", "r-x1", {**dict(RAY), OF_RAY: "RayJob"}),
        ("jobset/sweep", "Job", "sweep-worker-0", dict(JOBSET)),
        ("cronjob/nightly", "Job", "nightly-29400000", {}),
    ],
)
def test_a_workload_is_explained_by_the_rule_by_which_it_is_charged(
    town: Town, asked: str, kind: str, name: str, labels: dict[str, str]
) -> None:
    town.begin(("nodes", node()))
    pod = gpu_pod("p", started_ms=T0)
    pod["metadata"]["ownerReferences"] = [{"kind": kind, "name": name, "controller": True}]
    pod["metadata"]["labels"] = {**pod["metadata"].get("labels", {}), **labels}
    town.hear("pods", pod)
    town.advance(MINUTE)

    found = town.get(f"/v1/explain/team-a/{asked}").get_json()
    (row,) = town.get("/v1/usage?group=workload").get_json()["rows"]

    assert (found["subject"], [each["pod"] for each in found["charges"]]) == (row["workload"], ["p"])
