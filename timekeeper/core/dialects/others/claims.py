"""GPUs by device claims (`resource.k8s.io`): admission counts those that a pod may get at most, and records
the number in an annotation, for the claims' specs are not in the pod. kube-scheduler allocates the devices.

Like metered devices it is in no table of ways of writing a request: admission alone makes a pod one of them
(`timekeeper.core.request.claims`).
"""

from timekeeper.core import names
from timekeeper.core.dialects.dialect import Dialect, nothing_at_binding, nothing_to_read
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.values import WHOLE_MILLI, Ask, ContainerAsk, GPURequest

NAME = "claims"
_AT = "spec.resourceClaims"  # in the place of a container's name, and no container can have it
UNKNOWN = "unknown"  # in the annotation: claims, templates or classes were not known at the pod's creation
MAX_TOTAL = 1_000_000  # GPUs of a pod; more are a forged number
# kube-scheduler's words where it finds no devices, of a node, and where its plugin for claims fails
# (kubernetes/kubernetes, `plugin/pkg/scheduler/framework/plugins/dynamicresources`)
SHORT_OF_DEVICES, PLUGIN = "cannot allocate all claims", 'plugin "DynamicResources"'


def request_of(devices: int | None) -> GPURequest:
    """The request of a pod with this number of GPUs; None: their number is not known yet."""
    if devices is None:
        return GPURequest(dialect=NAME, asks=())
    return GPURequest(
        dialect=NAME, asks=(ContainerAsk(_AT, False, Ask(devices, WHOLE_MILLI, 0, device=NAME)),)
    )


def recorded(annotations: Json) -> GPURequest | None:
    """The request that admission recorded; None without one. Anything but a number counts as not known."""
    return request_of(recorded_devices(annotations)) if names.CLAIMS in annotations else None


def recorded_devices(annotations: Json) -> int | None:
    """How many GPUs the pod was judged for; None: nothing says it."""
    text = annotations.get(names.CLAIMS)
    is_number = isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) <= 7
    return min(MAX_TOTAL, int(str(text))) if is_number else None


def is_known(request: GPURequest) -> bool:
    """Whether it is known what the pod asks for; by claims it may not be."""
    return request.are_claims_known and (request.dialect != NAME or bool(request.asks))


def has_claims(spec: Json) -> bool:
    """Whether the pod names claims or templates."""
    return bool(sequence(spec.get("resourceClaims")))


def record_of_none(pod: Json, request: GPURequest | None = None) -> dict[str, str]:
    """The annotation of a pod whose claims are of no GPUs, so that they do not become others unseen; none
    where the pod has no claims. ``request``: of its cards beside claims."""
    if not has_claims(mapping(pod.get("spec"))):
        return {}
    return {names.CLAIMS: "0" if request is None or request.are_claims_known else UNKNOWN}


def record(request: GPURequest) -> dict[str, str]:
    """The annotation that says how many GPUs the pod may get."""
    return {names.CLAIMS: str(request.asks[0].ask.devices) if is_known(request) else UNKNOWN}


DIALECT = Dialect(
    name=NAME,
    resources=(),
    examples={},
    read=nothing_to_read,
    at_admission=record,
    at_binding=nothing_at_binding,
    plugin_shows=True,
    plugin_limits=True,
    placed_by_others=True,
)
