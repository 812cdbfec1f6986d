"""The cluster as the settler has heard it: one thread applies what the watches bring, and nothing else
changes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from timekeeper.accounts.pods import Pod, Unreadable
from timekeeper.core.values import Card

SOURCES = ("pods", "nodes", "leases", "configmaps", "priorityclasses")

MOST_GONE = (
    100_000  # pods whose end could not be written yet: what a database that is away may cost in memory
)


@dataclass(frozen=True, slots=True)
class Node:
    """A node's cards; ``fault`` tells why its inventory cannot be read."""

    name: str
    cards: tuple[Card, ...]
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Lease:
    """When a node's kubelet last renewed its Lease, by its own clock."""

    name: str
    renewed_ms: int | None


@dataclass(frozen=True, slots=True)
class ConfigMap:
    """A ConfigMap with budgets in it."""

    name: str
    uid: str
    data: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A priority class, its value, and whether its pods preempt others."""

    name: str
    value: int
    preemption_policy: str = "PreemptLowerPriority"


Item = Pod | Unreadable | Node | Lease | ConfigMap | PriorityClass


@dataclass(frozen=True, slots=True)
class All:
    """Everything there is of a source: what is not in it is gone."""

    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class One:
    """One object as it is now, or as it was when it went."""

    item: Item
    deleted: bool


@dataclass(frozen=True, slots=True)
class Quiet:
    """Nothing that matters changed, and everything before has been heard."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What a watch brought, and when: for ``All`` the moment when it was asked for, else when it came."""

    source: str
    at_ms: int
    what: All | One | Quiet


@dataclass(frozen=True, slots=True)
class Gone:
    """A pod whose object went. ``pod`` is its last state; ``seen`` False where it went while nobody watched.

    ``lease_ms`` and ``watermark_ms`` are its node's, as they were then.
    """

    pod: Pod
    at_ms: int
    seen: bool
    lease_ms: int | None
    watermark_ms: int | None


@dataclass(slots=True)
class World:
    """``touched``: pods to look at again, and since when; ``gone``: pods whose end is still to be written.

    ``relisted``: all pods were listed anew, so that sessions without a pod have lost theirs unseen.
    ``unreadable``: pods to report; ``lost``: ends that ``gone`` had no room for.
    """

    pods: dict[str, Pod] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    leases: dict[str, int] = field(default_factory=dict)
    config_maps: dict[str, ConfigMap] = field(default_factory=dict)
    classes: dict[str, tuple[int, str]] = field(default_factory=dict)
    unbound: set[str] = field(default_factory=set)
    listed: set[str] = field(default_factory=set)
    heard_ms: int = 0
    touched: dict[str, int] = field(default_factory=dict)
    gone: dict[str, Gone] = field(default_factory=dict)
    relisted: bool = False
    unreadable: dict[str, Unreadable] = field(default_factory=dict)
    lost: int = 0
    most_gone: int = MOST_GONE

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

    def apply(self, heard: Heard) -> None:
        """Take in what a watch brought."""
        match heard.what:
            case All(items):
                self._replace(heard.source, items, heard.at_ms)
                self.listed.add(heard.source)
            case One(item, deleted):
                self._put(item, deleted, heard.at_ms)
        if heard.source == "pods":
            self.heard_ms = max(self.heard_ms, heard.at_ms)

    def written(self, deferred: Mapping[str, int]) -> None:
        """Everything touched so far stands in the ledger now, but for the pods that wait to be looked at
        again."""
        self.touched = dict(deferred)
        self.gone.clear()
        self.unreadable.clear()
        self.relisted = False

    def _replace(self, source: str, items: tuple[Item, ...], at_ms: int) -> None:
        if source == "pods":
            self._relist(items, at_ms)
            return
        tables: dict[str, dict[str, Any]] = {
            "nodes": self.nodes,
            "leases": self.leases,
            "configmaps": self.config_maps,
            "priorityclasses": self.classes,
        }
        tables[source].clear()
        for item in items:
            self._put(item, deleted=False, at_ms=at_ms)

    def _relist(self, items: tuple[Item, ...], at_ms: int) -> None:
        there = {item.uid for item in items if isinstance(item, Pod)}
        for uid in [uid for uid in self.pods if uid not in there]:
            self._lose(self.pods[uid], at_ms, seen=False)
        for item in items:
            self._put(item, deleted=False, at_ms=at_ms)
        self.relisted = True

    def _put(self, item: Item, deleted: bool, at_ms: int) -> None:
        match item:
            case Pod():
                self._put_pod(item, deleted, at_ms)
            case Unreadable():
                self.unreadable[item.uid] = item
            case Node(name):
                _put(self.nodes, name, item, deleted)
            case Lease(name, renewed_ms):
                _put(self.leases, name, renewed_ms, deleted or renewed_ms is None)
            case ConfigMap(name):
                _put(self.config_maps, name, item, deleted)
            case PriorityClass(name, value, preemption_policy):
                _put(self.classes, name, (value, preemption_policy), deleted)

    def _put_pod(self, pod: Pod, deleted: bool, at_ms: int) -> None:
        pod = _earliest(self.pods.get(pod.uid), pod)
        if deleted:
            self._lose(pod, at_ms, seen=True)
            return
        self.pods[pod.uid] = pod
        self.touched.setdefault(pod.uid, at_ms)
        if pod.node or pod.ended_ms is not None:
            self.unbound.discard(pod.uid)
        else:
            self.unbound.add(pod.uid)

    def _lose(self, pod: Pod, at_ms: int, seen: bool) -> None:
        self.pods.pop(pod.uid, None)
        self.touched.pop(pod.uid, None)
        self.unbound.discard(pod.uid)
        if not pod.node:
            return
        if len(self.gone) >= self.most_gone:
            self.lost += 1
            return
        lease, watermark = self.leases.get(pod.node), self.watermark_ms(pod.node)
        self.gone[pod.uid] = Gone(pod, at_ms, seen, lease, watermark)


def _earliest(before: Pod | None, pod: Pod) -> Pod:
    """The pod with the earliest start ever told: a status forgets it after a few restarts, and several may
    come between two ticks."""
    if before is None or before.started_ms is None:
        return pod
    return replace(pod, started_ms=min(before.started_ms, pod.started_ms or before.started_ms))


def _put(table: dict[str, Any], name: str, value: object, deleted: bool) -> None:
    if deleted:
        table.pop(name, None)
    else:
        table[name] = value
