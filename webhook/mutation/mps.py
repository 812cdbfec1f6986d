"""What each GPU container may use of its cards, in the variables that clients of NVIDIA's MPS read.

A container reads its own limits, which the Binding writes, by the downward API. The pipes to the node's MPS
daemon are mounted by the node's container runtime, so no pod needs a path of the host for them. Where a node
plugin picks the cards or limits their use itself, nothing is set. `docs/enforcement.md` tells what this is
worth.
"""

from timekeeper.core import names
from timekeeper.core.dialects import BY_NAME
from timekeeper.core.json_values import Json
from timekeeper.core.values import GPURequest
from webhook.mutation.visible_devices import Variable, annotated
from webhook.wire.pod_review import sequence_of

PIPES = "CUDA_MPS_PIPE_DIRECTORY"
MEMORY = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
NAMES = (PIPES, MEMORY, THREADS)


def wanted(container: str, request: GPURequest, pipes: str) -> tuple[Variable, ...]:
    """The variables that the container of this name must have. None where it asks for no card, where a node
    plugin limits it, and where ``pipes``, the folder of the daemon's pipes, is empty: MPS is off."""
    if not pipes or not BY_NAME[request.dialect].limited_by_mps:
        return ()
    if container not in [each.container for each in request.asks]:
        return ()
    return ({"name": PIPES, "value": pipes}, *_limits(container))


def settled(container: Json, request: GPURequest, pipes: str) -> list[Json] | None:
    """The container's variables with those of MPS as they must be, once each; None where nothing is to be
    changed.

    Where there should be none, only what Bursar itself had written goes: a user's own are the rule's to
    judge.
    """
    present = sequence_of(container.get("env"))
    mine = [each for each in present if each["name"] in NAMES]
    if not pipes and not mine:
        return None  # nearly always
    right = wanted(container["name"], request, pipes)
    if len(mine) == len(right) and all(each in mine for each in right):
        return None
    if not right and not written(container):
        return None
    return [*(each for each in present if each["name"] not in NAMES), *right]


def written(container: Json) -> tuple[Json, ...]:
    """The container's variables of MPS where all three stand there as Bursar writes them, with whatever
    folder; else none. Governing sets the folder right, or takes all three away."""
    mine = {each["name"]: each for each in sequence_of(container.get("env")) if each["name"] in NAMES}
    if PIPES not in mine or not mine[PIPES].get("value"):
        return ()
    whole = mine[PIPES], *_limits(container["name"])
    return whole if all(mine.get(each["name"]) == each for each in whole) else ()


def _limits(container: str) -> tuple[Variable, Variable]:
    return annotated(MEMORY, names.MPS_MEMORY + container), annotated(THREADS, names.MPS_THREADS + container)
