"""An amount of zero asks for nothing: charts, LimitRanges and Ray's head groups say "none" so.

`containers` in `request` removes zeros before anything is read, so every role and every dialect reads a pod
without them. The policies of the API server have the same rule (`webhook.admission.cel.zero_counts`).
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from timekeeper.core.dialects import DIALECTS, Dialect
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.quantity import integral


def without_zeros(resources: Json) -> Json:
    """A container's resources without what asks for nothing: amounts of zero, and what stands beside a number
    of cards that is zero. Of a dialect that the container asks something of, zeros that are amounts stay."""
    limits, requests = mapping(resources.get("limits")), mapping(resources.get("requests"))
    given = {**requests, **limits}
    if not (zeros := _zeros(given)):
        return resources  # nearly always
    gone = _gone(frozenset(given), frozenset(name for name in zeros if "/" in name))
    return {**resources, "limits": _rest(limits, gone), "requests": _rest(requests, gone)}


def asked_limits(container: Json) -> Json:
    """The limits of a container of a pod's JSON by which it asks for something."""
    return mapping(without_zeros(mapping(container.get("resources"))).get("limits"))


def cardless(given: Json) -> Iterator[tuple[str, str]]:
    """For each dialect of which a container's limits, or a pod's annotations or labels, ask for no card, but
    for amounts on its cards: the name whose number is zero, and the first amount."""
    zeros = frozenset(_zeros(given))
    for dialect in DIALECTS if zeros else ():
        count = "" if zeros.isdisjoint(dialect.counts) else _zero_count(dialect, frozenset(given), zeros)
        if count and (beside := [name for name in given if dialect.has(name) and name not in zeros]):
            yield count, beside[0]


def _zeros(given: Json) -> list[str]:
    """Nearly always none: few texts begin as zero does in any spelling."""
    return [
        name
        for name, amount in given.items()
        if (type(amount) is not str or amount[:1] in "0.+-") and integral(amount) == 0
    ]


@lru_cache(maxsize=1024)
def _gone(names: frozenset[str], zeros: frozenset[str]) -> frozenset[str]:
    gone, amounts = set(zeros), set[str]()
    for dialect in DIALECTS:
        own = frozenset(filter(dialect.has, names))
        if _zero_count(dialect, names, zeros):
            gone |= own
        elif not own <= zeros and dialect.vgpu is not None:
            amounts |= own.intersection(dialect.vgpu.zeros)
    return frozenset(gone - amounts)


def _zero_count(dialect: Dialect, names: frozenset[str], zeros: frozenset[str]) -> str:
    """The resource that says that there are no cards; "" if none does."""
    counts = [name for name in dialect.counts if name in names]
    return counts[0] if counts and zeros.issuperset(counts) else ""


def _rest(amounts: Mapping[str, Any], gone: frozenset[str]) -> Json:
    return {name: amount for name, amount in amounts.items() if name not in gone}
