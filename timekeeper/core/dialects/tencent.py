"""Tencent's gpu-manager: ``tencent.com/vcuda-core`` (100 = one card) and ``vcuda-memory`` (units of 256 MiB).

gpu-manager reads two kinds of annotation on a pod: the cap ``vcuda-core-limit``, and gpu-admission's
predicate annotations by container index. Source: tkestack gpu-admission and gpu-manager, see `docs/wire.md`.
"""

from timekeeper.core.dialects.dialect import ContainerLimits, Dialect, amount
from timekeeper.core.dialects.native import MOST_CARDS
from timekeeper.core.values import WHOLE_MILLI, Ask, GPURequest, Placement
from timekeeper.core.violation import Violation, shown

CORE = "tencent.com/vcuda-core"
MEMORY = "tencent.com/vcuda-memory"
CORE_LIMIT = "tencent.com/vcuda-core-limit"
UNIT_MIB = 256

_CORE_ALLOWED = "1 to 99 for a share of one card, or a multiple of 100 for whole cards"
_MEMORY_ALLOWED = "a whole number of units of 256 MiB, at least 1"


def _read(limits: ContainerLimits) -> Ask | tuple[Violation, ...]:
    core = amount(limits, CORE, 1, _CORE_ALLOWED, "50")
    memory = amount(limits, MEMORY, 1, _MEMORY_ALLOWED, "32")
    broken = tuple(each for each in (core, memory) if isinstance(each, Violation))
    if broken or isinstance(core, Violation) or isinstance(memory, Violation):
        return broken
    return _ask(limits, core, memory)


def _ask(limits: ContainerLimits, core: int | None, memory: int | None) -> Ask | tuple[Violation, ...]:
    if core is None:
        return (_missing(limits, CORE, f"{MEMORY} requires {CORE}", "50"),)
    if (core > 100 and core % 100) or core > 100 * MOST_CARDS:
        return (
            Violation(
                "share-range",
                limits.at(CORE),
                shown(limits.amounts[CORE]),
                "neither a share of a card nor whole cards",
                _CORE_ALLOWED,
                f'{CORE}: "200"',
            ),
        )
    if core >= 100:
        return Ask(core // 100, WHOLE_MILLI, 0)  # gpu-manager gives whole cards with all of their memory
    if memory is None:
        return (_missing(limits, MEMORY, f"a share in {CORE} requires {MEMORY}", "32"),)
    return Ask(1, 10 * core, UNIT_MIB * memory)


def _missing(limits: ContainerLimits, resource: str, problem: str, example: str) -> Violation:
    allowed = f"both {CORE} and {MEMORY}, or whole cards alone"
    return Violation(
        "share-without-memory", limits.at(resource), "", problem, allowed, f'{resource}: "{example}"'
    )


def _at_admission(request: GPURequest) -> dict[str, str]:
    """The hard limit on compute: the largest request of a container."""
    cores = [each.ask.share_milli * each.ask.devices // 10 for each in request.asks]
    return {CORE_LIMIT: str(max(cores))}


def _at_binding(
    request: GPURequest, placement: Placement, node: str, now_ns: int, containers: tuple[str, ...]
) -> dict[str, str]:
    """gpu-admission's annotations: card indexes by the container's index among the pod's ordinary
    containers."""
    written = {
        "tencent.com/predicate-node": node,
        "tencent.com/predicate-time": str(now_ns),
        "tencent.com/gpu-assigned": "false",
    }
    for name, slices in placement.containers:
        if name in containers:
            indexes = ",".join(str(each.index) for each in slices)
            written[f"tencent.com/predicate-gpu-idx-{containers.index(name)}"] = indexes
    return written


DIALECT = Dialect(
    name="tencent",
    resources=(CORE, MEMORY),
    examples={CORE: "50", MEMORY: "32"},
    read=_read,
    at_admission=_at_admission,
    at_binding=_at_binding,
    owned=("tencent.com/predicate-", "tencent.com/gpu-assigned", CORE_LIMIT),
    plugin_limits=True,
)
