"""What other threads see of the settler: immutable, of one tick, and replaced as a whole at its commit."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from timekeeper.accounts.balance import Statement
from timekeeper.accounts.budget_history import History
from timekeeper.accounts.claims.claim_sessions import consumers_of, decode_devices
from timekeeper.accounts.claims.excess import ClaimExcess, ClassKnowledge, excesses
from timekeeper.accounts.exhaustion.evictions import Pods
from timekeeper.accounts.exhaustion.units import LeavingUnits
from timekeeper.accounts.held.limits import HeldView
from timekeeper.accounts.pods import GangKey, LedgerPod, charged_pod, charged_pods, claim_user
from timekeeper.accounts.protection import ProtectedPods
from timekeeper.accounts.reclaim.choice import HeldClaim, devices_of, key_of
from timekeeper.accounts.session import Session
from timekeeper.accounts.standings import StandingsDocument
from timekeeper.accounts.statements import Statements
from timekeeper.core.claims.allocation import AllocatedDevice, DeviceClaim
from timekeeper.core.claims.devices import PublishedDevice, PublishedDevices
from timekeeper.core.claims.drivers import DriverRule
from timekeeper.core.claims.heirs import DeviceKey
from timekeeper.core.request.host import CardHost
from timekeeper.core.values import Card, GPURequest
from timekeeper.settler.cluster.claim_requests import KnownClasses
from timekeeper.settler.cluster.cluster_state import ClusterState
from timekeeper.settler.cluster.known_nodes import KnownNode
from timekeeper.settler.cluster.metered_namespaces import MeteredNamespaces
from timekeeper.settler.state.ledger_state import LedgerState


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The observed cluster; each of these as `ClusterState` and `DeviceClaims` have it."""

    pods: Mapping[str, LedgerPod]  # by UID
    gangs: Mapping[GangKey, Collection[str]]
    namespaces: Mapping[str, Collection[str]]
    users: Mapping[str, Collection[str]]
    pods_current_ms: int
    failing: frozenset[str]  # sources that cannot be watched
    nodes: Mapping[str, KnownNode]
    card_host: CardHost | None
    existing_namespaces: Mapping[str, str]
    metered: MeteredNamespaces
    allocated: Mapping[str, DeviceClaim]
    claim_names: Mapping[tuple[str, str], str]
    devices: PublishedDevices
    rules: Mapping[str, DriverRule]
    classes: KnownClasses

    def user(self, uid: str) -> LedgerPod | None:
        """As `claim_user`."""
        return claim_user(self.pods, uid)

    def cards(self, node: str) -> tuple[Card, ...]:
        """The node's cards; empty for a node that is not known."""
        known = self.nodes.get(node)
        return known.cards if known else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TickView:
    """``statements``: each listed namespace's account as of ``decided_ms``; None before the first decision,
    because budgets may have changed while no settler was running. Until then nothing is known of the cluster,
    and of the ledger what the settler before has written."""

    history: History  # the budgets
    statements: Statements | None
    accounts: Mapping[str, Statement] | None  # by subject, as written last; None: likewise
    decided_ms: int
    published: StandingsDocument | None
    protected: Mapping[str, ProtectedPods]
    held: HeldView
    cluster: ClusterView
    # each as `LedgerState` has it
    sessions: Mapping[str, Session]
    settled: Mapping[str, Session]
    claim_users: Mapping[str, tuple[str, ...]]
    claims_milli: Mapping[str, int]
    freed: Mapping[DeviceKey, Session]  # as `freed_devices`
    asked: Mapping[str, int]  # as `PodsWithoutNode` has it
    # UID of a pod without a node -> its request without what sessions of claims hold, where that is less
    unallocated: Mapping[str, GPURequest]

    def session(self, uid: str) -> Session | None:
        """The session of this UID, open or settled."""
        return self.sessions.get(uid) or self.settled.get(uid)

    def pod(self, uid: str) -> LedgerPod | None:
        """The pod of this UID: with its cards, else as it uses claims."""
        return charged_pod(self.cluster.pods, uid) or self.cluster.user(uid)

    def pods(self) -> Pods:
        """All that hold cards, wait for them, or use claims on GPUs."""
        users = (uid for uid in self.claim_users if not charged_pod(self.cluster.pods, uid))
        return (*charged_pods(self.cluster.pods), *self._pods_of(users))

    def is_known(self, uid: str) -> bool:
        """Whether the settler has a pod of this UID, or a session."""
        return charged_pod(self.cluster.pods, uid) is not None or self.session(uid) is not None

    def charged(self, uid: str) -> tuple[LedgerPod, int] | None:
        """The pod of this UID and its rate, with that of its claims; None: nothing is charged for it."""
        pod = self.pod(uid)
        found = [self.session(name) for name in (uid, *self.claim_users.get(uid, ()))]
        rates = [session.rate_milli for session in found if session is not None]
        return (pod, sum(rates)) if pod is not None and rates else None

    def is_protected(self, pod: LedgerPod) -> bool:
        """Whether the budget protects it; True also of one about which the ledger has not decided yet."""
        chosen = self.protected.get(pod.namespace)
        is_decided = pod.uid in self.claim_users or self.session(pod.uid) is not None
        return chosen is not None and (pod.uid in chosen.uids or not is_decided)

    def together(self, pod: LedgerPod) -> tuple[Pods, ...]:
        """The pods that end a hold if they leave together, this pod among them: itself for its cards, and for
        each of its claims on GPUs all pods that use it."""
        uses = self.claim_users.get(pod.uid)
        if uses is None:
            return ((pod,),)
        own = [(pod.uid,)] if self.session(pod.uid) is not None else []
        sharing = [some for uid in uses if pod.uid in (some := self._sharing(uid))]
        return tuple(self._pods_of(some) for some in dict.fromkeys((*own, *sharing)))

    def _sharing(self, session_uid: str) -> tuple[str, ...]:
        """The UIDs of the pods without which the claim of this session holds nothing; none if others than
        pods use it."""
        session = self.session(session_uid)
        claim = self.cluster.allocated.get(session.owner_uid) if session else None
        if session is None or (claim is not None and claim.other_consumers):
            return ()
        return consumers_of(session)

    def _pods_of(self, uids: Iterable[str]) -> Pods:
        return tuple(pod for uid in uids if (pod := self.pod(uid)) is not None)

    def mates(self, pod: LedgerPod) -> Pods:
        """The members of the pod's gang that hold cards."""
        key, cluster = pod.gang_key, self.cluster
        if key is None:
            return ()
        uids = sorted(cluster.gangs.get(key, ()))
        return tuple(mate for mate in self._pods_of(uids) if mate.gang_key == key and mate.is_charged)

    def units(self, left: Collection[str] = frozenset()) -> LeavingUnits:
        """Which pods leave together, for one look. ``left``: as in `LeavingUnits`."""
        return LeavingUnits(self.together, self.mates, left)

    def waiting(self) -> tuple[LedgerPod, ...]:
        """The pods that wait for the device of their claim."""
        found = (self.cluster.user(uid) for uids in self.cluster.users.values() for uid in uids)
        return tuple(pod for pod in found if pod is not None and pod.uses.waits is not None)

    def held_claims(self) -> tuple[HeldClaim, ...]:
        """The claims that hold devices for pods alone."""
        found = (
            HeldClaim(claim, self._pods_of(claim.consumers))
            for claim in self.cluster.allocated.values()
            if not claim.other_consumers
        )
        return tuple(held for held in found if len(held.pods) == len(held.claim.consumers))

    def allocated(self, namespace: str, name: str) -> tuple[AllocatedDevice, ...]:
        """What the claim of this namespace and name holds."""
        claim = self.cluster.allocated.get(self.cluster.claim_names.get((namespace, name), ""))
        return () if claim is None else devices_of(claim)

    def excesses(self, now_ms: int) -> Mapping[str, ClaimExcess]:
        """The pods whose claims hold more GPUs than they were judged for, by UID."""
        classes = self.cluster.classes
        said = classes.said or ((0, classes.settings),)
        known = ClassKnowledge(classes.classes, lambda at_ms: self.history.settings(at_ms).drivers, said)
        return excesses(self.cluster.allocated.values(), self.cluster.user, known, now_ms)

    def published_device(self, device: DeviceKey) -> PublishedDevice | None:
        """A device as its driver publishes it; None: it does not."""
        return self.cluster.devices.published(*device)

    def unheld(self) -> Mapping[DeviceKey, PublishedDevice]:
        """The devices that no claim holds."""
        claims = self.cluster.allocated.values()
        held = {key_of(device) for claim in claims for device in devices_of(claim) if not device.is_admin}
        return {key: device for key, device in self.cluster.devices.every().items() if key not in held}


def cluster_view(cluster: ClusterState) -> ClusterView:
    """As it is now. It costs what has changed since the last view."""
    claims, known = cluster.claims, cluster.pods.claim_requests.known_classes
    return ClusterView(
        pods=cluster.pods.frozen(),
        gangs=cluster.pods.gangs.frozen(),
        namespaces=cluster.pods.namespaces.frozen(),
        users=cluster.pods.users.frozen(),
        pods_current_ms=cluster.pods.current_ms,
        failing=frozenset(cluster.failing),
        nodes=cluster.nodes.frozen(),
        card_host=cluster.nodes.card_host(),
        existing_namespaces=cluster.existing_namespaces.frozen(),
        metered=cluster.pods.metered,
        allocated=claims.allocated.frozen(),
        claim_names=claims.names.frozen(),
        devices=claims.pools.frozen(),
        rules=claims.rules,
        classes=replace(known, classes=cluster.pods.claim_requests.classes.frozen()),
    )


def freed_devices(cluster: ClusterState, ledger: LedgerState) -> Mapping[DeviceKey, Session]:
    """The whole devices of freed claims that removed pods use, or used, each with its unsettled session."""
    holds = cluster.pods.without_object.holds.items()
    sessions = [ledger.sessions[uid] for uid, gone in holds if gone.users and uid in ledger.sessions]
    return {
        (device.driver, device.pool, device.device): session
        for session in sessions
        for device in decode_devices(session.devices)
        if not device.share and not device.is_admin
    }


def tick_view(cluster: ClusterState, ledger: LedgerState, held: HeldView) -> TickView:
    """As of the tick that was written last. It costs what has changed since the last one."""
    cache = ledger.statement_cache
    return TickView(
        history=ledger.history,
        statements=None if cache is None else cache.statements,
        accounts=None if cache is None else ledger.accounts,
        decided_ms=ledger.pulse.decided_ms,
        published=ledger.published,
        protected=ledger.protected,
        held=held,
        cluster=cluster_view(cluster),
        sessions=ledger.sessions.frozen(),
        settled=ledger.settled.frozen(),
        claim_users=ledger.claim_users.frozen(),
        claims_milli=ledger.claims_milli.frozen(),
        freed=freed_devices(cluster, ledger),
        asked=+ledger.without_node.asked,
        unallocated=ledger.without_node.rest.frozen(),
    )
