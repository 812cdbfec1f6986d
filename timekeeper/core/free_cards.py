"""What is free of a cluster's cards, by model: whole cards, parts of others, and how many nodes have 1, 2,
4 and 8 whole ones. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from timekeeper.core.values import WHOLE_MILLI

SIZES = (1, 2, 4, 8)  # whole cards of one node
APART = ("cordoned", "unhealthy", "excluded")
Apart = Literal["", "cordoned", "unhealthy", "excluded"]
_KEYS = ("nodes", "cards", "whole", "partMilli", *APART)


class FreeUnit(NamedTuple):
    """A card, a MIG instance, a replica, or a claim's device. ``apart``: why nothing of it is given out;
    ``card``: the model of its card; ``part_milli``: which part of that it is, in thousandths."""

    model: str
    free_milli: int
    apart: Apart = ""
    card: str = ""
    part_milli: int = WHOLE_MILLI


# the models of which a pod may hold cards, by commas, and what it holds, in thousandths
Unnamed = tuple[str, int]


class NodeFree(NamedTuple):
    """``labels``: the node's; ``vague``: how many of its pods hold cards of which its plugin alone knows
    which; ``models``: of each its name, the number of its cards, of those that are free as a whole, what is
    free of others in thousandths of a card, and how many are `APART`."""

    labels: tuple[tuple[str, str], ...]
    vague: int
    models: tuple[tuple[Any, ...], ...]


def on_node(units: Iterable[FreeUnit], unnamed: Iterable[Unnamed] = ()) -> tuple[tuple[Any, ...], ...]:
    """The models of a node. ``unnamed``: what each pod holds of cards that its plugin alone could name. It is
    taken from the cards of its models with the most free, and from those that no other pod holds: at least
    the rest is free as a whole."""
    groups: dict[str, list[FreeUnit]] = defaultdict(list)
    for unit in units:
        groups[unit.model].append(unit)
    free: dict[str, list[int]] = {}
    for model, there in groups.items():
        left = [unit.free_milli for unit in there if not unit.apart]
        whole = left.count(WHOLE_MILLI)
        free[model] = [whole, sum(left) - WHOLE_MILLI * whole]
    for models, milli in sorted(unnamed, key=lambda each: each[1], reverse=True):
        its = [free[model] for model, there in groups.items() if there[0].card in models.split(",")]
        most = max(its or free.values(), default=[0, 0])
        taken = min(most[0], -(-milli // WHOLE_MILLI))
        most[:] = most[0] - taken, max(0, most[1] + WHOLE_MILLI * taken - milli)
    return tuple(
        (model, len(there), *free[model], *(sum(unit.apart == word for unit in there) for word in APART))
        for model, there in sorted(groups.items())
    )


def in_cards(models: Iterable[tuple[Any, ...]], units: Iterable[FreeUnit]) -> Counter[str]:
    """What is free of a node, by the model of the whole cards, in thousandths of these. ``units``: those that
    `on_node` has summed up as ``models``."""
    kinds, found = {unit.model: unit for unit in units}, Counter[str]()
    for model, _, whole, part, *_ in models:
        found[kinds[model].card] += kinds[model].part_milli * (WHOLE_MILLI * whole + part) // WHOLE_MILLI
    return found


def by_model(nodes: Iterable[tuple[NodeFree, int]]) -> list[dict[str, Any]]:
    """The sums over these nodes, each with how many are like it."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0] * (len(_KEYS) + len(SIZES)))
    for node, count in nodes:
        for model, *figures in node.models:
            row = 1, *figures, *(figures[1] >= size for size in SIZES)
            sums[model] = [total + count * figure for total, figure in zip(sums[model], row, strict=True)]
    return [
        {
            "model": model,
            **dict(zip(_KEYS, total, strict=False)),
            "takes": dict(zip(map(str, SIZES), total[len(_KEYS) :], strict=True)),
        }
        for model, total in sorted(sums.items())
    ]
