"""The Events on pods that are evicted for overuse, so that `kubectl describe pod` shows the reason."""

from timekeeper.accounts.card_use.evictions import EvictionCandidate
from timekeeper.core.kube.timestamps import timestamp

EVICTED = "GPUMemoryEviction"
PROTECTED = "GPUMemoryEvictionRefused"


def evicted(candidate: EvictionCandidate) -> str:
    """The Event's text for a pod that was evicted."""
    return f"Evicted by Bursar: {_why(candidate)}"


def protected(candidate: EvictionCandidate) -> str:
    """The Event's text for a pod that a PodDisruptionBudget protects."""
    return f"A PodDisruptionBudget prevents the eviction of this pod: {_why(candidate)}"


def _why(candidate: EvictionCandidate) -> str:
    episode = candidate.over.episode
    since = timestamp(episode.since_ms)
    found = (each.excess for each in episode.cards)
    cards = ", ".join(f"{each.memory_mib} MiB of {each.uuid} (share {each.share_mib} MiB)" for each in found)
    grace_s = (candidate.grace_ms or 0) / 1000
    used = f"the pod has used more GPU memory than its share since {since}, now {cards}"

    return f"{used}; overuseGrace is {grace_s:g}s"
