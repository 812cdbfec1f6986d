"""The interface of every dialect."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from timekeeper.core.dialects.amounts import ContainerLimits, NodeFacts, PodFacts
from timekeeper.core.dialects.vgpu import VgpuResources
from timekeeper.core.values import Ask, Card, ContainerAsk, GPURequest, Placement
from timekeeper.core.violation import Violation


@dataclass(frozen=True, slots=True)
class PlacedRequest:
    """A request at its Binding."""

    request: GPURequest
    placement: Placement
    node: str
    now_ns: int
    containers: tuple[str, ...]  # names of the pod's ordinary containers
    init_containers: tuple[str, ...] = ()  # names of the pod's init containers, native sidecars among them
    cards: tuple[Card, ...] = ()  # all of the node


class TilesOf(NamedTuple):
    """Tiles of a card."""

    card: str  # its UUID
    tiles: tuple[int, ...]


CardName = int | str | TilesOf  # of one card: its index, its UUID, or that with tiles
Found = Mapping[str, tuple[CardName, ...]]  # container -> its cards


def nothing_found(_pod: PodFacts, _request: GPURequest) -> Found:
    """For dialects whose scheduler writes no cards, or none that Bursar reads."""
    return {}


def no_cards(_node: NodeFacts) -> tuple[Card, ...]:
    """For dialects whose nodes do not describe their cards: Bursar's node agent does."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How users of one system write a request, and what that system's node plugin reads."""

    name: str
    resources: tuple[str, ...]
    examples: Mapping[str, str]  # resource -> a valid amount
    # a container's limits -> request or violations
    read: Callable[[ContainerLimits], Ask | tuple[Violation, ...]]
    # annotations that the node plugin expects on a created pod
    at_admission: Callable[[GPURequest], dict[str, str]]
    # annotations that it expects on a bound pod
    at_binding: Callable[[PlacedRequest], dict[str, str]]
    # annotations that users may not write: names, or prefixes that end in -, / or _
    owned: tuple[str, ...] = ()
    # of `owned`, those that the node plugin changes in one update, in which the first turns false to true:
    # names, or prefixes that end in -
    plugin_writes: tuple[str, ...] = ()
    plugin_chooses: bool = False  # the node plugin chooses the cards and shows them to the containers
    # the node plugin shows the containers the cards that the Binding names, so Bursar sets no variable
    plugin_shows: bool = False
    # the cards of a node without an inventory of Bursar's agent, as this system's own plugin describes them
    cards: Callable[[NodeFacts], tuple[Card, ...]] = no_cards
    # where nothing describes the node's cards: one for each whole device that its plugin, which chooses the
    # devices, has to give out
    counted_cards: Callable[[NodeFacts], tuple[Card, ...]] = no_cards
    # labels that it expects on a bound pod, and users may not write
    labels_at_binding: Mapping[str, str] = field(default_factory=dict)
    # the cards that the annotations of a bound pod name, which may be of this system's own scheduler
    found: Callable[[PodFacts, GPURequest], Found] = nothing_found
    one_card: bool = False  # all containers of a pod share one card
    # what nodes advertise beside `resources`; there it is no sign of another dialect
    node_resources: tuple[str, ...] = ()
    # the resource that counts memory in units of the node plugin, of which the node advertises a sum
    memory_units: str = ""
    ignored_by_scheduler: tuple[str, ...] = ()  # resources that kube-scheduler ignores
    # annotations and labels in which users write requests; a pod with one of them is of this dialect
    annotations: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    # what such a pod requests: at least one ask, or violations
    read_pod: Callable[[PodFacts], tuple[ContainerAsk, ...] | tuple[Violation, ...]] | None = None
    on_nodes_of: tuple[str, ...] = ()  # other dialects, whose nodes serve its pods as well
    replaces: tuple[str, ...] = ()  # schedulerNames of this system's pods, whose scheduler Bursar replaces
    # further annotations and labels that `read_pod` and `constrain` read: they are given no others. A dialect
    # of another package that has `constrain` names them, or () for none
    reads: tuple[str, ...] | None = None
    # constraints in the pod's annotations and labels: the request with them, or violations
    constrain: Callable[[GPURequest, PodFacts], GPURequest | tuple[Violation, ...]] | None = None
    # the annotation by which the node plugin describes a node; a node that has it is of this dialect
    node_annotation: str = ""
    # resources of another dialect: beside one of `resources`, and on a node with `node_annotation`, they
    # belong to this dialect
    shared: tuple[str, ...] = ()
    # the annotation of the node that names the pod whose devices the node plugin hands out
    node_lock: str = ""
    node_label: str = ""  # the label that names the node on a bound pod
    # annotations of a bound pod that the node plugin changes while the first is ``allocating``: that one,
    # the one of which it erases what it has handed out, and others
    plugin_erases: tuple[str, ...] = ()
    vgpu: VgpuResources | None = None  # where the resources are a number and amounts of each card
    # resources that count a container's cards: if all of them that it has are zero, it has no card
    counts: tuple[str, ...] = ()
    # resources, or what their names begin with, with - at its end: whole devices, which kube-scheduler and
    # the node plugin give out alone
    by_plugin: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)  # resource -> variable that has its amount
    # other dialects, whose pods its nodes serve as well. Beside one of its own, their containers are its own.
    serves: tuple[str, ...] = ()
    # beside one of `resources`, every other resource whose name begins so is of this dialect too
    prefix: str = ""
    # its nodes have the cards that its plugin describes, also beside an inventory of Bursar's agent
    own_cards: bool = False
    plugin_limits: bool = False  # the node plugin enforces each container's share itself
    # of the pods of its node with the amount that the kubelet requests, the node plugin takes the one whose
    # annotation has the earliest time
    pairs_by_time: bool = False
    # for a share the node plugin chooses, container by container, of the cards that suffice the one with the
    # least free compute, then memory, then index, and refuses the pod if the Binding names another
    plugin_repeats: bool = False
    # the schedulerNames with which its pods are left to another system's scheduler, where the webhook's flag
    # --other-schedulers names them
    schedulers: tuple[str, ...] = ()
    # only those schedulers place its pods, and a pod's annotations count only beside one of them
    placed_by_others: bool = False
    # what the other system writes on its pods while it places them: annotations and labels, names or prefixes
    # that end in -, / or _; and the accounts that may write them
    placement_annotations: tuple[str, ...] = ()
    placement_labels: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    # what the annotations begin with that those accounts write on its pods for a plugin of the runtime
    for_runtime: tuple[str, ...] = ()
    # annotations that the other system's webhook writes at creation, and that must not change afterwards
    settled_annotations: tuple[str, ...] = ()
    # the ConfigMaps of which a container may read the variable of its cards: a regular expression of names
    config_maps: str = ""
    # the cards of a node, for charges alone: nothing is placed on them
    charged_cards: Callable[[NodeFacts], tuple[Card, ...]] = no_cards

    def has(self, name: str) -> bool:
        """Whether the resource, annotation or label is one of its own, or counts its cards."""
        named = (*self.resources, *self.counts, *self.annotations, *self.labels)
        return name in named or (bool(self.prefix) and name.startswith(self.prefix))

    @property
    def needs_placement(self) -> bool:
        """True if kube-scheduler knows no resource for which it would call the extender."""
        return not (self.resources or self.placed_by_others)

    @property
    def first_name(self) -> str:
        """The resource, annotation or label by which users know it."""
        return (*self.resources, *self.annotations, *self.labels, self.prefix)[0]

    @property
    def advertised(self) -> tuple[str, ...]:
        """What a node with `node_annotation` must advertise one of, if anything, to be of this dialect."""
        own = (name for name in self.resources if name not in self.ignored_by_scheduler)
        return self.shared or tuple(own)

    @property
    def shown_by_plugin(self) -> bool:
        """True if the node plugin sets the containers' variables, so Bursar must not."""
        return self.plugin_chooses or self.plugin_shows

    @property
    def limited_by_mps(self) -> bool:
        """True if MPS may limit the containers, because no node plugin does."""
        return not (self.shown_by_plugin or self.plugin_limits)


def nothing_to_read(_limits: ContainerLimits) -> tuple[Violation, ...]:
    """For dialects without resources: `read_pod` reads the request."""
    return ()


def nothing_at_admission(_request: GPURequest) -> dict[str, str]:
    """For dialects whose node plugin needs nothing at creation."""
    return {}


def nothing_at_binding(_placed: PlacedRequest) -> dict[str, str]:
    """For dialects whose node plugin reads no annotation."""
    return {}
