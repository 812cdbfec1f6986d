"""Pods that hold devices by resource claims alone, which nothing charges where claims are not followed."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import orjson

MOST_NAMED = 100  # namespaces; the settler writes the text with each tick
OTHERS = ""  # in place of the names of the other namespaces


@dataclass(frozen=True, slots=True)
class ClaimingPods:
    """``text``: how many each namespace has, as a JSON object."""

    pods: int
    text: str


def read_claims(text: str | None) -> dict[str, int] | None:
    """How many each namespace has, the most first; "": all others. None: they are not counted yet."""
    found: dict[str, int] | None = orjson.loads(text) if text else None
    return found


def claiming_pods(namespaces: Iterable[str]) -> ClaimingPods:
    """Counted by namespace, the most first. ``namespaces``: of each pod."""
    found = Counter(namespaces)
    named = dict(sorted(found.items(), key=lambda each: (-each[1], each[0]))[:MOST_NAMED])
    others = found.total() - sum(named.values())
    if others:
        named[OTHERS] = others
    return ClaimingPods(found.total(), orjson.dumps(named).decode())


NOBODY = claiming_pods(())
