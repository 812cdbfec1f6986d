"""The sidecar and its volumes in a pod's spec: a native sidecar, which is an init container that is restarted
always.

A pod keeps its quality of service. Of cpu and memory the sidecar names what the pod names, and its requests
equal its limits: a Guaranteed pod stays Guaranteed, a quota finds every amount that it requires, and a
LimitRange finds the ratio 1. A LimitRange fills its defaults into each container that does not name them, so
the pod's containers show what the sidecar has to name (`requests_of`). Its maximum of GPUs is such a default
too: the sidecar names zero of them. Its minimum must not exceed the sidecar's amounts
(`--sidecar-resources`): the webhook reads nothing from the API server, so it cannot know the minimum.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from timekeeper.core import names
from timekeeper.core.admission.json_patch import Operation, add
from timekeeper.core.admission.mutation.visible_devices import (
    VOID,
    Variable,
    from_annotation,
    wanted,
)
from timekeeper.core.admission.pods import sequence_of
from timekeeper.core.admission.policy import Sidecar
from timekeeper.core.dialects import DIALECTS
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.quantity import thousandths
from timekeeper.core.request.host import CPU, MEMORY, requested_milli
from timekeeper.core.values import GPURequest

TOKEN_VOLUME = "bursar-token"  # noqa: S105 a volume's name
SPOOL_VOLUME = "bursar-spool"
# The path where the API server's own plugin would mount a token. It mounts none where this path is taken, so
# the sidecar gets no other token, and the pod is not changed after us and not reviewed again.
TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105
SPOOL_FOLDER = "/var/run/bursar/spool"

COMMAND = ["python", "-m", "sidecar"]
NOBODY = 65532  # any user but root; NVIDIA's device files are open to all users

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

VOLUME_NAMES = frozenset(each["name"] for each in VOLUMES)

MOUNTS: tuple[Json, ...] = (
    {"name": TOKEN_VOLUME, "mountPath": TOKEN_FOLDER, "readOnly": True},
    {"name": SPOOL_VOLUME, "mountPath": SPOOL_FOLDER},
)

# what Pod Security's level `restricted` requires of every container
SECURITY_CONTEXT: Json = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "privileged": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
# without it a pod's own user would be the sidecar's, which is never root
OWN_USER: Json = {"runAsGroup": NOBODY, "runAsUser": NOBODY}

_STORAGE = "ephemeral-storage"
_VGPUS = tuple(dialect.vgpu for dialect in DIALECTS if dialect.vgpu is not None)
_OF_GOVERNING = {names.GPU_PLACEMENT, names.CARD_MILLIONTHS, *(vgpu.percentage for vgpu in _VGPUS)}
LOG_FORMAT = "BURSAR_LOG_FORMAT"
OWNS: Variable = {"name": "BURSAR_CARDS", "value": "exclusive"}


def find_sidecar(pod: Json) -> tuple[str, Json] | None:
    """The pod's existing sidecar: its path, and the container itself."""
    for index, each in enumerate(sequence_of(pod["spec"].get("initContainers"))):
        if each["name"] == names.SIDECAR:
            return f"/spec/initContainers/{index}", each
    return None


def was_injected(pod: Json) -> bool:
    """Whether the sidecar was injected, also where it was removed since: its volumes prove it."""
    return find_sidecar(pod) is not None or any(
        each["name"] in VOLUME_NAMES for each in sequence_of(pod["spec"].get("volumes"))
    )


def container(sidecar: Sidecar, request: GPURequest, pod: Json) -> Json | None:
    """The sidecar for this pod, None where the pod's own amounts leave too little. Pods share its few
    variants, so it must not be changed."""
    sees = wanted(names.SIDECAR, request) not in (None, VOID)
    amounts = requests_of(sidecar, pod)
    if mapping(pod["spec"].get("securityContext")).get("runAsUser") == 0 and not sidecar.has_own_user:
        sidecar = replace(sidecar, has_own_user=True)
    return None if amounts is None else _container(sidecar, sees, owns(request), amounts)


@lru_cache(maxsize=64)
def _container(sidecar: Sidecar, sees: bool, has_whole: bool, named: tuple[tuple[str, str], ...]) -> Json:
    amounts = dict(named)
    visible = from_annotation(names.SIDECAR) if sees else VOID
    return {
        "name": names.SIDECAR,
        "image": sidecar.image,
        "imagePullPolicy": "IfNotPresent",
        "command": COMMAND,
        "restartPolicy": "Always",
        "env": list(_variables(sidecar, visible, MOUNTS, has_whole)),
        "volumeMounts": list(MOUNTS),
        "securityContext": {**SECURITY_CONTEXT, **OWN_USER} if sidecar.has_own_user else SECURITY_CONTEXT,
        "resources": {"limits": amounts, "requests": amounts} if amounts else {},
    }


def owns(request: GPURequest) -> bool:
    """Whether the pod shares none of its cards: every requesting container has whole cards."""
    return all(each.ask.whole for each in request.asks)


def variables(sidecar: Sidecar, request: GPURequest, mounts: Sequence[Json]) -> tuple[Variable, ...]:
    """The sidecar's environment: the timekeeper's address, the CA, and the union of the pod's cards."""
    return _variables(sidecar, wanted(names.SIDECAR, request) or VOID, mounts, owns(request))


def _variables(
    sidecar: Sidecar, visible: Variable, mounts: Sequence[Json], has_whole: bool
) -> tuple[Variable, ...]:
    owning = (OWNS,) if has_whole and visible is not VOID else ()
    logging = () if sidecar.log_format == "logfmt" else ({"name": LOG_FORMAT, "value": sidecar.log_format},)
    return (
        {"name": "BURSAR_TIMEKEEPER_URL", "value": sidecar.timekeeper_url},
        {"name": "BURSAR_TOKEN_FILE", "value": f"{_folder(mounts, TOKEN_VOLUME)}/token"},
        {"name": "BURSAR_CA", "value": sidecar.ca},
        {"name": "BURSAR_SPOOL", "value": _folder(mounts, SPOOL_VOLUME)},
        *owning,
        *logging,
        visible,
        {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"},
    )


def requests_of(sidecar: Sidecar, pod: Json) -> tuple[tuple[str, str], ...] | None:
    """The resources that the sidecar names, with its amounts; None: ``spec.resources``, which bounds the sum
    of all containers, leaves nothing for one that it must name, or a LimitRange's default is filled in."""
    spec = pod["spec"]
    others = (*sequence_of(spec.get("initContainers")), *sequence_of(spec.get("containers")))
    amounts = [mapping(container.get("resources")) for container in others]
    named = [{*mapping(given.get("limits")), *mapping(given.get("requests"))} for given in amounts]
    by_any = set[str]().union(*named)
    ours, full = {CPU: sidecar.cpu, MEMORY: sidecar.memory}, set[str]()
    if mapping(spec.get("resources")):
        full = {resource for resource, amount in ours.items() if not _leaves(spec, resource, amount)}
        if any(all(resource in by_one for by_one in named) for resource in full):
            return None
    # of memory alone too: Kueue counts each name, and a ClusterQueue need not cover cpu
    ours = {key: amount for key, amount in ours.items() if key in by_any and key not in full}
    # a limit alone: a LimitRange's minimum is filled in as a request, and may be above our amount
    if _STORAGE in by_any and any(_STORAGE in mapping(given.get("limits")) for given in amounts):
        ours[_STORAGE] = sidecar.ephemeral_storage
    return (*ours.items(), *_none_of(frozenset(by_any.intersection(*named))))


@lru_cache(maxsize=256)
def _none_of(named: frozenset[str]) -> tuple[tuple[str, str], ...]:
    """The resources of which the sidecar names zero: these, but for Kubernetes' own and those that governing
    adds or removes; and the number of cards beside an amount of each, for without a number HAMi's webhook
    adds one card."""
    devices = {resource for resource in named if "/" in resource and "kubernetes.io/" not in resource}
    extended = devices - _OF_GOVERNING
    counts = {vgpu.number for vgpu in _VGPUS if not extended.isdisjoint(vgpu.instead)}
    return tuple((resource, "0") for resource in sorted(extended | counts))


def _leaves(spec: Json, resource: str, amount: str) -> bool:
    """Whether the pod's own request and limit of the resource hold this much beside its containers."""
    whole, more = mapping(spec["resources"]), thousandths(amount) or 0
    of_containers = {field: spec.get(field) for field in ("initContainers", "containers")}
    together = requested_milli({"spec": of_containers}, resource) + more
    limits = mapping(whole.get("limits"))
    # the pod's own request, where it is absent, is filled in later, and may not exceed the limit
    for needed, bounds in ((together, {**limits, **mapping(whole.get("requests"))}), (more, limits)):
        if resource in bounds and needed > (thousandths(bounds[resource]) or 0):
            return False
    return True


def is_ours(raw: Json) -> bool:
    """Whether a container of the sidecar's name is what this or another release injects, with additions of
    other webhooks.

    Values that `refreshed` sets may differ, and so may the paths of mounts. The image is judged on its own.
    """
    mounted = {each.get("name") for each in sequence_of(raw.get("volumeMounts"))}
    return (
        raw.get("restartPolicy") == "Always"
        and raw.get("command") == COMMAND
        and not raw.get("args")
        and mounted.issuperset(each["name"] for each in VOLUMES)
    )


def is_our_volume(raw: Json) -> bool:
    """Whether a volume of one of our names is what this or another release adds, with additions of the API
    server."""
    if raw["name"] == SPOOL_VOLUME:
        return mapping(raw.get("emptyDir")).get("medium") == "Memory"
    sources = mapping(raw.get("projected")).get("sources")
    wanted_source = {"serviceAccountToken": {"audience": names.AUDIENCE, "path": "token"}}
    return isinstance(sources, list) and len(sources) == 1 and holds(sources[0], wanted_source)


def holds(value: object, wanted: object) -> bool:
    """Whether the value equals ``wanted``, ignoring members that the API server or others added."""
    if isinstance(wanted, Mapping):
        return isinstance(value, Mapping) and all(holds(value.get(key), wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return isinstance(value, list) and len(value) == len(wanted) and all(map(holds, value, wanted))
    return value == wanted


def refreshed(raw: Json, path: str, sidecar: Sidecar, request: GPURequest) -> list[Operation]:
    """Updates the variables of an existing sidecar: the CA may have changed since its injection, or another
    release injected it, whose mounts stay."""
    ours = variables(sidecar, request, sequence_of(raw.get("volumeMounts")))
    known = {OWNS["name"], LOG_FORMAT, *(each["name"] for each in ours)}
    present = sequence_of(raw.get("env"))
    if [each for each in present if each["name"] in known] == list(ours):
        return []
    return [add(f"{path}/env", [*ours, *(each for each in present if each["name"] not in known)])]


def _folder(mounts: Sequence[Json], volume: str) -> object:
    return next(each.get("mountPath") for each in mounts if each.get("name") == volume)
