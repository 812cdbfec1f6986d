"""Which sessions of claims open, and when they end."""

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial

from timekeeper.accounts.claims.claim_sessions import (
    Opening,
    begin_ms,
    decode_devices,
    end_claim_session,
    held_by_claim,
    is_of,
    open_claim_session,
    reserving,
    session_uids,
    used_by,
    user_uids,
)
from timekeeper.accounts.pods import LedgerPod, charged_pod, claim_user
from timekeeper.accounts.session import CLAIMS_SEEN, Session, admitted_in_budget, evidence, vanish
from timekeeper.core.claims.allocation import DeviceAllocation, DeviceClaim
from timekeeper.core.dialects.others import claims as of_claims
from timekeeper.core.ledger.metering import FOREVER_MS
from timekeeper.core.rating.allocations import ClaimCharge, charge_of
from timekeeper.core.values import GPURequest
from timekeeper.settler.cluster.cluster_state import ClusterState
from timekeeper.settler.cluster.device_claims import ClaimSight, DeviceClaims, Relist
from timekeeper.settler.decide.payers import Payers
from timekeeper.settler.decide.stages import PATIENCE_MS, ClaimChanges, SessionChanges, TickFacts
from timekeeper.settler.state.ledger_state import LedgerState


def changed_claims(facts: TickFacts, payers: Payers) -> ClaimChanges:
    """The sessions of claims that open, change or end."""
    cluster, ledger, changes = facts.cluster, facts.ledger, ClaimChanges()
    tick = _ClaimTick(cluster, ledger, facts.settings, facts.now_ms, changes=changes, payers=payers)
    for uid, sights in cluster.claims.sights.items():
        tick.apply(uid, sights)
    for uid in cluster.claims.changed:
        tick.reserve(tick.running(uid))
    if cluster.claims.relisted is not None:
        tick.miss_absent(cluster.claims.relisted)
    tick.follow_lost()
    deferred = (sights[0].look_ms for sights in changes.sights.values())
    cluster.claims.deferred_ms = (FOREVER_MS, *deferred)
    return changes


def unallocated(
    cluster: ClusterState, ledger: LedgerState, changes: SessionChanges
) -> Callable[[LedgerPod], GPURequest]:
    """What of a pod without a node no session of a claim holds: its request, without the claims that are
    allocated already. Those pods count as changed of whose claims a session has changed."""
    changed = [session for session in changes.sessions.values() if session.is_claim]
    now = {session.owner_uid: session for session in changed if not session.is_over}
    names = {(session.namespace, session.name) for session in changed}
    for namespace in {session.namespace for session in changed}:
        users = (charged_pod(cluster.pods, uid) for uid in cluster.pods.users.get(namespace, ()))
        waiting = (pod for pod in users if pod is not None and pod.can_be_bound)
        named = (pod for pod in waiting if any((namespace, name) in names for name in pod.uses.claims))
        cluster.pods.without_node_changes.update(pod.uid for pod in named)

    def held(namespace: str, name: str) -> int:
        """GPUs that the claim counts for, while a session holds them."""
        claim = cluster.claims.allocated_claim(namespace, name)
        if claim is None:
            return 0
        known = ledger.running_claims.get(claim.uid, "")
        session = now.get(claim.uid) or changes.sessions.get(known) or ledger.session(known)
        if session is None or not held_by_claim(session):
            return 0
        devices = sum(not each.is_admin for each in decode_devices(session.devices))
        return max(devices, cluster.pods.claim_requests.known.devices_of(claim.requests))

    def rest(pod: LedgerPod) -> GPURequest:
        if pod.request.dialect != of_claims.NAME:
            if not pod.uses.served_by or not held(pod.namespace, pod.uses.served_by):
                return pod.request
            left = cluster.pods.without_served(pod.uid)
            return replace(pod.request, asks=()) if left is None else left.request
        taken = sum(held(pod.namespace, name) for name in pod.uses.claims)
        return of_claims.request_of(max(0, pod.request.asks[0].ask.devices - taken)) if taken else pod.request

    return rest


@dataclass(frozen=True, slots=True)
class _ClaimTick(TickFacts):
    _: KW_ONLY
    changes: ClaimChanges
    payers: Payers

    @property
    def claims(self) -> DeviceClaims:
        """Those of the cluster."""
        return self.cluster.claims

    def _user(self, uid: str) -> LedgerPod | None:
        return claim_user(self.cluster.pods, uid)

    def apply(self, uid: str, sights: list[ClaimSight]) -> None:
        """All that was seen of one claim, in order."""
        session = self.running(uid)
        for place, sight in enumerate(sights):
            claim = sight.claim
            allocation = None if sight.is_gone else claim.allocation
            if session is not None and sight.is_gone and claim.allocation is not None:
                self._lose(session, sight, claim.consumers)
                session = None
            elif session is not None and (allocation is None or not is_of(session, allocation)):
                self._end(session, self._end_ms(session, sight))
                session = None
            if allocation is None:
                continue
            if session is None:
                is_last = place == len(sights) - 1
                charge = self._charge(allocation)
                if is_last and _is_unpublished(charge) and self.now_ms - sight.at_ms < PATIENCE_MS:
                    self.changes.sights[uid] = sights[place:]
                    return
                is_admin = any(each.device.is_admin for each in charge.gpus)
                self.claims.judge(uid, charge.unknown_drivers, is_admin)
                session = self._open(sight, allocation, charge)
            elif session.consumers != " ".join(claim.consumers):
                session = self.changes.put(used_by(session, claim))
        self.reserve(session)

    def reserve(self, session: Session | None) -> None:
        """The session reserves what the pods that use the claim declare, as that of a pod does."""
        if session is None or session.is_over or self.cluster.pods.metered.meters(session.namespace):
            return
        users = map(self._user, session.consumers.split())
        after = reserving(session, (pod for pod in users if pod is not None))
        if after is not session:
            self.changes.put(after)

    def running(self, uid: str) -> Session | None:
        """The session of the claim's present allocation, as it is by now; None without one."""
        known = self.ledger.running_claims.get(uid)
        return None if known is None else self.changes.sessions.get(known) or self.ledger.session(known)

    def _charge(self, allocation: DeviceAllocation) -> ClaimCharge:
        return charge_of(allocation, self.claims.pools.find, self.claims.rules, self.settings)

    def _open(self, sight: ClaimSight, allocation: DeviceAllocation, charge: ClaimCharge) -> Session | None:
        """The session of the allocation; None if it has no GPU, or a pod pays for it already."""
        claim = sight.claim
        if not charge.gpus or any(map(partial(self._pays_for, claim), claim.consumers)):
            return None
        begun_ms = begin_ms(allocation, sight.at_ms, self._look_ms(sight))
        begun_ms = max(begun_ms, self.ledger.claim_ends.get(claim.uid, 0))
        pod = next(filter(None, map(self._user, claim.consumers)), None)
        node = self._node(allocation, charge, pod)
        standing = (
            pod.standing if pod is not None and pod.is_governed else ""
        )  # else admission did not govern it
        is_admitted = admitted_in_budget(standing, self.settings)
        opening = Opening(self._free_uid(claim, begun_ms), node, begun_ms, self.now_ms, is_admitted)
        return self.changes.open(open_claim_session(claim, charge, pod, opening))

    def _pays_for(self, claim: DeviceClaim, uid: str) -> bool:
        """Whether this pod pays by its cards for extended resources that the claim serves."""
        pod = self._user(uid)
        return pod is not None and pod.uses.served_by == claim.name and self.payers.get(uid) == "pod"

    def _free_uid(self, claim: DeviceClaim, begun_ms: int) -> str:
        known = (self.changes.sessions, self.ledger.sessions, self.ledger.settled, self.ledger.used_claims)
        uids = session_uids(claim, begun_ms)
        return next(uid for uid in uids if not any(uid in each for each in known))

    def _node(self, allocation: DeviceAllocation, charge: ClaimCharge, pod: LedgerPod | None) -> str:
        """The devices' node; of those that are of no node, their pool."""
        first = charge.gpus[0].device
        found = self.claims.pools.find(first.driver, first.pool, first.device)
        published = found.device.node if found else ""
        return allocation.node or published or (pod.node if pod else "") or first.pool or first.driver

    def _look_ms(self, sight: ClaimSight) -> int:
        """Until when claims were known before; before the first list, by the earlier settler."""
        return sight.look_ms or self.ledger.watermarks.get(CLAIMS_SEEN, 0)

    def _end_ms(self, session: Session, sight: ClaimSight) -> int:
        """When the allocation was cleared, as it was seen; where a list shows it, the earliest end that is
        proved: it held until the last look, and until its pods ended."""
        if not sight.is_listed:
            return sight.at_ms
        pods = map(self._user, session.consumers.split())
        ends = [pod.claims_end_ms or 0 for pod in pods if pod is not None]
        last_ms = max((self._look_ms(sight), *ends))
        allocation = sight.claim.allocation
        next_ms = allocation.stamp_ms if allocation and allocation.stamp_ms else sight.at_ms
        return min(last_ms, sight.at_ms, max(next_ms, session.bound_ms))

    def miss_absent(self, listed: Relist) -> None:
        """The claims of sessions that hold nothing in a list, or are not in it, changed since the last
        look."""
        for uid, session_uid in self.ledger.running_claims.items():
            session = self.ledger.session(session_uid)
            is_known = uid in self.claims.allocated or uid in self.claims.sights
            if session is None or is_known or session_uid in self.claims.lost:
                continue
            sight = listed.sight(uid)
            if sight.is_gone:
                self._lose(session, sight, tuple(session.consumers.split()))
            else:
                self._end(session, self._end_ms(session, sight))

    def _lose(self, session: Session, sight: ClaimSight, consumers: tuple[str, ...]) -> None:
        """The claim's object is gone though it was allocated: pods that run may still use the devices."""
        last_ms = self._look_ms(sight) if sight.is_listed else sight.at_ms
        last_ms = max(last_ms, session.watermark_ms or 0)
        self.changes.put(replace(session, consumers=" ".join(consumers), watermark_ms=last_ms))
        self.claims.lost.add(session.uid)

    def follow_lost(self) -> None:
        """A lost claim is held until the last pod that is known to use it has ended."""
        for uid in list(self.claims.lost):
            session = self.changes.sessions.get(uid) or self.ledger.sessions.get(uid)
            if session is None or session.is_over:
                self.claims.lost.discard(uid)
                continue
            known = {user: self._user(user) for user in session.consumers.split()}
            ends = {claim: 0 if pod is None else pod.claims_end_ms for claim, pod in known.items()}
            left = " ".join(each for each, end_ms in ends.items() if end_ms is None)
            last_ms = max((session.watermark_ms or 0, *(each or 0 for each in ends.values())))
            if not left and self.now_ms >= last_ms:
                self._end(session, last_ms)
            elif (left, last_ms) != (session.consumers, session.watermark_ms):
                self.changes.put(replace(session, consumers=left, watermark_ms=last_ms))

    def _end(self, session: Session, end_ms: int) -> None:
        """It ended then, or a pod of it that was removed holds its devices for longer, as it would cards."""
        pods, end_ms = self.cluster.pods.without_object, max(end_ms, session.bound_ms)
        known = {uid: pods.holds[uid] for uid in user_uids(session) if uid in pods.holds}
        held = {uid: gone for uid, gone in known.items() if gone.is_held(end_ms)}
        if not held:
            self.changes.put(end_claim_session(session, end_ms))
            return
        longest = max(held.values(), key=lambda gone: gone.until_ms)
        gone = replace(
            longest,
            grace_ms=min(longest.grace_ms, self.settings.max_grace_period_ms),
            quick_ms=max(gone.quick_ms or gone.grace_ms for gone in held.values()),
            listed_ms=max(end_ms, longest.listed_ms or 0),  # at least
            users=tuple(held),
        )
        pods.add(session.uid, session.node, gone, end_ms)
        self.changes.put(vanish(session, pods.holds[session.uid], evidence(session, None, None)))


def _is_unpublished(charge: ClaimCharge) -> bool:
    """Whether a slice may still arrive that says what a device is: the watches are independent."""
    return any(gpu.found is None for gpu in charge.gpus)


def allocated_since(claims: DeviceClaims, since_ms: int) -> set[tuple[str, str]]:
    """Namespace and name of the claims of the first list that were allocated since then: an earlier settler
    may have seen them freed in that second."""
    first = (sight.claim for sights in claims.sights.values() for sight in sights if not sight.look_ms)
    return {
        (claim.namespace, claim.name)
        for claim in first
        if claim.allocation is not None and (claim.allocation.stamp_ms or 0) >= since_ms
    }


def wanted_uids(claims: DeviceClaims) -> Iterator[tuple[str, ...]]:
    """Of each allocation of a changed claim: the UIDs that its session may have, in order."""
    for sights in claims.sights.values():
        for sight in sights:
            if sight.claim.allocation is not None:
                yield session_uids(sight.claim, sight.at_ms)
