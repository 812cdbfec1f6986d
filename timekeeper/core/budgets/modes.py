"""In which mode a namespace is, what says so, and what follows, for people."""

from typing import Literal

from timekeeper.core.names import MODE_LABEL

# its own entry, its label, the entry `_defaults`, the cluster's mode, or a ledger that governs nothing
ModeSource = Literal["entry", "label", "defaults", "cluster", "ledger"]

EFFECTS = {
    "enforce": "pods that break a rule are refused, and over budget the entry's onExhausted decides",
    "observe": "pods are charged, users are warned, and no pod is refused, demoted or changed",
    "meter": "pods are charged, and nothing else is done to them",
}
_BY: dict[ModeSource, str] = {
    "entry": "by its entry",
    "label": f"by its label {MODE_LABEL}",
    "defaults": "by the entry _defaults",
    "cluster": "as the cluster is",
    "ledger": "for this ledger governs nothing",
}


def mode_sentence(namespace: str, mode: str, source: ModeSource) -> str:
    """The mode of a namespace, and what follows from it."""
    return f"{namespace} is in mode {mode}, {_BY[source]}: {EFFECTS[mode]}"
