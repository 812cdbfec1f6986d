"""Who pays for each pod that a tick may open a session of, or of a claim of."""

from collections.abc import Mapping

from timekeeper.accounts.claims.payer import Payer, payer
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
    for uid in {*since, *(consumer for claim in seen for consumer in claim.consumers)} & claims.users.keys():
        pod = claims.users[uid]
        name = (pod.pod.namespace, pod.served_by)
        if pod.served_by:
            found[uid] = payer(
                was_claim=uid in claims.served,
                was_pod=ledger.session(uid) is not None,
                is_held=name in held or claims.is_allocated(*name) or name in ledger.claim_names,
                may_come=pod.gone_ms is None and known_ms - since.get(uid, 0) < PATIENCE_MS,
            )
    return found
