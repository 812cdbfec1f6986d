"""koordinator: ``koordinator.sh/gpu`` and its parts, which koord-scheduler places.

Amounts are those of a container's cards together. ``gpu.shared`` is the number of cards, or the hundreds of
``gpu`` or ``gpu-memory-ratio``. Source: koordinator's plugin DeviceShare and its validation
(`docs/dialects.md`).
"""

from collections.abc import Iterator, Mapping

from timekeeper.core.dialects.amounts import (
    MAX_CARDS,
    MAX_MEMORY_MIB,
    ContainerLimits,
    NodeFacts,
    amount,
)
from timekeeper.core.dialects.dialect import Dialect, nothing_at_admission, nothing_at_binding
from timekeeper.core.values import WHOLE_MILLI, Ask, Card
from timekeeper.core.violation import Violation, shown

GPU = "koordinator.sh/gpu"  # per cent of compute and memory
CORE = "koordinator.sh/gpu-core"  # per cent
MEMORY = "koordinator.sh/gpu-memory"  # bytes
RATIO = "koordinator.sh/gpu-memory-ratio"  # per cent
SHARED = "koordinator.sh/gpu.shared"  # cards
MODEL_LABEL = "node.koordinator.sh/gpu-model"

_MIB = 1 << 20
_MOST = {
    GPU: 100 * MAX_CARDS,
    CORE: 100 * MAX_CARDS,
    MEMORY: MAX_CARDS * MAX_MEMORY_MIB * _MIB,
    RATIO: 100 * MAX_CARDS,
    SHARED: MAX_CARDS,
}
_EXAMPLES = {GPU: "50", CORE: "50", MEMORY: "8Gi", RATIO: "50", SHARED: "1"}


def _read(limits: ContainerLimits) -> Ask | tuple[Violation, ...]:
    found = {name: _amount(limits, name) for name in _MOST}
    broken = tuple(each for each in found.values() if isinstance(each, Violation))
    amounts = {name: each for name, each in found.items() if isinstance(each, int)}
    return broken or tuple(_contradictions(limits, amounts)) or _divided(limits, amounts)


def _amount(limits: ContainerLimits, name: str) -> int | Violation | None:
    allowed = f"a whole number from 1 to {_MOST[name]}"
    found = amount(limits, name, 1, allowed, _EXAMPLES[name])
    if isinstance(found, int) and found > _MOST[name]:
        return _wrong("amount", limits, name, "too large", allowed)
    return found


def _contradictions(limits: ContainerLimits, amounts: Mapping[str, int]) -> Iterator[Violation]:
    if GPU in amounts:
        for name in amounts:
            if name != GPU:
                yield _wrong("combination", limits, name, f"{GPU} already says it", f"{GPU} alone")
    elif MEMORY in amounts and RATIO in amounts:
        yield _wrong("combination", limits, RATIO, f"{MEMORY} says the same in bytes", "one of them")
    elif MEMORY not in amounts and RATIO not in amounts:
        first = next(iter(amounts))
        yield _wrong("combination", limits, first, "it requires an amount of memory", f"{MEMORY} or {RATIO}")


def _divided(limits: ContainerLimits, amounts: Mapping[str, int]) -> Ask | tuple[Violation, ...]:
    """What each card gives. A card with all of its memory is not shared."""
    ratio = amounts.get(GPU, amounts.get(RATIO, 0))
    count = amounts.get(SHARED) or max(1, ratio // 100)
    parts = {name: each for name, each in amounts.items() if name in (GPU, CORE, RATIO)}
    broken = tuple(
        _wrong(
            "share-range",
            limits,
            name,
            *_share_problem(count, name in (GPU, RATIO) and SHARED not in amounts),
        )
        for name, each in parts.items()
        if each % count or each > 100 * count
    )
    memory = -(-amounts.get(MEMORY, 0) // (count * _MIB))
    if memory > MAX_MEMORY_MIB:
        allowed = f"at most {MAX_MEMORY_MIB} MiB on each card"
        broken += (_wrong("memory-range", limits, MEMORY, "more than any card has", allowed),)
    if broken:
        return broken
    if ratio == 100 * count:
        return Ask(count, WHOLE_MILLI, 0)
    core = amounts.get(GPU, amounts.get(CORE, 0))
    return Ask(count, 10 * core // count, memory, memory_milli=10 * ratio // count)


def _share_problem(count: int, counts_cards: bool) -> tuple[str, str]:
    """The problem and what is allowed. ``counts_cards``: the amount itself says how many cards there are."""
    if counts_cards:
        return "neither a share of a card nor whole cards", "1 to 100, or a multiple of 100"
    problem = f"does not divide into 1 to 100 on each of {count} cards"
    return problem, f"a multiple of {count} up to {100 * count}"


def _cards(node: NodeFacts) -> tuple[Card, ...]:
    count = min(node.capacity.get(GPU, 0) // 100, MAX_CARDS)
    each = node.capacity.get(MEMORY, 0) // _MIB // count if count else 0
    model = node.labels.get(MODEL_LABEL, "GPU")
    return tuple(Card(f"card{index}", index, model, each) for index in range(count if each else 0))


def _wrong(rule: str, limits: ContainerLimits, name: str, problem: str, allowed: str) -> Violation:
    got = shown(limits.amounts[name])
    return Violation(rule, limits.at(name), got, problem, allowed, f'{name}: "{_EXAMPLES[name]}"')


DIALECT = Dialect(
    name="koordinator",
    resources=tuple(_MOST),
    examples=_EXAMPLES,
    read=_read,
    at_admission=nothing_at_admission,
    at_binding=nothing_at_binding,
    plugin_shows=True,
    plugin_limits=True,
    schedulers=("koord-scheduler",),
    placed_by_others=True,
    placement_annotations=("scheduling.koordinator.sh/device-allocated",),
    accounts=("system:serviceaccount:koordinator-system:koord-scheduler",),
    charged_cards=_cards,
    counts=(SHARED,),
)
