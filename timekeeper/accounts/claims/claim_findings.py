"""What people must know of the claims that hold devices: some are charged for no pod, and some not at all;
and pods that hold devices by claims alone, which nothing charges where claims are not followed."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

MOST_NAMED = 20
MOST_NAMESPACES = 100  # namespaces; the settler writes the text with each tick
OTHERS = ""  # in place of the names of the other namespaces


@dataclass(frozen=True, slots=True)
class ClaimFindings:
    """``orphans``: namespace and name of claims that hold devices and are reserved for no pod; ``unknown``:
    how many claims hold devices of each driver without a rule; ``admin``: how many have admin access to GPUs.
    """

    orphans: tuple[tuple[str, str], ...] = ()
    unknown: tuple[tuple[str, int], ...] = ()
    admin: int = 0

    def text(self) -> str:
        """As JSON, for the database; `MOST_NAMED` of each."""
        shown = {
            "orphans": {"claims": len(self.orphans), "named": self.orphans[:MOST_NAMED]},
            "unknown": self.unknown[:MOST_NAMED],
            "admin": self.admin,
        }
        return orjson.dumps(shown).decode()


def claim_findings(
    orphans: Iterable[tuple[str, str]], unknown: Mapping[str, int], admin: int
) -> ClaimFindings:
    """In the order of names, drivers with the most claims first."""
    by_number = sorted(unknown.items(), key=lambda each: (-each[1], each[0]))
    return ClaimFindings(tuple(sorted(orphans)), tuple(by_number), admin)


def read_findings(text: str) -> dict[str, Any] | None:
    """What `ClaimFindings.text` wrote; None of an empty text: claims are not followed."""
    found: dict[str, Any] | None = orjson.loads(text) if text else None
    return found


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
    named = dict(sorted(found.items(), key=lambda each: (-each[1], each[0]))[:MOST_NAMESPACES])
    others = found.total() - sum(named.values())
    if others:
        named[OTHERS] = others
    return ClaimingPods(found.total(), orjson.dumps(named).decode())


NO_PODS = claiming_pods(())
