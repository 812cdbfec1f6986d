"""Fields of a pod by which a container reaches cards that are not assigned to it."""

from collections.abc import Iterable, Iterator

from timekeeper.core import names
from timekeeper.core.admission.marks import VISIBLE_DEVICES
from timekeeper.core.admission.mutation import mps, visible_devices
from timekeeper.core.admission.pods import (
    CONTAINER_LISTS,
    added_ephemeral,
    annotations_of,
    sequence_of,
    variables_of,
)
from timekeeper.core.admission.rules.denylist import (
    NODE_PATHS,
    may_steer,
    names_devices,
    names_steering,
    reaches_cards,
    reaches_node,
    steers_isolation,
)
from timekeeper.core.admission.rules.device_annotations import requests_devices
from timekeeper.core.dialects import DIALECTS, GPU_RESOURCE_PATTERN, gas
from timekeeper.core.dialects.others import kai
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.quantity import integral
from timekeeper.core.request.zeros import asked_limits, without_zeros
from timekeeper.core.values import GPURequest
from timekeeper.core.violation import Violation, shown

# of JupyterHub's init container, which its chart adds
_WITHOUT_METADATA = (
    "; in JupyterHub's values singleuser.cloudMetadata.blockWithIptables: false, or in the namespace's "
    "budget entry rules: {privileged: warn}"
)
_SHOWN_BY_PLUGIN = tuple(name for each in DIALECTS if each.shown_by_plugin for name in each.resources)


def visible_without_request(pod: Json) -> Iterator[Violation]:
    """For a pod without a GPU request: variables and resources that would make a card visible."""
    for path, container in _containers(pod):
        if mapping(container.get("resources")).get("limits"):
            yield from _monitoring(path, container)
        for place, variable in _seeing(container):
            yield Violation(
                "sees-cards-without-asking",
                f"{path}.env[{place}]",
                f"{VISIBLE_DEVICES}={_got(variable)}",
                "the pod requests no GPU, so no GPU may be visible to it",
                "void, or a GPU request in resources.limits",
                f'{names.GPU_PERCENT}: "50"',
            )


def isolation_violations(
    pod: Json, request: GPURequest | None, *, is_ours: bool = False
) -> Iterator[Violation]:
    """For a pod with a GPU request; ``request`` is None where the request is not valid. ``is_ours``: Bursar
    gives it the cards that it requests of a node's plugin."""
    may_monitor = request is None or request.dialect == gas.DIALECT.name
    for path, container in _containers(pod):
        if may_monitor:
            yield from _monitoring(path, container)
        variables = "\n".join(variables_of(container))
        if VISIBLE_DEVICES in variables:
            yield from _visible_by_hand(path, container, request)
        if container.get("envFrom") or names_steering(variables):
            yield from _steering(path, container, request, is_ours)
        if container.get("securityContext"):
            yield from _privileged(path, container)
        yield from _device_mounts(path, container)
    yield from device_annotations(pod)
    host_paths = tuple(_host_paths(pod["spec"]))
    yield from _host(pod["spec"], host_paths)
    yield from _node_paths(host_paths)


def device_annotations(pod: Json) -> Iterator[Violation]:
    """Annotations from which the container runtime, or a plugin of it, would read devices or limits."""
    for name, value in annotations_of(pod).items():
        if requests_devices(name) and not kai.is_of_its_webhook(pod, name):
            yield Violation(
                "device-annotation",
                f"metadata.annotations[{name}]",
                shown(value),
                "the container runtime, or a plugin of it, reads devices or limits of cards from it",
                "the pod without it",
                f'{names.GPU_PERCENT}: "50" in resources.limits',
            )


def node_paths(spec: Json) -> Iterator[Violation]:
    """Host paths that show devices or other pods of the node."""
    yield from _node_paths(_host_paths(spec))


def _node_paths(host_paths: Iterable[tuple[str, str]]) -> Iterator[Violation]:
    for where, host_path in host_paths:
        if reaches_node(host_path):
            yield Violation(
                "node-path",
                where,
                shown(host_path),
                "this path shows devices of the node, or volumes and tokens of its other pods",
                f"other paths than {', '.join(NODE_PATHS)}",
                "hostPath: {path: /dev/shm}",
            )


def _host_paths(spec: Json) -> Iterator[tuple[str, str]]:
    """Each host path, after the field that gives it."""
    for index, volume in enumerate(sequence_of(spec.get("volumes"))):
        if "hostPath" not in volume:
            continue
        host_path = mapping(volume["hostPath"]).get("path")
        if isinstance(host_path, str):
            yield f"spec.volumes[{index}].hostPath.path", host_path


def _host(spec: Json, host_paths: Iterable[tuple[str, str]]) -> Iterator[Violation]:
    for where, host_path in host_paths:
        if reaches_cards(host_path):
            yield Violation(
                "host-path",
                where,
                shown(host_path),
                "with this path a container reaches cards that are not assigned to it",
                "paths without GPU devices, driver files and runtime sockets",
                "hostPath: {path: /dev/shm}",
            )
    if spec.get("hostPID") is True:
        yield Violation(
            "host-pid",
            "spec.hostPID",
            "",
            "it exposes the processes of other tenants of a card",
            "false",
            "shareProcessNamespace: true, for the pod's own containers",
        )


def ephemeral_violations(pod: Json, old: Json) -> Iterator[Violation]:
    """For the ephemeral containers that an update adds; those that existed before are not checked."""
    for index, container in added_ephemeral(pod, old):
        path = f"spec.ephemeralContainers[{index}]"
        for _, variable in _seeing(container):
            yield Violation(
                "ephemeral-sees-cards",
                f"{path}.env[{VISIBLE_DEVICES}]",
                _got(variable),
                "an ephemeral container holds no card and is not charged",
                "void, or leaving it out",
                f'{VISIBLE_DEVICES}: "void"',
            )
        yield from _privileged(path, container)
        yield from _device_mounts(path, container)


def asks(container: Json) -> bool:
    """Whether the container asks for a GPU resource, in any dialect, valid or not."""
    resources = without_zeros(mapping(container.get("resources")))
    named = (*mapping(resources.get("limits")), *mapping(resources.get("requests")))
    return any(map(GPU_RESOURCE_PATTERN.match, named))


def _containers(pod: Json) -> Iterator[tuple[str, Json]]:
    for field in CONTAINER_LISTS:
        for index, container in enumerate(sequence_of(pod["spec"].get(field))):
            yield f"spec.{field}[{index}]", container


def _monitoring(path: str, container: Json) -> Iterator[Violation]:
    """Resources by which Intel's GPU plugin shows a container every card of its node."""
    for name, amount in mapping(mapping(container.get("resources")).get("limits")).items():
        if integral(amount) == 0:
            continue
        if name.startswith(gas.DIALECT.prefix) and name.endswith(gas.MONITORING):
            yield Violation(
                "sees-cards-without-asking",
                f"{path}.resources.limits[{name}]",
                "",
                "this resource shows a container every card of its node",
                f"{gas.I915} or {gas.XE}, or the rule off for a namespace of monitors",
                f'{gas.I915}: "1"',
            )


def _seeing(container: Json) -> Iterator[tuple[int, Json]]:
    for place, variable in enumerate(sequence_of(container.get("env"))):
        if variable["name"] == VISIBLE_DEVICES and visible_devices.sees(variable):
            yield place, variable


def _visible_by_hand(path: str, container: Json, request: GPURequest | None) -> Iterator[Violation]:
    right = visible_devices.wanted(container["name"], request) if request else None
    for place, variable in _seeing(container):
        if variable != right and not (right is None and request and _may_stay(container, variable, request)):
            yield Violation(
                "visible-devices",
                f"{path}.env[{place}]",
                f"{VISIBLE_DEVICES}={_got(variable)}",
                "the scheduler decides which cards a container sees",
                "leaving it out",
                f'{names.GPU_PERCENT}: "50" in resources.limits',
            )


def _may_stay(container: Json, variable: Json, request: GPURequest) -> bool:
    asking = container["name"] in [each.container for each in request.asks]
    return asking and visible_devices.is_of_config_map(variable, request)


def _steering(path: str, container: Json, request: GPURequest | None, is_ours: bool) -> Iterator[Violation]:
    if not asks(container) and container["name"] != names.SIDECAR:  # the sidecar sees the pod's cards too
        return
    ours = mps.written(container) if container["name"] != names.SIDECAR else ()
    ours += visible_devices.limit_variables(container, request) if request else ()
    for place, variable in enumerate(sequence_of(container.get("env"))):
        if steers_isolation(variable["name"]) and variable not in ours:
            yield Violation(
                "isolation-variable",
                f"{path}.env[{place}]",
                shown(variable["name"]),
                "it changes or disables the isolation of cards, so a pod must not set it",
                "leaving it out",
                f"a larger {names.GPU_PERCENT} instead",
            )
    by_plugin = not is_ours and _is_shown_by_plugin(container)
    for place, source in enumerate(map(mapping, sequence(container.get("envFrom")))):
        prefix = source.get("prefix") or ""
        if not isinstance(prefix, str):
            continue
        where, got = f"{path}.envFrom[{place}]", _source(source)
        if by_plugin and VISIBLE_DEVICES.startswith(prefix):
            yield Violation(
                "env-from-plugin",
                where,
                got,
                f"it may set {VISIBLE_DEVICES}, which takes precedence over the value of the node's plugin",
                "a prefix with which the variable does not begin, single variables in env, or in the "
                "namespace's budget entry rules: {env-from-plugin: warn}, where NVIDIA's toolkit on the "
                "nodes has accept-nvidia-visible-devices-envvar-when-unprivileged = false and "
                "accept-nvidia-visible-devices-as-volume-mounts = true",
                "prefix: APP_",
            )
        if may_steer(prefix):
            yield Violation(
                "env-from",
                where,
                got,
                "it may set variables that change the isolation of cards",
                "a prefix with which none of them begins, or single variables in env",
                "prefix: APP_",
            )


def _is_shown_by_plugin(container: Json) -> bool:
    """Whether the node's plugin sets NVIDIA_VISIBLE_DEVICES, and governing adds no variable that takes
    precedence over envFrom."""
    limits = asked_limits(container)
    return any(each in limits for each in _SHOWN_BY_PLUGIN)


def _source(source: Json) -> str:
    for kind, word in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
        if kind in source:
            return shown(f"{word} {mapping(source[kind]).get('name', '')}")
    return ""


def _privileged(path: str, container: Json) -> Iterator[Violation]:
    if mapping(container.get("securityContext")).get("privileged") is True:
        hub = _WITHOUT_METADATA if container["name"] == "block-cloud-metadata" else ""
        yield Violation(
            "privileged",
            f"{path}.securityContext.privileged",
            "true",
            "a privileged container can open every card of its node",
            f"false, with single capabilities where needed{hub}",
            "capabilities: {add: [IPC_LOCK]}",
        )


def _device_mounts(path: str, container: Json) -> Iterator[Violation]:
    for place, mount in enumerate(sequence_of(container.get("volumeMounts"))):
        where = mount.get("mountPath")
        if isinstance(where, str) and names_devices(where):
            yield Violation(
                "device-mount",
                f"{path}.volumeMounts[{place}].mountPath",
                shown(where),
                "the name of this mount requests cards from the container runtime",
                "other paths",
                f'{names.GPU_PERCENT}: "50" in resources.limits',
            )


def _got(variable: visible_devices.Variable) -> str:
    return shown(variable.get("value") or "a value from another source")
