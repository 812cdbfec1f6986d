"""What only Bursar and the nodes' plugins may write, and names that are kept for what Bursar injects."""

import difflib
from collections.abc import Iterator

from timekeeper.core import names
from timekeeper.core.dialects import DIALECTS
from timekeeper.core.request.request import Json, annotations_of, mapping
from timekeeper.core.values import GPURequest
from timekeeper.core.violation import Violation, shown
from webhook.mutation import govern
from webhook.mutation import sidecar as injected
from webhook.policy import WORDS
from webhook.wire.pod_review import CONTAINER_LISTS, sequence_of

OURS = (f"{names.DOMAIN}/", *names.BY_CONTAINER)
OWNED = tuple(owned for dialect in DIALECTS for owned in dialect.owned)
_OWNED = frozenset(each for each in OWNED if each[-1] not in "-/")
_OWNED_STEMS = tuple(each for each in OWNED if each[-1] in "-/")

_WRITTEN = (names.REQUEST, names.STANDING, names.DEVICES, names.INVENTORY, names.HOLDERS, names.GOVERNED)


def is_owned(annotation: str) -> bool:
    """True for an annotation that a dialect's node plugin reads as the scheduler's word."""
    return annotation in _OWNED or annotation.startswith(_OWNED_STEMS)


def forged(pod: Json, request: GPURequest | None) -> Iterator[Violation]:
    """Annotations, labels and gates that are not the user's to write, and unknown ones under our domain."""
    ours = [
        (name, value)
        for name, value in annotations_of(pod).items()
        if name not in names.USER_ANNOTATIONS and (name.startswith(OURS) or is_owned(name))
    ]
    expected = govern.annotations(request, "UNKNOWN") if ours and request is not None else {}
    for name, value in ours:
        if request is not None and name == names.STANDING:
            genuine = value in WORDS  # govern writes it anew, whichever it is
        else:
            genuine = expected.get(name) == value
        if not genuine:
            yield _annotation(name, value)
    for name, value in mapping(mapping(pod.get("metadata")).get("labels")).items():
        if name.startswith(OURS) and (request is None or govern.LABELS.get(name) != value):
            yield _only_bursar_writes("forged-label", f"metadata.labels[{name}]", value)
    for index, gate in enumerate(sequence_of(pod["spec"].get("schedulingGates"))):
        if gate["name"].startswith(OURS):
            yield _only_bursar_writes("forged-gate", f"spec.schedulingGates[{index}]", gate["name"])


def named_as_ours(pod: Json) -> Iterator[Violation]:
    """Containers and volumes of the names that Bursar's own have, which are others."""
    spec = pod["spec"]
    seen = 0
    for field in CONTAINER_LISTS:
        for index, container in enumerate(sequence_of(spec.get(field))):
            if container["name"] != names.SIDECAR:
                continue
            seen += 1
            if seen > 1 or not injected.is_ours(container, native=field == "initContainers"):
                yield _reserved("sidecar-name", f"spec.{field}[{index}].name", names.SIDECAR, "container")
    for index, volume in enumerate(sequence_of(spec.get("volumes"))):
        if volume["name"] in injected.VOLUME_NAMES and not injected.is_our_volume(volume):
            yield _reserved("sidecar-volume", f"spec.volumes[{index}].name", volume["name"], "volume")


def _annotation(name: str, value: str) -> Violation:
    path = f"metadata.annotations[{name}]"
    if name in _WRITTEN or not name.startswith(f"{names.DOMAIN}/"):
        return _only_bursar_writes("forged-annotation", path, value)
    (nearest,) = difflib.get_close_matches(name, names.USER_ANNOTATIONS, 1, cutoff=0.0)
    return Violation(
        "unknown-annotation",
        path,
        shown(value),
        "Bursar knows no such annotation",
        ", ".join(names.USER_ANNOTATIONS),
        nearest,
    )


def _only_bursar_writes(rule: str, path: str, value: str) -> Violation:
    problem = "only Bursar and the nodes' plugins write this"
    return Violation(rule, path, shown(value), problem, "the pod without it", "removing it")


def _reserved(rule: str, path: str, name: str, kind: str) -> Violation:
    return Violation(
        rule,
        path,
        shown(name),
        f"this name is kept for the {kind} that Bursar adds",
        "another name",
        f"name: my-{kind}",
    )
