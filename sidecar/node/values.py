"""What the parts of the node agent tell each other: cards and processes as NVML shows them, pods as the API
server and the kernel show them."""

from __future__ import annotations

from sidecar.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from typing import Any


@value
class NodeCard:
    """One card (or MIG instance) of the node.

    ``fault``: why it is not healthy, for people; empty where it is. ``links``: the UUIDs of the node's cards
    that it reaches without going through a CPU. ``numa`` and ``links`` are None where NVML does not tell;
    ``mig``: the MIG profile, such as 1g.10gb, None for a whole card.
    """

    uuid: str
    index: int
    model: str
    memory_mib: int
    healthy: bool
    fault: str
    numa: int | None
    links: tuple[str, ...] | None
    mig: str | None

    def but(self, **fields: Any) -> NodeCard:
        """The same card with these fields."""
        kept = {name: getattr(self, name) for name in type(self).__annotations__}
        return NodeCard(**{**kept, **fields})


@value
class GPUProcess:
    """A process on a card, by NVML's account. ``pid`` is the node's number for it; ``memory_mib`` and
    ``utilisation`` (percent of the card's time since the last look) are None where NVML does not tell."""

    pid: int
    uuid: str
    memory_mib: int | None
    utilisation: int | None


@value
class CardLoad:
    """What a card's processes use of it together: percent of its time, MiB; None where NVML does not tell."""

    uuid: str
    utilisation: int | None
    memory_mib: int | None


@value
class PodState:
    """A pod of this node that holds cards, by the API server: the UUIDs in its ``bursar.dev/devices``
    annotation, together and by container. ``deleted``: it has a deletion timestamp."""

    uid: str
    namespace: str
    name: str
    cards: tuple[str, ...]
    deleted: bool
    containers: tuple[tuple[str, tuple[str, ...]], ...]


@value
class ProcessOwner:
    """Whose a process is, by the path of its cgroup."""

    pod_uid: str
    container_id: str


@value
class NodeState:
    """The agent's own node by the API server.

    ``boot``: the kernel's name of the boot that its kubelet last told of. ``inventory`` and ``holders``: the
    annotations as they stand, None where there is none. ``capacity`` and ``allocatable``: the amounts of GPU
    resources as Kubernetes writes them, by resource.
    """

    uid: str
    version: str
    boot: str
    inventory: str | None
    holders: str | None
    capacity: tuple[tuple[str, str], ...]
    allocatable: tuple[tuple[str, str], ...]


@value
class CardSilent:
    """A card that NVML could not tell of in this look: its index, its UUID where that is known (else empty),
    what NVML said, and whether that alone is proof that it cannot be used now."""

    index: int
    uuid: str
    reason: str
    sure: bool


@value
class NvmlReading:
    """What one look at NVML gave.

    ``cards``: those that answered, ``healthy`` by the driver's word alone, with NVML's own indices.
    ``divided``: the UUIDs of cards that are given out as MIG instances. ``at_rest``: those of which the
    driver says that they need no reset. ``mps``: those on which processes compute through MPS. ``error``: why
    NVML as a whole told nothing; empty where it did.
    """

    cards: tuple[NodeCard, ...]
    silent: tuple[CardSilent, ...]
    divided: tuple[str, ...]
    at_rest: tuple[str, ...]
    processes: tuple[GPUProcess, ...]
    loads: tuple[CardLoad, ...]
    mps: tuple[str, ...]
    error: str


@value
class CardFailed:
    """An event of the driver by which these cards are not to be used any more; ``fault`` for people."""

    uuids: tuple[str, ...]
    fault: str
