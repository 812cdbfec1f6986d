"""How large a GPU pod may be when it is created: it must stay below what etcd takes with all that is written
to it later. And how many parts any pod may have that is searched.

etcd takes 1.5 MiB. A new pod has at most `MAX_BYTES`; updates may let it grow to 1152 KiB
(`deploy/manifests/admission-updates.yaml`); the Binding adds at most `MAX_BINDING_BYTES`; the rest is for
the status.
"""

from collections.abc import Iterator
from itertools import chain

import orjson

from timekeeper.core.admission.marks import VISIBLE_DEVICES
from timekeeper.core.admission.pods import CONTAINER_LISTS, annotations_of, sequence_of
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.values import GPURequest
from timekeeper.core.violation import Violation, shown

# Of a pod: annotations, labels, volumes, gates, containers of each kind; and variables, mounts, limits and
# requests of all containers together; letters in names of annotations, labels, gates and resources and in
# host paths, with ten more for each name and thirty for each path, for the cost of a search grows so; and
# letters in mount paths. Beyond these neither the API server's policies nor the webhook search a pod.
MAX_ENTRIES = 1000
MAX_MEMBERS = 20_000
MAX_LETTERS = 20_000
MAX_MOUNT_LETTERS = 200_000
# the sentence of the policy `bursar-sizes`, which ends with the rule
TOO_MANY_PARTS = Violation(
    "pod-parts",
    "",
    "",
    "metadata, spec: this pod has too many parts, or too long names, to be searched for GPU requests; "
    f"allowed: at most {MAX_ENTRIES} annotations, labels, volumes, scheduling gates and containers of a "
    f"kind, {MAX_MEMBERS} variables, mounts, limits and requests, {MAX_LETTERS} letters in names of "
    "annotations, labels, gates and resources, ten more for each, and in host paths, thirty more for each, "
    f"and {MAX_MOUNT_LETTERS} in mount paths; for example a ConfigMap for many values [pod-parts]",
    "",
    "",
)

MAX_BYTES = 1024 * 1024
# The API server refuses every update of a pod with more than 256 KiB of annotations, a status too, but it
# does not count those that a Binding adds.
MAX_ANNOTATION_BYTES = 192 * 1024
MAX_BINDING_BYTES = 64 * 1024

_MAX_ADDED = 1024  # to a container: four variables, three with its name
_KEYS = "atchLabelKeys"  # matchLabelKeys and mismatchLabelKeys, of spread constraints and affinities
_MAX_OF_A_KEY = 128  # an expression with the label's value, of 63 characters at most, beside the key
# What a Binding writes: names of annotations and of the node; for each container, beside its name up to eight
# times; and for each of its cards: the UUID five times, index, share, memory and limit.
_BINDING_ALONE = 1_520
_BINDING_OF_A_CONTAINER = 245
_BINDING_OF_A_CARD = 325


def is_crowded(pod: object) -> bool:
    """Whether any pod or pod template has `TOO_MANY_PARTS`. It need not be checked: what has another type
    than the API gives it counts as none."""
    metadata, spec = mapping(mapping(pod).get("metadata")), mapping(mapping(pod).get("spec"))
    annotations, labels = mapping(metadata.get("annotations")), mapping(metadata.get("labels"))
    lists = {name: sequence(spec.get(name)) for name in (*CONTAINER_LISTS, "volumes", "schedulingGates")}
    if max(map(len, (annotations, labels, *lists.values()))) > MAX_ENTRIES:
        return True
    containers = [mapping(container) for name in CONTAINER_LISTS for container in lists[name]]
    resources = [mapping(container.get("resources")) for container in containers]
    amounts = [mapping(own.get(name)) for own in resources for name in ("limits", "requests")]
    mounts = [sequence(container.get("volumeMounts")) for container in containers]
    variables = [sequence(container.get("env")) for container in containers]
    if sum(map(len, (*amounts, *mounts, *variables))) > MAX_MEMBERS:
        return True
    gates = [mapping(gate).get("name") for gate in lists["schedulingGates"]]
    names = chain(annotations, labels, gates, *amounts)
    paths = [mapping(each)["hostPath"] for each in lists["volumes"] if mapping(each).get("hostPath")]
    letters = sum(10 + len(str(name)) for name in names)
    letters += sum(30 + len(str(mapping(path).get("path", ""))) for path in paths)
    to = (len(str(mapping(mount).get("mountPath", ""))) for mount in chain(*mounts))
    return letters > MAX_LETTERS or sum(to) > MAX_MOUNT_LETTERS


def size_violations(pod: Json, request: GPURequest | None, *, is_bound: bool) -> Iterator[Violation]:
    """For a pod with a GPU request: whether it is too large, or its annotations or those of its Binding are.
    ``request`` is None where the request is not valid. ``is_bound``: Bursar binds it."""
    if is_bound and request is not None and binding_bytes(request) > MAX_BINDING_BYTES:
        yield _too_large(
            "spec.containers",
            "the Binding of these containers and cards would be too long for the API server",
            binding_bytes(request),
            MAX_BINDING_BYTES,
            "fewer containers with cards, or fewer cards in each",
        )
    if is_surely_small(pod):
        return
    annotations = sum(_length(name) + _length(value) for name, value in annotations_of(pod).items())
    if is_bound and annotations > MAX_ANNOTATION_BYTES:
        yield _too_large(
            "metadata.annotations",
            "with those of a Binding the API server would refuse every update of the pod, and its status",
            annotations,
            MAX_ANNOTATION_BYTES,
            "moving long values into a ConfigMap",
        )
    size = weight(pod) + escapes(pod) + growth(pod)
    if size > MAX_BYTES:
        yield _too_large(
            "spec",
            "so large a pod can be created, but then be neither bound nor deleted, and its status cannot "
            "be written",
            size,
            MAX_BYTES,
            "moving long values into a ConfigMap or a volume",
        )


def binding_bytes(request: GPURequest) -> int:
    """The most bytes of annotations that the extender's Binding writes for the request."""
    return _BINDING_ALONE + sum(
        _BINDING_OF_A_CONTAINER + 8 * len(each.container) + _BINDING_OF_A_CARD * each.ask.devices
        for each in request.asks
    )


def escapes(pod: Json) -> int:
    """By how much `metadata.managedFields` takes more than it weighs: etcd has it as JSON text, in which a
    quote takes two bytes and a control character six."""
    fields = mapping(pod.get("metadata")).get("managedFields")
    if not fields:
        return 0
    try:
        return max(0, len(orjson.dumps(fields)) - weight(fields))
    except orjson.JSONEncodeError:  # nested too deeply for the library
        return 5 * weight(fields)


def is_surely_small(pod: Json) -> bool:
    """True where the length of the pod's JSON proves that all its sizes are allowed. It takes a tenth of the
    time of `weight`: no value weighs more than twice its JSON text."""
    try:
        text = orjson.dumps(pod)
    except orjson.JSONEncodeError:  # nested too deeply for the library, or parsed from YAML
        return False
    containers = sum(len(sequence_of(pod["spec"].get(field))) for field in CONTAINER_LISTS)
    return (
        len(text) <= MAX_ANNOTATION_BYTES
        and 2 * len(text) + containers * _MAX_ADDED <= MAX_BYTES
        and _KEYS.encode() not in text
    )


def growth(pod: Json) -> int:
    """The most by which the weight grows after this call: governing adds variables to containers, and the API
    server expands label keys (matchLabelKeys) after the mutating webhooks."""
    spec = pod["spec"]
    every = [each for field in CONTAINER_LISTS for each in sequence_of(spec.get(field))]
    has_variable = [
        VISIBLE_DEVICES in [each["name"] for each in sequence_of(one.get("env"))] for one in every
    ]
    keys, left = 0, [spec]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            for name, value in each.items():
                if name.endswith(_KEYS) and isinstance(value, list):
                    keys += sum(len(str(key)) + _MAX_OF_A_KEY for key in value)
            left += each.values()
        elif isinstance(each, list):
            left += each
    return has_variable.count(False) * _MAX_ADDED + keys


def weight(value: object) -> int:
    """About the bytes that the value takes in etcd: names and texts, and 3 bytes for each value."""
    total, left = 0, [value]
    while left:  # no recursion: users choose the depth of nesting
        each = left.pop()
        total += 3
        if isinstance(each, str):
            total += len(each) if each.isascii() else len(each.encode(errors="surrogatepass"))
        elif isinstance(each, dict):
            total += sum(map(len, each))
            left += each.values()
        elif isinstance(each, list):
            left += each
    return total


def _length(text: object) -> int:
    return len(str(text).encode(errors="surrogatepass"))


def _too_large(path: str, problem: str, size: int, most: int, example: str) -> Violation:
    got, allowed = shown(f"{-(-size // 1024)} KiB"), f"at most {most // 1024} KiB in total"
    return Violation("pod-size", path, got, problem, allowed, example)
