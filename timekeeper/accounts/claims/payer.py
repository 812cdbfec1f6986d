"""Who pays where a claim serves a pod's extended resources: the pod by its cards, or the claim.

kube-scheduler makes such a claim, and the pod's status names it; anyone who creates a claim may give it the
annotation of such claims. The watches of pods and claims are independent, and a pod may name a claim that was
removed before the pod was bound without it.
"""

from typing import Literal

Payer = Literal["pod", "claim", "unknown"]


def payer(*, was_claim: bool, was_pod: bool, is_held: bool, may_come: bool) -> Payer:
    """Of a pod whose status names a claim. What was decided stays. ``was_claim``, ``was_pod``: who has paid
    before; ``is_held``: the claim holds devices, or was charged for some; ``may_come``: the watch of claims
    may still bring it."""
    if was_claim or (is_held and not was_pod):
        return "claim"
    return "unknown" if may_come and not was_pod else "pod"
