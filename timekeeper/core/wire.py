"""The words of standings, and the JSON documents that the node agent writes on its node. Documents that
travel alone have ``version: 1``. Bodies of HTTP: `timekeeper.wire`."""

from typing import Any, Literal, NotRequired, TypedDict

from timekeeper.core.accelerators import UnknownAccelerators
from timekeeper.core.names import Mode
from timekeeper.core.values import GPURequest

StandingWord = Literal["IN_BUDGET", "OVER_BUDGET", "UNLIMITED", "UNKNOWN"]

# Why a pod is created with the scheduling gate `names.BUDGET_GATE`. ``budget``: it waits until the budget can
# pay it, and counts as in budget from its release on. ``turn``: it waits for its turn, with the class of its
# standing. "": it has no gate.
HeldFor = Literal["", "budget", "turn"]


class CardWire(TypedDict):
    """One card of a node's inventory."""

    uuid: str
    index: int  # NVML index
    model: str
    memory_mib: int  # total memory
    healthy: bool
    numa: NotRequired[int | None]  # number of its NUMA node; null or absent: unknown
    # UUIDs of cards of the node that it reaches without going through a CPU (NVLink, else PCIe switch); null
    # or absent: unknown
    links: NotRequired[list[str] | None]
    mig: str | None  # profile of a MIG device; null: a whole card
    # how it reaches the cards of index 0, 1...: a digit each, `-` for itself and where that is unknown. 0: by
    # NVLink, 1: one PCIe switch, 2: several, 3: one host bridge, 4: one NUMA node, 5: across NUMA nodes
    paths: NotRequired[str]
    fault: NotRequired[str]  # why it is not healthy, for people
    # processes have been computing on it through MPS for a while; absent: no, or not checked
    mps: NotRequired[bool]


class NriWire(TypedDict):
    """How the node's container runtime gives cards to containers; absent: not by NRI."""

    plugins: list[str]  # those that a container with cards needs: `bursar`, and others that take part
    enforced: bool  # the runtime makes no container whose pod requires a plugin that is away


class Inventory(TypedDict):
    """Node annotation ``bursar.dev/inventory``, written by the node agent."""

    version: Literal[1]
    cards: list[CardWire]
    nri: NotRequired[NriWire]


class Holders(TypedDict):
    """Node annotation ``bursar.dev/holders``, written by the node agent only."""

    version: Literal[1]
    boot: str  # the node's boot ID
    # the agent has completed a full scan since it started; before that an absent pod proves nothing
    known: bool
    # UID -> UUIDs of its cards, for every pod whose GPU containers are on the node, whatever its object says;
    # from the kubelet's device plugin if that chooses the cards, else from the placement
    pods: dict[str, list[str]]
    closed: str  # why the node allocates no cards, for people; "": it does


class PriorityClassWire(TypedDict):
    """A PriorityClass as the webhook writes it into pods."""

    name: str
    value: int | None  # null: the class is not in the cluster
    preemptionPolicy: str | None  # null: the class is not in the cluster


class EntryClasses(TypedDict):
    """The class of each standing, in a namespace. ``keep``: its pods keep their user's up to ``inBudget``,
    which ``overBudget`` repeats; absent: they do not."""

    inBudget: PriorityClassWire
    overBudget: PriorityClassWire
    keep: NotRequired[Literal[True]]


class PriorityClasses(EntryClasses):
    """The same of the cluster."""

    clusterDefault: NotRequired[PriorityClassWire]  # of pods that name none; absent: the cluster has none


class HostWire(TypedDict):
    """What the rule host-share compares with: CPU and memory for each card, of the nodes that have most."""

    cpuMilli: int
    memoryBytes: int
    leastCardMib: int  # memory of the cluster's smallest card
    mostCardMib: int  # of the largest on nodes for fractions; 0: `names.CARD_MILLIONTHS` is not used
    timesMilli: int  # how many times its part a pod may request, in thousandths


class StandingSettings(TypedDict):
    """The part of ``_settings`` that webhook and extender need. Durations in milliseconds."""

    mode: Mode
    rules: dict[str, str]  # rule -> mode, if it differs from the catalogue's
    exempt: list[str]  # users and groups
    schedulerName: str
    sidecar: bool  # whether pods get one
    priorityClasses: PriorityClasses
    classes: NotRequired[list[PriorityClassWire]]  # that users may name, the cluster has no others
    unknownStanding: Literal["inBudget", "overBudget"]  # how pods admitted with standing UNKNOWN count
    maxGracePeriodMs: int
    pdbGraceMs: int
    lookaheadMs: int
    policy: str
    # what becomes of pods that request accelerators which no dialect reads: `core.accelerators`
    unknownAccelerators: UnknownAccelerators
    # resource -> whether it is an accelerator's, of those that `devices` names; absent: it names none
    devices: NotRequired[dict[str, bool]]
    # driver -> whether its devices are GPUs, of those that an administrator has named; absent: none
    drivers: NotRequired[dict[str, bool]]
    # driver -> comparisons of `claims.drivers` that its GPUs meet, of those that have some; absent: none has
    gpuDevices: NotRequired[dict[str, list[str]]]
    host: NotRequired[HostWire]  # absent: no node with cards is known


class CapsWire(TypedDict):
    """How much pods may hold of cards at one time, in milli-GPU, unweighted; null: any amount."""

    total: int | None  # all pods of the namespace, or of the group's namespaces, together
    pod: int | None  # each pod


class ProtectWire(TypedDict):
    """Which pods keep class and cards when the budget is spent: those that have all ``labels`` and a
    controller of one of ``owners`` (empty: any), up to a floor."""

    labels: dict[str, str]
    owners: list[str]
    cards: int | None  # the floor, in milli-GPU, unweighted; null: it is ``amount``
    amount: int | None  # the floor, in milli-GPU x milliseconds a period; null: it is ``cards``
    left: int  # of the floor, for further pods, in its unit
    uids: list[str]  # the pods that are protected now; empty unless the standing is OVER_BUDGET
    turns: bool  # new pods wait for their turn (`maxWaiting`)


class GroupLeftWire(TypedDict):
    """What a group's account has left where a namespace's own decides."""

    remaining: int  # as in `StandingEntry`
    onExhausted: str


class StandingEntry(TypedDict):
    """One namespace. Amounts in milli-GPU x milliseconds, times in milliseconds since 1970.

    If the group's account decides, amounts, ``onExhausted`` and ``warnAt`` are the group's.
    """

    standing: StandingWord
    onExhausted: str
    priorityClass: str
    priorityClasses: NotRequired[EntryClasses]  # absent: the cluster's
    ratio: int | None  # thousandths of the grant that are spent; null: unlimited
    warnAt: int | None  # thousandths from which users are warned; null: never
    remaining: int | None  # granted - posted - pending - reserved; null: unlimited
    # posted + pending >= granted, in an account with this ``onExhausted``; absent in documents of older
    # releases: false
    spent: NotRequired[bool]
    # when the standing may change by time alone (with ``deny``: the period's end); null: never
    validUntil: int | None
    mode: Mode  # the namespace's own, else the cluster's
    # its pods keep their scheduler, and get no cards of Bursar; absent: Bursar places them
    placement: NotRequired[Literal["off"]]
    # whole cards that its pods request of NVIDIA's plugin are Bursar's; absent: the plugin's
    wholeCards: NotRequired[Literal["bursar"]]
    # whether its pods get a sidecar, with `on` also where they ask for none; `waits`: not now, for older ones
    # wait for it to start; absent: as `StandingSettings`
    sidecar: NotRequired[Literal["on", "off", "waits"]]
    rules: dict[str, str]  # override the cluster's
    exempt: list[str]  # in addition to the cluster's
    policy: str
    group: NotRequired[str]  # "": none
    groupDecides: NotRequired[bool]  # the group's account determines the standing; absent: false
    groupLeft: NotRequired[GroupLeftWire]  # absent: the group decides, or has no limit
    hold: NotRequired[HeldFor]  # how new pods are held, also in budget; absent: they are not
    # pods reserve their whole declared time; absent: they reserve the lookahead
    reserve: NotRequired[Literal["declared"]]
    requireDuration: NotRequired[bool]  # pods must declare how long they mean to run; absent: false
    # its parallel Jobs, and their like, are gangs by their own fields; absent: by annotation
    gangs: NotRequired[Literal["auto"]]
    hostShare: NotRequired[int]  # its own `host.timesMilli`; absent: the cluster's
    caps: NotRequired[CapsWire]  # of the namespace's own budget; absent: it has none
    groupCaps: NotRequired[CapsWire]  # of its group's budget; absent: it has none
    # what its device claims hold of GPUs, in milli-GPU, unweighted, where it has a cap; absent: nothing
    heldByClaims: NotRequired[int]
    protect: NotRequired[ProtectWire]  # absent: it protects none
    # what stands here is older, for the account contradicts a law of the ledger; absent: it is of now
    stale: NotRequired[Literal[True]]
    # which of the accounts with waiting pods goes first, 1 before 2; absent: `fairShare` is off
    rank: NotRequired[int]


class Standings(TypedDict):
    """``GET /v1/standings``. The strong ETag is the revision in quotes."""

    version: Literal[1]
    revision: str
    generated: int  # the tick that made it, by the timekeeper's clock: it knows pods up to then
    settings: StandingSettings
    default: StandingEntry  # applies to namespaces that are not listed
    namespaces: dict[str, StandingEntry]


def binding_asks(request: GPURequest) -> list[dict[str, Any]]:
    """What the containers request, as the wire (`timekeeper.wire.bindings`) and the database have it."""
    asks = []
    for asked in request.asks:
        wire: dict[str, Any] = {
            "container": asked.container,
            "init": asked.init,
            "devices": asked.ask.devices,
            "share_milli": asked.ask.share_milli,
            "memory_mib": asked.ask.memory_mib,
        }
        if asked.ask.memory_milli:
            wire["memory_milli"] = asked.ask.memory_milli
        if asked.ask.resources:
            wire["resources"] = dict(asked.ask.resources)
        asks.append(wire)
    return asks
