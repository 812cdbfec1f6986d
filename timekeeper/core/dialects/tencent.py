"""Tencent's gpu-manager: ``tencent.com/vcuda-core`` (100 = one card) and ``vcuda-memory`` (units of 256 MiB).

gpu-manager reads two kinds of annotation on a pod: the cap ``vcuda-core-limit``, and gpu-admission's
predicate annotations by container index. It chooses the card of a share itself, and refuses a pod that was
bound with another one. Whole cards it chooses too, and writes over the annotation which they are. Source:
tkestack gpu-admission, gpu-manager (`docs/dialects.md`).
"""

from timekeeper.core.dialects.amounts import PodFacts, indexes
from timekeeper.core.dialects.dialect import Dialect, Found, PlacedRequest
from timekeeper.core.dialects.percent import PercentResources
from timekeeper.core.values import GPURequest

CORE = "tencent.com/vcuda-core"
MEMORY = "tencent.com/vcuda-memory"
CORE_LIMIT = "tencent.com/vcuda-core-limit"
ASSIGNED = "tencent.com/gpu-assigned"
STEM = "tencent.com/predicate-gpu-idx-"
UNIT_MIB = 256

RESOURCES = PercentResources(core=CORE, memory=MEMORY, unit_mib=UNIT_MIB, together=True)


def _at_admission(request: GPURequest) -> dict[str, str]:
    """The hard limit on compute: the largest request of a container."""
    cores = [each.ask.share_milli * each.ask.devices // 10 for each in request.asks]
    return {CORE_LIMIT: str(max(cores))}


def _at_binding(placed: PlacedRequest) -> dict[str, str]:
    """gpu-admission's annotations: card indexes by the container's index among the pod's ordinary
    containers."""
    written = {
        "tencent.com/predicate-node": placed.node,
        "tencent.com/predicate-time": str(placed.now_ns),
        ASSIGNED: "false",
    }
    for name, slices in placed.placement.containers:
        if name in placed.containers:
            indexes = ",".join(str(each.index) for each in slices)
            written[f"{STEM}{placed.containers.index(name)}"] = indexes
    return written


def _found(pod: PodFacts, _request: GPURequest) -> Found:
    return {name: indexes(pod.annotations.get(f"{STEM}{at}")) for at, name in enumerate(pod.ordinary)}


DIALECT = Dialect(
    name="tencent",
    resources=RESOURCES.resources,
    examples=RESOURCES.examples,
    read=RESOURCES.read,
    counts=(CORE,),
    at_admission=_at_admission,
    at_binding=_at_binding,
    found=_found,
    charged_cards=RESOURCES.cards,
    owned=("tencent.com/predicate-", ASSIGNED, CORE_LIMIT),
    plugin_writes=(ASSIGNED, STEM),
    plugin_limits=True,
    pairs_by_time=True,
    plugin_repeats=True,
)
