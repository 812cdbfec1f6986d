"""The values that the node agent's parts exchange: cards and processes as their reader reports them, nodes
and pods as the API server and the kernel report them."""

from __future__ import annotations

from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from typing import Any


@value
class NodeCard:
    """A card or MIG instance of the node."""

    uuid: str
    index: int
    model: str
    memory_mib: int
    healthy: bool
    fault: str  # why it is not healthy, for people; empty if it is
    numa: int | None  # the nearest NUMA node; None: unknown
    links: (
        tuple[str, ...] | None
    )  # the UUIDs of cards that it reaches without a CPU in between; None: unknown
    mig: str | None  # the MIG profile, such as 1g.10gb; None for a whole card
    # to which cards it has which path, by UUID: 0 NVLink, 1 one PCIe switch, 2 several of them, 3 one host
    # bridge, 4 one NUMA node, 5 across NUMA nodes; empty: unknown
    paths: tuple[tuple[str, int], ...]

    def but(self, **fields: Any) -> NodeCard:
        """The same card with other values of these fields."""
        return NodeCard(**{name: getattr(self, name) for name in type(self).__annotations__} | fields)


@value
class GPUProcess:
    """A process on a card."""

    pid: int  # in the node's PID namespace
    uuid: str  # of the card
    memory_mib: int | None  # None: unknown
    utilisation: int | None  # percent of the card's time since the last reading; None: unknown


@value
class CardLoad:
    """The use of a card by its processes together, or by one pod's."""

    uuid: str
    utilisation: int | None  # percent of the card's time; None: unknown
    memory_mib: int | None  # None: unknown


@value
class PodState:
    """A pod of this node, by the API server."""

    uid: str
    namespace: str
    name: str
    cards: tuple[str, ...]  # the UUIDs in its annotation bursar.dev/devices
    deleted: bool  # it has a deletion timestamp
    containers: tuple[tuple[str, tuple[str, ...]], ...]  # the same UUIDs by container

    def on(self, cards: tuple[str, ...]) -> PodState:
        """The same pod on these cards. Of several containers it is not known which has which."""
        names = [name for name, _ in self.containers]
        containers = ((names[0], cards),) if len(names) == 1 else ()
        return PodState(self.uid, self.namespace, self.name, cards, self.deleted, containers)


@value
class ProcessOwner:
    """The pod and container of a process, by the path of its cgroup."""

    pod_uid: str
    container_id: str  # empty if the path ends at the pod


@value
class NodeState:
    """The agent's Node object."""

    uid: str
    version: str  # the resource version
    boot: str  # the kernel's boot ID that the kubelet reported last
    inventory: str | None  # the annotation; None: there is none
    holders: str | None  # the annotation; None: there is none
    capacity: tuple[tuple[str, str], ...]  # extended resources and their quantities as Kubernetes writes them
    allocatable: tuple[tuple[str, str], ...]
    other_taints: str | None  # JSON of the taints beside the startup taint; None: the node does not have it
    is_described: bool  # by a plugin that gives each pod the cards that an annotation of the pod names


@value
class CardSilent:
    """A card that cannot be read."""

    index: int
    uuid: str  # empty if unknown
    reason: str  # the reader's error
    sure: bool  # the error alone proves that the card is unusable now


@value
class DeviceReading:
    """One reading of all cards."""

    cards: tuple[
        NodeCard, ...
    ]  # those that answered, with their reader's indices; healthy by the driver's state alone
    silent: tuple[CardSilent, ...]
    divided: tuple[str, ...]  # the UUIDs of cards that are divided into MIG instances
    at_rest: tuple[str, ...]  # cards that need no reset by the driver's state
    processes: tuple[GPUProcess, ...]
    loads: tuple[CardLoad, ...]
    mps: tuple[str, ...]  # cards that processes use through MPS
    error: str  # why the reader as a whole has no result; empty if it has one


@value
class NriState:
    """How the container runtime gives cards to containers."""

    plugins: tuple[str, ...]  # NRI plugins that a container with cards needs; none: it is not by NRI
    enforced: bool  # the runtime makes no container that requires a plugin which is away


@value
class Vendor:
    """What of a node belongs to the vendor of its cards, beside them."""

    # what the names of the resources begin with whose device plugin picks the cards
    resources: tuple[str, ...]
    programs: frozenset[str]  # those that use cards outside of pods, by the first 15 letters of their names


NO_VENDOR = Vendor((), frozenset())


@value
class CardFailed:
    """A driver event: these cards must not be used any more. ``fault`` is for people."""

    uuids: tuple[str, ...]
    fault: str
