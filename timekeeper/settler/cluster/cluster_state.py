"""The cluster as the settler observes it. One thread applies the watch updates; nothing else changes it."""

from collections import ChainMap, Counter
from collections.abc import Container, Hashable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeVar

from timekeeper.accounts.claims.claim_findings import NO_PODS, ClaimingPods, claiming_pods
from timekeeper.accounts.claims.consumers import ClaimPod
from timekeeper.accounts.failing_watches import FailingWatch
from timekeeper.accounts.pods import GangKey, LedgerPod, UnjudgedPod, UnreadablePod, is_bare, metered_view
from timekeeper.accounts.session import CLAIMS, CLAIMS_SEEN
from timekeeper.core.claims.allocation import DeviceClaim
from timekeeper.core.claims.devices import DeviceSlice
from timekeeper.core.ledger import hold
from timekeeper.core.ledger.hold import NodeSight, Vanished
from timekeeper.core.rating.held import card_host
from timekeeper.core.rating.nodes import NO_CARDS, NodeCards
from timekeeper.core.request.device_classes import DEFAULTS, DeviceClass
from timekeeper.core.request.host import NO_HOST, CardHost, HostAmount
from timekeeper.core.tables import GroupTable, Table
from timekeeper.core.values import WHOLE_MILLI, Card
from timekeeper.edge.reflector import ObjectChanged, ObjectsListed, WatchEvent, WatchFailed, WatchOpened
from timekeeper.settler.cluster import device_claims
from timekeeper.settler.cluster.device_claims import ClaimSight, DeviceClaims
from timekeeper.settler.cluster.metered_namespaces import ALL_GOVERNED, MeteredNamespaces
from timekeeper.settler.cluster.unjudged_pods import (
    CLASSES,
    TEMPLATES,
    ClaimTemplate,
    ClassSettingsRead,
    UnjudgedPods,
)
from timekeeper.settler.cluster.vanished_pods import VanishedPods

# Without one of these nothing is decided. The list of namespaces serves a warning only.
SOURCES = ("pods", "nodes", "leases", "configmaps", "priorityclasses")

# Limits on memory while the database is unreachable.
MAX_DELETED = 100_000  # deleted pods whose end is not written yet
_RENEWED_MS = 10_000  # how often a kubelet renews its Lease
_RENEWALS_MS = 3 * _RENEWED_MS  # after a pod's end they may still show that the clock had been set before it
MAX_UNREADABLE = 10_000  # unreadable pods that are not reported yet


@dataclass(frozen=True, slots=True)
class KnownNode:
    """A node that exists, as the watch shows it."""

    name: str
    rated: NodeCards = NO_CARDS  # its cards, and what its plugins count of them
    fault: str = ""  # why its inventory cannot be read
    allocatable: HostAmount = NO_HOST  # CPU and memory; of a node without cards nothing is known
    plugin_chooses: bool = False  # its device plugin picks the cards
    unclassified: tuple[str, ...] = ()  # its resources of which no table says whether they are accelerators'
    gpus: tuple[str, ...] = ()  # the GPU resources that it advertises
    offers: tuple[str, ...] = ()  # those of which it has some to give out
    devices: int = 0  # how many cards and accelerators it has
    ready: str = field(default="", compare=False)  # the status of its condition Ready; "": it has none
    # its boot, and the pods on it by its agent's fresh report; arrives apart from the cards
    sight: NodeSight = field(default=NodeSight(), compare=False)

    @property
    def cards(self) -> tuple[Card, ...]:
        """As they are described; empty where nothing describes any."""
        return self.rated.cards


@dataclass(frozen=True, slots=True)
class NodeLease:
    """When a node's kubelet last renewed its Lease, by the node's clock. ``ahead_ms``: by how much that is
    ahead of the API server's; 0: it is right; None: that is not known."""

    name: str
    renewed_ms: int | None
    ahead_ms: int | None = None

    @property
    def heard_ms(self) -> int | None:
        """The renewal by the API server's clock."""
        return None if self.renewed_ms is None else self.renewed_ms - (self.ahead_ms or 0)


@dataclass(frozen=True, slots=True)
class BudgetConfigMap:
    """A ConfigMap with budgets: its entries by key."""

    name: str
    uid: str
    data: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class KnownPriorityClass:
    """A PriorityClass that exists."""

    name: str
    value: int
    preemption_policy: str = "PreemptLowerPriority"
    is_default: bool = False  # of pods that name none


@dataclass(frozen=True, slots=True)
class ExistingNamespace:
    """A namespace that exists. ``mode``: what its label names; "": it has none."""

    name: str
    mode: str = ""


@dataclass(frozen=True, slots=True)
class PodWithClaims:
    """A pod that uses claims. ``read``: as any pod; ``rest``: without the extended resources that a claim
    serves; None: nothing of it concerns the ledger."""

    pod: ClaimPod
    read: LedgerPod | UnreadablePod | UnjudgedPod | None
    rest: LedgerPod | UnreadablePod | UnjudgedPod | None


Item = (
    LedgerPod
    | UnreadablePod
    | UnjudgedPod
    | KnownNode
    | NodeLease
    | BudgetConfigMap
    | KnownPriorityClass
    | ExistingNamespace
    | DeviceClass
    | ClaimTemplate
    | ClassSettingsRead
    | PodWithClaims
    | DeviceClaim
    | DeviceSlice
)


@dataclass(frozen=True, slots=True)
class WatchUpdate:
    """One update of a watch; ``at_ms``: when the list was requested (`ObjectsListed`), else when the update
    arrived."""

    source: str
    at_ms: int
    change: WatchEvent[Item]


@dataclass(frozen=True, slots=True)
class RecentEnd:
    """A pod whose end was learnt at ``at_ms``. ``leases_ms``: what the Leases of its node showed then and
    since (`hold.dated`): the clock may have been set after the last one before the end."""

    pod: LedgerPod
    at_ms: int
    leases_ms: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeletedPod:
    """A pod whose object is gone."""

    pod: LedgerPod  # its last state
    at_ms: int  # when its removal was seen
    seen: bool  # False if it was deleted while no watch was running
    watermark_ms: int | None  # its node's watermark at that time


@dataclass(slots=True, kw_only=True)
class ClusterState:
    """The observed cluster, and what changed since the last written tick.

    The ``*_version`` counters change with their subject: results that depend on it alone are cached by them.
    """

    pods: Table[str, LedgerPod] = field(default_factory=Table)  # by UID; pods that request GPUs
    nodes: Table[str, KnownNode] = field(default_factory=Table)
    leases: dict[str, NodeLease] = field(default_factory=dict)  # by node
    had_lease: set[str] = field(default_factory=set)  # nodes of which this process or the ledger knows one
    # node without a Lease -> its condition Ready, and since when it is Unknown, None: it is not
    ready: dict[str, tuple[str, int | None]] = field(default_factory=dict)
    logged_clocks: frozenset[str] = frozenset()  # nodes with wrong clocks that the log has named
    config_maps: dict[str, BudgetConfigMap] = field(default_factory=dict)
    # priority class -> value and preemption policy
    classes: dict[str, tuple[int, str, bool]] = field(default_factory=dict)
    existing_namespaces: Table[str, str] = field(default_factory=Table)  # name -> its label for the mode
    unbound: set[str] = field(default_factory=set)  # UIDs of pods that wait for a node
    listed_sources: set[str] = field(default_factory=set)  # sources that have been listed once
    failing: dict[str, FailingWatch] = field(default_factory=dict)  # by source
    failing_since: dict[str, int] = field(default_factory=dict)  # by source, until a change arrives
    pods_current_ms: int = 0  # until when the pods are known to be complete
    changed_pods: dict[str, int] = field(default_factory=dict)  # UID -> since when the pod waits for a tick
    # UID -> pod whose end is not written yet
    deleted_pods: dict[str, DeletedPod] = field(default_factory=dict)
    # UID -> waiting pod whose removal is not written yet
    deleted_waiting: dict[str, DeletedPod] = field(default_factory=dict)
    recent_ends: dict[str, dict[str, RecentEnd]] = field(default_factory=dict)  # by node and UID
    dated_again: dict[str, LedgerPod] = field(default_factory=dict)  # of these, by UID, until that is written
    _ends_dropped_ms: int = 0  # when the older ones were last dropped
    # UID of an ended pod -> its node's watermark when the end was observed
    end_watermarks: dict[str, int | None] = field(default_factory=dict)
    vanished: VanishedPods = field(default_factory=VanishedPods)  # what became of pods without an object
    changed_sights: set[str] = field(default_factory=set)  # nodes of which something else is known
    pods_relisted: bool = False  # the pods were listed anew: sessions without a pod lost theirs unobserved
    listed_pods: Set[str] = frozenset()  # UIDs of that list
    metered: MeteredNamespaces = ALL_GOVERNED
    unjudged: UnjudgedPods = field(default_factory=UnjudgedPods)  # pods whose claims are not known yet
    # UID -> pod as read, where ``pods`` has another view of it, or would have one if it were metered
    as_read: dict[str, LedgerPod | UnreadablePod] = field(default_factory=dict)
    # the same of `deleted_pods`: a session that is not open yet opens as by the modes of its tick
    deleted_as_read: dict[str, LedgerPod | UnreadablePod] = field(default_factory=dict)
    # UID -> namespace of a pod that holds what its resource claims alone give it
    claiming: dict[str, str] = field(default_factory=dict)
    _claiming: ClaimingPods | None = None  # of them; None: to be counted anew
    claims: DeviceClaims = field(default_factory=DeviceClaims)
    # UID -> pod without the extended resources that a claim serves
    rest: dict[str, LedgerPod | UnreadablePod] = field(default_factory=dict)
    unreadable: dict[str, UnreadablePod] = field(default_factory=dict)  # UID -> pod to report
    unreadable_omitted: int = 0  # number of unreadable pods beyond `MAX_UNREADABLE`
    deletions_dropped: int = 0  # number of deleted pods beyond ``most_deleted``
    most_deleted: int = MAX_DELETED
    # UIDs of pods that changed while unbound, or became or ceased to be so
    unbound_changes: set[str] = field(default_factory=set)
    # UIDs of the pods that start together, by namespace and key of their gang; and gangs that changed
    gangs: GroupTable[GangKey, str] = field(default_factory=GroupTable)
    gang_changes: set[tuple[str, str]] = field(default_factory=set)
    preempted_gangs: set[tuple[str, str]] = field(default_factory=set)  # of which a member was preempted
    namespaces: GroupTable[str, str] = field(default_factory=GroupTable)  # namespace -> UIDs of its pods
    inventory_version: int = 0  # of the nodes' cards
    budgets_version: int = 0  # of the ConfigMaps
    classes_version: int = 0  # of the priority classes
    existing_version: int = 0  # of the existing namespaces and their labels
    # the inventory's version, and how much CPU and memory there is for each card in it
    _card_host: tuple[int, CardHost | None] = (-1, None)
    # the inventory's version, and on how many nodes each unclassified resource is
    _unclassified: tuple[int, Mapping[str, int]] = field(default_factory=lambda: (-1, {}))
    counted_resources: frozenset[str] = frozenset()  # those that the metrics have

    def missing_sources(self) -> tuple[str, ...]:
        """Sources that have not been listed completely yet. Before that nothing may be decided."""
        return tuple(source for source in SOURCES if source not in self.listed_sources)

    def watermark_ms(self, node: str) -> int | None:
        """Until when the node was alive with its pods observed; None if it never renewed its Lease."""
        if node == CLAIMS:
            return self.claims.watermark_ms
        if node == CLAIMS_SEEN:
            return self.claims.seen_ms
        lease = self.leases.get(node)
        if node in self.had_lease or not self.pods_current_ms:
            is_heard = lease is not None and lease.heard_ms is not None and self.pods_current_ms
            return min(self.pods_current_ms, lease.heard_ms or 0) if is_heard and lease else None
        return self._ready_until_ms(node)

    def _ready_until_ms(self, node: str) -> int | None:
        """Of a node that never had a Lease: while its condition Ready is not Unknown, as the watch saw it. As
        often as a Lease is renewed."""
        status, unknown_ms = self.ready.get(node, ("", None))
        if not status or "nodes" in self.failing or "leases" in self.failing:
            return None
        until_ms = self.pods_current_ms // _RENEWED_MS * _RENEWED_MS
        return until_ms if unknown_ms is None else min(until_ms, unknown_ms)

    def leaseless(self) -> list[str]:
        """The nodes with cards that never had a Lease, and live by their condition Ready."""
        return [name for name in self.ready if self.cards(name) and name not in self.had_lease]

    def mode_labels(self) -> Mapping[str, str] | None:
        """What the labels of namespaces name as their mode; None before the namespaces are listed."""
        return self.existing_namespaces if "namespaces" in self.listed_sources else None

    def cards(self, node: str) -> tuple[Card, ...]:
        """The node's cards; empty for a node that is not known."""
        return self.rated_node(node).cards

    def card_host(self) -> CardHost | None:
        """How much CPU and memory there is for each card, computed anew where a node has changed."""
        if self._card_host[0] != self.inventory_version:
            known = card_host((each.cards, each.allocatable) for each in self.nodes.values())
            self._card_host = self.inventory_version, known
        return self._card_host[1]

    def unclassified(self) -> Mapping[str, int]:
        """On how many nodes each resource is of which no table says whether it is an accelerator's."""
        if self._unclassified[0] != self.inventory_version:
            names = chain.from_iterable(node.unclassified for node in self.nodes.values())
            self._unclassified = self.inventory_version, Counter(names)
        return self._unclassified[1]

    def most_milli(self, node: str) -> int:
        """What all cards of the node are together, in milli-GPU; 0 for a node that is not known."""
        known = self.nodes.get(node)
        return WHOLE_MILLI * known.devices if known else 0

    def rated_node(self, node: str) -> NodeCards:
        """The node's cards, and what its plugins count of them; none of a node that is not known."""
        known = self.nodes.get(node)
        return known.rated if known else NO_CARDS

    def uncharged_claims(self) -> ClaimingPods:
        """Those pods that hold what nothing charges, because claims are not followed: of metered namespaces,
        for elsewhere admission judges claims."""
        if self.claims.is_followed:
            return NO_PODS
        if self._claiming is None:
            self._claiming = claiming_pods(filter(self.metered.meters, self.claiming.values()))
        return self._claiming

    def orphans(self, charged: Container[str], now_ms: int) -> list[DeviceClaim]:
        """The claims, of those of the ``charged`` UIDs, that no pod uses. While pods cannot be watched, none
        that a claim is reserved for counts as missing."""
        is_watched = "pods" not in self.failing
        found = self.claims.orphans(now_ms)
        return [each for each in found if each.uid in charged and (is_watched or not each.consumers)]

    def given(self, node: str) -> Mapping[str, tuple[str, ...]]:
        """By pod UID the cards that the node's plugin gave, by its agent's fresh report; none where the
        placements count."""
        known, sight = self.nodes.get(node), self.vanished.sights.get(node)
        return sight.report.pods if known and known.plugin_chooses and sight and sight.report else {}

    def without_served(self, uid: str) -> LedgerPod | None:
        """The pod without what a claim serves; None: nothing of it is charged."""
        rest = self.rest.get(uid)
        return None if rest is None else self._view(rest)

    def follow(self, metered: MeteredNamespaces, at_ms: int) -> None:
        """Other namespaces are metered from now on, or other devices known: look at their pods anew. Pods
        that hold cards stay in the ledger until they end."""
        before, self.metered = self.metered, metered
        if metered == before:
            return
        self._claiming = None
        others = (pod for uid, pod in self.pods.items() if uid not in self.as_read)
        changed = [*(replace(pod, is_metered=False) for pod in others), *self.as_read.values()]
        for each in changed:
            if metered.differs(before, each.namespace):
                self._put_read(each, False, at_ms)
        for uid, gone in self.deleted_pods.items():
            read = self.deleted_as_read.get(uid) or replace(gone.pod, is_metered=False)
            view = self._view(read) if metered.differs(before, read.namespace) else None
            if view is not None:
                self.deleted_pods[uid] = replace(gone, pod=_with_earlier(gone.pod, view))

    def wrong_clocks(self) -> dict[str, int]:
        """By how many milliseconds the clocks of nodes with cards are ahead, where they are wrong."""
        return {
            node: lease.ahead_ms for node, lease in self.leases.items() if lease.ahead_ms and self.cards(node)
        }

    def apply(self, update: WatchUpdate) -> None:
        """Take in one update of a watch."""
        if isinstance(update.change, WatchFailed):
            since_ms = self.failing_since.setdefault(update.source, update.at_ms)
            self.failing[update.source] = FailingWatch(since_ms, update.change.sentence)
            return
        self.failing.pop(update.source, None)
        if not isinstance(update.change, WatchOpened):  # else what it sends may fail again
            self.failing_since.pop(update.source, None)
        match update.change:
            case ObjectsListed(items):
                self._replace(update.source, items, update.at_ms)
                self.listed_sources.add(update.source)
            case ObjectChanged(item, deleted):
                self._put(self._with_report(item, update.at_ms), deleted, update.at_ms)
        if update.source == "pods" and not isinstance(update.change, WatchOpened):
            self.pods_current_ms = max(self.pods_current_ms, update.at_ms)
        if update.source == "resourceclaims" and not isinstance(update.change, WatchOpened):
            self.claims.confirm(update.at_ms)

    def mark_written(
        self,
        deferred: Mapping[str, int],
        deferred_claims: dict[str, list[ClaimSight]] | None = None,
        served: Iterable[str] = (),
        withheld: Set[str] = frozenset(),
    ) -> None:
        """Everything up to now is written to the ledger, except ``deferred``: pods to look at again, and
        since when, ``deferred_claims``, and what is known of pods and claims of the ``withheld`` namespaces.
        ``served``: UIDs of pods whose extended resources a claim serves from now on."""
        for uid in served:
            self._serve(uid)
        changed = self.changed_pods if withheld else ()  # nearly always none is kept
        kept = {uid for uid in changed if self.pods[uid].namespace in withheld}
        gone = {uid for uid, deleted in self.deleted_pods.items() if deleted.pod.namespace in withheld}
        self.changed_pods = {uid: self.changed_pods[uid] for uid in kept} | dict(deferred)
        self.end_watermarks = _only(self.end_watermarks, self.changed_pods.keys() | gone)
        self.claims.mark_written(deferred_claims or {}, withheld)
        self.rest = {uid: each for uid, each in self.rest.items() if uid in self.claims.pods}
        self.deleted_pods = _only(self.deleted_pods, gone)
        self.dated_again = {uid: pod for uid, pod in self.dated_again.items() if pod.namespace in withheld}
        self.deleted_as_read = _only(self.deleted_as_read, gone)
        self.deleted_waiting.clear()
        self.unreadable.clear()
        self.unreadable_omitted = 0
        self.unjudged.changed.clear()
        self.changed_sights.clear()
        if not withheld:
            self.pods_relisted, self.listed_pods = False, frozenset()

    def _replace(self, source: str, items: tuple[Item, ...], at_ms: int) -> None:
        if source == "pods":
            self._relist(items, at_ms)
            return
        if source in device_claims.SOURCES:
            self._relist_claims(source, items, at_ms)
            return
        table, names = (
            self._table(source),
            {
                item.name
                for item in items
                if not isinstance(item, UnreadablePod | UnjudgedPod | PodWithClaims)
            },
        )
        is_said = any(isinstance(item, ClassSettingsRead) for item in items)
        if source == "configmaps" and not is_said and self.unjudged.known_classes.settings != DEFAULTS:
            self.unjudged.see_settings(DEFAULTS, at_ms)
        for name in [name for name in table if name not in names]:
            del table[name]
            if source == "nodes":
                self.vanished.see(name, None, at_ms)
            self._bump_version(source)
        for item in items:
            # a list repeats what a Node said before: it proves nothing after the node's last evidence
            known_ms = self.watermark_ms(item.name) if isinstance(item, KnownNode) else None
            self._put(item, deleted=False, at_ms=known_ms or at_ms)

    def _table(self, source: str) -> dict[Any, Any]:
        tables: dict[str, dict[Any, Any]] = {
            "nodes": self.nodes,
            "leases": self.leases,
            "configmaps": self.config_maps,
            "priorityclasses": self.classes,
            "namespaces": self.existing_namespaces,
            CLASSES: self.unjudged.classes,
            TEMPLATES: self.unjudged.templates,
        }
        return tables[source]

    def _relist_claims(self, source: str, items: tuple[Item, ...], at_ms: int) -> None:
        if source == "resourceclaims":
            found = [item for item in items if isinstance(item, DeviceClaim)]
            self.claims.relist(found, at_ms)
            self.unjudged.relist_claims(found)
            return
        there = {item.name: item for item in items if isinstance(item, DeviceSlice)}
        pools = self.claims.pools
        for name in [name for name in pools.slices if name not in there]:
            pools.remove(name)
        for each in there.values():
            pools.put(each)

    def _relist(self, all_items: tuple[Item, ...], at_ms: int) -> None:
        using = {item.pod.uid: item for item in all_items if isinstance(item, PodWithClaims)}
        self.claims.relist_pods(using.keys(), at_ms)
        for each in using.values():
            self._see_using(each, deleted=False, at_ms=at_ms)
        of_those = (self._counted(each) for each in using.values())
        others = (item for item in all_items if isinstance(item, LedgerPod | UnreadablePod | UnjudgedPod))
        items = (*others, *(item for item in of_those if item is not None))
        there = {item.uid for item in items if isinstance(item, LedgerPod)}
        there |= {item.pod.uid for item in items if isinstance(item, UnjudgedPod)}
        there |= {item.uid for item in items if isinstance(item, UnreadablePod) and item.pod is not None}
        bound = {item.uid for item in items if isinstance(item, UnreadablePod) and item.is_allocated}
        for uid in bound - there:  # it waited, and its claims are charged from now on
            self._forget_pod(uid)
        self.listed_pods = there | bound | using.keys()
        for uid in [uid for uid in self.pods if uid not in there]:
            self._remove_pod(self.pods[uid], at_ms, seen=False)
        for uid in [uid for uid in self.as_read if uid not in there]:
            self.deleted_as_read[uid] = self.as_read.pop(uid)
        self.claiming.clear()
        self.unjudged.pods.clear()
        self._claiming = None
        for item in items:
            self._put_counted(item, deleted=False, at_ms=at_ms)
        self.pods_relisted = True

    def _put(self, item: Item, deleted: bool, at_ms: int) -> None:
        match item:
            case LedgerPod() | UnreadablePod() | UnjudgedPod():
                self.claims.waits_no_more(item.pod.uid if isinstance(item, UnjudgedPod) else item.uid)
                self._put_counted(item, deleted, at_ms)
            case DeviceClass(name):
                self._set(CLASSES, name, None if deleted else item)
                self.unjudged.all_due = True
            case ClaimTemplate(key, requests):
                self._set(TEMPLATES, key, None if deleted else requests)
                self.unjudged.due.add(key[0])
            case ClassSettingsRead(_, settings, changed_ms):
                said = (DEFAULTS, at_ms) if deleted else (settings, changed_ms)
                self.unjudged.see_settings(*said)
            case PodWithClaims():
                self._see_using(item, deleted, at_ms)
                counted = self._counted(item)
                if counted is not None:
                    self._put_counted(counted, deleted, at_ms)
                else:
                    self.unjudged.pods.pop(item.pod.uid, None)
                    self._forget_pod(item.pod.uid)
            case DeviceClaim():
                self.claims.see(item, deleted, at_ms)
                self.unjudged.see_claim(item, deleted)
            case DeviceSlice(name):
                if deleted:
                    self.claims.pools.remove(name)
                else:
                    self.claims.pools.put(item)
            case KnownNode(name):
                given, before = self.given(name), self.vanished.sights.get(name)
                self.vanished.see(name, None if deleted else item.sight, at_ms)
                if self.vanished.sights[name] != before:
                    self.changed_sights.add(name)
                self._set("nodes", name, None if deleted else item)
                self._see_ready(name, "" if deleted else item.ready, at_ms)
                self._see_given(name, given, at_ms)
            case NodeLease(name):
                self.had_lease.add(name)
                self._set("leases", name, None if deleted else item)
                self._date_again(item, at_ms)
            case BudgetConfigMap(name):
                self._set("configmaps", name, None if deleted else item)
            case KnownPriorityClass(name, value, policy, is_default):
                self._set("priorityclasses", name, None if deleted else (value, policy, is_default))
            case ExistingNamespace(name, mode):
                self._set("namespaces", name, None if deleted else mode)

    def _see_ready(self, node: str, status: str, at_ms: int) -> None:
        """One that was first seen as Unknown is heard no more: nothing says since when."""
        _, unknown_ms = self.ready.pop(node, ("", 0))
        if status:
            since_ms = at_ms if unknown_ms is None else unknown_ms
            self.ready[node] = status, since_ms if status == "Unknown" else None

    def _see_given(self, node: str, before: Mapping[str, tuple[str, ...]], at_ms: int) -> None:
        """A pod of which another card is known now counts as changed."""
        for uid, cards in self.given(node).items():
            if uid in self.pods and cards != before.get(uid):
                self.changed_pods.setdefault(uid, at_ms)

    def _put_read(self, item: LedgerPod | UnreadablePod, deleted: bool, at_ms: int) -> None:
        """The pod as it counts in its namespace: as admission wrote it, or as it is metered."""
        view = self._view(item)
        if isinstance(item, UnreadablePod):
            self._see_claims(item, deleted)
            if view is None and item.problem:
                self._add_unreadable(item)
        self._remember(item, view, deleted)
        if view is None:
            self._forget_waiting(item.uid)
        else:
            self.unreadable.pop(item.uid, None)
            self._put_pod(view, deleted, at_ms)

    def _put_unjudged(self, item: UnjudgedPod, deleted: bool, at_ms: int) -> None:
        """A pod of which it is not known yet what it asks for holds nothing, and is not released."""
        uid = item.pod.uid
        before = self.pods.get(uid)
        if deleted:
            self.unjudged.pods.pop(uid, None)
        else:
            self.unjudged.pods[uid] = item
        pod = self.unjudged.judged(item, before)
        if pod is None and not deleted:
            self.unjudged.changed.add(uid)
        elif pod is not None and (before is not None or not deleted):
            self._put_read(pod, deleted, at_ms)

    def _put_counted(self, item: LedgerPod | UnreadablePod | UnjudgedPod, deleted: bool, at_ms: int) -> None:
        if isinstance(item, UnjudgedPod):
            self._put_unjudged(item, deleted, at_ms)
            return
        self.unjudged.pods.pop(item.uid, None)
        self._put_read(item, deleted, at_ms)

    def judge_again(self, at_ms: int) -> None:
        """Look anew at the pods that are not judged and may be by now: once in a tick, for each may have
        many, and many objects may have come."""
        for item in self.unjudged.take_due(self.pods.keys()):
            self._put_unjudged(item, False, at_ms)

    def _see_using(self, item: PodWithClaims, deleted: bool, at_ms: int) -> None:
        known = self.claims.pods.get(item.pod.uid)
        self._follow_preemption(known.pod if known is not None else None, item.pod.pod)
        self.claims.see_pod(item.pod, deleted, at_ms)
        if item.pod.uid in self.unbound:
            self.unbound_changes.add(item.pod.uid)  # of its claims others may be allocated
        if item.rest is None or isinstance(item.rest, UnjudgedPod) or not item.pod.served_by:
            self.rest.pop(item.pod.uid, None)
        else:
            self.rest[item.pod.uid] = item.rest

    def _counted(self, item: PodWithClaims) -> LedgerPod | UnreadablePod | UnjudgedPod | None:
        """What of the pod counts: all, until a claim serves some of it."""
        return item.rest if item.pod.uid in self.claims.served else item.read

    def _serve(self, uid: str) -> None:
        """A claim serves the pod's extended resources from now on."""
        if uid in self.claims.served:
            return
        self.claims.served.add(uid)
        rest = self.rest.get(uid)
        if uid not in self.pods:
            return
        self._forget_pod(uid)
        if rest is not None:
            self._put_read(rest, False, self.pods_current_ms)

    def _forget_pod(self, uid: str) -> None:
        self.as_read.pop(uid, None)
        self._forget_waiting(uid)

    def _forget_waiting(self, uid: str) -> None:
        """A pod that waited and is read in another way now holds nothing that is charged."""
        pod = self.pods.pop(uid, None)
        if pod is not None:
            self._unlist_pod(pod)
            self.changed_pods.pop(uid, None)
            self._set_unbound(uid, waits=False)

    def _view(self, item: LedgerPod | UnreadablePod) -> LedgerPod | None:
        """None: it holds nothing that is charged. A pod that was charged before is charged to its end."""
        if isinstance(item, UnreadablePod) and item.is_allocated and item.pod is None:
            return None
        read = item if isinstance(item, LedgerPod) else item.pod
        is_static = read is not None and read.is_static  # admission changes none, so it is metered everywhere
        if not (is_static or self.metered.meters(item.namespace)):
            view = item if isinstance(item, LedgerPod) else None
        else:
            view = None if read is None else metered_view(read, self.metered.models)
            if view is not None and isinstance(item, UnreadablePod) and not is_static:
                view = replace(view, is_only_metered=True)
        before = self.pods.get(item.uid)
        if view is not None or read is None:
            return view or before
        if before is None:  # after a restart the ledger has its session
            is_known = isinstance(item, UnreadablePod) and item.requests_nothing
            return replace(read, is_metered=True) if is_known else None
        return replace(before, hold=read.hold, others_ended=read.others_ended) if before.node else None

    def _remember(self, item: LedgerPod | UnreadablePod, view: LedgerPod | None, deleted: bool) -> None:
        """Keep what cannot be had from the view again."""
        is_known = view is item or (isinstance(item, LedgerPod) and is_bare(item))
        is_nothing = isinstance(item, UnreadablePod) and item.pod is None
        if deleted and not is_known and not is_nothing:
            self.deleted_as_read[item.uid] = item
        if deleted or is_known or is_nothing:
            self.as_read.pop(item.uid, None)
        else:
            self.as_read[item.uid] = item

    def _see_claims(self, item: UnreadablePod, deleted: bool) -> None:
        if item.claims and not deleted:
            self.claiming[item.uid] = item.namespace
        elif self.claiming.pop(item.uid, None) is None:
            return
        self._claiming = None

    def _with_report(self, item: Item, at_ms: int) -> Item:
        """The pod with the time of this event as the receipt of its end, and as the first report of it if
        nothing in its object dates it."""
        if isinstance(item, UnreadablePod) and item.pod is not None:
            reported = self._with_report(item.pod, at_ms)
            return replace(item, pod=reported) if isinstance(reported, LedgerPod) else item
        if not isinstance(item, LedgerPod) or not item.hold.over:
            return item
        before, reported_ms = self.pods.get(item.uid), item.hold.reported_ms
        is_first = before is None or not before.hold.over
        if before is not None and not is_first and before.hold.finishes == item.hold.finishes:
            return item
        if is_first and item.ended_ms == 0 and reported_ms is None:
            reported_ms = at_ms
        return replace(item, hold=replace(item.hold, reported_ms=reported_ms, received_ms=at_ms))

    def _dated(self, before: LedgerPod | None, pod: LedgerPod, at_ms: int) -> LedgerPod:
        """The pod with its start and its end by the API server's clock, as its node's Lease shows it now."""
        ahead_ms = self.clock_ahead_ms(pod.node)
        if ahead_ms and ahead_ms > 0 and pod.started_ms is not None:
            pod = replace(pod, started_ms=min(pod.started_ms, at_ms))
        if not pod.ended_ms or (before is not None and before.hold.finishes == pod.hold.finishes):
            return pod
        leases_ms = () if ahead_ms is None else (ahead_ms,)
        self.recent_ends.setdefault(pod.node, {})[pod.uid] = RecentEnd(pod, at_ms, leases_ms)
        self._drop_ends(at_ms)
        return replace(pod, hold=hold.dated(pod.hold, leases_ms))

    def clock_ahead_ms(self, node: str) -> int | None:
        """By how much the node's clock is ahead, as its Lease shows; None: that is not known. Of a node that
        never had a Lease nothing but the receipt of an end says that its clock is wrong."""
        lease = self.leases.get(node)
        if lease is not None:
            return lease.ahead_ms
        return 0 if node in self.ready and node not in self.had_lease else None

    def may_change(self) -> Container[str]:
        """The UIDs of pods whose sessions may still change: they are there, or may be dated again."""
        recent: dict[str, Any] = {uid: end for ends in self.recent_ends.values() for uid, end in ends.items()}
        return ChainMap(recent, self.pods)

    def _drop_ends(self, at_ms: int) -> None:
        """Once a minute: what is older than three renewals."""
        if 0 <= at_ms - self._ends_dropped_ms < 2 * _RENEWALS_MS:
            return
        for node, ends in list(self.recent_ends.items()):
            young = {uid: end for uid, end in ends.items() if 0 <= at_ms - end.at_ms <= _RENEWALS_MS}
            self.recent_ends[node] = young
            if not young:
                del self.recent_ends[node]
        self._ends_dropped_ms = at_ms

    def _date_again(self, lease: NodeLease, at_ms: int) -> None:
        """The ends that were just learnt, now that the next Lease says how their node's clock went."""
        for uid, recent in self.recent_ends.get(lease.name, {}).items():
            is_recent = 0 <= at_ms - recent.at_ms <= _RENEWALS_MS
            if lease.ahead_ms is None or lease.ahead_ms in recent.leases_ms or not is_recent:
                continue
            leases_ms = (*recent.leases_ms, lease.ahead_ms)
            self.recent_ends[lease.name][uid] = replace(recent, leases_ms=leases_ms)
            before = hold.dated(recent.pod.hold, recent.leases_ms)
            now = hold.dated(recent.pod.hold, leases_ms)
            if now != before:
                self._put_end(replace(recent.pod, hold=now))

    def _put_end(self, pod: LedgerPod) -> None:
        """The end of this pod is dated otherwise, whether or not its object is still there."""
        self.dated_again[pod.uid] = pod
        known = self.pods.get(pod.uid)
        if known is not None:
            later = replace(known.hold, ended_ms=pod.hold.ended_ms, doubt=pod.hold.doubt)
            self.pods[pod.uid] = replace(known, hold=later)

    def _add_unreadable(self, item: UnreadablePod) -> None:
        if item.uid in self.unreadable or len(self.unreadable) < MAX_UNREADABLE:
            self.unreadable[item.uid] = item
        else:
            self.unreadable_omitted += 1

    def _set(self, source: str, name: Hashable, value: object) -> None:
        """Set the object of that name, None: remove it. Counts up the version if it differs."""
        table = self._table(source)
        if table.get(name) == value:
            return
        if value is None:
            del table[name]
        else:
            table[name] = value
        self._bump_version(source)

    def _bump_version(self, source: str) -> None:
        self.inventory_version += source == "nodes"
        self.budgets_version += source == "configmaps"
        self.classes_version += source == "priorityclasses"
        self.existing_version += source == "namespaces"

    def _put_pod(self, pod: LedgerPod, deleted: bool, at_ms: int) -> None:
        before = self.pods.get(pod.uid)
        pod = self._dated(before, _with_earlier(before, pod), at_ms)
        if pod.node and pod.ended_ms is not None and (before is None or before.ended_ms is None):
            self.end_watermarks.setdefault(pod.uid, self.watermark_ms(pod.node))
        self._follow_preemption(before, pod)
        if deleted:
            self._remove_pod(pod, at_ms, seen=True)
            return
        if pod == before:
            return
        self.changed_pods.setdefault(pod.uid, at_ms)
        self.pods[pod.uid] = pod
        if pod.gang_key is not None:
            self._join(pod.gang_key, pod.uid)
        if before is None:
            self.namespaces.add(pod.namespace, pod.uid)
        self._set_unbound(pod.uid, pod.can_be_bound)

    def _follow_preemption(self, before: LedgerPod | None, pod: LedgerPod) -> None:
        if pod.gang_key is not None and pod.leaves_for_another and not (before and before.leaves_for_another):
            self.preempted_gangs.add(pod.gang_key)

    def _set_unbound(self, uid: str, waits: bool) -> None:
        if waits or uid in self.unbound:
            self.unbound_changes.add(uid)
        if waits:
            self.unbound.add(uid)
        else:
            self.unbound.discard(uid)

    def _join(self, gang: GangKey, uid: str) -> None:
        self.gangs.add(gang, uid)
        self.gang_changes.add(gang)

    def _unlist_pod(self, pod: LedgerPod) -> None:
        if pod.gang_key is not None:
            self.gangs.leave(pod.gang_key, pod.uid)
            self.gang_changes.add(pod.gang_key)
        self.namespaces.leave(pod.namespace, pod.uid)

    def _remove_pod(self, pod: LedgerPod, at_ms: int, seen: bool) -> None:
        if self.pods.pop(pod.uid, None) is not None:
            self._unlist_pod(pod)
        self.changed_pods.pop(pod.uid, None)
        self._set_unbound(pod.uid, waits=False)
        if not pod.node:
            if len(self.deleted_waiting) < self.most_deleted:
                last_ms = at_ms if seen else self.pods_current_ms
                self.deleted_waiting.setdefault(pod.uid, DeletedPod(pod, last_ms, seen, None))
            return
        known = self.deleted_pods.get(pod.uid)
        if (
            known is not None
        ):  # the first report counts: a later one may be dated by a clock that was set back
            self.deleted_pods[pod.uid] = replace(known, pod=_with_earlier(known.pod, pod))
            return
        if len(self.deleted_pods) >= self.most_deleted:
            self.deletions_dropped += 1
            self.end_watermarks.pop(pod.uid, None)
            return
        self.deleted_pods[pod.uid] = DeletedPod(pod, at_ms, seen, self.watermark_ms(pod.node))
        if pod.ended_ms is None and pod.uid not in self.vanished.holds:  # else it is reported again
            self.vanished.add(pod.uid, pod.node, Vanished(at_ms, 0), at_ms)


def _with_earlier(before: LedgerPod | None, pod: LedgerPod) -> LedgerPod:
    """The pod with what only earlier versions of its object said: a status forgets the first start after a
    few restarts, a second deletion overwrites the grace period of the first. A pod that had ended, or has
    another node, lives again after a restore of etcd: of that they say nothing."""
    if before is None or (before.hold.over and not pod.hold.over) or before.node not in ("", pod.node):
        return pod
    starts = [each for each in (before.started_ms, pod.started_ms) if each is not None]
    return replace(pod, started_ms=min(starts, default=None), hold=hold.later(before.hold, pod.hold))


Value = TypeVar("Value")


def _only(known: dict[str, Value], uids: Set[str]) -> dict[str, Value]:
    return {uid: each for uid, each in known.items() if uid in uids}
