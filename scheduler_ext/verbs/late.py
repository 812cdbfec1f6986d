"""filter for a pod that follows the members of its gang: it gets a node where cards are kept for it."""

from collections.abc import Sequence

from scheduler_ext.fit.caps import CapChecks
from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import GANG_ELSEWHERE, Refusal
from scheduler_ext.model.pod import Pod
from scheduler_ext.scoring.policy import Policy
from scheduler_ext.snapshot.late_changes import places_for
from scheduler_ext.snapshot.reservations import as_found_by
from scheduler_ext.snapshot.snapshot import Snapshot, release
from scheduler_ext.verbs.fit_cache import FilterResult


def on_kept_cards(
    pod: Pod, offered: Sequence[str], policy: Policy, snapshot: Snapshot, caps: CapChecks
) -> FilterResult | None:
    """Of the offered nodes those where the pod fits on cards that are kept for it; None: nowhere."""
    places, there = places_for(snapshot, pod), []
    if not places or pod.request is None or pod.uid in snapshot.allocated_on:
        return None
    for name in [each for each in offered if each in places]:
        without = release(snapshot, places[name].pod.uid)
        found = fit(pod.request, as_found_by(pod.uid, without.node(name)), policy)
        if not isinstance(found, Refusal) and not caps.is_capped(pod, name, without):
            there.append(name)
    if not there:
        return None
    return FilterResult(there, {}, {name: GANG_ELSEWHERE for name in offered if name not in there})
