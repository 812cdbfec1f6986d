"""What Bursar writes into a valid pod at admission, as RFC 6902 operations (design 5).

The operations are written directly: comparing the pod before and after costs a thousand times as much.
Governing is a fixed point: for a governed pod with the same standing no operation is left, in whatever order
other webhooks are called.
"""

from collections.abc import Mapping
from functools import lru_cache

from timekeeper.core import names
from timekeeper.core.dialects import BY_NAME
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.request.devices import DIALECT as DEVICE
from timekeeper.core.request.request import canonical
from timekeeper.core.values import ContainerAsk, GPURequest
from timekeeper.core.wire import HeldFor, StandingWord
from webhook.mutation import limits_shown, mps, sidecar, visible_devices
from webhook.policy import AdmissionPolicy, PriorityClass
from webhook.wire.json_patch import Operation, add, escaped, merged, remove
from webhook.wire.pod_review import annotations_of, sequence_of, variables_of

LABELS = {names.GOVERNED: "true"}
PLACEMENT = {names.GPU_PLACEMENT: "1"}
DEFAULT_SCHEDULERS = ("", "default-scheduler")
_FEW, _SHORT = 4, 256  # containers, and characters of their names: bounds the cache


def govern(
    pod: Json,
    request: GPURequest,
    word: StandingWord,
    policy: AdmissionPolicy,
    hold: HeldFor = "",
    declared: str = "",
) -> list[Operation]:
    """The operations that govern the pod; empty where it is governed already.

    ``request`` is what the core parsed from this pod, and the pod breaks no rule. ``hold``: how it is held;
    ``declared``: how long it means to run, in seconds, if it reserves that.
    Annotations are overwritten, never trusted: standing and priority class are always set together, and so
    are the annotation of a held pod and its gate.
    """
    return [
        *merged(pod["metadata"], "/metadata", "labels", LABELS),
        *merged(pod["metadata"], "/metadata", "annotations", annotations(request, word, hold, declared)),
        *_gate(pod, hold),
        *_undeclared(pod, declared),
        *_priority(pod["spec"], class_word(word, hold), policy),
        *_scheduler(pod["spec"], request, policy),
        *_placement(pod["spec"], request, policy),
        *_toleration(pod["spec"], policy.gpu_node_taint),
        *_containers(pod["spec"], request, policy.mps_pipes),
        *_sidecar(pod, request, policy),
    ]


def annotations(
    request: GPURequest, word: StandingWord, hold: HeldFor = "", declared: str = ""
) -> dict[str, str]:
    """The annotations of a governed pod before it is bound."""
    few = len(request.asks) <= _FEW and sum([len(each.container) for each in request.asks]) <= _SHORT
    of_asks = _of_asks if few else _of_asks.__wrapped__
    held = {names.HELD: hold} if hold else {}
    its_time = {names.DECLARED: declared} if declared else {}
    return {**of_asks(request.dialect, request.asks), names.STANDING: word, **held, **its_time}


def recorded_hold(pod: Json) -> HeldFor:
    """How the pod is held by its annotation; "" where that has no such value."""
    recorded = annotations_of(pod).get(names.HELD)
    return "budget" if recorded == "budget" else "turn" if recorded == "turn" else ""


def declared_time(pod: Json) -> str:
    """The pod's ``activeDeadlineSeconds`` as text; "" without one."""
    seconds = pod["spec"].get("activeDeadlineSeconds")
    return str(seconds) if seconds else ""


def recorded_time(pod: Json) -> str:
    """What `declared_time` should be recorded in the pod's annotation; "" where it has none."""
    return declared_time(pod) if names.DECLARED in annotations_of(pod) else ""


def class_word(word: StandingWord, hold: HeldFor) -> StandingWord:
    """The standing that determines the class: a pod that waits for its budget has the class of pods in
    budget, because its class cannot change when it is released."""
    return "IN_BUDGET" if hold == "budget" else word


def _gate(pod: Json, hold: HeldFor) -> list[Operation]:
    """Sets our scheduling gate for a held pod; removes it, and the annotation, from any other."""
    gates = sequence_of(pod["spec"].get("schedulingGates"))
    if not (hold or gates or names.HELD in annotations_of(pod)):
        return []  # nearly always
    places = [index for index, gate in enumerate(gates) if gate["name"] == names.BUDGET_GATE]
    if not hold:
        forged = [names.HELD] if names.HELD in annotations_of(pod) else []
        return [
            *(remove(f"/metadata/annotations/{escaped(name)}") for name in forged),
            *(remove(f"/spec/schedulingGates/{index}") for index in reversed(places)),
        ]
    if places:
        return []
    ours = {"name": names.BUDGET_GATE}
    return [add("/spec/schedulingGates/-", ours) if gates else add("/spec/schedulingGates", [ours])]


def _undeclared(pod: Json, declared: str) -> list[Operation]:
    """Removes the annotation of the declared time from any pod that does not reserve it."""
    if declared or names.DECLARED not in annotations_of(pod):
        return []
    return [remove(f"/metadata/annotations/{escaped(names.DECLARED)}")]


@lru_cache(maxsize=1024)
def _of_asks(dialect: str, asks: tuple[ContainerAsk, ...]) -> Mapping[str, str]:
    request = GPURequest(dialect, asks)
    return {**BY_NAME[dialect].at_admission(request), names.REQUEST: canonical(request)}


def keeps_own_class(spec: Json, word: StandingWord, policy: AdmissionPolicy) -> bool:
    """Whether the pod keeps its user's priority class: its value, which the API server resolves before any
    webhook runs, is at most that of the standing's class. In observe mode every class is kept. Where the
    standing's class does not exist, each class is kept that is not above the one of pods in budget."""
    own, value, ours = spec.get("priorityClassName"), spec.get("priority"), policy.class_of(word)
    if not own or policy.mode == "observe":
        return bool(own)
    if ours.absent:
        return not is_above_budget_class(spec, policy)
    return value is not None and ours.value is not None and value <= ours.value


def is_above_budget_class(spec: Json, policy: AdmissionPolicy) -> bool:
    """Whether the user's class is above the one of pods in budget, by the values that the API server resolves
    before any webhook runs; false where either value is not known."""
    own, value, most = spec.get("priorityClassName"), spec.get("priority"), policy.in_budget.value
    theirs = bool(own) and own not in (policy.in_budget.name, policy.over_budget.name)
    return theirs and value is not None and most is not None and value > most


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
    return given if policy.mode == "observe" else scheduler_of(dialect, given, policy)


def scheduler_of(dialect: str, given: str, policy: AdmissionPolicy) -> str:
    """The schedulerName that enforcing gives a pod. A scheduler of another system that may keep such pods
    keeps them; pods that only such a scheduler places are never given to Bursar's."""
    speaks = BY_NAME[dialect]
    if given in speaks.schedulers and given in policy.other_schedulers:
        return given
    if not speaks.placed_by_others:
        return policy.scheduler_name
    if not speaks.schedulers:  # any places them
        return given or DEFAULT_SCHEDULERS[-1]
    return speaks.schedulers[0] if given in DEFAULT_SCHEDULERS else given


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
    the taint whatever its value is stays as it is."""
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
    limits = mapping(mapping(container.get("resources")).get("limits"))
    if vgpu.number in limits or not any(name in limits for name in vgpu.instead):
        return []
    return _resource(container, path, {vgpu.number: "1"})


def _resource(container: Json, path: str, amounts: Mapping[str, str]) -> list[Operation]:
    resources = container.get("resources")
    if not resources:
        return [add(f"{path}/resources", {"limits": dict(amounts), "requests": dict(amounts)})]
    return [
        operation
        for member in ("limits", "requests")
        for operation in merged(resources, f"{path}/resources", member, amounts)
    ]


def _containers(spec: Json, request: GPURequest, pipes: str) -> list[Operation]:
    return [
        operation
        for field in ("initContainers", "containers")
        for index, container in enumerate(sequence_of(spec.get(field)))
        for operation in _container(container, f"/spec/{field}/{index}", request, pipes)
    ]


def _container(container: Json, path: str, request: GPURequest, pipes: str) -> list[Operation]:
    return [*_number(container, path, request), *_variables(container, path, request, pipes)]


def _variables(container: Json, path: str, request: GPURequest, pipes: str) -> list[Operation]:
    named = variables_of(container)
    env = mps.settled(container, request, pipes) if pipes or not mps.NAMES.isdisjoint(named) else None
    shown = limits_shown.settled(container if env is None else {**container, "env": env}, request)
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
        return [*_volumes(pod["spec"]), _inserted(pod, sidecar.container(policy.sidecar, request, pod))]
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
