"""The values that requests, cards and placements are made of. Shares are thousandths of a card, memory is
MiB."""

from dataclasses import dataclass

WHOLE_MILLI = 1000
CLOSEST = "closest"  # a topology: the cards of a container are as close to each other as the free ones can be
# how far two cards are from each other, as `wire.CardWire.paths` says; FARTHEST also where it is unknown
NVLINK, SWITCH, SWITCHES, BRIDGE, NUMA_NODE, FARTHEST = range(6)
MAX_AMOUNT = 2**63 - 1  # of a named resource, as Kubernetes counts
TILES = "gpu.intel.com/tiles"  # the named resource whose units are numbered
MAX_TILES = 64  # of one card

Amounts = tuple[tuple[str, int], ...]  # name and amount of each resource, sorted by name


class UndecodableError(ValueError):
    """An annotation of ours, or a plugin's description of a node, that cannot be trusted. Its node is closed;
    it never frees a card."""


@dataclass(frozen=True, slots=True)
class CardSet:
    """Some of a container's cards. ``pair``, ``socket``: numbers of groups, 0 for none. All cards of the
    container that have the same number are linked with each other, or are on one NUMA node."""

    devices: int
    min_memory_mib: int = 0  # of a card's whole memory; 0: any
    pair: int = 0
    socket: int = 0


@dataclass(frozen=True, slots=True)
class Ask:
    """What one container requests on each of ``devices`` distinct cards: a share and memory, or amounts of
    named resources."""

    devices: int
    share_milli: int  # 0: memory only; 1000: a whole card that nothing else uses
    memory_mib: int  # 0: a share of the card's memory
    resources: Amounts = ()  # then share and memory are 0
    memory_milli: int = 0  # the share of the card's memory; 0: the same as of its compute
    # where its cards differ or are in groups; the devices add up. Empty: they are alike
    sets: tuple[CardSet, ...] = ()
    # the resource by which it requests devices that no dialect reads: each counts as a whole card of this
    # model. "": cards
    device: str = ""

    @property
    def whole(self) -> bool:
        """True if the cards must not be shared."""
        return self.share_milli == WHOLE_MILLI

    @property
    def grouped(self) -> bool:
        """True if some of its cards must be close to each other, whatever the pod's topology."""
        return any(each.pair or each.socket for each in self.sets)


@dataclass(frozen=True, slots=True)
class ContainerAsk:
    """What one container requests."""

    container: str
    init: bool  # it ends before the pod's other containers start
    ask: Ask


@dataclass(frozen=True, slots=True, kw_only=True)
class GPURequest:
    """What a pod requests, in the terms of every dialect."""

    dialect: str
    asks: tuple[ContainerAsk, ...]  # of each GPU container in the pod's order, init containers first
    models: tuple[str, ...] = ()
    exclude_models: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    policy: str = ""
    # how close the cards of a container must be, of `request.constraints.TOPOLOGIES`; "": any
    topology: str = ""
    same_gpu: tuple[str, ...] = ()  # containers that must share one card
    exclude_uuids: tuple[str, ...] = ()
    min_memory_mib: int = 0  # of a card's whole memory; 0: any
    model_pattern: str = ""  # a part of the model's name in lower case, in which a dot is any character
    order: int = 0  # of pods that wait with equal standing and priority, the higher goes first
    xe_linked: bool = False  # the cards of a container come in pairs whose tiles an Xe link joins
    lone_card: bool = False  # its node plugin starts it only where the node has one card
    # False: beside these cards of a plugin the pod has claims of which it is not known yet what they ask for
    are_claims_known: bool = True

    @property
    def by_set(self) -> bool:
        """True if some ask has `sets`."""
        return any(each.ask.sets for each in self.asks)


@dataclass(frozen=True, slots=True)
class Card:
    """One physical GPU of a node, from the node's inventory."""

    uuid: str
    index: int
    model: str
    memory_mib: int
    healthy: bool = True
    numa: int | None = None  # number of its NUMA node; None: unknown
    links: tuple[str, ...] | None = None  # UUIDs of directly linked cards; None: unknown
    paths: str = ""  # how it reaches the cards of index 0, 1...: of `wire.CardWire`; "": unknown
    cordoned: bool = False  # excluded from allocation by the node's annotation; pods on it stay
    resources: Amounts = ()  # what the card has of each named resource; then nothing else of it is allocated
    # numbers of the tiles that may be given out, best first; where TILES is named
    tiles: tuple[int, ...] = ()
    # of Xe links: tile here, UUID and tile of the other card
    tile_links: tuple[tuple[int, str, int], ...] = ()
    preferred: bool = False  # to be used before other cards
    vacated: bool = False  # pods on it are marked for descheduling
    vacated_tiles: tuple[int, ...] = ()  # likewise
    names: tuple[str, ...] = ()  # by which pods may request its model, beside the model's own

    @property
    def usable(self) -> bool:
        """True if it can be allocated to pods."""
        return self.healthy and not self.cordoned


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of one card, allocated to one container."""

    uuid: str
    index: int
    share_milli: int
    memory_mib: int
    resources: Amounts = ()
    tiles: tuple[int, ...] = ()  # numbers; as many as `resources` has of TILES


@dataclass(frozen=True, slots=True)
class Placement:
    """The slices of each GPU container, in the request's order."""

    containers: tuple[tuple[str, tuple[Slice, ...]], ...]
