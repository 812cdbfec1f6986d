"""The cluster as the settler observes it. One thread applies the watch updates; nothing else changes it."""

from collections.abc import Container, Hashable, Iterable, Mapping, Set
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from timekeeper.accounts.claims.claim_findings import NO_PODS, ClaimingPods
from timekeeper.accounts.failing_watches import FailingWatch
from timekeeper.accounts.pods import LedgerPod, charged_pod
from timekeeper.accounts.session import CLAIMS, CLAIMS_SEEN
from timekeeper.core.claims.allocation import DeviceClaim
from timekeeper.core.claims.devices import DeviceSlice
from timekeeper.core.request.device_classes import DEFAULTS, DeviceClass
from timekeeper.core.tables import Table
from timekeeper.edge.reflector import ObjectChanged, ObjectsListed, WatchEvent, WatchFailed, WatchOpened
from timekeeper.settler.cluster import device_claims
from timekeeper.settler.cluster.claim_requests import (
    CLASSES,
    TEMPLATES,
    ClaimTemplate,
    ClassSettingsRead,
)
from timekeeper.settler.cluster.device_claims import ClaimSight, DeviceClaims
from timekeeper.settler.cluster.known_nodes import KnownNode, KnownNodes, NodeLease
from timekeeper.settler.cluster.watched_pods import WatchedPods

# Without one of these nothing is decided. The list of namespaces serves a warning only.
SOURCES = ("pods", "nodes", "leases", "configmaps", "priorityclasses")

GONE_MS = 120_000  # how long the entries of a ConfigMap that is gone count on


@dataclass(frozen=True, slots=True)
class BudgetConfigMap:
    """A ConfigMap with budgets: its entries by key. ``created``: when, as the API server has it; ``gone_ms``:
    since when it is gone, 0: it is there."""

    name: str
    uid: str
    data: tuple[tuple[str, str], ...]
    _: KW_ONLY
    created: str = ""
    gone_ms: int = 0
    is_read: bool = True  # by its name or its label


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


Item = (
    LedgerPod
    | KnownNode
    | NodeLease
    | BudgetConfigMap
    | KnownPriorityClass
    | ExistingNamespace
    | DeviceClass
    | ClaimTemplate
    | ClassSettingsRead
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


class ClusterState:
    """A table of each kind of objects. Tables count their changes (``version``): results that depend on one
    alone are cached by it."""

    def __init__(self) -> None:
        self.listed_sources: set[str] = set()  # sources that have been listed once
        self.failing: dict[str, FailingWatch] = {}  # by source
        self.failing_since: dict[str, int] = {}  # by source, until a change arrives
        self.nodes = KnownNodes(self.failing)
        self.pods = WatchedPods(self.nodes)
        self.claims = DeviceClaims(pods=self.pods)
        self.config_maps: Table[str, BudgetConfigMap] = Table()
        self.gone_config_maps: dict[str, BudgetConfigMap] = {}  # by name, for `GONE_MS`
        self.classes: Table[str, tuple[int, str, bool]] = Table()  # value and preemption policy of each
        self.existing_namespaces: Table[str, str] = Table()  # name -> its label for the mode
        self._tables: dict[str, Table[Any, Any]] = {
            "nodes": self.nodes,
            "leases": self.nodes.leases,
            "configmaps": self.config_maps,
            "priorityclasses": self.classes,
            "namespaces": self.existing_namespaces,
            CLASSES: self.pods.claim_requests.classes,
            TEMPLATES: self.pods.claim_requests.templates,
        }

    def missing_sources(self) -> tuple[str, ...]:
        """Sources that have not been listed completely yet. Before that nothing may be decided."""
        return tuple(source for source in SOURCES if source not in self.listed_sources)

    def watermark_ms(self, node: str) -> int | None:
        """Until when the node was alive with its pods observed, or claims were; None if that is not known."""
        if node == CLAIMS:
            return self.claims.watermark_ms
        if node == CLAIMS_SEEN:
            return self.claims.seen_ms
        return self.nodes.alive_ms(node, self.pods.current_ms)

    def mode_labels(self) -> Mapping[str, str] | None:
        """What the labels of namespaces name as their mode; None before the namespaces are listed."""
        return self.existing_namespaces if "namespaces" in self.listed_sources else None

    def budgets(self, now_ms: int) -> tuple[Hashable, Mapping[str, BudgetConfigMap]]:
        """The ConfigMaps that count, and their version: also those gone for less than `GONE_MS`, with
        the entries that no other one has had since."""
        gone = self.gone_config_maps
        there = {key for known in self.config_maps.values() for key, _ in known.data} if gone else ()
        for name, known in [*gone.items()]:
            left = tuple(entry for entry in known.data if entry[0] not in there)
            gone[name] = replace(known, data=left)
            if not left or now_ms - known.gone_ms >= GONE_MS:
                del gone[name]
        version = self.config_maps.version, tuple(gone.items())
        return version, {**gone, **self.config_maps} if gone else self.config_maps

    def uncharged_claims(self) -> ClaimingPods:
        """The pods that hold what nothing charges, because claims are not followed."""
        return NO_PODS if self.claims.is_followed else self.pods.uncharged_claims()

    def orphans(self, charged: Container[str], now_ms: int) -> list[DeviceClaim]:
        """The claims, of those of the ``charged`` UIDs, that no pod uses. While pods cannot be watched, none
        that a claim is reserved for counts as missing."""
        is_watched = "pods" not in self.failing
        found = self.claims.orphans(now_ms)
        return [each for each in found if each.uid in charged and (is_watched or not each.consumers)]

    def given(self, node: str) -> Mapping[str, tuple[str, ...]]:
        """By pod UID the cards that the node's plugin gave, by its agent's fresh report; none where the
        placements count."""
        known, sight = self.nodes.get(node), self.pods.without_object.sights.get(node)
        return sight.report.pods if known and known.plugin_chooses and sight and sight.report else {}

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
                self._put(item, deleted, update.at_ms)
        if update.source == "pods" and not isinstance(update.change, WatchOpened):
            self.pods.current_ms = max(self.pods.current_ms, update.at_ms)
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
        self.pods.mark_written(deferred, served, withheld)
        self.claims.mark_written(deferred_claims or {}, withheld)

    def _replace(self, source: str, items: tuple[Item, ...], at_ms: int) -> None:
        if source == "pods":
            self.pods.relist([item for item in items if isinstance(item, LedgerPod)], at_ms)
            for uid in [uid for uids in self.pods.users.values() for uid in uids]:
                self.claims.see_user(uid, at_ms)
            return
        if source in device_claims.SOURCES:
            self._relist_claims(source, items, at_ms)
            return
        table, names = self._tables[source], {getattr(item, "name", None) for item in items}
        is_said, known = any(isinstance(item, ClassSettingsRead) for item in items), self.pods.claim_requests
        if source == "configmaps" and not is_said and known.known_classes.settings != DEFAULTS:
            known.see_settings(DEFAULTS, at_ms)
        for name in [name for name in table if name not in names]:
            if source == "configmaps":
                self._put(table[name], deleted=True, at_ms=at_ms)
            table.remove(name)
            if source == "nodes":
                self.pods.without_object.see(name, None, at_ms)
        for item in items:
            # a list repeats what a Node said before: it proves nothing after the node's last evidence
            known_ms = self.watermark_ms(item.name) if isinstance(item, KnownNode) else None
            self._put(item, deleted=False, at_ms=known_ms or at_ms)

    def _relist_claims(self, source: str, items: tuple[Item, ...], at_ms: int) -> None:
        if source == "resourceclaims":
            found = [item for item in items if isinstance(item, DeviceClaim)]
            self.claims.relist(found, at_ms)
            self.pods.claim_requests.relist_claims(found)
            return
        there = {item.name: item for item in items if isinstance(item, DeviceSlice)}
        pools = self.claims.pools
        for name in [name for name in pools.slices if name not in there]:
            pools.remove(name)
        for each in there.values():
            pools.put(each)

    def _put(self, item: Item, deleted: bool, at_ms: int) -> None:
        asking = self.pods.claim_requests
        match item:
            case DeviceClass(name):
                asking.classes.keep(name, item, deleted)
                asking.all_due = True
            case ClaimTemplate(key, requests):
                asking.templates.keep(key, requests, deleted)
                asking.due.add(key[0])
            case ClassSettingsRead(_, settings, changed_ms):
                said = (DEFAULTS, at_ms) if deleted else (settings, changed_ms)
                asking.see_settings(*said)
            case DeviceClaim():
                self.claims.see(item, deleted, at_ms)
                asking.see_claim(item, deleted)
            case DeviceSlice(name):
                if deleted:
                    self.claims.pools.remove(name)
                else:
                    self.claims.pools.put(item)
            case KnownNode(name):
                given, before = self.given(name), self.pods.without_object.sights.get(name)
                self.pods.without_object.see(name, None if deleted else item.sight, at_ms)
                if self.pods.without_object.sights[name] != before:
                    self.pods.without_object.changed.add(name)
                self.nodes.see(item, deleted, at_ms)
                self._see_given(name, given, at_ms)
            case NodeLease():
                self.nodes.see_lease(item, deleted)
                self.pods.without_object.hear(item.name, None if deleted else item.heard_ms)
                self.pods.date_again(item, at_ms)
            case BudgetConfigMap(name) if item.is_read and not deleted:
                self.gone_config_maps.pop(name, None)
                self.config_maps.put(name, item)
            case BudgetConfigMap(name):
                if known := self.config_maps.remove(name):
                    self.gone_config_maps[name] = replace(known, gone_ms=at_ms)
            case KnownPriorityClass(name, value, policy, is_default):
                self.classes.keep(name, (value, policy, is_default), deleted)
            case ExistingNamespace(name, mode):
                self.existing_namespaces.keep(name, mode, deleted)
            case LedgerPod():
                self.pods.see(item, deleted, at_ms)
                if item.uses_claims:
                    self.claims.see_user(item.uid, at_ms)

    def _see_given(self, node: str, before: Mapping[str, tuple[str, ...]], at_ms: int) -> None:
        """A pod of which another card is known now counts as changed."""
        for uid, cards in self.given(node).items():
            if charged_pod(self.pods, uid) and cards != before.get(uid):
                self.pods.changed.setdefault(uid, at_ms)
