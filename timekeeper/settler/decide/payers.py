"""Who pays for each pod that a tick may open a session of, or of a claim of."""

from collections.abc import Mapping

from timekeeper.accounts.claims.payer import Payer, payer
from timekeeper.accounts.pods import claim_user
from timekeeper.settler.decide.stages import PATIENCE_MS, TickFacts

Payers = Mapping[str, Payer]  # by UID of a pod; a pod that is not in it pays: no claim serves its resources


def payers_of(tick: TickFacts) -> Payers:
    """Decided before any session is opened."""
    cluster, ledger, claims = tick.cluster, tick.ledger, tick.cluster.claims
    if not claims.is_followed:
        return {}
    seen = [sight.claim for sights in claims.sights.values() for sight in sights if not sight.is_gone]
    held = {(claim.namespace, claim.name) for claim in seen if claim.allocation is not None}
    since = {uid: gone.at_ms for uid, gone in cluster.pods.deleted.items()} | cluster.pods.changed
    known_ms = min(tick.now_ms, claims.current_ms)
    found: dict[str, Payer] = {}
    for uid in {*since, *(consumer for claim in seen for consumer in claim.consumers)}:
        pod = claim_user(cluster.pods, uid)
        if pod is not None and pod.uses.served_by:
            name = (pod.namespace, pod.uses.served_by)
            found[uid] = payer(
                was_claim=pod.uses.is_served,
                was_pod=ledger.session(uid) is not None,
                is_held=name in held or claims.is_allocated(*name) or name in ledger.claim_names,
                may_come=pod.uses.gone_ms is None and known_ms - since.get(uid, 0) < PATIENCE_MS,
            )
    return found
