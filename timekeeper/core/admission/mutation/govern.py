"""What Bursar writes into a valid pod at admission, as RFC 6902 operations.

The operations are written directly: comparing the pod before and after costs a thousand times as much.
Governing is a fixed point: for a governed pod with the same standing no operation is left, in whatever order
other webhooks are called.
"""

from collections.abc import Mapping

from timekeeper.core import names
from timekeeper.core.admission import marks
from timekeeper.core.admission.json_patch import Operation, add, escaped, merged, remove
from timekeeper.core.admission.mutation import mps, sidecar, visible_devices
from timekeeper.core.admission.pods import annotations_of, sequence_of, variables_of
from timekeeper.core.admission.policy import (
    AdmissionPolicy,
    PriorityClass,
    is_above_budget_class,
    scheduler_of,
    without_placement,
)
from timekeeper.core.dialects import BY_NAME, DIALECTS
from timekeeper.core.dialects.others import claims as of_claims
from timekeeper.core.gangs import gang_of
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.quantity import integral
from timekeeper.core.request.devices import DIALECT as DEVICE
from timekeeper.core.request.zeros import asked_limits
from timekeeper.core.values import GPURequest
from timekeeper.core.wire import HeldFor, StandingWord

_PERCENTAGES = frozenset(each.vgpu.percentage for each in DIALECTS if each.vgpu is not None)
PLACEMENT = {names.GPU_PLACEMENT: "1"}


def govern(
    pod: Json,
    request: GPURequest,
    word: StandingWord,
    policy: AdmissionPolicy,
    hold: HeldFor = "",
    declared: str = "",
) -> list[Operation]:
    """The operations that govern the pod; empty where it is governed already.

    ``request`` is what the core parsed from this pod, and the pod breaks no rule. ``hold``: how it is held,
    each member of a gang also by the gang's gate; ``declared``: how long it means to run, in seconds, if it
    reserves that.
    Annotations are overwritten, never trusted: standing and priority class are always set together, and so
    are the annotation of a held pod and its gate.
    """
    gang_key = gang_key_of(pod, request, policy) if hold else ""
    policy = without_placement(policy, request.dialect, pod)
    written = {
        **of_claims.record_of_none(pod, request),
        **marks.annotations(request, word, hold, declared, gang_key),
    }
    return [
        *merged(pod["metadata"], "/metadata", "labels", marks.LABELS),
        *merged(pod["metadata"], "/metadata", "annotations", written),
        *_gates(pod, hold, gang_key),
        *_undeclared(pod, declared),
        *_priority(pod["spec"], class_status(word, hold), policy),
        *_scheduler(pod["spec"], request, policy),
        *_placement(pod["spec"], request, policy),
        *_toleration(pod["spec"], policy.gpu_node_taint),
        *_containers(pod["spec"], request, policy),
        *_sidecar(pod, request, policy),
    ]


def class_status(word: StandingWord, hold: HeldFor) -> StandingWord:
    """The standing that determines the class: a pod that waits for its budget has the class of pods in
    budget, because its class cannot change when it is released."""
    return "IN_BUDGET" if hold == "budget" else word


def gang_key_of(pod: Json, request: GPURequest, policy: AdmissionPolicy) -> str:
    """The key of the gang whose start is ours; "" where there is none, or another scheduler starts it."""
    gang = gang_of(pod)
    is_ours = gang is not None and request.dialect != of_claims.NAME
    is_ours = is_ours and placed_by(pod["spec"], request.dialect, policy) == policy.scheduler_name
    return gang.key if gang is not None and is_ours else ""


def _gates(pod: Json, hold: HeldFor, gang_key: str) -> list[Operation]:
    """Sets our scheduling gates for a held pod; removes them, and their annotations, from any other."""
    gates, annotations = sequence_of(pod["spec"].get("schedulingGates")), annotations_of(pod)
    if not (hold or gates or names.HELD in annotations or names.GANG_KEY in annotations):
        return []  # nearly always
    wanted = {names.BUDGET_GATE: hold, names.GANG_GATE: gang_key}
    there = [gate["name"] for gate in gates]
    unwanted = [index for index, name in enumerate(there) if name in wanted and not wanted[name]]
    forged = [
        name
        for name, value in ((names.HELD, hold), (names.GANG_KEY, gang_key))
        if name in annotations and not value
    ]
    operations = [remove(f"/metadata/annotations/{escaped(name)}") for name in forged]
    operations += [remove(f"/spec/schedulingGates/{index}") for index in reversed(unwanted)]
    missing = [{"name": name} for name, value in wanted.items() if value and name not in there]
    if missing and not gates:
        return [*operations, add("/spec/schedulingGates", missing)]
    return [*operations, *(add("/spec/schedulingGates/-", gate) for gate in missing)]


def _undeclared(pod: Json, declared: str) -> list[Operation]:
    """Removes the annotation of the declared time from any pod that does not reserve it."""
    if declared or names.DECLARED not in annotations_of(pod):
        return []
    return [remove(f"/metadata/annotations/{escaped(names.DECLARED)}")]


def keeps_own_class(spec: Json, word: StandingWord, policy: AdmissionPolicy) -> bool:
    """Whether the pod keeps its user's priority class: its value, which the API server resolves before any
    webhook runs, is at most that of the standing's class. The cluster's default is not its user's. In observe
    mode every class is kept. Where the standing's class does not exist, each class is kept that is not above
    the one of pods in budget."""
    own, value, ours = spec.get("priorityClassName"), spec.get("priority"), policy.class_of(word)
    if own == policy.cluster_default and policy.mode != "observe":
        return False  # its user named none
    if not own or policy.mode == "observe":
        return bool(own)
    if ours.absent:
        return not is_above_budget_class(spec, policy)
    return value is not None and ours.value is not None and value <= ours.value


def _priority(spec: Json, word: StandingWord, policy: AdmissionPolicy) -> list[Operation]:
    """Sets the standing's class by name, with its numbers or none in place of those of the former class: the
    API server refuses a class with numbers of another one, and fills in missing numbers.

    Known numbers are written, because a change by the API server after us causes a second review. A class
    that does not exist is not set; a class above that of pods in budget is still replaced.
    """
    ours = policy.class_of(word)
    if ours.absent:
        if not is_above_budget_class(spec, policy):
            return []
        ours = policy.in_budget
    if spec.get("priorityClassName") == ours.name or keeps_own_class(spec, word, policy):
        return []
    return [add("/spec/priorityClassName", ours.name), *_numbers(spec, ours)]


def _numbers(spec: Json, ours: PriorityClass) -> list[Operation]:
    if ours.value is None or ours.preemption_policy is None:
        return [remove(f"/spec/{each}") for each in ("priority", "preemptionPolicy") if each in spec]
    right: Json = {"priority": ours.value, "preemptionPolicy": ours.preemption_policy}
    return [add(f"/spec/{name}", value) for name, value in right.items() if spec.get(name) != value]


def _scheduler(spec: Json, request: GPURequest, policy: AdmissionPolicy) -> list[Operation]:
    changed = []
    wanted = placed_by(spec, request.dialect, policy)
    if (spec.get("schedulerName") or "") != wanted:
        changed.append(add("/spec/schedulerName", wanted))
    if policy.runtime_class and request.dialect != DEVICE and not spec.get("runtimeClassName"):
        changed.append(add("/spec/runtimeClassName", policy.runtime_class))
    return changed


def placed_by(spec: Json, dialect: str, policy: AdmissionPolicy) -> str:
    """The schedulerName of the pod once it is governed. In observe mode each pod keeps its own: on nodes
    without an inventory the scheduler that its user chose still places it, and Bursar's would not."""
    given = spec.get("schedulerName") or ""
    if policy.mode == "observe":
        return given
    if policy.places and policy.claims.resources and _may_get_claims(spec, policy.claims.resources):
        return policy.claim_scheduler
    if policy.places and BY_NAME[dialect].plugin_chooses and of_claims.has_claims(spec):
        return policy.claim_scheduler  # which alone allocates devices; the plugin chooses the cards
    return scheduler_of(dialect, given, policy)


def _may_get_claims(spec: Json, resources: frozenset[str]) -> bool:
    """Whether a container has a limit of one of these, for which its scheduler may allocate devices."""
    every = (each for field in ("initContainers", "containers") for each in sequence_of(spec.get(field)))
    return any(not resources.isdisjoint(asked_limits(each)) for each in every)


def _placement(spec: Json, request: GPURequest, policy: AdmissionPolicy) -> list[Operation]:
    """For a pod of Bursar's scheduler without a resource that kube-scheduler knows: the one for which it
    calls the extender, in its first container with cards. Without it kube-scheduler would bind the pod
    itself, and with it no other scheduler would."""
    if not BY_NAME[request.dialect].needs_placement:
        return []
    if placed_by(spec, request.dialect, policy) != policy.scheduler_name:
        return []
    for field in ("initContainers", "containers"):
        for index, container in enumerate(sequence_of(spec.get(field))):
            if container["name"] == request.asks[0].container:
                return _resource(container, f"/spec/{field}/{index}", PLACEMENT)
    return []


def _toleration(spec: Json, taint: str) -> list[Operation]:
    """Lets the pod onto nodes with this taint, which keeps pods without GPUs off them. A pod that tolerates
    the taint with any value stays as it is."""
    present = sequence_of(spec.get("tolerations"))
    if not taint or any(_tolerates(each, taint) for each in present):
        return []
    ours = {"key": taint, "operator": "Exists", "effect": "NoSchedule"}
    return [add("/spec/tolerations/-", ours) if present else add("/spec/tolerations", [ours])]


def _tolerates(toleration: Json, taint: str) -> bool:
    covers = toleration.get("key", "") in ("", taint) and toleration.get("effect", "") in ("", "NoSchedule")
    return covers and toleration.get("operator") == "Exists"


def _number(container: Json, path: str, request: GPURequest) -> list[Operation]:
    """One card for a container that requests memory or compute without a number of cards, where its dialect
    means that. Without the number the kubelet would not call the node plugin."""
    vgpu = BY_NAME[request.dialect].vgpu
    if vgpu is None or not vgpu.one_by_default:
        return []
    if container["name"] not in [each.container for each in request.asks]:
        return []
    limits = mapping(mapping(container.get("resources")).get("limits"))
    if vgpu.number in limits or not any(name in limits for name in vgpu.instead):
        return []
    return _resource(container, path, {vgpu.number: "1"})


def _no_percentage(container: Json, path: str) -> list[Operation]:
    """Without a percentage of memory of zero, which means none is given: the other system's plugin would
    give the container no memory."""
    resources = mapping(container.get("resources"))
    if _PERCENTAGES.isdisjoint(mapping(resources.get("limits"))):
        return []  # nearly always
    return [
        remove(f"{path}/resources/{member}/{escaped(name)}")
        for member in ("limits", "requests")
        for name, amount in mapping(resources.get(member)).items()
        if name in _PERCENTAGES and integral(amount) == 0
    ]


def _resource(container: Json, path: str, amounts: Mapping[str, str]) -> list[Operation]:
    resources = container.get("resources")
    if not resources:
        return [add(f"{path}/resources", {"limits": dict(amounts), "requests": dict(amounts)})]
    return [
        operation
        for member in ("limits", "requests")
        for operation in merged(resources, f"{path}/resources", member, amounts)
    ]


def _containers(spec: Json, request: GPURequest, policy: AdmissionPolicy) -> list[Operation]:
    return [
        operation
        for field in ("initContainers", "containers")
        for index, container in enumerate(sequence_of(spec.get(field)))
        for operation in _container(container, f"/spec/{field}/{index}", request, policy)
    ]


def _container(container: Json, path: str, request: GPURequest, policy: AdmissionPolicy) -> list[Operation]:
    changed = _no_percentage(container, path)
    if not policy.places:
        return changed + visible_devices.without_users_own(container, variables_of(container), path, request)
    return [
        *changed,
        *_number(container, path, request),
        *_variables(container, path, request, policy.mps_pipes),
    ]


def _variables(container: Json, path: str, request: GPURequest, pipes: str) -> list[Operation]:
    named = variables_of(container)
    env = mps.desired(container, request, pipes) if pipes or not mps.NAMES.isdisjoint(named) else None
    shown = visible_devices.with_limit_variables(
        container if env is None else {**container, "env": env}, request
    )
    env = env if shown is None else shown
    if env is None:
        return visible_devices.operations(container, named, path, request)
    changed = {**container, "env": env}
    operations = visible_devices.operations(changed, variables_of(changed), path, request)
    return [add(f"{path}/env", env), *operations]


def _sidecar(pod: Json, request: GPURequest, policy: AdmissionPolicy) -> list[Operation]:
    """Comes last, because inserting the sidecar before the init containers changes their indexes.

    An existing sidecar stays where it is, also where the policy injects none: replicas may hold different
    policies for a moment.
    """
    if policy.sidecar is None:
        return []
    present = sidecar.find_sidecar(pod)
    if present is None:
        ours = sidecar.container(policy.sidecar, request, pod)
        return [] if ours is None else [*_volumes(pod["spec"]), _inserted(pod, ours)]
    path, container = present
    return [*_volumes(pod["spec"]), *sidecar.refreshed(container, path, policy.sidecar, request)]


def _inserted(pod: Json, ours: Json) -> Operation:
    """The sidecar is inserted first, so that it sends heartbeats while the others start."""
    if sequence_of(pod["spec"].get("initContainers")):
        return add("/spec/initContainers/0", ours)
    return add("/spec/initContainers", [ours])


def _volumes(spec: Json) -> list[Operation]:
    present = sequence_of(spec.get("volumes"))
    present_names = {each["name"] for each in present}
    missing = [each for each in sidecar.VOLUMES if each["name"] not in present_names]
    if missing and not present:
        return [add("/spec/volumes", missing)]
    return [add("/spec/volumes/-", each) for each in missing]
