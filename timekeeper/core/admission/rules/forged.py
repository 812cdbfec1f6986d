"""Annotations, labels and gates that only Bursar, schedulers and node plugins write, and names reserved for
what Bursar injects: what a pod has of them at its creation is forged, or from a former life. /mutate removes
it (`without_marks`, `as_written`), templates and /validate refuse it (`forgery_violations`)."""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from timekeeper.core import names
from timekeeper.core.admission import marks
from timekeeper.core.admission.admission import class_status
from timekeeper.core.admission.json_patch import Operation, add, remove
from timekeeper.core.admission.mutation import sidecar
from timekeeper.core.admission.pods import CONTAINER_LISTS, annotations_of, labels_of, sequence_of
from timekeeper.core.admission.policy import AdmissionPolicy, may_name_its_node
from timekeeper.core.dialects import BY_NAME, DIALECTS
from timekeeper.core.dialects.others import claims as of_claims
from timekeeper.core.gangs import gang_of, waits_for_gang
from timekeeper.core.json_values import Json
from timekeeper.core.request.request import parse_new
from timekeeper.core.standings import WORDS
from timekeeper.core.values import GPURequest
from timekeeper.core.violation import Violation, shown

_DOMAIN = f"{names.DOMAIN}/"
OURS = (_DOMAIN, *names.BY_CONTAINER)
OWNED = tuple(dict.fromkeys(owned for dialect in DIALECTS for owned in dialect.owned))
OWNED_LABELS = tuple(
    dict.fromkeys(
        label for dialect in DIALECTS for label in (*dialect.labels_at_binding, dialect.node_label) if label
    )
)
STEM_ENDS = "-/_."  # a word that ends so stands for all names that begin with it


def _stems(words: Iterable[str]) -> tuple[str, ...]:
    """The words; those of one domain that has several as the domain alone, so that policies compare few."""
    them = tuple(dict.fromkeys(words))
    domains = [word.partition("/")[0] for word in them]
    short = (
        f"{domain}/" if domains.count(domain) > 1 else word
        for word, domain in zip(them, domains, strict=True)
    )
    return tuple(dict.fromkeys(short))


# the annotations and labels in which users write requests, for pods that Bursar places
MARKS = _stems(name for dialect in DIALECTS if not dialect.placed_by_others for name in dialect.annotations)
LABEL_MARKS = _stems(name for dialect in DIALECTS for name in dialect.labels)

RESOURCES = frozenset(name for dialect in DIALECTS for name in dialect.resources)
IN_LIMITS = "resources.limits of a container"

# what the schedulers of other systems write on the pods that they place
PLACED = tuple(name for dialect in DIALECTS for name in dialect.placement_annotations)
PLACED_LABELS = tuple(name for dialect in DIALECTS for name in dialect.placement_labels)

_OWNED = frozenset(each for each in (*OWNED, *PLACED) if each[-1] not in STEM_ENDS)
_OWNED_STEMS = tuple(each for each in (*OWNED, *PLACED) if each[-1] in STEM_ENDS)
_LABELS = frozenset(each for each in (*OWNED_LABELS, *PLACED_LABELS) if each[-1] not in STEM_ENDS)
_LABEL_STEMS = tuple(each for each in PLACED_LABELS if each[-1] in STEM_ENDS)

_OF_CLASS = ("priorityClassName", "priority", "preemptionPolicy")
_WRITTEN = (
    names.REQUEST,
    names.STANDING,
    names.HELD,
    names.GANG_KEY,
    names.GANG_STARTED,
    names.GANG_NEEDS,
    names.DECLARED,
    names.CLAIMS,
    names.ACCELERATORS,
    names.DEVICES,
    names.INVENTORY,
    names.HOLDERS,
    names.GOVERNED,
    names.EVICT_AFTER,
    names.DELETE_AFTER,
    names.IDLE_UNTIL,
    names.RECLAIMABLE,
)


def is_owned(annotation: str) -> bool:
    """Whether a dialect's node plugin, or another system, reads this annotation as written by a scheduler."""
    return annotation in _OWNED or annotation.startswith(_OWNED_STEMS)


def is_only_ours(annotation: str) -> bool:
    """Whether users must not write this annotation of a pod."""
    return annotation not in names.WRITABLE_ANNOTATIONS and (
        annotation.startswith(OURS) or is_owned(annotation)
    )


def is_written_label(label: str) -> bool:
    """Whether a scheduler writes this label on the pods that it places."""
    return label in _LABELS or bool(_LABEL_STEMS and label.startswith(_LABEL_STEMS))


def _is_mark(annotation: str) -> bool:
    """Whether only Bursar, schedulers and node plugins write this annotation. One that does not exist, or is
    misplaced, is its user's mistake."""
    return is_only_ours(annotation) and (annotation in _WRITTEN or not annotation.startswith(_DOMAIN))


def _is_label_mark(label: str) -> bool:
    is_misplaced = label in names.WRITABLE_ANNOTATIONS or label in RESOURCES
    return is_written_label(label) or (label.startswith(OURS) and not is_misplaced)


def is_export(pod: Json, policy: AdmissionPolicy) -> bool:
    """Whether this new pod was governed and bound once, as its marks say. A node that its user may name says
    nothing of that: this may be a second call."""
    annotations = annotations_of(pod)
    if labels_of(pod).get(names.GOVERNED) != "true":
        return False
    if names.DEVICES in annotations:
        return True
    has_node = names.REQUEST in annotations and bool(pod["spec"].get("nodeName"))
    return has_node and (policy.places or not may_name_its_node(parse_new(pod, "pass").request, policy))


def without_marks(pod: Json, policy: AdmissionPolicy) -> Json:
    """The pod as its user wrote it, as far as it is read for what is decided: without annotations, labels and
    gates of Bursar, schedulers and node plugins, and without the class and the node that these gave it. The
    same object where it has none. A forged mark wins nothing, for what it says goes too."""
    metadata, spec = pod["metadata"], pod["spec"]
    annotations, labels, gates = annotations_of(pod), labels_of(pod), sequence_of(spec.get("schedulingGates"))
    has_gate = any(gate["name"].startswith(OURS) for gate in gates)
    if not (has_gate or any(map(_is_mark, annotations)) or any(map(_is_label_mark, labels))):
        return pod  # all new pods but those of second calls, copies and exports
    gone = _given_fields(pod, policy)
    return {
        **pod,
        "metadata": {
            **metadata,
            "annotations": {name: value for name, value in annotations.items() if not _is_mark(name)},
            "labels": {name: value for name, value in labels.items() if not _is_label_mark(name)},
        },
        "spec": {
            **{field: value for field, value in spec.items() if field not in gone},
            "schedulingGates": [gate for gate in gates if not gate["name"].startswith(OURS)],
        },
    }


def _given_fields(pod: Json, policy: AdmissionPolicy) -> tuple[str, ...]:
    """The fields of the spec that a scheduler and Bursar gave it: the node, and the class of the recorded
    standing and hold. Another class is its user's, and so is any where they keep theirs."""
    spec, recorded = pod["spec"], annotations_of(pod).get(names.STANDING)
    node = ("nodeName",) if is_export(pod, policy) else ()
    if recorded not in WORDS or policy.keeps_classes:
        return node
    given = policy.class_of(class_status(recorded, marks.recorded_hold(pod)))
    return (*node, *_OF_CLASS) if spec.get("priorityClassName") == given.name else node


def as_written(pod: Json, policy: AdmissionPolicy) -> list[Operation]:
    """What makes of the pod the one `without_marks`, without the injected sidecar and its volumes too. Of an
    export all annotations of ours go, also those of former releases."""
    metadata, spec, plain, is_exported = (
        pod["metadata"],
        pod["spec"],
        without_marks(pod, policy),
        is_export(pod, policy),
    )
    kept: Json = {
        "/metadata/annotations": {
            name: value
            for name, value in annotations_of(plain).items()
            if not (is_exported and is_only_ours(name))
        },
        "/metadata/labels": labels_of(plain),
        "/spec/initContainers": [
            container
            for container in sequence_of(spec.get("initContainers"))
            if container["name"] != names.SIDECAR or not sidecar.is_ours(container)
        ],
        "/spec/volumes": [
            volume
            for volume in sequence_of(spec.get("volumes"))
            if volume["name"] not in sidecar.VOLUME_NAMES or not sidecar.is_our_volume(volume)
        ],
        "/spec/schedulingGates": sequence_of(plain["spec"].get("schedulingGates")),
    }
    operations = [remove(f"/spec/{field}") for field in _given_fields(pod, policy) if field in spec]
    for path, rest in kept.items():
        owner = metadata if path.startswith("/metadata/") else spec
        field = path.rpartition("/")[2]
        if field in owner and owner[field] != rest:
            operations.append(add(path, rest) if rest else remove(path))
    return operations


def forgery_violations(pod: Json, request: GPURequest | None) -> Iterator[Violation]:
    """Annotations, labels and gates that users must not write, and unknown annotations under our domain."""
    ours = [(name, value) for name, value in annotations_of(pod).items() if is_only_ours(name)]
    expected = marks.annotations(request, "UNKNOWN") if ours and request is not None else {}
    caps = BY_NAME[request.dialect].at_admission(request) if ours and request is not None else {}
    for name, value in ours:
        if request is not None and name == names.STANDING:
            genuine = value in WORDS  # governing overwrites it
        elif request is not None and name == names.HELD:
            genuine = value in ("budget", "turn")  # governing overwrites it, and the gate
        elif request is not None and name == names.GANG_KEY:
            gang = gang_of(pod)
            genuine = gang is not None and gang.key == value  # governing writes the same, or removes it
        elif request is not None and name == names.DECLARED:
            genuine = value.isdecimal()  # governing overwrites or removes it
        elif name == names.CLAIMS:
            # governing overwrites it, or writes the same
            genuine = name in caps or of_claims.record_of_none(pod, request).get(name) == value
        elif name in caps and name != names.ACCELERATORS:
            genuine = value.isascii() and value.isdecimal()  # users may write it; governing overwrites it
        else:
            genuine = expected.get(name) == value
        if not genuine:
            yield _annotation(name, value)
    for name, value in labels_of(pod).items():
        is_ours = name.startswith(OURS) and (request is None or marks.LABELS.get(name) != value)
        if is_ours or is_written_label(name):
            yield _only_bursar_writes("forged-label", f"metadata.labels[{name}]", value)
    for index, gate in enumerate(sequence_of(pod["spec"].get("schedulingGates"))):
        if gate["name"].startswith(OURS) and gate["name"] not in _gates_of(pod, request):
            yield _only_bursar_writes("forged-gate", f"spec.schedulingGates[{index}]", gate["name"])


def _gates_of(pod: Json, request: GPURequest | None) -> Sequence[str]:
    """Those that governing writes."""
    if request is None:
        return (names.GANG_GATE,) if waits_for_gang(pod) else ()
    return names.GATES if marks.recorded_hold(pod) else ()


def forged_in(
    pod: Json, plain: Json, request: GPURequest | None, violations: Sequence[Violation]
) -> list[Violation]:
    """What /mutate removes of a pod that is ``plain`` without marks, and that breaks these rules then: marks
    that governing would not write, and a sidecar of another image."""
    marked = () if plain is pod else forgery_violations(pod, request)
    of_sidecar = [each for each in violations if each.rule == "sidecar-name" and each.path.endswith(".image")]
    return [*(violation for violation in marked if violation not in violations), *of_sidecar]


def reserved_name_violations(pod: Json, policy: AdmissionPolicy) -> Iterator[Violation]:
    """Containers and volumes that have a name of Bursar's own and are not what Bursar injects."""
    spec = pod["spec"]
    seen = 0
    for field in CONTAINER_LISTS:
        for index, container in enumerate(sequence_of(spec.get(field))):
            if container["name"] != names.SIDECAR:
                continue
            seen += 1
            if seen > 1 or field != "initContainers" or not sidecar.is_ours(container):
                yield _reserved("sidecar-name", f"spec.{field}[{index}].name", names.SIDECAR, "container")
            elif not policy.sidecar_images.allow(container.get("image")):
                yield _foreign_image(f"spec.{field}[{index}].image", container.get("image"), policy)
    for index, volume in enumerate(sequence_of(spec.get("volumes"))):
        if volume["name"] in sidecar.VOLUME_NAMES and not sidecar.is_our_volume(volume):
            yield _reserved("sidecar-volume", f"spec.volumes[{index}].name", volume["name"], "volume")


def without_sidecar_if_name_taken(
    violations: Iterable[Violation], policy: AdmissionPolicy
) -> AdmissionPolicy:
    """The policy to govern a pod with that is admitted although it uses a name of the sidecar's: it injects
    no sidecar, because the API server refuses a second container of its name."""
    taken = any(violation.rule in ("sidecar-name", "sidecar-volume") for violation in violations)
    return replace(policy, sidecar=None) if taken else policy


def _annotation(name: str, value: str) -> Violation:
    path = f"metadata.annotations[{name}]"
    if name in _WRITTEN or name in RESOURCES or not name.startswith(_DOMAIN):
        return _only_bursar_writes("forged-annotation", path, value)
    (nearest,) = difflib.get_close_matches(name, names.WRITABLE_ANNOTATIONS, 1, cutoff=0.0)
    return Violation(
        "unknown-annotation",
        path,
        shown(value),
        "this annotation does not exist",
        ", ".join(names.WRITABLE_ANNOTATIONS),
        nearest,
    )


def _only_bursar_writes(rule: str, path: str, value: str) -> Violation:
    theirs = path.partition("[")[2].removesuffix("]")
    is_label = rule == "forged-label" and theirs in names.WRITABLE_ANNOTATIONS
    if is_label or theirs in RESOURCES:
        place = "metadata.annotations" if is_label else IN_LIMITS
        return Violation(rule, path, shown(value), "nothing reads it here", place, f"{theirs} there")
    by_others = theirs in (*PLACED, *PLACED_LABELS) or theirs.startswith(_LABEL_STEMS)
    writers = "the system that places the pod writes" if by_others else "Bursar and node plugins write"
    return Violation(rule, path, shown(value), f"only {writers} this", "the pod without it", "removing it")


def _foreign_image(path: str, image: object, policy: AdmissionPolicy) -> Violation:
    images = policy.sidecar_images
    return Violation(
        "sidecar-name",
        path,
        shown(str(image or "")),
        "a container of this name runs the image of Bursar's sidecar",
        ", ".join((images.image, *(f"images that begin with {each}" for each in images.mirrors))),
        "the pod without this container: Bursar adds it",
    )


def _reserved(rule: str, path: str, name: str, kind: str) -> Violation:
    return Violation(
        rule,
        path,
        shown(name),
        f"this name is reserved for the {kind} that Bursar adds",
        "another name",
        f"name: my-{kind}",
    )
