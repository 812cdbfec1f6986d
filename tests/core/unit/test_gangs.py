"""Which pods start together: by our annotations, and by the marks of others."""

import json

import pytest

from tests.worlds import Json
from timekeeper.core.gangs import Gang, gang_of, gang_violations, group_of, held_gang
from timekeeper.core.late_members import late_members

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
    assert gang_of(pod(gang="train", size="4")) == Gang("bursar", "train", 4, 4)
    assert gang_of(pod(gang="train", size="4", minimum="2")) == Gang("bursar", "train", 4, 2)
    near = {"bursar.dev/gang-topology": "a.b/zone", PREFERRED: "rack"}
    assert gang_of(pod(None, None, gang="train", size="4", **near)) == Gang(
        "bursar", "train", 4, 4, "a.b/zone", "rack"
    )


@pytest.mark.parametrize(
    ("labels", "spec", "expected"),
    [
        ({"scheduling.x-k8s.io/pod-group": "a"}, {}, Gang("coscheduling", "a", 3, 3)),
        ({}, {"schedulingGroup": {"podGroupName": "a"}}, Gang("podgroup", "a", 3, 3)),
        ({"jobset.sigs.k8s.io/jobset-name": "a"}, {}, Gang("jobset", "a", 3, 3)),
        ({"training.kubeflow.org/job-name": "a"}, {}, Gang("kubeflow", "a", 3, 3)),
        ({"ray.io/cluster": "a"}, {}, Gang("ray", "a", 3, 3)),
        (
            {"leaderworkerset.sigs.k8s.io/name": "a", "leaderworkerset.sigs.k8s.io/group-index": "1"},
            {},
            Gang("leaderworkerset", "a-1", 3, 3),
        ),
    ],
)
def test_a_size_makes_a_gang_of_the_pods_of_another_groups_name(
    labels: Json, spec: Json, expected: Gang
) -> None:
    assert gang_of(pod(labels, spec, size="3")) == expected
    assert gang_of(pod(labels, spec)) is None  # most such pods start one by one


@pytest.mark.parametrize(("index", "starts"), [("0", True), ("1", False), (None, False)])
def test_of_a_leader_and_workers_of_one_template_those_follow_that_it_tells_of(
    index: str | None, starts: bool
) -> None:
    """The leader is created with its label; a worker gets one from a webhook, which may come later."""
    prefix = "leaderworkerset.sigs.k8s.io"
    labels = {f"{prefix}/name": "a", f"{prefix}/group-index": "2"}
    labels |= {f"{prefix}/worker-index": index} if index is not None else {}
    template = {"spec": {"containers": [{"name": "c"}]}}
    late = {"bursar.dev/gang-late": json.dumps([{"count": 3, "template": template}])}

    found = gang_of(pod(labels, None, size="1", **late))

    assert (found is not None) == starts
    assert group_of(pod(labels, None, size="1", **late)) == "leaderworkerset/a-2"
    assert gang_of(pod(labels, size="4")) == Gang("leaderworkerset", "a-2", 4, 4)


@pytest.mark.parametrize("kind", ["Job", "StatefulSet"])
def test_a_size_makes_a_gang_of_the_pods_of_a_controller(kind: str) -> None:
    by = {"kind": kind, "name": "train", "controller": True}
    pods = [pod({"ray.io/cluster": "a"}, size="3"), pod(size="3"), pod(size="3"), pod(size="3")]
    for each, reference in zip(pods, (by, by, by | {"controller": False}, by | {"kind": "Pod"}), strict=True):
        each["metadata"]["ownerReferences"] = [reference]

    assert [gang_of(each) for each in pods] == [
        Gang("ray", "a", 3, 3),
        Gang(kind.lower(), "train", 3, 3),
        None,
        None,
    ]


def test_coschedulings_older_labels_say_how_many_start_together() -> None:
    labels = {
        "pod-group.scheduling.sigs.k8s.io/name": "a",
        "pod-group.scheduling.sigs.k8s.io/min-available": "3",
    }

    assert gang_of(pod(labels)) == Gang("coscheduling", "a", 3, 3)
    assert gang_of(pod(labels, size="5")) == Gang("coscheduling", "a", 5, 3)


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


@pytest.mark.parametrize("held", ["budget", "turn"])
def test_only_pods_that_were_created_with_the_gate_start_together(held: str) -> None:
    assert held_gang(pod(gang="a", size="2")) is None
    assert held_gang(pod(None, None, gang="a", size="2", **{"bursar.dev/held": held})) == Gang(
        "bursar", "a", 2, 2
    )


def test_a_pod_without_gpus_is_of_the_group_that_its_mark_names() -> None:
    by = {"kind": "Job", "name": "train", "controller": True}
    of_job = {"metadata": {"ownerReferences": [by]}}

    assert group_of(pod(gang="train")) == "bursar/train"
    assert group_of(pod({"ray.io/cluster": "a"})) == "ray/a"
    assert (group_of(of_job), group_of(pod())) == ("", "")


def test_a_pod_without_any_mark_is_of_no_gang() -> None:
    assert gang_of({}) is None
    assert list(gang_violations({"metadata": {"annotations": {"bursar.dev/policy": "binpack"}}})) == []


LATE = "bursar.dev/gang-late"
TOLD = '[{"count": 2, "template": {"spec": {"containers": [{"name": "main"}]}}}]'


def test_what_follows_a_gang_is_read_of_its_pods() -> None:
    raw = pod(None, None, gang="train", size="1", **{LATE: TOLD})

    (late,) = (gang_of(raw) or Gang("", "", 0, 0)).late
    assert (late.count, late.pod) == (2, {"spec": {"containers": [{"name": "main"}]}})
    assert list(gang_violations(raw)) == []


def test_so_many_templates_and_levels_are_read() -> None:
    many = f"[{', '.join([TOLD[1:-1]] * 32)}]"
    deep = TOLD.replace('"main"', "[" * 28 + "]" * 28)

    assert [len(late_members(each)) for each in (many, deep)] == [32, 1]


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ("", "no pods that are created after"),
        ("{}", "no pods that are created after"),
        ("[" * 9_000, "no pods that are created after"),
        (TOLD.replace("2", "0"), "no pods that are created after"),
        (TOLD.replace("2", "true"), "no pods that are created after"),
        (TOLD.replace("2", "1025"), "no pods that are created after"),
        (TOLD.replace('[{"name": "main"}]', "[]"), "no pods that are created after"),
        (TOLD + " " * 32_768, "no pods that are created after"),
        (f"[{', '.join([TOLD[1:-1]] * 33)}]", "no pods that are created after"),
        (TOLD.replace('"main"', "[" * 29 + "]" * 29), "no pods that are created after"),
    ],
)
def test_what_tells_of_no_pods_is_refused(told: str, problem: str) -> None:
    raw = pod(None, None, gang="train", size="1", **{LATE: told})

    (found,) = gang_violations(raw)
    assert (found.path, gang_of(raw)) == (f"{AT}[{LATE}]", None)
    assert problem in found.sentence()


def test_what_follows_a_pod_that_starts_by_itself_is_refused() -> None:
    (found,) = gang_violations(pod({"jobset.sigs.k8s.io/jobset-name": "a"}, None, **{LATE: TOLD}))

    assert "a pod that starts by itself is followed by no others" in found.sentence()
