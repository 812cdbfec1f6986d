"""Pods that start together with others are created with the gate of held pods."""

from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.gangs import gang_of
from timekeeper.core.json_values import Json
from timekeeper.core.wire import HeldFor


def hold_of_gang(pod: Json, policy: AdmissionPolicy, by_other: bool) -> HeldFor:
    """How a pod is held that waits for no budget and no turn of its own: as a member of a gang until all of
    it fits, whatever the standing is; else not. ``by_other``: another scheduler than Bursar's places it,
    and starts its gang."""
    is_ours = policy.mode == "enforce" and not by_other
    return "turn" if is_ours and gang_of(pod) is not None else ""
