"""Gangs: pods that start together or not at all, as they are written by people and by controllers.

`MARKERS` is the table of all known ways to name a gang. A pod belongs to a gang only if its size is known,
from our annotation or from the marker itself: most groups of pods may start one by one. A gang of another
system (`OTHERS`) is that system's; its pods are charged and not held.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from timekeeper.core import names
from timekeeper.core.json_values import Json, annotations_of, mapping
from timekeeper.core.object_names import controller_reference, virtual_namespace
from timekeeper.core.violation import Violation, shown

RULE = "gang"
MAX_SIZE = 1_024
MOST_NOTED = 9_999
UNKNOWN_SIZE = MOST_NOTED + 1  # of a PodGroup whose ``minCount`` is not known
MAX_NAME = 63
EXAMPLE_LABEL = "topology.kubernetes.io/rack"


@dataclass(frozen=True, slots=True)
class Gang:
    """``key``: what tells it from other gangs of its namespace: kind of the marker, name (``name@namespace``
    in a virtual cluster), and its owner's UID where the owner alone has pods of it. It starts once
    ``minimum`` of its ``size`` pods exist and fit. ``topology``: a label of nodes, of which the nodes of all
    its pods have one value; ``preferred``: one of which they have as few values as possible; "": any nodes.
    """

    key: str
    size: int
    minimum: int
    topology: str = ""
    preferred: str = ""

    @property
    def name(self) -> str:
        """Its name, for people."""
        return self.key.split("/")[1]

    @property
    def is_owned(self) -> bool:
        """Whether one owner has all of its pods."""
        return self.key.partition("/")[0] in _OWNED

    def needed(self, living: int, ended_well: int, said: int | None) -> int:
        """With how many members it starts: its minimum, less those that ended well. ``said``: where fewer
        live, with how many as its Job says (`needs_said`)."""
        least = max(0, self.minimum - ended_well)
        return least if said is None or living >= least else min(least, said)


@dataclass(frozen=True, slots=True)
class Marker:
    """Where the pods of one kind of gang have its name: an annotation, a label, a field of the spec, or their
    controller of the kind ``owner``. ``part``: a label that tells gangs of one name apart. ``minimum``: a
    label with the number of pods that start together, of a kind that says it on its pods. ``of``: labels that
    tell the owner from one of the same name; ``is_owned``: the pods' controller does, for it is the owner."""

    kind: str
    annotation: str = ""
    label: str = ""
    field: tuple[str, str] = ("", "")
    part: str = ""
    minimum: str = ""
    owner: str = ""
    of: tuple[str, ...] = ()
    is_owned: bool = False

    def name_in(self, pod: Json) -> str:
        """The gang's name; "" without this marker."""
        labels = _labels(pod)
        if self.annotation:
            found = annotations_of(pod).get(self.annotation)
        elif self.label:
            found = labels.get(self.label)
        elif self.owner:
            found = _controller(pod, self.owner)
        else:
            found = mapping(mapping(pod.get("spec")).get(self.field[0])).get(self.field[1])
            if not found:  # an API server without the feature has dropped it since admission
                kind, _, found = str(annotations_of(pod).get(names.GANG_KEY)).partition("/")
                found = found if kind == self.kind else None
        part = labels.get(self.part) if self.part else None
        return (f"{found}-{part}" if part else str(found)) if found else ""


OURS = Marker("bursar", annotation=names.GANG)
GROUPED = Marker("podgroup", field=("schedulingGroup", "podGroupName"))  # its minimum is in the PodGroup
# The first that a pod has counts. Sources: sigs.k8s.io/scheduler-plugins v0.32.7 (coscheduling, and its form
# before PodGroup was an object), KEP-4671, sigs.k8s.io/lws v0.8.0, sigs.k8s.io/jobset v0.11.0 (TrainJob makes
# JobSets), Kubeflow's training-operator v1.8.1 and mpi-operator v0.6.0, KubeRay v1.7.0. Their numbers of pods
# are in `gang_owners`.
MARKERS = (
    OURS,
    Marker("coscheduling", label="scheduling.x-k8s.io/pod-group"),
    Marker(
        "coscheduling",
        label="pod-group.scheduling.sigs.k8s.io/name",
        minimum="pod-group.scheduling.sigs.k8s.io/min-available",
    ),
    GROUPED,
    Marker(
        "leaderworkerset",
        label="leaderworkerset.sigs.k8s.io/name",
        part="leaderworkerset.sigs.k8s.io/group-index",
    ),
    Marker(
        "jobset",
        label="jobset.sigs.k8s.io/jobset-name",
        of=("jobset.sigs.k8s.io/jobset-uid", "jobset.sigs.k8s.io/restart-attempt"),
    ),
    Marker("kubeflow", label="training.kubeflow.org/job-name", is_owned=True),
    Marker("ray", label="ray.io/cluster", is_owned=True),
    Marker("job", owner="Job", is_owned=True),  # of a Job that is none of these
    Marker("statefulset", owner="StatefulSet", is_owned=True),
)
_OWNED = frozenset(marker.kind for marker in MARKERS if marker.is_owned)
NAMELESS = "the pod names no gang"
# Volcano, KAI, YuniKorn, koordinator: annotations and labels of the pods that these start together
SCHEDULERS: Mapping[str, tuple[str, ...]] = {
    "annotations": (
        "scheduling.k8s.io/group-name",
        "pod-group-name",
        "yunikorn.apache.org/task-group-name",
        "gang.scheduling.koordinator.sh/name",
    ),
    "labels": ("kai.scheduler/queue",),
}
_KUEUE = ("kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/queue-name")  # it starts pods and schedules none
OTHERS: Mapping[str, tuple[str, ...]] = {**SCHEDULERS, "labels": (*_KUEUE, *SCHEDULERS["labels"])}
_SIZES = (names.GANG_SIZE, names.GANG_MINIMUM)
_OURS = names.GANG_ANNOTATIONS
_OF_USERS = frozenset(_OURS) - frozenset(_SIZES)  # what admission never writes into templates
_SIZE_LABELS = tuple(each.minimum for each in MARKERS if each.minimum)
_NAMES_OF_GANGS = frozenset(each.label for each in MARKERS if each.label)
_NUMBER = re.compile(r"[0-9]{1,6}", re.ASCII)
# a qualified name, as the API server accepts for keys of labels
_LABEL_PREFIX = r"(?=.{1,253}/)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/"
_LABEL = re.compile(
    rf"({_LABEL_PREFIX})?(?=[^/]{{1,{MAX_NAME}}}$)[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII
)
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)


def gang_of(pod: Json) -> Gang | None:
    """The gang of the pod that Bursar starts; None for a pod of none, of another system's, or one whose
    annotations contradict each other."""
    annotations = annotations_of(pod)
    if (
        names.GANG_SIZE not in annotations
        and names.GANG_KEY not in annotations
        and "schedulingGroup" not in mapping(pod.get("spec"))
        and _labels(pod).keys().isdisjoint(_SIZE_LABELS)
    ):
        return None  # nearly always
    if foreign_mark(pod) or any(gang_violations(pod)):
        return None
    marker, name = _marked(pod)
    return _sized(pod, _key(pod, marker, name)) if marker is not None else None


def _sized(pod: Json, key: str) -> Gang | None:
    """None: the pod says no size. A pod of a PodGroup alone needs more than there can be until its group's
    ``minCount`` is noted on it; with 0 it is of no gang."""
    annotations, says = annotations_of(pod), _size_by_label(pod)
    size = _number(annotations.get(names.GANG_SIZE)) or says
    if not size and is_grouped(key):
        noted = needs_said(pod)
        size = UNKNOWN_SIZE if noted is None else noted
    if not size:
        return None
    minimum = _number(annotations.get(names.GANG_MINIMUM)) or says or size
    required, preferred = (str(annotations.get(each, "")) for each in names.GANG_TOPOLOGIES)
    return Gang(key, size, min(minimum, size), required, preferred)


def _size_by_label(pod: Json) -> int | None:
    if _labels(pod).keys().isdisjoint(_SIZE_LABELS):
        return None  # nearly always
    marker, _ = _marked(pod)
    return _number(_labels(pod).get(marker.minimum)) if marker is not None and marker.minimum else None


def is_grouped(key: str) -> bool:
    """Whether a gang of this key is a PodGroup's, which says its minimum."""
    return key.startswith(f"{GROUPED.kind}/")


def group_of_key(key: str) -> str:
    """What pods without GPUs know of their gang's key: they may have another owner than its members, as the
    launcher of an MPIJob has its Job."""
    return "/".join(key.split("/")[:2]) if key.partition("/")[0] in _OWNED else key


def waits_for_gang(pod: Json) -> bool:
    """Whether this pod, which asks for no GPU, starts once the gang of its name has. kube-scheduler tries no
    pod of a PodGroup while one has a gate."""
    if annotations_of(pod).get(names.GANG_LATE) != "true" or mapping(pod.get("spec")).get("nodeName"):
        return False
    group = group_of(pod)
    return group != "" and not is_grouped(group) and not foreign_mark(pod)


def group_of(pod: Json) -> str:
    """`group_of_key` of the gang of this pod's name, whatever its size, for a pod without GPUs; "" without a
    name. Pods of one Job or StatefulSet are all alike, so its name alone makes none."""
    is_named = names.GANG in annotations_of(pod) or "schedulingGroup" in mapping(pod.get("spec"))
    if not is_named and _labels(pod).keys().isdisjoint(_NAMES_OF_GANGS):
        return ""  # nearly always
    marker, name = _marked(pod)
    return group_of_key(_key(pod, marker, name)) if marker is not None and not marker.owner else ""


def _key(pod: Json, marker: Marker, name: str) -> str:
    told = [str(_labels(pod).get(each, "")) for each in marker.of]
    if marker.is_owned:
        controller = controller_reference(mapping(pod.get("metadata")))
        told.append("" if controller is None else str(controller.get("uid", "")))
    virtual = "" if marker is GROUPED else virtual_namespace(mapping(pod.get("metadata")))
    return "/".join([marker.kind, f"{name}@{virtual}" if virtual else name, *filter(None, told)])


def held_gang(pod: Json) -> Gang | None:
    """The gang of a pod that admission created as a member: these alone start together. Of one that was
    created by a release before the gang's gate the key is read anew."""
    annotations = annotations_of(pod)
    key = annotations.get(names.GANG_KEY)
    if key is None:
        return gang_of(pod) if annotations.get(names.HELD) in ("budget", "turn") else None
    return _sized(pod, str(key)) if str(key).count("/") else None


def has_started(pod: Json) -> bool:
    """Whether a member with a node says that its gang has started: by its mark; each does that was created by
    a release before the gang's gate."""
    annotations = annotations_of(pod)
    return names.GANG_STARTED in annotations or names.GANG_KEY not in annotations


def needs_said(pod: Json) -> int | None:
    """With how many living members the pod's gang starts, as the extender noted on the pod; None: it did
    not. Of several pods of a Job the oldest living one that says it counts."""
    return _number(annotations_of(pod).get(names.GANG_NEEDS))


def ended_for_good(key: str, owners: Collection[str], ended: Iterable[str]) -> int:
    """How many of a gang's members that ended well will not come again. ``ended``: their controllers, but no
    Jobs, which may make others and say it (`gang_owners.pods_left`); a pod without one, "", may come again.
    ``owners``: those of the living members; only theirs count where the key has no owner's UID, for several
    may have pods of such a gang."""
    return sum(owner != "" and (key.count("/") > 1 or owner in owners) for owner in ended)


def said_now(living: Iterable[tuple[str, Gang]]) -> list[Gang]:
    """What living members, the oldest first, say of their gang now. The newest pod of a controller speaks for
    all of them, for the template may have changed since it made the others; a pod without one for itself.
    ``living``: each one's controller, "" for none, and what it says."""
    listed = list(living)
    newest = {owner: gang for owner, gang in listed if owner}
    return [*newest.values(), *(gang for owner, gang in listed if not owner)]


def gang_violations(pod: Json) -> Iterator[Violation]:
    """What is wrong with the pod's own annotations of a gang, in the order of its fields."""
    annotations = annotations_of(pod)
    if annotations.keys().isdisjoint(_OURS):
        return
    own = annotations.get(names.GANG)
    if own is not None and (len(own) > MAX_NAME or not _NAME.fullmatch(own)):
        allowed = (
            f"letters, digits, '-', '_' and '.', at most {MAX_NAME}, with a letter or digit at both ends"
        )
        yield _violation(names.GANG, own, "this is no name of a gang", allowed, "train-7")
    other = foreign_mark(pod)
    if other and controller_reference(mapping(pod.get("metadata"))) and _OF_USERS.isdisjoint(annotations):
        return  # written into the owner's template, whose operator marks its pods afterwards: it gives way
    if other:
        problem = f"{other} leaves the start of these pods to another system"
        allowed = "this annotation, or the other system's"
        yield _violation(next(each for each in _OURS if each in annotations), None, problem, allowed)
        return
    if own is not None and names.GANG_SIZE not in annotations:
        yield _violation(names.GANG_SIZE, None, "a gang needs its number of pods", f"1 to {MAX_SIZE}")
    yield from size_violations(annotations)
    yield from _bad_topologies(pod)
    name = next((each for each in _SIZES if each in annotations), "")
    if name and _marked(pod)[0] is None:
        known = sorted(
            {each.annotation or each.label or each.owner or ".".join(each.field) for each in MARKERS}
        )
        allowed = f"it beside one of {', '.join(known)}"
        yield _violation(name, annotations[name], NAMELESS, allowed, f"{names.GANG}: train-7")


def size_violations(annotations: Json) -> Iterator[Violation]:
    """What is wrong with the numbers of pods that annotations say."""
    good = {}
    for name in _SIZES:
        text = annotations.get(name)
        number = _number(text)
        if number and number <= MAX_SIZE:
            good[name] = number
        elif text is not None:
            yield _violation(name, text, "this is no number of pods", f"1 to {MAX_SIZE}")
    size, minimum = (good.get(name) for name in _SIZES)
    if size and minimum and minimum > size:
        problem = f"more pods are to start at least than the gang has ({names.GANG_SIZE}: {size})"
        yield _violation(names.GANG_MINIMUM, str(minimum), problem, f"1 to {size}", str(size))


def _bad_topologies(pod: Json) -> Iterator[Violation]:
    annotations = annotations_of(pod)
    found = [each for each in names.GANG_TOPOLOGIES if each in annotations]
    for name in found:
        if not _LABEL.fullmatch(str(annotations[name])):
            problem, allowed = "this is no key of a label", "the key of a label of nodes, without a value"
            yield _violation(name, str(annotations[name]), problem, allowed, EXAMPLE_LABEL)
    has_size = names.GANG_SIZE in annotations or not _labels(pod).keys().isdisjoint(_SIZE_LABELS)
    if found and not has_size and names.GANG not in annotations:  # else its size is missed already
        problem = "a pod that starts by itself is near no others"
        yield _violation(found[0], None, problem, f"it beside {names.GANG_SIZE}", f'{names.GANG_SIZE}: "8"')


def _violation(name: str, got: str | None, problem: str, allowed: str, example: str = "8") -> Violation:
    """``got``: None: there is no text, or it is not what is wrong."""
    text = "" if got is None else shown(got)
    return Violation(RULE, _path("annotations", name), text, problem, allowed, example)


def _path(field: str, name: str) -> str:
    return f"metadata.{field}[{name}]"


def _marked(pod: Json) -> tuple[Marker | None, str]:
    found = ((each, each.name_in(pod)) for each in MARKERS)
    return next(((marker, name) for marker, name in found if name), (None, ""))


def marker_of(pod: Json) -> str:
    """The kind of the first marker that the pod, or a template of pods, has; "" without any."""
    marker, _ = _marked(pod)
    return marker.kind if marker is not None else ""


def size_said(template: Json) -> int | None:
    """The number of pods that the annotation of a template says; None without a good one."""
    number = _number(annotations_of(template).get(names.GANG_SIZE))
    return number if number and number <= MAX_SIZE else None


def least_said(template: Json) -> int:
    """With how many pods a gang of the template's pods starts at least; 0 if the template says no size."""
    size = size_said(template) or 0
    return min(size, _number(annotations_of(template).get(names.GANG_MINIMUM)) or size)


def topologies_said(template: Json) -> dict[str, str]:
    """The annotations of a template that say how near its pods are to be to the others of their gang."""
    found = annotations_of(template)
    return {name: str(found[name]) for name in names.GANG_TOPOLOGIES if name in found}


def _controller(pod: Json, kind: str) -> Any:
    """The name of the pod's controller of this kind."""
    reference = controller_reference(mapping(pod.get("metadata")))
    return reference.get("name") if reference is not None and reference.get("kind") == kind else None


def foreign_mark(of: Json, systems: Mapping[str, tuple[str, ...]] = OTHERS) -> str:
    """What says of a pod, a template or an owner of pods that another system starts these together; ""
    without it. ``systems``: marks by field of the metadata."""
    has: Mapping[str, Json] = {"annotations": annotations_of(of), "labels": _labels(of)}
    known = ((field, name) for field, marks in systems.items() for name in marks)
    return next((_path(field, name) for field, name in known if name in has[field]), "")


def _labels(pod: Json) -> Json:
    return mapping(mapping(pod.get("metadata")).get("labels"))


def _number(text: Any) -> int | None:
    """The whole number; None for anything else."""
    return int(text) if isinstance(text, str) and _NUMBER.fullmatch(text) else None
