"""Where a GPU pod may run and how long it stays: node, scheduler, priority, grace period, constraints,
size."""

import re
from collections.abc import Iterator

import orjson

from timekeeper.core import names
from timekeeper.core.dialects import tencent
from timekeeper.core.json_values import Json, annotations_of, mapping
from timekeeper.core.request.constraints import excess, listed
from timekeeper.core.violation import Violation, shown
from webhook.mutation.govern import is_above_budget_class
from webhook.mutation.visible_devices import VISIBLE_DEVICES
from webhook.policy import AdmissionPolicy
from webhook.wire.pod_review import CONTAINER_LISTS, sequence_of

DEFAULT_SCHEDULERS = ("", "default-scheduler")
LEGACY_SIDECAR = "gpu-sidecar"

_MOST_ADDED = 1024  # to a container: five variables, three with its name
_KEYS = "atchLabelKeys"  # matchLabelKeys and mismatchLabelKeys, of spread constraints and affinities
_MOST_OF_A_KEY = 128  # an expression with the label's value, of 63 characters at most, beside the key
MOST_BYTES = 1024 * 1024  # etcd takes 1.5 MiB, and status, binding and what kubelet writes come on top

_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+/()-]{0,62}", re.ASCII)
_UUID = re.compile(r"(GPU|MIG)-[A-Za-z0-9][A-Za-z0-9/-]{0,100}", re.ASCII)
_LISTS = (
    (names.MODELS, _MODEL, "a model's name from the inventory, or words of it", "H100,A100"),
    (names.EXCLUDE_MODELS, _MODEL, "a model's name from the inventory, or words of it", "T4"),
    (names.UUIDS, _UUID, "UUIDs of cards", "GPU-5a3c0e8f-0000-0000-0000-000000000000"),
)
_LISTED = frozenset(name for name, *_ in _LISTS)


def placement_violations(pod: Json, policy: AdmissionPolicy) -> Iterator[Violation]:
    """For a pod with a GPU request: what would prevent its placement, or its end in time."""
    spec = pod["spec"]
    yield from _by_hand(spec)
    annotations = annotations_of(pod)
    if not _LISTED.isdisjoint(annotations):
        yield from _constraints(annotations)
    yield from _init_containers(spec)
    yield from _scheduler(spec, policy)
    yield from _priority_class(spec, policy)
    yield from _grace_period(spec, policy)
    yield from _legacy_sidecar(spec)
    yield from _size(pod)


def _by_hand(spec: Json) -> Iterator[Violation]:
    node = spec.get("nodeName")
    if node:
        yield Violation(
            "node-name",
            "spec.nodeName",
            shown(node),
            "a GPU pod that names its node bypasses the scheduler that assigns cards",
            "spec.nodeSelector or affinity",
            "spec.nodeSelector: {kubernetes.io/hostname: node-a}",
        )


def _constraints(annotations: Json) -> Iterator[Violation]:
    if any(excess(annotations, name) for name in _LISTED):
        return  # the request itself is refused
    for name, pattern, allowed, example in _LISTS:
        for each in listed(annotations, name):
            if not pattern.fullmatch(each):
                problem = "no inventory can contain this name"
                path = f"metadata.annotations[{name}]"
                yield Violation("malformed-name", path, shown(each), problem, allowed, f"{name}: {example}")
    models = listed(annotations, names.MODELS)
    excluded = {each.casefold() for each in listed(annotations, names.EXCLUDE_MODELS)}
    if models and all(each.casefold() in excluded for each in models):
        yield Violation(
            "contradicting-constraint",
            f"metadata.annotations[{names.EXCLUDE_MODELS}]",
            shown(annotations[names.EXCLUDE_MODELS]),
            f"it excludes every model that {names.MODELS} allows",
            "one of the two annotations, or a model that only the first one names",
            f"removing {names.EXCLUDE_MODELS}",
        )


def _init_containers(spec: Json) -> Iterator[Violation]:
    """Native sidecars too: gpu-manager counts only the pod's ordinary containers."""
    for index, container in enumerate(sequence_of(spec.get("initContainers"))):
        limits = mapping(mapping(container.get("resources")).get("limits"))
        for resource in tencent.DIALECT.resources:
            if resource in limits:
                yield Violation(
                    "init-container",
                    f"spec.initContainers[{index}].resources.limits[{resource}]",
                    shown(limits[resource]),
                    "gpu-manager gives cards to ordinary containers only",
                    "the limit in spec.containers, or a dialect that supports init containers",
                    f'{names.GPU_PERCENT}: "50"',
                )


def _scheduler(spec: Json, policy: AdmissionPolicy) -> Iterator[Violation]:
    scheduler = spec.get("schedulerName") or ""
    if scheduler not in (*DEFAULT_SCHEDULERS, policy.scheduler_name):
        yield Violation(
            "foreign-scheduler",
            "spec.schedulerName",
            shown(scheduler),
            f"only {policy.scheduler_name} assigns cards",
            f"{policy.scheduler_name}, or no schedulerName",
            f"schedulerName: {policy.scheduler_name}",
        )


def _priority_class(spec: Json, policy: AdmissionPolicy) -> Iterator[Violation]:
    if is_above_budget_class(spec, policy):
        most = policy.in_budget
        yield Violation(
            "priority-class",
            "spec.priorityClassName",
            f"{shown(spec['priorityClassName'])} of value {spec['priority']}",
            "its value is above the class of pods in budget",
            f"{most.name}, a class with a value of at most {most.value}, or none",
            f"priorityClassName: {most.name}",
        )


def _grace_period(spec: Json, policy: AdmissionPolicy) -> Iterator[Violation]:
    seconds = spec.get("terminationGracePeriodSeconds")
    if seconds is not None and seconds > policy.max_grace_s:
        yield Violation(
            "grace-period",
            "spec.terminationGracePeriodSeconds",
            shown(str(seconds)),
            "a GPU pod holds its cards during its grace period, and this one is too long",
            f"at most {policy.max_grace_s} seconds",
            "terminationGracePeriodSeconds: 30",
        )


def _legacy_sidecar(spec: Json) -> Iterator[Violation]:
    for index, container in enumerate(sequence_of(spec.get("containers"))):
        if container["name"] == LEGACY_SIDECAR:
            yield Violation(
                "legacy-sidecar",
                f"spec.containers[{index}]",
                shown(LEGACY_SIDECAR),
                "this container of kubernetes-gpusharing reports to a Service that no longer exists",
                "the pod without it: Bursar injects its own sidecar",
                "removing the container",
            )


def _size(pod: Json) -> Iterator[Violation]:
    if is_surely_small(pod):
        return
    size = weight(pod) + growth(pod)
    if size > MOST_BYTES:
        yield Violation(
            "pod-size",
            "spec",
            shown(f"{-(-size // 1024)} KiB"),
            "so large a pod can be created, but then be neither bound nor deleted, and its status cannot "
            "be written",
            f"at most {MOST_BYTES // 1024} KiB in total",
            "moving long values into a ConfigMap or a volume",
        )


def is_surely_small(pod: Json) -> bool:
    """True where the length of the pod's JSON proves that its weight with its growth is allowed. It takes a
    tenth of the time of `weight`: no value weighs more than twice its JSON text."""
    try:
        text = orjson.dumps(pod)
    except orjson.JSONEncodeError:  # nested too deeply for the library, or parsed from YAML
        return False
    containers = sum(len(sequence_of(pod["spec"].get(field))) for field in CONTAINER_LISTS)
    return 2 * len(text) + containers * _MOST_ADDED <= MOST_BYTES and _KEYS.encode() not in text


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
                    keys += sum(len(str(key)) + _MOST_OF_A_KEY for key in value)
            left += each.values()
        elif isinstance(each, list):
            left += each
    return has_variable.count(False) * _MOST_ADDED + keys


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
