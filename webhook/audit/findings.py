"""Judges stored objects by today's rules: objects in, findings out. Accelerators that no dialect reads are
findings: which pods hold them, which nodes advertise them, and what `unknownAccelerators` does with them; and
so are resources of which nothing says whether they are accelerators."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from timekeeper.core import names
from timekeeper.core.accelerators import UnknownAccelerators, accelerators_in
from timekeeper.core.admission.marks import VISIBLE_DEVICES
from timekeeper.core.admission.mutation import sidecar
from timekeeper.core.admission.pods import CONTAINER_LISTS, MalformedError, sequence_of
from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.admission.rules import without_effect
from timekeeper.core.admission.rules.bypass import bypass_violations, suspect_violations
from timekeeper.core.admission.rules.forged import (
    OURS,
    forged_in,
    forgery_violations,
    is_owned,
    without_marks,
)
from timekeeper.core.admission.rules.isolation import ephemeral_violations
from timekeeper.core.admission.rules.modes import effective_mode
from timekeeper.core.admission.rules.pod_rules import pod_violations
from timekeeper.core.dialects import DIALECTS, native
from timekeeper.core.dialects.others.device import recorded
from timekeeper.core.json_values import Json, annotations_of, mapping
from timekeeper.core.names import Mode
from timekeeper.core.object_names import MIRROR, TERMINAL, controller_reference
from timekeeper.core.request import runtime_plugins
from timekeeper.core.request.cards import decode_placement
from timekeeper.core.request.device_classes import NO_CLASSES, ClassParameters
from timekeeper.core.request.devices import described, device_containers, unclassified
from timekeeper.core.request.inventory import advertised
from timekeeper.core.request.metered import charged_request
from timekeeper.core.request.request import canonical, containers, parse
from timekeeper.core.values import GPURequest, UndecodableError
from timekeeper.core.violation import Violation, shown
from webhook.admission import workloads
from webhook.admission.workloads import TemplatePath
from webhook.dryrun.judge.objects import kind_of

RULE = "unknown-accelerators"  # of findings alone: no rule of admission
UNCLASSIFIED = "unclassified-resource"  # the same

_OF_PODS: Mapping[UnknownAccelerators, tuple[str, str]] = {
    "refuse": (
        "the pod is not charged, and a new one is refused",
        "another resource; or unknownAccelerators: meter, which charges new pods",
    ),
    "meter": (
        "the pod is from before unknownAccelerators: meter, and is not charged",
        "the pod created again, which charges it",
    ),
    "pass": (
        "the pod is not charged",
        "nothing, if it is meant; or unknownAccelerators: meter, which charges new pods",
    ),
}
_METERED = ("the pod is charged for each as a whole device", "weights in _settings, for another rate")
_OF_NODES: Mapping[UnknownAccelerators, tuple[str, str]] = {
    "refuse": ("pods that request it are refused", "unknownAccelerators: meter, which charges them, or pass"),
    "meter": ("pods that request it are charged for whole devices", _METERED[1]),
    "pass": (
        "pods that request it are admitted and not charged",
        "nothing, if it is meant; or unknownAccelerators: meter, which charges them",
    ),
}


@dataclass(frozen=True, slots=True)
class Metering:
    """How the ledger reads the pods of a namespace. ``models``: of devices that the settings name."""

    mode: Mode
    models: Mapping[str, str] = field(default_factory=dict)


ENFORCED = Metering("enforce")

Word = Literal["would-be-refused", "would-be-warned", "ungoverned", "accelerators", "unclassified"]


def held_accelerators(pod: Json, policy: AdmissionPolicy, charged: GPURequest | None) -> Iterator[Violation]:
    """One for each resource by which a container of the pod requests such accelerators. ``charged``: what the
    pod is charged for."""
    named = {*policy.accelerators, *recorded(annotations_of(pod))}
    asking = device_containers(containers(pod), named)
    if not asking:
        return
    setting = policy.unknown_accelerators
    metered = charged is not None and any(ask.ask.device for ask in charged.asks)
    problem, instead = _METERED if metered else _OF_PODS[setting]
    for each in asking:
        for name in each.resources:
            path = f"{each.container.path}.resources.limits[{name}]"
            yield _found(path, each.container.limits.get(name), name, problem, instead, setting)


def advertised_accelerators(there: Json, policy: AdmissionPolicy) -> Iterator[Violation]:
    """One for each such resource of those that a node has."""
    setting = policy.unknown_accelerators
    for name in accelerators_in(there, policy.accelerators):
        problem, instead = _OF_NODES[setting]
        yield _found(f"status.capacity[{name}]", there[name], name, problem, instead, setting)


def _found(
    path: str, amount: object, name: str, problem: str, instead: str, setting: UnknownAccelerators
) -> Violation:
    sentence = f"no dialect reads {described(name)}; {problem}"
    return Violation(RULE, path, shown(amount or ""), sentence, instead, f"unknownAccelerators: {setting}")


def _unclassified(path: str, amounts: Json, policy: AdmissionPolicy) -> Iterator[Violation]:
    """One for each of the resources of which nothing says whether it is an accelerator's."""
    for name in unclassified(amounts, policy.devices):
        problem = f"nothing says whether {name} is an accelerator; its pods pass, and are not charged"
        allowed = "its model in devices of _settings if it is one, else none"
        example = f"devices: {{{name}: none}}"
        yield Violation(UNCLASSIFIED, f"{path}[{name}]", shown(amounts[name]), problem, allowed, example)


@dataclass(frozen=True, slots=True)
class AdmissionFinding:
    """One finding on one object. ``owner``: the controller that created a pod, as ``Kind/name``; ``node``:
    the node of a pod; ``is_charged``: whether the ledger charges an ungoverned one."""

    namespace: str
    kind: str
    name: str
    finding: Word
    violations: tuple[Violation, ...] = ()
    owner: str = ""
    node: str = ""
    is_charged: bool = False


def of_pod(
    pod: Json,
    policy: AdmissionPolicy,
    classes: ClassParameters = NO_CLASSES,
    metering: Metering = ENFORCED,
) -> tuple[AdmissionFinding, ...]:
    """The findings on a stored pod that has not ended: whether creating it today would be refused, by webhook
    or policies, or cause a warning, whether it uses GPUs without being governed or, where it is metered, is
    not charged, and whether it holds accelerators that no dialect reads. ``classes``: the cluster's device
    classes; ``metering``: of its namespace."""
    if mapping(pod.get("status")).get("phase") in TERMINAL:
        return ()
    written = as_written(pod)
    metadata = mapping(pod.get("metadata"))
    place = str(metadata.get("namespace", "")), "Pod", str(metadata.get("name", ""))
    is_mirror = MIRROR in annotations_of(pod)  # which its kubelet made; policies and webhook pass it
    plain = written if is_mirror else without_marks(written, policy)
    parsed = policy.parsed(plain, place[0])
    own = tuple(forgery_violations(plain, None)) if is_mirror else pod_violations(plain, parsed, policy)
    removed = forged_in(written, plain, parsed.request, own)
    violations = (*(each for each in own if each not in removed), *ephemeral_violations(pod, {}))
    past = () if is_mirror else bypass_violations(written, parsed, classes)
    owner, node = _owner(pod), str(mapping(pod.get("spec")).get("nodeName") or "")
    found = [
        AdmissionFinding(*place, word, broken, owner, node) for word, broken in sorted_out(violations, policy)
    ]
    if past:  # in every mode, because policies have no modes
        found.append(AdmissionFinding(*place, "would-be-refused", past, owner, node))
    if removed:
        found.append(AdmissionFinding(*place, "would-be-warned", tuple(removed), owner, node))
    if suspect := suspect_violations(written, parsed):
        found.append(AdmissionFinding(*place, "would-be-warned", suspect, owner, node))
    charged = charged_request(pod, metering.mode, metering.models) if node else None
    is_as_it_should = is_governed(pod) if metering.mode == "enforce" else charged is not None
    if node and asks_for_gpus(pod) and not is_as_it_should:
        found.append(AdmissionFinding(*place, "ungoverned", (), owner, node, charged is not None))
    if node and (held := tuple(held_accelerators(pod, policy, charged))):
        found.append(AdmissionFinding(*place, "accelerators", held, owner, node))
    if node and (unknown := tuple(_of_containers(pod, policy, classes))):
        found.append(AdmissionFinding(*place, "unclassified", unknown, owner, node))
    return tuple(found)


def _of_containers(pod: Json, policy: AdmissionPolicy, classes: ClassParameters) -> Iterator[Violation]:
    for container in containers(pod):
        amounts = {name: text for name, text in container.limits.items() if name not in classes.refused}
        yield from _unclassified(f"{container.path}.resources.limits", amounts, policy)


def of_node(node: Json, policy: AdmissionPolicy) -> tuple[AdmissionFinding, ...]:
    """The findings on a node that advertises accelerators that no dialect reads, or resources of which
    nothing says whether they are accelerators; on any other none."""
    name = str(mapping(node.get("metadata")).get("name", ""))
    capacity = mapping(mapping(node.get("status")).get("capacity"))
    there = {resource: capacity[resource] for resource in advertised(node)}
    found: dict[Word, tuple[Violation, ...]] = {
        "accelerators": tuple(advertised_accelerators(there, policy)),
        "unclassified": tuple(_unclassified("status.capacity", there, policy)),
    }
    return tuple(AdmissionFinding("", "Node", name, word, broken) for word, broken in found.items() if broken)


def of_workload(
    workload: Json,
    kind: str,
    paths: Sequence[TemplatePath],
    policy: AdmissionPolicy,
    classes: ClassParameters = NO_CLASSES,
    judged: Collection[tuple[str, str]] = (),
) -> tuple[AdmissionFinding, ...]:
    """The findings on the pod templates of a stored workload that has not ended: whether webhook or policies
    would refuse its next pods, also where it has none now. ``judged``: groups and kinds whose objects have
    findings of their own; one of these that created the workload has them."""
    if kind_of(_controller(workload)) in judged or _has_ended(workload):
        return ()
    metadata = mapping(workload.get("metadata"))
    namespace = str(metadata.get("namespace", ""))
    templates = workloads.found(workload, paths)
    violations = list(without_effect.of_workload(workload, kind, templates))
    past: list[Violation] = []
    suspect: list[Violation] = []
    for at, template in templates:
        try:
            pod, parsed = workloads.read_template(template, at, policy, namespace)
        except MalformedError:
            continue  # of a custom kind and not a pod template; admission admits it too
        violations += workloads.template_violations(pod, parsed, at, policy)
        pod = {**pod, "metadata": {**pod["metadata"], "namespace": namespace}}
        past += workloads.inside(bypass_violations(pod, parsed, classes), at)
        suspect += workloads.inside(suspect_violations(pod, parsed), at)
    place = namespace, kind, str(metadata.get("name", ""))
    group = str(workload.get("apiVersion", "")).rpartition("/")[0]
    exempt = workloads.makers_are_exempt(group, kind, policy)
    found = sorted_out(violations, policy, exempt)
    if past := [violation for violation in past if violation not in violations]:
        found.append(("would-be-refused", tuple(past)))
    if suspect:
        found.append(("would-be-warned", tuple(suspect)))
    return tuple(AdmissionFinding(*place, word, broken) for word, broken in found)


def sorted_out(
    violations: Iterable[Violation], policy: AdmissionPolicy, exempt: bool = False
) -> list[tuple[Word, tuple[Violation, ...]]]:
    """The violations that would refuse, also in observe mode, and those that would only warn."""
    how: dict[str, list[Violation]] = {"would-be-refused": [], "would-be-warned": []}
    for violation in violations:
        mode = effective_mode(violation.rule, policy, exempt)
        if mode in ("enforce", "observe"):
            how["would-be-refused"].append(violation)
        elif mode != "off":
            how["would-be-warned"].append(violation)
    words: tuple[Word, ...] = ("would-be-refused", "would-be-warned")
    return [(word, tuple(how[word])) for word in words if how[word]]


def asks_for_gpus(pod: Json) -> bool:
    """Whether the pod requests a GPU in any dialect, supported or not, or an accelerator of none."""
    parsed = parse(pod)
    is_of_none = parsed.request is None and not parsed.violations
    return not is_of_none or bool(device_containers(containers(pod), recorded(annotations_of(pod))))


def is_governed(pod: Json) -> bool:
    """Whether the pod has what admission writes; policies in the API server forbid all others to write it."""
    request = parse(pod).request
    label = mapping(mapping(pod.get("metadata")).get("labels")).get(names.GOVERNED)
    return (
        request is not None
        and label == "true"
        and annotations_of(pod).get(names.REQUEST) == canonical(request)
    )


def as_written(pod: Json) -> dict[str, Any]:
    """The pod as its user wrote it: without fields of the scheduler, of node plugins and, where it is
    governed, of Bursar."""
    metadata, spec = dict(mapping(pod.get("metadata"))), dict(mapping(pod.get("spec")))
    bound = bool(spec.pop("nodeName", None))
    governed = is_governed(pod)
    given = annotations_of(pod)
    for_plugins = _for_runtime_plugins(given) if governed and bound else {}
    of_binder = _begun_by_binder(spec.get("schedulerName")) if bound else ()
    metadata["annotations"] = {
        name: value
        for name, value in given.items()
        if not (governed and _is_ours(name))
        and not (bound and is_owned(name))
        and for_plugins.get(name) != value
        and not name.startswith(of_binder)
    }
    if governed:
        labels = mapping(metadata.get("labels"))
        metadata["labels"] = {name: value for name, value in labels.items() if not _is_ours(name)}
        spec |= _without_ours(spec)
    return {**pod, "metadata": metadata, "spec": spec}


def _begun_by_binder(scheduler: object) -> tuple[str, ...]:
    """What the annotations begin with that the binder of this scheduler writes for the runtime."""
    return tuple(begin for each in DIALECTS if scheduler in each.schedulers for begin in each.for_runtime)


def _for_runtime_plugins(annotations: Json) -> dict[str, str]:
    """What the Binding wrote, if it did, for the plugins of the node's container runtime."""
    try:
        placement = decode_placement(str(annotations.get(names.DEVICES)))
    except UndecodableError:
        return {}
    others = (runtime_plugins.KAIS, *runtime_plugins.NVIDIAS)
    written = runtime_plugins.read_by(others, native.DIALECT, placement)
    required = str(annotations.get(runtime_plugins.REQUIRED, ""))
    return written | ({runtime_plugins.REQUIRED: required} if f'"{runtime_plugins.OURS}"' in required else {})


def _without_ours(spec: Json) -> dict[str, Any]:
    fields: dict[str, Any] = {
        field: [
            _with_own_variables(each)
            for each in sequence_of(spec.get(field))
            if each["name"] != names.SIDECAR
        ]
        for field in CONTAINER_LISTS
        if spec.get(field)
    }
    ours = {each["name"] for each in sidecar.VOLUMES}
    fields["volumes"] = [each for each in sequence_of(spec.get("volumes")) if each["name"] not in ours]
    gates = sequence_of(spec.get("schedulingGates"))
    fields["schedulingGates"] = [each for each in gates if not _is_ours(each["name"])]
    return fields


def _with_own_variables(container: Json) -> Mapping[str, Any]:
    """A governed container without the variable that governing sets."""
    own = [each for each in sequence_of(container.get("env")) if each["name"] != VISIBLE_DEVICES]
    return {**container, "env": own}


def _is_ours(name: str) -> bool:
    return name.startswith(OURS) and name not in names.WRITABLE_ANNOTATIONS


def _owner(whole: Json) -> str:
    controller = _controller(whole)
    return f"{controller.get('kind', '')}/{controller.get('name', '')}" if controller else ""


def _controller(whole: Json) -> Json:
    return controller_reference(mapping(whole.get("metadata"))) or {}


def _has_ended(workload: Json) -> bool:
    conditions = sequence_of(mapping(workload.get("status")).get("conditions"))
    return workload.get("kind") == "Job" and any(
        each.get("type") in ("Complete", "Failed") and each.get("status") == "True" for each in conditions
    )
