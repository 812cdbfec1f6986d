"""The cluster as the settler has heard it: one thread applies what the watches bring, and nothing else
changes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from timekeeper.accounts.pods import LedgerPod, UnreadablePod
from timekeeper.core.kube.holders import NodeHolders
from timekeeper.core.values import Card
from timekeeper.settler.cluster.presence import Presence

SOURCES = ("pods", "nodes", "leases", "configmaps", "priorityclasses")

MOST_GONE = (
    100_000  # pods whose end could not be written yet: what a database that is away may cost in memory
)
MOST_UNREADABLE = 10_000  # pods that could not be reported yet, for the same reason


@dataclass(frozen=True, slots=True)
class KnownNode:
    """A node's cards; ``fault`` tells why its inventory cannot be read. ``present``: who is there by its
    agent, and ``boot`` its boot ID, both of which are heard of apart from the cards."""

    name: str
    cards: tuple[Card, ...]
    fault: str = ""
    present: NodeHolders | None = field(default=None, compare=False)
    boot: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class NodeLease:
    """When a node's kubelet last renewed its Lease, by its own clock."""

    name: str
    renewed_ms: int | None


@dataclass(frozen=True, slots=True)
class BudgetConfigMap:
    """A ConfigMap with budgets in it."""

    name: str
    uid: str
    data: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class KnownPriorityClass:
    """A priority class, its value, and whether its pods preempt others."""

    name: str
    value: int
    preemption_policy: str = "PreemptLowerPriority"


Item = LedgerPod | UnreadablePod | KnownNode | NodeLease | BudgetConfigMap | KnownPriorityClass


@dataclass(frozen=True, slots=True)
class ListReplaced:
    """Everything there is of a source: what is not in it is gone."""

    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class ItemChanged:
    """One object as it is now, or as it was when it went."""

    item: Item
    deleted: bool


@dataclass(frozen=True, slots=True)
class StreamAlive:
    """Nothing that matters changed, and everything before has been heard."""


@dataclass(frozen=True, slots=True)
class WatchUpdate:
    """One update of a watch; ``at_ms``: when the list was requested (`ListReplaced`), else when the update
    arrived."""

    source: str
    at_ms: int
    what: ListReplaced | ItemChanged | StreamAlive


@dataclass(frozen=True, slots=True)
class DeletedPod:
    """A pod whose object went. ``pod`` is its last state; ``seen`` False where it went while nobody watched.

    ``lease_ms`` and ``watermark_ms`` are its node's, as they were then.
    """

    pod: LedgerPod
    at_ms: int
    seen: bool
    lease_ms: int | None
    watermark_ms: int | None


@dataclass(slots=True)
class ClusterState:
    """``touched``: pods to look at again, and since when; ``gone``: pods whose end is still to be written.
    ``marks``: of those that ended, until when their node had been heard as the end was; ``presence``: which
    pods their nodes list no longer.

    ``relisted``: all pods were listed anew, so that sessions without a pod have lost theirs unseen.
    ``unreadable``: pods to report, and how many more it had no room for (``unnamed``); ``lost``: ends that
    ``gone`` had none for. ``stirred``: pods that began
    or ceased to wait, or wait otherwise; ``namespaces``: how many pods each has. ``inventory``, ``budgets``,
    ``ranks`` and ``listing`` count up with each change of the nodes' cards, the ConfigMaps, the priority
    classes, and the namespaces that have pods: what rests on these alone is kept for so long.
    """

    pods: dict[str, LedgerPod] = field(default_factory=dict)
    nodes: dict[str, KnownNode] = field(default_factory=dict)
    leases: dict[str, int] = field(default_factory=dict)
    config_maps: dict[str, BudgetConfigMap] = field(default_factory=dict)
    classes: dict[str, tuple[int, str]] = field(default_factory=dict)
    unbound: set[str] = field(default_factory=set)
    listed: set[str] = field(default_factory=set)
    heard_ms: int = 0
    touched: dict[str, int] = field(default_factory=dict)
    gone: dict[str, DeletedPod] = field(default_factory=dict)
    marks: dict[str, int | None] = field(default_factory=dict)
    presence: Presence = field(default_factory=Presence)
    relisted: bool = False
    unreadable: dict[str, UnreadablePod] = field(default_factory=dict)
    unnamed: int = 0
    lost: int = 0
    most_gone: int = MOST_GONE
    stirred: set[str] = field(default_factory=set)
    namespaces: dict[str, int] = field(default_factory=dict)
    inventory: int = 0
    budgets: int = 0
    ranks: int = 0
    listing: int = 0

    def awaited(self) -> tuple[str, ...]:
        """The sources that have not been heard whole yet: before that, nothing may be decided."""
        return tuple(source for source in SOURCES if source not in self.listed)

    def watermark_ms(self, node: str) -> int | None:
        """Until when the node was heard with its pods in view; None where its Lease never was."""
        lease = self.leases.get(node)
        return None if lease is None or not self.heard_ms else min(self.heard_ms, lease)

    def cards(self, node: str) -> tuple[Card, ...]:
        """The node's cards, none where it is not known."""
        known = self.nodes.get(node)
        return known.cards if known else ()

    def apply(self, heard: WatchUpdate) -> None:
        """Take in what a watch brought."""
        match heard.what:
            case ListReplaced(items):
                self._replace(heard.source, items, heard.at_ms)
                self.listed.add(heard.source)
            case ItemChanged(item, deleted):
                self._put(item, deleted, heard.at_ms)
        if heard.source == "pods":
            self.heard_ms = max(self.heard_ms, heard.at_ms)

    def written(self, deferred: Mapping[str, int]) -> None:
        """Everything touched so far stands in the ledger now, but for the pods that wait to be looked at
        again."""
        self.touched = dict(deferred)
        self.marks = {uid: mark for uid, mark in self.marks.items() if uid in deferred}
        self.gone.clear()
        self.presence.written()
        self.unreadable.clear()
        self.unnamed = 0
        self.relisted = False

    def _replace(self, source: str, items: tuple[Item, ...], at_ms: int) -> None:
        if source == "pods":
            self._relist(items, at_ms)
            return
        table, names = (
            self._table(source),
            {item.name for item in items if not isinstance(item, UnreadablePod)},
        )
        for name in [name for name in table if name not in names]:
            del table[name]
            if source == "nodes":
                self.presence.hear(name, None, "", at_ms)
            self._count(source)
        for item in items:
            self._put(item, deleted=False, at_ms=at_ms)

    def _table(self, source: str) -> dict[str, Any]:
        tables: dict[str, dict[str, Any]] = {
            "nodes": self.nodes,
            "leases": self.leases,
            "configmaps": self.config_maps,
            "priorityclasses": self.classes,
        }
        return tables[source]

    def _relist(self, items: tuple[Item, ...], at_ms: int) -> None:
        there = {item.uid for item in items if isinstance(item, LedgerPod)}
        for uid in [uid for uid in self.pods if uid not in there]:
            self._lose(self.pods[uid], at_ms, seen=False)
        for item in items:
            self._put(item, deleted=False, at_ms=at_ms)
        self.relisted = True

    def _put(self, item: Item, deleted: bool, at_ms: int) -> None:
        match item:
            case LedgerPod():
                self._put_pod(item, deleted, at_ms)
            case UnreadablePod():
                self._note(item)
            case KnownNode(name):
                self.presence.hear(name, None if deleted else item.present, item.boot, at_ms)
                self._keep("nodes", name, None if deleted else item)
            case NodeLease(name, renewed_ms):
                self._keep("leases", name, None if deleted else renewed_ms)
            case BudgetConfigMap(name):
                self._keep("configmaps", name, None if deleted else item)
            case KnownPriorityClass(name, value, preemption_policy):
                self._keep("priorityclasses", name, None if deleted else (value, preemption_policy))

    def _note(self, item: UnreadablePod) -> None:
        if item.uid in self.unreadable or len(self.unreadable) < MOST_UNREADABLE:
            self.unreadable[item.uid] = item
        else:
            self.unnamed += 1

    def _keep(self, source: str, name: str, value: object) -> None:
        """What there is under a name now, None where nothing is; counts where that is another."""
        table = self._table(source)
        if table.get(name) == value:
            return
        if value is None:
            del table[name]
        else:
            table[name] = value
        self._count(source)

    def _count(self, source: str) -> None:
        self.inventory += source == "nodes"
        self.budgets += source == "configmaps"
        self.ranks += source == "priorityclasses"

    def _put_pod(self, pod: LedgerPod, deleted: bool, at_ms: int) -> None:
        before = self.pods.get(pod.uid)
        pod = _earliest(before, pod)
        if pod.node and pod.ended_ms is not None and (before is None or before.ended_ms is None):
            self.marks.setdefault(pod.uid, self.watermark_ms(pod.node))
        if deleted:
            # the object itself tells when it was removed, however late or often a watch brings that
            self._lose(pod, at_ms if pod.deleted_ms is None else min(at_ms, pod.deleted_ms), seen=True)
            return
        if pod == before:
            return
        self.pods[pod.uid] = pod
        self.touched.setdefault(pod.uid, at_ms)
        if before is None:
            self._count_pod(pod.namespace, 1)
        self._wait(pod.uid, not pod.node and pod.ended_ms is None)

    def _wait(self, uid: str, waits: bool) -> None:
        if waits or uid in self.unbound:
            self.stirred.add(uid)
        if waits:
            self.unbound.add(uid)
        else:
            self.unbound.discard(uid)

    def _count_pod(self, namespace: str, more: int) -> None:
        count = self.namespaces.get(namespace, 0) + more
        if count == more or not count:
            self.listing += 1
        if count:
            self.namespaces[namespace] = count
        else:
            del self.namespaces[namespace]

    def _lose(self, pod: LedgerPod, at_ms: int, seen: bool) -> None:
        if self.pods.pop(pod.uid, None) is not None:
            self._count_pod(pod.namespace, -1)
        self.touched.pop(pod.uid, None)
        self._wait(pod.uid, waits=False)
        if not pod.node:
            return
        told = self.gone.get(pod.uid)
        if told is not None:  # a removal is told once: what is told again may be dated by a clock turned back
            self.gone[pod.uid] = replace(told, pod=_earliest(told.pod, pod))
            return
        if len(self.gone) >= self.most_gone:
            self.lost += 1
            self.marks.pop(pod.uid, None)
            return
        lease, watermark = self.leases.get(pod.node), self.watermark_ms(pod.node)
        self.gone[pod.uid] = DeletedPod(pod, at_ms, seen, lease, watermark)


def _earliest(before: LedgerPod | None, pod: LedgerPod) -> LedgerPod:
    """The pod with the earliest start ever told: a status forgets it after a few restarts, and several may
    come between two ticks."""
    if before is None or before.started_ms is None:
        return pod
    return replace(pod, started_ms=min(before.started_ms, pod.started_ms or before.started_ms))
