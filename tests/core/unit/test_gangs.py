"""Which pods start together: by our annotations, and by the marks of others."""

import json

import pytest

from tests.worlds import Json
from timekeeper.core.gangs import (
    UNKNOWN_SIZE,
    Gang,
    gang_of,
    gang_violations,
    group_of,
    group_of_key,
    has_started,
    held_gang,
    needs_said,
)

SIZE = "bursar.dev/gang-size"
AT = "metadata.annotations"
MINIMUM = "bursar.dev/gang-minimum"
TOPOLOGY, PREFERRED = "bursar.dev/gang-topology", "bursar.dev/gang-topology-preferred"


def pod(labels: Json | None = None, spec: Json | None = None, **annotations: str) -> Json:
    named = {
        {"gang": "bursar.dev/gang", "size": SIZE, "minimum": MINIMUM}.get(name, name): value
        for name, value in annotations.items()
    }
    return {"metadata": {"annotations": named, "labels": labels or {}}, "spec": spec or {}}


def test_our_annotations_make_a_gang() -> None:
    assert gang_of(pod(gang="train", size="4")) == Gang("bursar/train", 4, 4)
    assert gang_of(pod(gang="train", size="4", minimum="2")) == Gang("bursar/train", 4, 2)
    near = {"bursar.dev/gang-topology": "a.b/zone", PREFERRED: "rack"}
    assert gang_of(pod(None, None, gang="train", size="4", **near)) == Gang(
        "bursar/train", 4, 4, "a.b/zone", "rack"
    )


@pytest.mark.parametrize(
    ("labels", "spec", "expected"),
    [
        ({"scheduling.x-k8s.io/pod-group": "a"}, {}, Gang("coscheduling/a", 3, 3)),
        ({"jobset.sigs.k8s.io/jobset-name": "a"}, {}, Gang("jobset/a", 3, 3)),
        ({"training.kubeflow.org/job-name": "a"}, {}, Gang("kubeflow/a", 3, 3)),
        ({"ray.io/cluster": "a"}, {}, Gang("ray/a", 3, 3)),
        (
            {"leaderworkerset.sigs.k8s.io/name": "a", "leaderworkerset.sigs.k8s.io/group-index": "1"},
            {},
            Gang("leaderworkerset/a-1", 3, 3),
        ),
    ],
)
def test_a_size_makes_a_gang_of_the_pods_of_another_groups_name(
    labels: Json, spec: Json, expected: Gang
) -> None:
    assert gang_of(pod(labels, spec, size="3")) == expected
    assert gang_of(pod(labels, spec)) is None  # most such pods start one by one


LWS, JOBSET = "leaderworkerset.sigs.k8s.io", "jobset.sigs.k8s.io"


@pytest.mark.parametrize(
    ("labels", "kind", "key"),
    [
        ({}, "Job", "job/train/u-1"),
        ({}, "StatefulSet", "statefulset/train/u-1"),
        ({}, "Pod", None),
        ({"ray.io/cluster": "a"}, "RayCluster", "ray/a/u-1"),
        ({"training.kubeflow.org/job-name": "a"}, "PyTorchJob", "kubeflow/a/u-1"),
        (  # its Jobs are controllers of its pods
            {f"{JOBSET}/jobset-name": "a", f"{JOBSET}/jobset-uid": "u-9", f"{JOBSET}/restart-attempt": "2"},
            "Job",
            "jobset/a/u-9/2",
        ),
        ({f"{LWS}/name": "a", f"{LWS}/group-index": "1"}, "StatefulSet", "leaderworkerset/a-1"),
        ({"scheduling.x-k8s.io/pod-group": "a"}, "Job", "coscheduling/a"),  # several owners may name it
    ],
)
def test_a_gang_of_one_owner_is_known_by_its_uid_too(labels: Json, kind: str, key: str | None) -> None:
    """An owner of the same name that is made again, and a restart of a JobSet, have a gang of their own."""
    raw = pod(labels, size="3")
    raw["metadata"]["ownerReferences"] = [
        {"kind": kind, "name": "train", "uid": "u-1", "controller": True},
        {"kind": "Job", "name": "other", "uid": "u-2", "controller": False},
    ]

    assert gang_of(raw) == (Gang(key, 3, 3) if key else None)


def test_coschedulings_older_labels_say_how_many_start_together() -> None:
    labels = {
        "pod-group.scheduling.sigs.k8s.io/name": "a",
        "pod-group.scheduling.sigs.k8s.io/min-available": "3",
    }

    assert gang_of(pod(labels)) == Gang("coscheduling/a", 3, 3)
    assert gang_of(pod(labels, size="5")) == Gang("coscheduling/a", 5, 3)


@pytest.mark.parametrize(
    ("labels", "annotations"),
    [
        ({"kueue.x-k8s.io/queue-name": "q"}, {}),
        ({"kueue.x-k8s.io/pod-group-name": "g"}, {}),
        ({}, {"scheduling.k8s.io/group-name": "g"}),
        ({}, {"pod-group-name": "g"}),
    ],
)
def test_a_gang_of_another_system_is_left_to_it_and_not_named_twice(labels: Json, annotations: Json) -> None:
    assert gang_of(pod({"ray.io/cluster": "a"} | labels, None, **annotations)) is None
    marked = pod(labels, None, gang="a", size="2", **annotations)

    assert gang_of(marked) is None
    (violation,) = gang_violations(marked)
    assert "leaves the start of these pods to another system" in violation.sentence()


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        ({"gang": "a"}, f"metadata.annotations[{SIZE}]: a gang needs its number of pods"),
        ({"gang": "a", "size": "0"}, f'{AT}[{SIZE}]: this is no number of pods, got "0"'),
        (
            {"gang": "a", "size": "many"},
            f'{AT}[{SIZE}]: this is no number of pods, got "many"',
        ),
        ({"gang": "a", "size": "٣"}, f"{AT}[{SIZE}]: this is no number of pods"),
        (
            {"gang": "a", "size": "1025"},
            f'{AT}[{SIZE}]: this is no number of pods, got "1025"',
        ),
        (
            {"gang": "a", "size": "2", "minimum": "3"},
            f"metadata.annotations[{MINIMUM}]: more pods are to start at least than the gang has",
        ),
        (
            {"gang": "no name", "size": "2"},
            f"{AT}[bursar.dev/gang]: this is no name",
        ),
        ({"size": "2"}, f"metadata.annotations[{SIZE}]: the pod names no gang"),
        ({TOPOLOGY: "rack"}, f"{AT}[{TOPOLOGY}]: a pod that starts by itself is near no others"),
        ({"gang": "a", PREFERRED: "rack"}, f"{AT}[{SIZE}]: a gang needs its number of pods"),
        *(
            ({"gang": "a", "size": "2", TOPOLOGY: bad}, f"{AT}[{TOPOLOGY}]: this is no key of a label")
            for bad in ("", "rack=1", "a/b/c", "/a", "a/", "A/b", "x" * 64, "a" * 254 + "/x", "-a", "a\n")
        ),
        (
            {"gang": "a", "size": "2", PREFERRED: "no label"},
            f'{AT}[{PREFERRED}]: this is no key of a label, got "no label"; allowed: the key of a label',
        ),
    ],
)
def test_a_contradiction_is_refused_with_its_field(annotations: Json, said: str) -> None:
    (violation,) = gang_violations(pod(None, None, **annotations))

    assert violation.sentence().startswith(said)
    assert "; allowed: " in violation.sentence()
    assert gang_of(pod(None, None, **annotations)) is None


@pytest.mark.parametrize(
    ("annotations", "key", "started"),
    [
        ({}, None, True),
        ({"bursar.dev/held": "budget"}, "bursar/a", True),  # a release before the gang's gate made it
        ({"bursar.dev/held": "turn"}, "bursar/a", True),
        ({"bursar.dev/held": "turn", "bursar.dev/gang-key": "bursar/a"}, "bursar/a", False),
        ({"bursar.dev/gang-key": "job/b/u"}, "job/b/u", False),  # the key decides, whatever labels say since
        ({"bursar.dev/gang-key": "job/b/u", "bursar.dev/gang-started": "T"}, "job/b/u", True),
        ({"bursar.dev/gang-key": "none"}, None, False),
    ],
)
def test_a_pod_starts_together_with_those_of_the_key_that_admission_wrote(
    annotations: Json, key: str | None, started: bool
) -> None:
    raw = pod({"ray.io/cluster": "a"}, None, gang="a", size="2", **annotations)

    assert (held_gang(raw), has_started(raw)) == (Gang(key, 2, 2) if key else None, started)


@pytest.mark.parametrize(
    ("noted", "size"), [(None, UNKNOWN_SIZE), ("3", 3), ("0", None)], ids=["unknown", "noted", "singly"]
)
def test_a_pod_of_a_pod_group_starts_with_as_many_as_are_noted_on_it(
    noted: str | None, size: int | None
) -> None:
    raw = pod(None, {"schedulingGroup": {"podGroupName": "a"}}, **{"bursar.dev/gang-key": "podgroup/a"})
    if noted is not None:
        raw["metadata"]["annotations"]["bursar.dev/gang-needs"] = noted

    assert held_gang(raw) == (Gang("podgroup/a", size, size) if size else None)
    raw["metadata"]["annotations"][SIZE] = "5"
    assert held_gang(raw) == gang_of(raw) == Gang("podgroup/a", 5, 5)


def test_the_key_outlives_a_pod_groups_name_that_the_api_server_drops() -> None:
    """It drops fields of features that are off after the webhook has seen them."""
    dropped = pod(None, None, **{"bursar.dev/gang-key": "podgroup/a"})

    assert gang_of(dropped) == Gang("podgroup/a", UNKNOWN_SIZE, UNKNOWN_SIZE)
    assert gang_of(pod(None, None, **{"bursar.dev/gang-key": "bursar/a"})) is None


@pytest.mark.parametrize(
    ("living", "ended", "said", "needed"),
    [
        (0, 0, None, 3),
        (0, 2, None, 1),
        (0, 4, None, 0),
        (2, 0, 2, 2),
        (2, 0, 5, 3),
        (1, 1, 1, 1),
        (3, 0, 1, 3),  # there are enough: what its Job said before does not count
        (2, 1, 1, 2),
    ],
)
def test_a_gang_needs_its_minimum_less_those_that_ended_well_or_as_many_as_its_job_says(
    living: int, ended: int, said: int | None, needed: int
) -> None:
    assert Gang("job/a/u", 4, 3).needed(living, ended, said) == needed


@pytest.mark.parametrize(("text", "said"), [("3", 3), ("0", 0), ("-1", None), ("x", None), ("9" * 9, None)])
def test_what_is_noted_on_a_pod_is_a_number_or_nothing(text: str, said: int | None) -> None:
    assert needs_said(pod(None, None, **{"bursar.dev/gang-needs": text})) == said


def test_a_pod_without_gpus_is_of_the_group_that_its_mark_names() -> None:
    by = {"kind": "Job", "name": "train", "controller": True}
    of_job = {"metadata": {"ownerReferences": [by]}}

    assert group_of(pod(gang="train")) == "bursar/train"
    assert group_of(pod({"ray.io/cluster": "a"})) == "ray/a"
    assert (group_of(of_job), group_of(pod())) == ("", "")


def test_a_launcher_is_of_its_workers_group_whoever_made_it() -> None:
    """The pod of an MPIJob's launcher has a Job as its controller, its workers have the MPIJob."""
    launcher, worker = (pod({"training.kubeflow.org/job-name": "a"}, size="2") for _ in range(2))
    for each, kind in ((launcher, "Job"), (worker, "MPIJob")):
        by = {"kind": kind, "name": "a", "uid": f"uid-of-{kind}", "controller": True}
        each["metadata"]["ownerReferences"] = [by]
    found = gang_of(worker)

    assert found is not None
    assert found.key == "kubeflow/a/uid-of-MPIJob"
    assert group_of(launcher) == group_of_key(found.key) == "kubeflow/a"
    assert group_of_key("jobset/a/uid/1") == "jobset/a/uid/1"  # of one attempt, as all of its pods say


def synced(namespace: str, owner: Json | None = None, cluster: str = "", **annotations: str) -> Json:
    """A pod as vCluster's syncer (v0.35, pkg/util/translate) makes it: its owner is the cluster's Service."""
    labels = {"vcluster.loft.sh/managed-by": cluster} if cluster else None
    raw = pod(labels, None, size="2", **annotations)
    raw["metadata"]["ownerReferences"] = [
        {"kind": "Service", "name": "vc", "uid": "u-vc", "controller": owner is not None}
    ]
    raw["metadata"]["annotations"]["vcluster.loft.sh/object-namespace"] = namespace
    if owner is not None:
        raw["metadata"]["annotations"]["vcluster.loft.sh/owner-references"] = json.dumps([owner])
    return raw


def test_gangs_of_one_name_in_two_virtual_namespaces_are_two() -> None:
    assert gang_of(synced("team-a", gang="train")) == Gang("bursar/train@team-a", 2, 2)
    assert gang_of(synced("team-b", gang="train")) == Gang("bursar/train@team-b", 2, 2)
    assert gang_of(synced("team-a", None, "vc-1", gang="train")) == Gang("bursar/train@team-a.vc-1", 2, 2)
    assert group_of(synced("team-a", gang="train")) == "bursar/train@team-a"


def test_a_gang_of_a_virtual_owner_is_known_by_the_syncers_annotation() -> None:
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u-1", "controller": True}

    assert gang_of(synced("team-a", job)) == Gang("job/train@team-a/u-1", 2, 2)
    assert not list(gang_violations(synced("team-a", job)))
    (violation,) = gang_violations(synced("team-a"))
    assert "the pod names no gang" in violation.sentence()


@pytest.mark.parametrize("namespace", ["", "a/b", "A", "x" * 200, "a@b", "a\n"])
def test_a_virtual_namespace_that_cannot_be_one_is_none(namespace: str) -> None:
    assert gang_of(synced(namespace, gang="train")) == Gang("bursar/train", 2, 2)


@pytest.mark.parametrize("owners", ["", "no", "[" * 9_000, "{}", "[1, null]", '[{"controller": true}]'])
def test_owners_that_are_none_make_no_gang(owners: str) -> None:
    raw = synced("team-a", {})
    raw["metadata"]["annotations"]["vcluster.loft.sh/owner-references"] = owners

    assert gang_of(raw) is None
