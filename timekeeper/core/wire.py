"""Every JSON document that Bursar's parts exchange, declared once. Documents that travel alone have
``version: 1``."""

from typing import Literal, NotRequired, TypedDict

from timekeeper.core.accelerators import UnknownAccelerators
from timekeeper.core.values import ContainerAsk, GPURequest

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


class Inventory(TypedDict):
    """Node annotation ``bursar.dev/inventory``, written by the node agent."""

    version: Literal[1]
    cards: list[CardWire]


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


class CardUse(TypedDict):
    """A pod's use of one card by NVML's accounting of its processes; null: the card does not report it."""

    uuid: str
    utilisation: int | None  # percent of the card's time
    memory_mib: int | None  # memory in use


class PodUse(TypedDict):
    """One pod's use of its cards."""

    uid: str
    cards: list[CardUse]


class Use(TypedDict):
    """One sample of a node."""

    age_ms: int  # age when sent, by the agent's monotonic clock
    pods: list[PodUse]
    cards: list[CardUse]  # each card's use as a whole


class NodeUsage(TypedDict):
    """``POST /v1/nodeusage``, authenticated as a node's agent; the node is the one that the token names."""

    version: Literal[1]
    boot: str  # identifies the agent's run
    sequence: int  # number of this post within the run; a retry has the same number
    uses: list[Use]


class NodeUsageAnswer(TypedDict):
    """The answer to a post of node usage."""

    version: Literal[1]
    interval_ms: int  # when to report next
    ca: NotRequired[str]  # CA bundle (PEM) to trust from now on


class MeasuredCards(TypedDict):
    """``GET /v1/nodeusage``: reports of the last two minutes."""

    version: Literal[1]
    nodes: dict[str, dict[str, CardUse]]  # node -> card UUID -> its use as a whole


class PriorityClassWire(TypedDict):
    """A PriorityClass as the webhook writes it into pods."""

    name: str
    value: int | None  # null: the class is not in the cluster
    preemptionPolicy: str | None  # null: the class is not in the cluster


class PriorityClasses(TypedDict):
    """The class of each standing."""

    inBudget: PriorityClassWire
    overBudget: PriorityClassWire


class HostWire(TypedDict):
    """What the rule host-share compares with: CPU and memory for each card, of the nodes that have most."""

    cpuMilli: int
    memoryBytes: int
    leastCardMib: int  # memory of the cluster's smallest card
    timesMilli: int  # how many times its part a pod may request, in thousandths


class StandingSettings(TypedDict):
    """The part of ``_settings`` that webhook and extender need. Durations in milliseconds."""

    mode: Literal["enforce", "observe", "meter"]
    rules: dict[str, str]  # rule -> mode, if it differs from the catalogue's
    exempt: list[str]  # users and groups
    schedulerName: str
    sidecar: bool  # whether pods get one
    sidecarNative: bool  # as a native sidecar (an init container that is restarted always)
    priorityClasses: PriorityClasses
    unknownStanding: Literal["inBudget", "overBudget"]  # how pods admitted with standing UNKNOWN count
    maxGracePeriodMs: int
    pdbGraceMs: int
    lookaheadMs: int
    policy: str
    # what becomes of pods that request accelerators which no dialect reads: `core.accelerators`
    unknownAccelerators: UnknownAccelerators
    chargeBy: NotRequired[Literal["dominant-host"]]  # Bindings record what a pod requests of its node
    host: NotRequired[HostWire]  # absent: no node with cards is known


class CapsWire(TypedDict):
    """How much pods may hold of cards at one time, in milli-GPU, unweighted; null: any amount."""

    total: int | None  # all pods of the namespace, or of the group's namespaces, together
    pod: int | None  # each pod


class StandingEntry(TypedDict):
    """One namespace. Amounts in milli-GPU x milliseconds, times in milliseconds since 1970.

    If the group's account decides, amounts, ``onExhausted`` and ``warnAt`` are the group's.
    """

    standing: StandingWord
    onExhausted: str
    priorityClass: str
    ratio: int | None  # thousandths of the grant that are spent; null: unlimited
    warnAt: int | None  # thousandths from which users are warned; null: never
    remaining: int | None  # granted - posted - pending - reserved; null: unlimited
    # posted + pending >= granted, in an account with this ``onExhausted``; absent in documents of older
    # releases: false
    spent: NotRequired[bool]
    # when the standing may change by time alone (with ``deny``: the period's end); null: never
    validUntil: int | None
    mode: Literal["enforce", "observe", "meter"]  # the namespace's own, else the cluster's
    rules: dict[str, str]  # override the cluster's
    exempt: list[str]  # in addition to the cluster's
    policy: str
    group: NotRequired[str]  # "": none
    groupDecides: NotRequired[bool]  # the group's account determines the standing; absent: false
    hold: NotRequired[HeldFor]  # how new pods are held, also in budget; absent: they are not
    # pods reserve their whole declared time; absent: they reserve the lookahead
    reserve: NotRequired[Literal["declared"]]
    requireDuration: NotRequired[bool]  # pods must declare how long they mean to run; absent: false
    hostShare: NotRequired[int]  # its own `host.timesMilli`; absent: the cluster's
    caps: NotRequired[CapsWire]  # of the namespace's own budget; absent: it has none
    groupCaps: NotRequired[CapsWire]  # of its group's budget; absent: it has none


class Standings(TypedDict):
    """``GET /v1/standings``. The strong ETag is the revision in quotes."""

    version: Literal[1]
    revision: str
    generated: int  # when it was made, by the timekeeper's clock
    settings: StandingSettings
    default: StandingEntry  # applies to namespaces that are not listed
    namespaces: dict[str, StandingEntry]


class BindingAsk(TypedDict):
    """What one container of a bound pod requests on each of ``devices`` cards."""

    container: str
    init: bool
    devices: int
    share_milli: int
    memory_mib: int
    memory_milli: NotRequired[int]  # absent: 0
    resources: NotRequired[dict[str, int]]  # amounts of named resources


def binding_asks(request: GPURequest) -> list[BindingAsk]:
    """What the containers request, in the form of the wire and of the database."""
    return [_binding_ask(each) for each in request.asks]


def _binding_ask(each: ContainerAsk) -> BindingAsk:
    wire: BindingAsk = {
        "container": each.container,
        "init": each.init,
        "devices": each.ask.devices,
        "share_milli": each.ask.share_milli,
        "memory_mib": each.ask.memory_mib,
    }
    if each.ask.memory_milli:
        wire["memory_milli"] = each.ask.memory_milli
    if each.ask.resources:
        wire["resources"] = dict(each.ask.resources)
    return wire


class BindingEntry(TypedDict):
    """A pod that the extender bound."""

    uid: str
    namespace: str
    pod: str
    node: str
    age_ms: int  # since its Binding was sent, when this is sent
    dialect: str
    asks: list[BindingAsk]
    devices: str  # text of the annotation ``bursar.dev/devices``
    host: NotRequired[str]  # text of the annotation ``bursar.dev/host``
    grace_ms: int


class Bindings(TypedDict):
    """``POST /v1/bindings``, by the extender."""

    version: Literal[1]
    bindings: list[BindingEntry]


class EndEntry(TypedDict):
    """What the extender saw of a bound pod whose object was removed: the `core.ledger.hold.PodHold` of all
    that its object ever said, and when the removal was seen. Times in milliseconds since 1970."""

    uid: str
    namespace: str
    pod: str
    node: str
    bound_ms: int | None
    over: bool
    ended_ms: int | None
    reported_ms: int | None
    witnessed_ms: int
    grace_ms: int
    deletion_ms: int | None
    removed_age_ms: int  # since the removal was seen, when this is sent
    # since its node's agent ceased to list it, where that ended its hold; null: not known (yet)
    left_age_ms: int | None


class Ends(TypedDict):
    """``POST /v1/ends``, by each extender."""

    version: Literal[1]
    ends: list[EndEntry]


class DecisionEntry(TypedDict):
    """Equal decisions in succession; see `timekeeper.core.decisions.Decision`."""

    kind: str
    reason: str
    namespace: str  # or ``_group.NAME``
    owner: str  # of the pod, as ``Kind/name``; "": none or unknown
    name: str  # of the pod; "": it has none yet, or the decision is about the namespace
    generate_name: str
    uid: str
    budget: str
    figures: dict[str, int | str]
    count: int
    first_age_ms: int  # since the first of them, when this is sent
    last_age_ms: int


class Decisions(TypedDict):
    """``POST /v1/decisions``, by webhook and extender."""

    version: Literal[1]
    source: str  # the role that decided
    decisions: list[DecisionEntry]


class BeatDevice(TypedDict):
    """NVML's figures for one card as seen in the pod."""

    uuid: str
    utilisation: int | None  # percent
    memory_mib: int | None
    scope: Literal["exclusive", "shared"]  # whether other pods are on the card


class Beat(TypedDict):
    """One heartbeat of a pod's sidecar."""

    age_ms: int  # age when sent, by the sender's monotonic clock
    devices: list[BeatDevice]


class Heartbeats(TypedDict):
    """``POST /v1/heartbeats``."""

    version: Literal[1]
    boot: str  # identifies the sidecar's run
    sequence: int  # number of this post within the run; a retry has the same number
    beats: list[Beat]


class HeartbeatAnswer(TypedDict):
    """The answer to a post of heartbeats."""

    version: Literal[1]
    interval_ms: int  # when to send the next
    in_budget: bool  # whether the namespace is in budget
    over: NotRequired[bool]  # every other container of the pod has ended for good; absent: no, or not known
    ca: NotRequired[str]  # CA bundle (PEM) to trust from now on
