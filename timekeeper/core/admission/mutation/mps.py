"""Limits of GPU containers, in the variables that clients of NVIDIA's MPS read.

The Binding writes a container's limits into annotations, and the container reads them by the downward API.
The node's container runtime mounts the pipes to the node's MPS daemon, so no pod needs a host path for them.
Where a node plugin chooses the cards or limits their use itself, nothing is set. `docs/enforcement.md`
describes what this enforces.
"""

from timekeeper.core import names
from timekeeper.core.admission.mutation.visible_devices import Variable, annotated
from timekeeper.core.admission.pods import sequence_of
from timekeeper.core.dialects import BY_NAME
from timekeeper.core.json_values import Json
from timekeeper.core.values import GPURequest

PIPES = "CUDA_MPS_PIPE_DIRECTORY"
MEMORY = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
NAMES = frozenset((PIPES, MEMORY, THREADS))


def wanted(container: str, request: GPURequest, pipes: str) -> tuple[Variable, ...]:
    """The variables that the container of this name must have: none where it requests no card, where a node
    plugin limits it, and where ``pipes``, the folder of the daemon's pipes, is empty (MPS is off)."""
    if not pipes or not BY_NAME[request.dialect].limited_by_mps:
        return ()
    if container not in [each.container for each in request.asks]:
        return ()
    return ({"name": PIPES, "value": pipes}, *_limits(container))


def desired(container: Json, request: GPURequest, pipes: str) -> list[Json] | None:
    """The container's whole environment with the right variables of MPS, once each; None where nothing
    changes.

    Where it should have none, only variables that Bursar wrote are removed; the rule `isolation-variable`
    covers a user's own.
    """
    present = sequence_of(container.get("env"))
    mine = [each for each in present if each["name"] in NAMES]
    right = wanted(container["name"], request, pipes)
    if len(mine) == len(right) and all(each in mine for each in right):
        return None
    if not right and not written(container):
        return None
    return [*(each for each in present if each["name"] not in NAMES), *right]


def written(container: Json) -> tuple[Json, ...]:
    """The container's variables of MPS where all three are as Bursar writes them, with any folder; else none.
    Governing corrects the folder, or removes all three."""
    mine = {each["name"]: each for each in sequence_of(container.get("env")) if each["name"] in NAMES}
    if PIPES not in mine or not mine[PIPES].get("value"):
        return ()
    whole = mine[PIPES], *_limits(container["name"])
    return whole if all(mine.get(each["name"]) == each for each in whole) else ()


def _limits(container: str) -> tuple[Variable, Variable]:
    return annotated(MEMORY, names.MPS_MEMORY + container), annotated(THREADS, names.MPS_THREADS + container)
