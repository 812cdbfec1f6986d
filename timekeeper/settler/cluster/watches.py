"""The watches: each is a thread that lists, watches, and puts relevant changes on one queue."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from queue import Queue
from threading import Event, Thread

from timekeeper.accounts.claims.consumers import with_use
from timekeeper.accounts.pods import LedgerPod, read_charged_pod
from timekeeper.core import names
from timekeeper.core.accelerators import accelerator_of
from timekeeper.core.budgets.config_maps import entries_of, is_read
from timekeeper.core.claims.allocation import read_claim
from timekeeper.core.claims.devices import read_slice
from timekeeper.core.json_values import Json, annotations_of, mapping, sequence
from timekeeper.core.kube.holders import fresh_holders, kubelets_boot, ready_status
from timekeeper.core.kube.node_constraints import HOSTNAME, Labels, read_node_labels
from timekeeper.core.ledger import hold
from timekeeper.core.ledger.hold import NODE_LEASES, NodeSight, clock_ahead_ms, ends_forced
from timekeeper.core.name_lists import listed
from timekeeper.core.object_names import millis
from timekeeper.core.rating.nodes import cards_of_node
from timekeeper.core.request.claims import namespaced, read_template
from timekeeper.core.request.device_classes import CONFIG_MAP, read_class, read_settings
from timekeeper.core.request.devices import unclassified
from timekeeper.core.request.host import NO_HOST, allocatable
from timekeeper.core.request.inventory import (
    advertised,
    charged_cards,
    counted_cards,
    gpu_amounts,
    node_facts,
    plugin_chooses,
)
from timekeeper.core.values import Card, UndecodableError
from timekeeper.edge.list_watch import inform
from timekeeper.edge.reflector import ObjectsListed, WatchEvent, WatchFailed
from timekeeper.edge.source_health import SourceHealth
from timekeeper.runtime import api_server
from timekeeper.runtime.api_server import Api, Reply
from timekeeper.settler.cluster.claim_requests import (
    CLASSES,
    TEMPLATES,
    ClaimTemplate,
    ClassSettingsRead,
)
from timekeeper.settler.cluster.cluster_state import (
    BudgetConfigMap,
    ExistingNamespace,
    Item,
    KnownPriorityClass,
    WatchUpdate,
)
from timekeeper.settler.cluster.known_nodes import KnownNode, NodeLease

Clock = Callable[[], int]

_OF_NFD = "feature.node.kubernetes.io/"

# The end of a watch proves that all earlier changes have arrived, at a time of our choosing. For pods it
# comes often, because sessions on estimates are charged up to that moment; bookmarks come only once a minute.
_PODS_WATCH_S = 15
_WATCH_S = 300


@dataclass(frozen=True, slots=True)
class WatchSource:
    """One collection of the API server. ``read`` turns an object into an item, or None if it is
    irrelevant."""

    name: str
    path: str
    watch_s: int
    read: Callable[[Json], Item | None]
    served: str = ""  # the API that may not be served; then nothing is watched, until it is


def sources(
    namespace: str,
    only_meter: bool = False,
    is_charged: Callable[[str], bool] = lambda _uid: False,
    offer: Callable[[Json], None] = lambda _raw: None,
) -> tuple[WatchSource, ...]:
    """Everything that the settler watches; ``namespace`` contains the budgets. A ledger alone gives pods no
    priority class, and reads none. ``is_charged``: as `read_charged_pod` has it; ``offer``: gets
    each pod as it is. Both are called in the watch's thread."""

    def read_offered(raw: Json) -> Item | None:
        offer(raw)
        return read_any_pod(raw, is_charged)

    every = (
        WatchSource("pods", "/api/v1/pods", _PODS_WATCH_S, read_offered),
        WatchSource("nodes", "/api/v1/nodes", _WATCH_S, read_node),
        WatchSource("leases", NODE_LEASES, _WATCH_S, read_lease),
        WatchSource(
            "configmaps", f"/api/v1/namespaces/{namespace}/configmaps", _WATCH_S, read_own_config_map
        ),
        WatchSource("priorityclasses", f"{_CLASSES}/priorityclasses", _WATCH_S, read_priority_class),
        WatchSource("namespaces", "/api/v1/namespaces", _WATCH_S, read_namespace),
        WatchSource("resourceclaims", ALL_CLAIMS, _PODS_WATCH_S, read_claim, _RESOURCES),
        WatchSource("resourceslices", f"{_RESOURCES}/resourceslices", _WATCH_S, read_slice, _RESOURCES),
        WatchSource(CLASSES, f"{_RESOURCES}/{CLASSES}", _WATCH_S, read_class, _RESOURCES),
        WatchSource(TEMPLATES, f"{_RESOURCES}/{TEMPLATES}", _WATCH_S, read_claim_template, _RESOURCES),
    )
    without = {"priorityclasses", CLASSES, TEMPLATES} if only_meter else set()
    return tuple(each for each in every if each.name not in without)


_CLASSES = "/apis/scheduling.k8s.io/v1"
_RESOURCES = "/apis/resource.k8s.io/v1"
ALL_CLAIMS = f"{_RESOURCES}/resourceclaims"


def start_watching(
    source: WatchSource,
    api: Api,
    updates: "Queue[WatchUpdate]",
    clock: Clock,
    stop: Event,
    failed: Callable[[str, str], None],
    health: SourceHealth,
) -> Thread:
    """A daemon thread that follows one source; ``failed`` is called with the source and a sentence for each
    failed call."""

    def follow() -> None:
        def wait_ms(ms: int) -> bool:
            return stop.wait(ms / 1000)

        if source.served and not await_served(source, api.call, clock, updates, wait_ms, failed):
            return
        for update in follow_source(source, api, clock, wait_ms, failed, health):
            updates.put(update)
            if stop.is_set():
                return

    thread = Thread(target=follow, name=f"watch-{source.name}", daemon=True)
    thread.start()
    return thread


def await_served(
    source: WatchSource,
    call: Callable[..., Reply],
    clock: Clock,
    updates: "Queue[WatchUpdate]",
    wait_ms: Callable[[int], object],
    failed: Callable[[str, str], None],
) -> bool:
    """As `api_server.await_served` has it. Where the API is not served, nothing is reported."""

    def unclear(sentence: str) -> None:
        failed(source.name, sentence)
        updates.put(WatchUpdate(source.name, clock(), WatchFailed(sentence)))

    return api_server.await_served(call, source.served, wait_ms, unclear)


def follow_source(
    source: WatchSource,
    api: Api,
    clock: Clock,
    wait_ms: Callable[[int], object],
    failed: Callable[[str, str], None],
    health: SourceHealth,
) -> Iterator[WatchUpdate]:
    """The source's updates, each with the moment from which it is true: of a list when it was requested."""
    listed_ms = 0

    def listing() -> None:
        nonlocal listed_ms
        listed_ms = clock()

    events: Iterator[WatchEvent[Item]] = inform(
        api, source.path, source.read, wait_ms, health, watch_s=source.watch_s, listing=listing
    )
    for event in events:
        if isinstance(event, WatchFailed):
            failed(source.name, event.sentence)
        at_ms = listed_ms if isinstance(event, ObjectsListed) else clock()
        yield WatchUpdate(source.name, at_ms, event)


def read_any_pod(raw: Json, is_charged: Callable[[str], bool]) -> LedgerPod | None:
    """The pod; None if nothing of it concerns the ledger."""
    return with_use(raw, read_charged_pod(raw, is_charged))


def read_node(raw: Json) -> KnownNode:
    """A node with the cards of its inventory. If that cannot be read: no cards, and the reason."""
    name, report, fault = _name(raw), fresh_holders(raw), ""
    gpus = node_facts(raw).capacity
    sight = NodeSight(kubelets_boot(raw) or (report.boot if report else ""), report, ends_forced(raw))
    cards: tuple[Card, ...] = ()
    try:
        cards = charged_cards(raw)
    except UndecodableError as error:
        fault = str(error)
    host = allocatable(raw) if cards else NO_HOST
    others = unclassified(advertised(raw))
    more = sum(amount for name, amount in gpus.items() if accelerator_of(name))
    came_ms, ready = millis(mapping(raw.get("metadata")).get("creationTimestamp")) or 0, ready_status(raw)
    is_cordoned = mapping(raw.get("spec")).get("unschedulable") is True
    return KnownNode(
        name,
        cards_of_node(raw, cards),
        fault,
        host,
        plugin_chooses(raw),
        others,
        dict(sorted(gpus.items())),
        tuple(sorted(gpu_amounts(mapping(mapping(raw.get("status")).get("allocatable"))))),
        (len(cards or [card for card in counted_cards(raw) or () if card.healthy]) + more)
        or max(gpus.values(), default=0),
        came_ms if names.INVENTORY in annotations_of(raw) else 0,
        ready,
        sight,
        _common_labels(read_node_labels(raw).labels),
        "unhealthy" if ready not in ("", "True") else "cordoned" if is_cordoned else "",
        listed(annotations_of(raw), names.CORDONED_CARDS),
    )


@lru_cache(maxsize=4096)  # so that nodes of a pool share theirs
def _shared(labels: Labels) -> Labels:
    return labels


def _common_labels(labels: Labels) -> Labels:
    """Without a node's own name, and what NFD says of its CPU."""
    return _shared(tuple(pair for pair in labels if pair[0] != HOSTNAME and not pair[0].startswith(_OF_NFD)))


def read_lease(raw: Json) -> NodeLease:
    """A node's Lease, which has the node's name."""
    renewed_ms = hold.millis(mapping(raw.get("spec")).get("renewTime"))
    return NodeLease(_name(raw), renewed_ms, clock_ahead_ms(raw))


def read_own_config_map(raw: Json) -> BudgetConfigMap | ClassSettingsRead:
    """A ConfigMap of our namespace: the settings of device classes, or budgets."""
    if _name(raw) == CONFIG_MAP:
        return ClassSettingsRead(CONFIG_MAP, read_settings(mapping(raw.get("data"))), _set_ms(raw))
    return read_config_map(raw)


def _set_ms(raw: Json) -> int:
    """When a person last changed the object; 0: it does not say. Bursar's own keys are no settings."""
    written = map(mapping, sequence(mapping(raw.get("metadata")).get("managedFields")))
    times = (each.get("time") for each in written if not str(each.get("manager")).startswith("bursar-"))
    return max((millis(each) or 0 for each in times), default=0)


def read_config_map(raw: Json) -> BudgetConfigMap:
    """A ConfigMap with its budgets. It has none unless its name or its label says that it holds budgets."""
    metadata, reads = mapping(raw.get("metadata")), is_read(raw)
    uid, created = (str(metadata.get(field, "")) for field in ("uid", "creationTimestamp"))
    entries = tuple(entries_of(raw).items()) if reads else ()
    return BudgetConfigMap(_name(raw), uid, entries, created=created, is_read=reads)


def read_priority_class(raw: Json) -> KnownPriorityClass:
    """A priority class with its value. Without a policy it preempts."""
    value, policy = raw.get("value"), raw.get("preemptionPolicy")
    return KnownPriorityClass(
        _name(raw),
        value if isinstance(value, int) else 0,
        str(policy or "PreemptLowerPriority"),
        raw.get("globalDefault") is True,
    )


def read_namespace(raw: Json) -> ExistingNamespace:
    """A namespace's name, and its label for the mode."""
    labels = mapping(mapping(raw.get("metadata")).get("labels"))
    return ExistingNamespace(_name(raw), str(labels.get(names.MODE_LABEL, "")))


def read_claim_template(raw: Json) -> ClaimTemplate:
    """What the claims that are made from a template ask for."""
    return ClaimTemplate(namespaced(raw), read_template(raw))


def _name(raw: Json) -> str:
    return str(mapping(raw.get("metadata")).get("name", ""))
