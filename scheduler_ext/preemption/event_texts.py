"""The texts of the Events on pods that wait for cards, and on those evicted for them."""

from scheduler_ext.model.pod import Pod
from timekeeper.core.ledger.reservation import Reservation


def held_text(reservation: Reservation) -> str:
    """On the pod for which cards are reserved."""
    cards = len({each.uuid for _, slices in reservation.placement.containers for each in slices})
    on, them = ("a GPU", "it") if cards == 1 else (f"{cards} GPUs", "them")
    whose = "pods that are over budget or idle" if reservation.kind == "reclaim" else "pods of lower priority"
    return f"Reserved {on} on node {reservation.node}; evicting {whose} to free {them}."


def left_text(victim: Pod, pod: Pod, kind: str) -> str:
    """On the victim. It names both pods and the reason."""
    over = f"namespace {victim.namespace} is over its GPU budget"
    why = ("it does not use its GPUs" if victim.is_idle else over) if kind == "reclaim" else "lower priority"
    return f"Evicted pod {victim.full_name}: {why}; its GPUs go to pod {pod.full_name}."
