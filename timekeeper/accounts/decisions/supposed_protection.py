"""Protected pods in simulations: what the floor has room for, and what each simulated pod takes of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from timekeeper.accounts.budget_history import History
from timekeeper.accounts.protection import ProtectedPods
from timekeeper.core.protected import Published

_OTHER = "what the supposed protect would select is not known: no simulated pod counts as protected"


@dataclass(frozen=True, slots=True)
class SupposedProtection:
    """``note``: what is not known, "" if nothing."""

    pods: Mapping[str, ProtectedPods] = field(default_factory=dict)
    note: str = ""


def supposed_protection(history: History, namespace: str, published: Published | None) -> SupposedProtection:
    """``published``: the namespace's `protect` as the present table of standings has it."""
    protection = history.protections.get(namespace)
    if protection is None:
        return SupposedProtection()
    if published is None or published.protection != protection:
        return SupposedProtection(note=_OTHER)
    return SupposedProtection({namespace: ProtectedPods(protection, published.uids, left=published.left)})


def protecting(
    standings: Mapping[str, Any], namespace: str, uid: str, review: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The standings after this review: a protected pod takes its part of the floor, and is named."""
    takes = review.get("protected")
    if not takes:
        return standings
    entry = standings["namespaces"][namespace]
    protect = entry["protect"]
    now = {**protect, "left": protect["left"] - takes, "uids": [*protect["uids"], uid]}
    names = {**standings["namespaces"], namespace: {**entry, "protect": now}}
    return {**standings, "namespaces": names}
