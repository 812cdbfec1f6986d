"""What Bursar writes into a valid pod at admission, as RFC 6902 operations.

The operations are written directly: comparing the pod before and after costs a thousand times as much.
Governing is a fixed point: for a governed pod with the same standing no operation is left, in whatever order
other webhooks are called.
"""

from collections.abc import Iterator, Mapping

from timekeeper.core import names
from timekeeper.core.admission import marks
from timekeeper.core.admission.admission import Admission
from timekeeper.core.admission.json_patch import Operation, add, escaped, merged, remove
from timekeeper.core.admission.mutation import mps, sidecar, visible_devices
from timekeeper.core.admission.mutation.whole_cards import counted_by_kueue
from timekeeper.core.admission.pods import CONTAINER_LISTS, annotations_of, sequence_of, variables_of
from timekeeper.core.admission.policy import AdmissionPolicy, PriorityClass
from timekeeper.core.dialects import BY_NAME, DIALECTS, native
from timekeeper.core.dialects.others import claims as of_claims
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.quantity import integral
from timekeeper.core.request.devices import DIALECT as DEVICE
from timekeeper.core.values import Ask, GPURequest
from timekeeper.core.wire import HeldFor

_PERCENTAGES = frozenset(each.vgpu.percentage for each in DIALECTS if each.vgpu is not None)
PLACEMENT = {names.GPU_PLACEMENT: "1"}
_MILLION, _SMALLEST_MIB = 1_000_000, 4_000  # no card has less memory


def govern(pod: Json, admission: Admission) -> list[Operation]:
    """The operations that govern the pod as it is decided; empty where it is governed already.

    Each member of a gang is also held by the gang's gate. Annotations are overwritten, never trusted:
    standing and priority class are always set together, and so are the annotation of a held pod and its gate.
    """
    request, policy = admission.request, admission.policy
    word, hold, gang_key = admission.standing.status, admission.hold, admission.gang_key
    said = marks.annotations(request, word, hold, admission.declared, gang_key)
    written = {**of_claims.record_of_none(pod, request), **said}
    return [
        *merged(pod["metadata"], "/metadata", "labels", marks.LABELS),
        *merged(pod["metadata"], "/metadata", "annotations", written),
        *_gates(pod, hold, gang_key, admission.declared),
        *_priority(pod["spec"], admission.class_given),
        *_scheduler(pod["spec"], admission),
        *_placement(pod["spec"], admission),
        *_millionths(pod, admission),
        *_toleration(pod["spec"], policy.gpu_node_taint),
        *_containers(pod["spec"], request, policy),
        *_sidecar(pod, request, policy),
    ]


def gang_gate(pod: Json, group: str) -> list[Operation]:
    """The operations that let a pod without GPUs wait for this gang; empty where it has the gate."""
    return _gates(pod, "", group, "")


def _gates(pod: Json, hold: HeldFor, gang_key: str, declared: str) -> list[Operation]:
    """Sets our scheduling gates for a held pod; removes them, and their annotations, from any other."""
    present, annotations = sequence_of(pod["spec"].get("schedulingGates")), annotations_of(pod)
    said = {names.HELD: hold, names.GANG_KEY: gang_key, names.DECLARED: declared}
    if not (hold or gang_key or present) and said.keys().isdisjoint(annotations):
        return []  # nearly always
    wanted = {names.BUDGET_GATE: hold, names.GANG_GATE: gang_key}
    there = [gate["name"] for gate in present]
    unwanted = [index for index, name in enumerate(there) if name in wanted and not wanted[name]]
    unsaid = [name for name, value in said.items() if name in annotations and not value]
    operations = [remove(f"/metadata/annotations/{escaped(name)}") for name in unsaid]
    operations += [remove(f"/spec/schedulingGates/{index}") for index in reversed(unwanted)]
    missing = [{"name": name} for name, value in wanted.items() if value and name not in there]
    if missing and not present:
        return [*operations, add("/spec/schedulingGates", missing)]
    return [*operations, *(add("/spec/schedulingGates/-", gate) for gate in missing)]


def _priority(spec: Json, given: PriorityClass | None) -> list[Operation]:
    """Sets the class by name, with its numbers or none in place of those of the former class: the API server
    refuses a class with numbers of another one, and fills in missing numbers.

    Known numbers are written, because a change by the API server after us causes a second review.
    """
    if given is None or spec.get("priorityClassName") == given.name:
        return []
    return [add("/spec/priorityClassName", given.name), *_numbers(spec, given)]


def _numbers(spec: Json, ours: PriorityClass) -> list[Operation]:
    if ours.value is None or ours.preemption_policy is None:
        return [remove(f"/spec/{each}") for each in ("priority", "preemptionPolicy") if each in spec]
    right: Json = {"priority": ours.value, "preemptionPolicy": ours.preemption_policy}
    return [add(f"/spec/{name}", value) for name, value in right.items() if spec.get(name) != value]


def _scheduler(spec: Json, admission: Admission) -> list[Operation]:
    changed, runtime_class = [], admission.policy.runtime_class
    if (spec.get("schedulerName") or "") != admission.scheduler:
        changed.append(add("/spec/schedulerName", admission.scheduler))
    if runtime_class and admission.request.dialect != DEVICE and not spec.get("runtimeClassName"):
        changed.append(add("/spec/runtimeClassName", runtime_class))
    return changed


def _placement(spec: Json, admission: Admission) -> list[Operation]:
    """For a pod of Bursar's scheduler without a resource that kube-scheduler knows: the one for which it
    calls the extender, in its first container with cards. Without it kube-scheduler would bind the pod
    itself, and with it no other scheduler would."""
    request = admission.request
    is_ours = admission.scheduler == admission.policy.scheduler_name
    if not is_ours or not BY_NAME[request.dialect].needs_placement:
        return []
    for field in ("initContainers", "containers"):
        for index, container in enumerate(sequence_of(spec.get(field))):
            if container["name"] == request.asks[0].container:
                return _resource(container, f"/spec/{field}/{index}", PLACEMENT)
    return []


def _millionths(pod: Json, admission: Admission) -> Iterator[Operation]:
    """What each container takes of cards' memory, whatever words it asks in: without the extender an
    autoscaler, which simulates nodes, would see nothing of it. A pod that Kueue counts by name gets none."""
    request, host, most_mib = admission.request, admission.policy.card_host, 0
    is_ours = admission.scheduler == admission.policy.scheduler_name
    if host and is_ours and request.dialect == native.DIALECT.name and not counted_by_kueue(pod):
        most_mib = host.most_card_mib
    asks = request.asks if most_mib else ()
    right = {each.container: each.ask.devices * _of_a_card(each.ask, most_mib) for each in asks}
    for field in CONTAINER_LISTS:
        for index, container in enumerate(sequence_of(pod["spec"].get(field))):
            wanted = right.get(container["name"], 0)
            for member in ("limits", "requests"):
                present = mapping(mapping(container.get("resources")).get(member))
                path = f"/spec/{field}/{index}/resources/{member}/{escaped(names.CARD_MILLIONTHS)}"
                if present and wanted and integral(present.get(names.CARD_MILLIONTHS)) != wanted:
                    yield add(path, str(wanted))
                elif names.CARD_MILLIONTHS in present and not wanted:
                    yield remove(path)


def _of_a_card(ask: Ask, most_mib: int) -> int:
    """In millionths, never more than the extender takes: a kubelet refuses pods above its node's sum. So
    memory counts by the largest card, and a share is less by the MiB that its memory is rounded by."""
    if ask.whole:
        return _MILLION
    if ask.memory_mib:
        return min(_MILLION, _MILLION * ask.memory_mib // most_mib)
    return _MILLION // 1_000 * ask.share_milli - _MILLION // _SMALLEST_MIB


def _toleration(spec: Json, taint: str) -> list[Operation]:
    """Lets the pod onto nodes with this taint, which keeps pods without GPUs off them. A pod that tolerates
    the taint with any value stays as it is."""
    present = sequence_of(spec.get("tolerations"))
    if not taint or any(
        toleration.get("operator") == "Exists"
        and toleration.get("key", "") in ("", taint)
        and toleration.get("effect", "") in ("", "NoSchedule")
        for toleration in present
    ):
        return []
    ours = {"key": taint, "operator": "Exists", "effect": "NoSchedule"}
    return [add("/spec/tolerations/-", ours) if present else add("/spec/tolerations", [ours])]


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
    """Of all containers but the sidecar, which `_sidecar` refreshes."""
    return [
        operation
        for field in ("initContainers", "containers")
        for index, container in enumerate(sequence_of(spec.get(field)))
        if policy.sidecar is None or container["name"] != names.SIDECAR or not sidecar.is_ours(container)
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
    present, spec = sidecar.find_sidecar(pod), pod["spec"]
    beside = [*_volumes(spec), *_pull_secret(spec, policy.sidecar.pull_secret)]
    if present is None:
        ours = sidecar.container(policy.sidecar, request, pod)
        if ours is None:
            return []
        # first, so that it sends heartbeats while the others start
        has_others = sequence_of(spec.get("initContainers"))
        first = add("/spec/initContainers/0", ours) if has_others else add("/spec/initContainers", [ours])
        return [*beside, first]
    path, container = present
    return [*beside, *sidecar.refreshed(container, path, policy.sidecar, request)]


def _pull_secret(spec: Json, name: str) -> list[Operation]:
    """Lets the kubelet pull the sidecar. The service account's secrets are there by now, if they count."""
    present, ours = sequence_of(spec.get("imagePullSecrets")), {"name": name}
    if not name or any(secret.get("name") == name for secret in present):
        return []
    return [add("/spec/imagePullSecrets/-", ours) if present else add("/spec/imagePullSecrets", [ours])]


def _volumes(spec: Json) -> list[Operation]:
    present = sequence_of(spec.get("volumes"))
    present_names = {each["name"] for each in present}
    missing = [each for each in sidecar.VOLUMES if each["name"] not in present_names]
    if missing and not present:
        return [add("/spec/volumes", missing)]
    return [add("/spec/volumes/-", each) for each in missing]
