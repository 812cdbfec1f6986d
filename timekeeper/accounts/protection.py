"""Which pods of a namespace keep class and cards when the budget is spent: those that the entry's ``protect``
selects, the oldest first, up to its floor. Pure.

A pod takes a part of the floor: of ``cards`` what it holds of cards, of ``hours`` what it uses within the
lookahead. The first pod for which too little is left ends the choice, so a younger and smaller one never goes
before it, and a protected pod never leaves for another: those of the last choice come first.
"""

import json
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from functools import lru_cache

from timekeeper.core.budgets.protection import Protection

BOUND, WAITING, GATED = range(3)  # stages of a pod


@dataclass(frozen=True, slots=True)
class Selected:
    """A pod that ``protect`` selects, and that nothing has asked to leave. Pods with a node go before those
    that a scheduler may place, and these before those behind a gate."""

    uid: str
    stage: int
    since_ms: int  # when it was bound; of a pod without a node: created


@dataclass(frozen=True, slots=True)
class ProtectedPods:
    """The choice for one namespace. Amounts are in the floor's unit."""

    protection: Protection
    uids: frozenset[str] = frozenset()
    used: int = 0  # of a floor of hours: what the selected pods have used in the period
    left: int = 0  # what is left for further pods; 0 once it was too little for a pod


def choose(
    protection: Protection,
    candidates: Iterable[Selected],
    takes: Callable[[str], int],
    used: int = 0,
    before: Set[str] = frozenset(),
) -> ProtectedPods:
    """The protected pods. ``takes``: UID -> what the pod takes of the floor; ``used``: what of it is taken
    for this period; ``before``: UIDs of the last choice."""
    left = max(0, protection.floor - used)
    chosen: list[str] = []
    for each in sorted(candidates, key=lambda pod: (pod.uid not in before, pod.stage, pod.since_ms, pod.uid)):
        takes_now = max(1, takes(each.uid))  # a pod whose amount is not known takes something all the same
        if takes_now > left:
            return ProtectedPods(protection, frozenset(chosen), used)
        left -= takes_now
        chosen.append(each.uid)
    return ProtectedPods(protection, frozenset(chosen), used, left)


@lru_cache(maxsize=10_000)
def selects(protection: Protection, owner: str, labels: str) -> bool:
    """Whether a pod with this controller, and these labels as canonical JSON, is selected."""
    return protection.selects(owner, json.loads(labels))
