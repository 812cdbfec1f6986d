"""The values that requests, cards and placements are made of. Shares are thousandths of a card, memory is
MiB."""

from dataclasses import dataclass

WHOLE_MILLI = 1000


@dataclass(frozen=True, slots=True)
class Ask:
    """What one container asks on each of ``devices`` distinct cards.

    ``share_milli`` 0 asks for memory only; ``memory_mib`` 0 asks for the same share of the card's memory as
    of its compute. A share of 1000 is a whole card, and wants it untouched.
    """

    devices: int
    share_milli: int
    memory_mib: int

    @property
    def whole(self) -> bool:
        """True where the cards must be untouched by others."""
        return self.share_milli == WHOLE_MILLI


@dataclass(frozen=True, slots=True)
class ContainerAsk:
    """An ask with the name of its container; ``init``: it ends before the pod's other containers start."""

    container: str
    init: bool
    ask: Ask


@dataclass(frozen=True, slots=True)
class GPURequest:
    """What a pod asks: its dialect, each GPU container's ask in the pod's order (init first), and constraints
    on the cards.

    ``topology``: how near to each other the cards of each container must be, a word of
    `core.constraints.TOPOLOGIES` or "". ``same_gpu``: containers that must share one card.
    """

    dialect: str
    asks: tuple[ContainerAsk, ...]
    models: tuple[str, ...] = ()
    exclude_models: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    policy: str = ""
    topology: str = ""
    same_gpu: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Card:
    """One physical GPU of a node, as the node's inventory lists it.

    ``numa``: the number of its NUMA node, None where that is not known. ``links``: the UUIDs of the cards
    that it is linked to directly, None where that is not known. ``cordoned``: its node's annotation says that
    it is not to be given out; who is on it stays.
    """

    uuid: str
    index: int
    model: str
    memory_mib: int
    healthy: bool = True
    numa: int | None = None
    links: tuple[str, ...] | None = None
    cordoned: bool = False

    @property
    def usable(self) -> bool:
        """True where a part of it may be given to a pod."""
        return self.healthy and not self.cordoned


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of one card given to one container."""

    uuid: str
    index: int
    share_milli: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Which slices each GPU container holds, in the request's order."""

    containers: tuple[tuple[str, tuple[Slice, ...]], ...]
