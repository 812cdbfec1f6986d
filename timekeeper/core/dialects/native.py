"""Bursar's own resources: ``bursar.dev/gpu-percent``, ``gpu-memory`` (MiB) and ``gpu-count``."""

from timekeeper.core.dialects.amounts import MAX_CARDS, MAX_MEMORY_MIB, ContainerLimits, amount
from timekeeper.core.dialects.dialect import Dialect, nothing_at_admission, nothing_at_binding
from timekeeper.core.names import CARD_MILLIONTHS, GPU_COUNT, GPU_MEMORY, GPU_PERCENT
from timekeeper.core.values import WHOLE_MILLI, Ask
from timekeeper.core.violation import Violation, shown

MEMORY_FLOOR_MIB = 64  # less than a CUDA context needs: such a value is a mistake, usually GiB

_PERCENT_ALLOWED = "1 to 100 for a share of one card, or a multiple of 100 for whole cards"
_MEMORY_ALLOWED = f"a whole number of MiB, at least {MEMORY_FLOOR_MIB} on each card"
_COUNT_ALLOWED = f"1 to {MAX_CARDS} cards"


def _read(limits: ContainerLimits) -> Ask | tuple[Violation, ...]:
    percent = amount(limits, GPU_PERCENT, 1, _PERCENT_ALLOWED, "50")
    memory = amount(limits, GPU_MEMORY, 1, _MEMORY_ALLOWED, "8192")
    count = amount(limits, GPU_COUNT, 1, _COUNT_ALLOWED, "2")
    broken = tuple(each for each in (percent, memory, count) if isinstance(each, Violation))
    if (
        broken
        or isinstance(percent, Violation)
        or isinstance(memory, Violation)
        or isinstance(count, Violation)
    ):
        return broken
    return _ask(limits, percent, memory, count)


def _ask(
    limits: ContainerLimits, percent: int | None, memory: int | None, count: int | None
) -> Ask | tuple[Violation, ...]:
    """The four meanings: count only, whole cards, a share, memory only."""
    if count is not None and count > MAX_CARDS:
        return (_violation(limits, "amount", GPU_COUNT, "more cards than any node has", _COUNT_ALLOWED, "2"),)
    if percent is None and memory is None:
        return Ask(count or 1, WHOLE_MILLI, 0)
    if count is None and percent is not None and percent > 100:
        return _whole_cards(limits, percent, memory)
    return _divided(limits, percent, memory, count or 1)


def _whole_cards(limits: ContainerLimits, percent: int, memory: int | None) -> Ask | tuple[Violation, ...]:
    problem, allowed = "", _PERCENT_ALLOWED
    if percent % 100:
        problem = "more than one card, but not a multiple of 100"
    elif percent > 100 * MAX_CARDS:
        problem, allowed = "more cards than any node has", f"at most {100 * MAX_CARDS}"
    wrong_percent = (
        _violation(limits, "share-range", GPU_PERCENT, problem, allowed, "200") if problem else None
    )
    wrong_memory = None if memory is None else _memory_of_whole(limits)
    return tuple(filter(None, (wrong_percent, wrong_memory))) or Ask(percent // 100, WHOLE_MILLI, 0)


def _divided(
    limits: ContainerLimits, percent: int | None, memory: int | None, count: int
) -> Ask | tuple[Violation, ...]:
    broken = filter(
        None, (_wrong_share(limits, percent, memory, count), _wrong_memory(limits, memory, count))
    )
    return tuple(broken) or Ask(count, 10 * (percent or 0) // count, (memory or 0) // count)


def _wrong_share(
    limits: ContainerLimits, percent: int | None, memory: int | None, count: int
) -> Violation | None:
    if percent == 100 * count and memory is not None:
        return _memory_of_whole(limits)
    if percent is None or (percent % count == 0 and 1 <= percent // count <= 100):
        return None
    problem = f"does not divide into 1 to 100 on each of {count} cards"
    allowed = f"a multiple of {count} up to {100 * count}"
    return _violation(limits, "count-divides", GPU_PERCENT, problem, allowed, str(50 * count))


def _wrong_memory(limits: ContainerLimits, memory: int | None, count: int) -> Violation | None:
    if memory is None or (memory % count == 0 and MEMORY_FLOOR_MIB <= memory // count <= MAX_MEMORY_MIB):
        return None
    if memory % count:
        problem, allowed = f"does not divide evenly over {count} cards", f"a multiple of {count} MiB"
        return _violation(limits, "count-divides", GPU_MEMORY, problem, allowed, str(8192 * count))
    if memory // count < MEMORY_FLOOR_MIB:
        problem = "less than a GPU process needs"
        return _violation(limits, "memory-floor", GPU_MEMORY, problem, _MEMORY_ALLOWED, "8192")
    problem = "more than any card has; the unit is MiB, so 8 GiB is 8192"
    allowed = f"at most {MAX_MEMORY_MIB} on each card"
    return _violation(limits, "memory-range", GPU_MEMORY, problem, allowed, "8192")


def _memory_of_whole(limits: ContainerLimits) -> Violation:
    return _violation(
        limits,
        "memory-with-whole-cards",
        GPU_MEMORY,
        "whole cards come with all of their memory",
        f"no {GPU_MEMORY} beside whole cards",
        f'{GPU_PERCENT}: "100" alone',
    )


def _violation(
    limits: ContainerLimits, rule: str, resource: str, problem: str, allowed: str, example: str
) -> Violation:
    text = example if "/" in example else f'{resource}: "{example}"'
    return Violation(rule, limits.at(resource), shown(limits.amounts[resource]), problem, allowed, text)


DIALECT = Dialect(
    name="bursar",
    resources=(GPU_PERCENT, GPU_MEMORY, GPU_COUNT),
    examples={GPU_PERCENT: "50", GPU_MEMORY: "8192", GPU_COUNT: "2"},
    read=_read,
    at_admission=nothing_at_admission,
    at_binding=nothing_at_binding,
    ignored_by_scheduler=(GPU_COUNT,),
    node_resources=(CARD_MILLIONTHS,),
    counts=(GPU_COUNT,),
)
