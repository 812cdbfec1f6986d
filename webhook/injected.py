"""The native sidecar and its volumes, as they stand in a pod's spec."""

from collections.abc import Mapping
from typing import Any

from timekeeper.core import names
from timekeeper.core.quantity import integral
from timekeeper.core.request import Json, mapping
from timekeeper.core.values import GPURequest
from webhook.patch import Operation, add
from webhook.review import sequence_of
from webhook.terms import Sidecar
from webhook.visible import CAPABILITIES, VOID, Variable, wanted

TOKEN_VOLUME = "bursar-token"  # noqa: S105 a volume's name
SPOOL_VOLUME = "bursar-spool"
TOKEN_FOLDER = "/var/run/bursar/token"  # noqa: S105 where it is mounted
SPOOL_FOLDER = "/var/run/bursar/spool"

COMMAND = ["python", "-m", "sidecar"]
NOBODY = 65532  # any user but root; NVIDIA's device files are open to all

VOLUMES: tuple[Json, ...] = (
    {
        "name": TOKEN_VOLUME,
        "projected": {
            "defaultMode": 0o644,
            "sources": [
                {
                    "serviceAccountToken": {
                        "audience": names.AUDIENCE,
                        "expirationSeconds": 3600,
                        "path": "token",
                    }
                }
            ],
        },
    },
    {"name": SPOOL_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "4Mi"}},
)

MOUNTS: tuple[Json, ...] = (
    {"name": TOKEN_VOLUME, "mountPath": TOKEN_FOLDER, "readOnly": True},
    {"name": SPOOL_VOLUME, "mountPath": SPOOL_FOLDER},
)

# what Pod Security's level `restricted` asks of every container
SECURITY_CONTEXT: Json = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "privileged": False,
    "readOnlyRootFilesystem": True,
    "runAsGroup": NOBODY,
    "runAsNonRoot": True,
    "runAsUser": NOBODY,
    "seccompProfile": {"type": "RuntimeDefault"},
}

SMALL = {"cpu": "1m", "memory": "32Mi"}
GUARANTEED = {"cpu": "20m", "memory": "64Mi"}  # a limit of 1m would starve even the start of an interpreter


def container(sidecar: Sidecar, request: GPURequest, pod: Json) -> dict[str, Any]:
    """The sidecar for this pod."""
    return {
        "name": names.SIDECAR,
        "image": sidecar.image,
        "imagePullPolicy": "IfNotPresent",
        "command": COMMAND,
        "restartPolicy": "Always",
        "env": list(variables(sidecar, request)),
        "volumeMounts": list(MOUNTS),
        "securityContext": SECURITY_CONTEXT,
        "resources": resources(pod),
    }


def variables(sidecar: Sidecar, request: GPURequest) -> tuple[Variable, ...]:
    """The sidecar's environment: where it reports, whom it trusts, and the union of the pod's cards."""
    return (
        {"name": "BURSAR_TIMEKEEPER_URL", "value": sidecar.timekeeper_url},
        {"name": "BURSAR_TOKEN_FILE", "value": f"{TOKEN_FOLDER}/token"},
        {"name": "BURSAR_CA", "value": sidecar.ca},
        {"name": "BURSAR_SPOOL", "value": SPOOL_FOLDER},
        wanted(names.SIDECAR, request) or VOID,
        {"name": CAPABILITIES, "value": "utility"},
    )


def resources(pod: Json) -> dict[str, Any]:
    """A Guaranteed pod stays Guaranteed; a pod with resources of its own as a whole takes no more than
    those."""
    if mapping(pod["spec"].get("resources")):
        return {}
    if guaranteed(pod):
        return {"limits": GUARANTEED, "requests": GUARANTEED}
    return {"requests": SMALL}


def guaranteed(pod: Json) -> bool:
    """True where every container's limits of cpu and memory equal its requests, as the kubelet's QoS class
    has it."""
    spec = pod["spec"]
    each = [*sequence_of(spec.get("initContainers")), *sequence_of(spec.get("containers"))]
    return all(_limits_equal_requests(one) for one in each if one["name"] != names.SIDECAR)


def is_ours(raw: Json, native: bool) -> bool:
    """True where a container of our sidecar's name is what we inject, whatever other webhooks added to it.

    The image may differ, for clusters rewrite images to their mirrors; so may values that `refreshed` sets.
    """
    mounts = sequence_of(raw.get("volumeMounts"))
    return (
        native
        and raw.get("restartPolicy") == "Always"
        and raw.get("command") == COMMAND
        and not raw.get("args")
        and all(any(holds(each, mount) for each in mounts) for mount in MOUNTS)
    )


def holds(value: object, wanted: object) -> bool:
    """True where the value is the wanted one, perhaps with members that the API server or others added."""
    if isinstance(wanted, Mapping):
        return isinstance(value, Mapping) and all(holds(value.get(key), wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return isinstance(value, list) and len(value) == len(wanted) and all(map(holds, value, wanted))
    return value == wanted


def refreshed(raw: Json, path: str, sidecar: Sidecar, request: GPURequest) -> list[Operation]:
    """Sets the variables of a sidecar that is there already; a CA may have turned since it was injected."""
    ours = variables(sidecar, request)
    known = {each["name"] for each in ours}
    present = sequence_of(raw.get("env"))
    if [each for each in present if each["name"] in known] == list(ours):
        return []
    return [add(f"{path}/env", [*ours, *(each for each in present if each["name"] not in known)])]


def _limits_equal_requests(one: Json) -> bool:
    of = mapping(one.get("resources"))
    limits, requests = mapping(of.get("limits")), mapping(of.get("requests"))
    return all(
        name in limits and _same(limits[name], requests.get(name, limits[name])) for name in ("cpu", "memory")
    )


def _same(one: object, other: object) -> bool:
    amount = integral(one)
    return one == other or (amount is not None and amount == integral(other))
