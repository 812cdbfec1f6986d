"""Ways for a container to reach cards that it was not given, as far as a pod's spec can hold them."""

from collections.abc import Iterator

from timekeeper.core import names
from timekeeper.core.dialects import DIALECTS, UNSPOKEN
from timekeeper.core.request.request import Json, annotations_of, mapping, sequence
from timekeeper.core.values import GPURequest
from timekeeper.core.violation import Violation, shown
from webhook.mutation import ephemeral, mps
from webhook.mutation import visible_devices as visible
from webhook.mutation.visible_devices import VISIBLE_DEVICES
from webhook.rules.denylist import (
    DEVICE_ANNOTATIONS,
    may_steer,
    names_devices,
    names_steering,
    reaches_cards,
    steers_isolation,
)
from webhook.wire.pod_review import CONTAINER_LISTS, sequence_of

_PLUGINS_CHOICE = tuple(name for dialect in DIALECTS if dialect.plugin_chooses for name in dialect.resources)


def sees_cards_without_asking(pod: Json) -> Iterator[Violation]:
    """For a pod that asks for no GPU: variables that would show it one."""
    for path, container in _containers(pod):
        for place, variable in _seeing(container):
            yield Violation(
                "sees-cards-without-asking",
                f"{path}.env[{place}]",
                f"{VISIBLE_DEVICES}={_got(variable)}",
                "the pod asks for no GPU, so it may see none",
                "void, or a GPU request in resources.limits",
                f'{names.GPU_PERCENT}: "50"',
            )


def reaching(pod: Json, request: GPURequest | None) -> Iterator[Violation]:
    """For a pod that asks for a GPU, well or badly (then there is no request)."""
    for path, container in _containers(pod):
        variables = "\n".join([each["name"] for each in sequence_of(container.get("env"))])
        if VISIBLE_DEVICES in variables:
            yield from _visible_by_hand(path, container, request)
        if container.get("envFrom") or names_steering(variables):
            yield from _steering(path, container)
        if container.get("securityContext"):
            yield from _privileged(path, container)
        yield from _device_mounts(path, container)
    yield from _device_annotations(pod)
    yield from _host(pod["spec"])


def _host(spec: Json) -> Iterator[Violation]:
    for index, volume in enumerate(sequence_of(spec.get("volumes"))):
        host_path = mapping(volume.get("hostPath")).get("path")
        if isinstance(host_path, str) and reaches_cards(host_path):
            yield Violation(
                "host-path",
                f"spec.volumes[{index}].hostPath.path",
                shown(host_path),
                "with this a container reaches cards that it was not given",
                "paths that hold no GPU devices, driver files or runtime sockets",
                "hostPath: {path: /dev/shm}",
            )
    if spec.get("hostPID") is True:
        yield Violation(
            "host-pid",
            "spec.hostPID",
            "",
            "it shows the processes of the other tenants of a card",
            "false",
            "shareProcessNamespace: true, for the pod's own containers",
        )


def ephemeral_reaching(pod: Json, old: Json) -> Iterator[Violation]:
    """For the ephemeral containers that an update adds."""
    for index, container in ephemeral.added(pod, old):
        path = f"spec.ephemeralContainers[{index}]"
        for _, variable in _seeing(container):
            yield Violation(
                "ephemeral-sees-cards",
                f"{path}.env[{VISIBLE_DEVICES}]",
                _got(variable),
                "an ephemeral container holds no cards, and none is charged for it",
                "void, or leaving it out",
                f'{VISIBLE_DEVICES}: "void"',
            )
        yield from _privileged(path, container)
        yield from _device_mounts(path, container)


def asks(container: Json) -> bool:
    """True for a container that names a GPU resource, in whatever dialect and however badly."""
    resources = mapping(container.get("resources"))
    named = (*mapping(resources.get("limits")), *mapping(resources.get("requests")))
    return any(map(UNSPOKEN.match, named))


def _containers(pod: Json) -> Iterator[tuple[str, Json]]:
    for field in CONTAINER_LISTS:
        for index, container in enumerate(sequence_of(pod["spec"].get(field))):
            yield f"spec.{field}[{index}]", container


def _seeing(container: Json) -> Iterator[tuple[int, Json]]:
    for place, variable in enumerate(sequence_of(container.get("env"))):
        if variable["name"] == VISIBLE_DEVICES and visible.sees(variable):
            yield place, variable


def _visible_by_hand(path: str, container: Json, request: GPURequest | None) -> Iterator[Violation]:
    right = visible.wanted(container["name"], request) if request else None
    for place, variable in _seeing(container):
        if variable != right:
            yield Violation(
                "visible-devices",
                f"{path}.env[{place}]",
                f"{VISIBLE_DEVICES}={_got(variable)}",
                "which cards a container sees is decided when the pod is placed",
                "leaving it out",
                f'{names.GPU_PERCENT}: "50" in resources.limits',
            )


def _steering(path: str, container: Json) -> Iterator[Violation]:
    if not asks(container) and container["name"] != names.SIDECAR:  # which sees the pod's cards too
        return
    ours = mps.written(container) if container["name"] != names.SIDECAR else ()
    for place, variable in enumerate(sequence_of(container.get("env"))):
        if steers_isolation(variable["name"]) and variable not in ours:
            yield Violation(
                "isolation-variable",
                f"{path}.env[{place}]",
                shown(variable["name"]),
                "it steers or switches off the isolation of cards, so it is not the pod's to set",
                "leaving it out",
                f"a larger {names.GPU_PERCENT} instead",
            )
    plugin_chooses = _plugin_chooses(container)
    for place, source in enumerate(map(mapping, sequence(container.get("envFrom")))):
        prefix = source.get("prefix") or ""
        if not isinstance(prefix, str):
            continue
        where, got = f"{path}.envFrom[{place}]", _source(source)
        if plugin_chooses and VISIBLE_DEVICES.startswith(prefix):
            yield Violation(
                "env-from-plugin",
                where,
                got,
                f"it may set {VISIBLE_DEVICES}, which would go before what the node's plugin sets",
                "a prefix that it does not begin with, or single variables in env",
                "prefix: APP_",
            )
        if may_steer(prefix):
            yield Violation(
                "env-from",
                where,
                got,
                "it may set variables that steer the isolation of cards",
                "a prefix that none of them begins with, or single variables in env",
                "prefix: APP_",
            )


def _plugin_chooses(container: Json) -> bool:
    """True where the node's plugin sets NVIDIA_VISIBLE_DEVICES, and govern nothing that would go before
    envFrom."""
    limits = mapping(mapping(container.get("resources")).get("limits"))
    return any(each in limits for each in _PLUGINS_CHOICE)


def _source(source: Json) -> str:
    for kind, word in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
        if kind in source:
            return shown(f"{word} {mapping(source[kind]).get('name', '')}")
    return ""


def _privileged(path: str, container: Json) -> Iterator[Violation]:
    if mapping(container.get("securityContext")).get("privileged") is True:
        yield Violation(
            "privileged",
            f"{path}.securityContext.privileged",
            "true",
            "a privileged container can open every card of its node",
            "false, and single capabilities where they are needed",
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
                "a mount there asks the container runtime for cards by its name",
                "other paths",
                f'{names.GPU_PERCENT}: "50" in resources.limits',
            )


def _device_annotations(pod: Json) -> Iterator[Violation]:
    for name, value in annotations_of(pod).items():
        if name.startswith(DEVICE_ANNOTATIONS):
            yield Violation(
                "device-annotation",
                f"metadata.annotations[{name}]",
                shown(value),
                "it names devices to the container runtime itself",
                "the pod without it",
                f'{names.GPU_PERCENT}: "50" in resources.limits',
            )


def _got(variable: visible.Variable) -> str:
    return shown(variable.get("value") or "a value from elsewhere")
