"""Every JSON document that Bursar's parts exchange, declared once. Documents that travel alone have
``version: 1``. Forms (`core.forms`) say what is allowed beside the type."""

import re
from typing import Annotated, Literal, NotRequired, TypedDict

from timekeeper.core import object_names
from timekeeper.core.accelerators import UnknownAccelerators
from timekeeper.core.forms import Form, items, like, printable, whole
from timekeeper.core.values import MAX_AMOUNT, WHOLE_MILLI, ContainerAsk, GPURequest

OLDEST_MS = 30 * 86_400_000  # the age of anything that a post reports
MAX_FIGURE = 2**31
MAX_BEATS = 1_000  # heartbeats in one post, and a node's samples
MAX_DEVICES = 64  # of one heartbeat
MAX_NODE_PODS = 1_024
MAX_NODE_CARDS = 256
MAX_BINDINGS = 100  # and ends, in one post
MAX_ASKS = 1_000  # above what a Binding can name in its annotations (`admission/rules/size.py`)
MAX_RESOURCES = 64
MAX_DECISIONS = 1_000  # in one post
MAX_FIGURES = 24  # of a decision
MAX_TEXT = 1_000  # characters of a figure; a longer text is cut
MAX_NAME = 320  # of names, and of an owner's kind and name
MAX_COUNT = 2**31
_LATEST_MS = 2**53

Version = Literal[1]
Age = Annotated[int, whole(OLDEST_MS)]
# of a pod, or of a run of what posts
Identifier = Annotated[str, like("[A-Za-z0-9._:-]{1,64}", "it must be 1 to 64 letters, digits or . _ : -")]
Sequence = Annotated[int, whole(2**53, "it must be a whole number from 0 on")]
KubernetesName = Annotated[str, like(object_names.NAME, "it must be a name of Kubernetes")]
Subject = Annotated[
    str, like(object_names.SUBJECT, "it must be the name of a namespace, or _group.NAME")
]  # a namespace, or ``_group.NAME``
Moment = Annotated[  # milliseconds since 1970; null: not known
    int | None,
    Form(
        {"minimum": 1, "maximum": _LATEST_MS},
        f"it must be null or a whole number from 1 to {_LATEST_MS}",
        lambda value: 0 < value <= _LATEST_MS,
    ),
]

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


class CardUse(TypedDict):
    """A pod's use of one card by NVML's accounting of its processes; null: the card does not report it."""

    uuid: Annotated[str, like(r"[\x21-\x7e]{1,128}", "it must be 1 to 128 visible ASCII characters")]
    # percent of the card's time
    utilisation: Annotated[int | None, whole(100, "it must be a whole number from 0 to 100, or null")]
    # memory in use
    memory_mib: Annotated[
        int | None, whole(MAX_FIGURE, f"it must be a whole number from 0 to {MAX_FIGURE}, or null")
    ]


CardUses = Annotated[list[CardUse], items(0, MAX_NODE_CARDS)]


class PodUse(TypedDict):
    """One pod's use of its cards."""

    uid: Identifier
    cards: CardUses


class Use(TypedDict):
    """One sample of a node."""

    age_ms: Age  # age when sent, by the agent's monotonic clock
    pods: Annotated[list[PodUse], items(0, MAX_NODE_PODS)]
    cards: CardUses  # each card's use as a whole


class NodeUsage(TypedDict):
    """``POST /v1/nodeusage``, authenticated as a node's agent; the node is the one that the token names."""

    version: Literal[1]
    boot: Identifier  # of the agent's run
    sequence: Sequence  # number of this post within the run; a retry has the same number
    uses: Annotated[list[Use], items(1, MAX_BEATS)]


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
    priorityClasses: PriorityClasses
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
    chargeBy: NotRequired[Literal["dominant-host"]]  # Bindings record what a pod requests of its node
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
    # its pods keep their scheduler, and get no cards of Bursar; absent: Bursar places them
    placement: NotRequired[Literal["off"]]
    # whole cards that its pods request of NVIDIA's plugin are Bursar's; absent: the plugin's
    wholeCards: NotRequired[Literal["bursar"]]
    rules: dict[str, str]  # override the cluster's
    exempt: list[str]  # in addition to the cluster's
    policy: str
    group: NotRequired[str]  # "": none
    groupDecides: NotRequired[bool]  # the group's account determines the standing; absent: false
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

    container: KubernetesName
    init: bool
    devices: Annotated[int, whole(MAX_NODE_CARDS)]
    share_milli: Annotated[int, whole(WHOLE_MILLI)]
    memory_mib: Annotated[int, whole(MAX_FIGURE)]
    memory_milli: NotRequired[Annotated[int, whole(WHOLE_MILLI)]]  # absent: 0
    resources: NotRequired[  # amounts of named resources
        Annotated[
            dict[str, Annotated[int, Form({"minimum": 0, "maximum": MAX_AMOUNT})]],
            Form(
                {"maxProperties": MAX_RESOURCES},
                "it must be an object of whole numbers from 0 to 2^63 - 1",
                lambda found: all(type(each) is int and 0 <= each <= MAX_AMOUNT for each in found.values()),
            ),
            Form(
                {}, f"it must have {MAX_RESOURCES} members at most", lambda found: len(found) <= MAX_RESOURCES
            ),
        ]
    ]


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

    uid: Identifier
    namespace: KubernetesName
    pod: KubernetesName
    node: KubernetesName
    age_ms: Age  # since its Binding was sent, when this is sent
    dialect: str
    asks: Annotated[list[BindingAsk], items(1, MAX_ASKS)]
    devices: str  # text of the annotation ``bursar.dev/devices``
    host: NotRequired[str | None]  # text of the annotation ``bursar.dev/host``
    grace_ms: Annotated[int, whole(MAX_FIGURE)]


class Bindings(TypedDict):
    """``POST /v1/bindings``, by the extender."""

    version: Literal[1]
    bindings: Annotated[list[BindingEntry], items(1, MAX_BINDINGS)]


class EndEntry(TypedDict):
    """What the extender saw of a bound pod whose object was removed: the `core.ledger.hold.PodHold` of all
    that its object ever said, and when the removal was seen. Times in milliseconds since 1970."""

    uid: Identifier
    namespace: KubernetesName
    pod: KubernetesName
    node: KubernetesName
    bound_ms: Moment
    over: bool
    ended_ms: Moment
    reported_ms: Moment
    witnessed_ms: Annotated[int, whole(_LATEST_MS)]
    grace_ms: Annotated[int, whole(MAX_FIGURE)]
    deletion_ms: Moment
    removed_age_ms: Age  # since the removal was seen, when this is sent
    # since its node's agent ceased to list it, where that ended its hold; null: not known (yet)
    left_age_ms: Annotated[int | None, whole(OLDEST_MS)]
    forgiven_ms: NotRequired[Moment]  # absent: the start of its gang has not come to nothing


class Ends(TypedDict):
    """``POST /v1/ends``, by each extender."""

    version: Literal[1]
    ends: Annotated[list[EndEntry], items(1, MAX_BINDINGS)]


# a word such as ``extender`` or ``refused``
Role = Annotated[str, like("[a-z][a-z-]{0,31}", "it must be 1 to 32 lower-case letters or -")]
_ShortText = Annotated[
    str, printable(MAX_NAME, sentence=f"it must be a printable text of at most {MAX_NAME} characters")
]
_FIGURE_NAME = re.compile("[A-Za-z][A-Za-z0-9]{0,31}", re.ASCII)
FigureWire = Annotated[
    int | str,
    Form(
        {"minimum": -MAX_AMOUNT, "maximum": MAX_AMOUNT, "maxLength": MAX_TEXT},
        f"it must be a whole number of 64 bits, or a printable text of at most {MAX_TEXT} characters",
        lambda value: (
            len(value) <= MAX_TEXT and value.isprintable()
            if isinstance(value, str)
            else abs(value) <= MAX_AMOUNT
        ),
    ),
]


class DecisionEntry(TypedDict):
    """Equal decisions in succession; see `timekeeper.core.decisions.Decision`."""

    kind: Role
    reason: Annotated[
        str, like("[A-Za-z][A-Za-z0-9]{0,63}", "it must be a word of 1 to 64 letters or digits")
    ]
    namespace: Subject
    owner: NotRequired[_ShortText]  # of the pod, as ``Kind/name``; "": none or unknown
    # of the pod; "": it has none yet, or the decision is about the namespace
    name: NotRequired[_ShortText]
    generate_name: NotRequired[_ShortText]
    uid: NotRequired[_ShortText]
    budget: NotRequired[_ShortText]
    first_age_ms: Age  # since the first of them, when this is sent
    last_age_ms: Age
    count: Annotated[int, whole(MAX_COUNT), Form({"minimum": 1}, "it must be 1 or more", bool)]
    figures: Annotated[
        dict[str, FigureWire],
        Form(
            {"maxProperties": MAX_FIGURES},
            f"it must be an object with at most {MAX_FIGURES} members",
            lambda figures: len(figures) <= MAX_FIGURES,
        ),
        Form(
            {"propertyNames": {"pattern": f"^(?:{_FIGURE_NAME.pattern})$"}},
            "the name of a figure must be 1 to 32 letters or digits, and begin with a letter",
            lambda figures: all(map(_FIGURE_NAME.fullmatch, figures)),
        ),
    ]


class Decisions(TypedDict):
    """``POST /v1/decisions``, by webhook and extender."""

    version: Literal[1]
    source: Role  # that decided
    decisions: Annotated[list[DecisionEntry], items(1, MAX_DECISIONS)]


_NO_FIGURES = "it does not have the form of a card's figures"


class BeatDevice(TypedDict):
    """NVML's figures for one card as seen in the pod."""

    uuid: Annotated[
        str, Form({"minLength": 1, "maxLength": 128}, _NO_FIGURES, lambda text: 1 <= len(text) <= 128)
    ]
    utilisation: Annotated[int | None, whole(MAX_FIGURE, _NO_FIGURES)]  # percent
    memory_mib: Annotated[int | None, whole(MAX_FIGURE, _NO_FIGURES)]
    scope: Annotated[
        Literal["exclusive", "shared"], Form({}, _NO_FIGURES)
    ]  # whether other pods are on the card


class Beat(TypedDict):
    """One heartbeat of a pod's sidecar."""

    age_ms: Age  # age when sent, by the sender's monotonic clock
    devices: Annotated[
        list[Annotated[BeatDevice, Form({}, _NO_FIGURES)]],
        items(0, MAX_DEVICES, f"it must be a list of at most {MAX_DEVICES} cards"),
    ]


class Heartbeats(TypedDict):
    """``POST /v1/heartbeats``."""

    version: Literal[1]
    boot: Identifier  # of the sidecar's run
    sequence: Sequence  # number of this post within the run; a retry has the same number
    beats: Annotated[list[Beat], items(1, MAX_BEATS, f"it must be a list of 1 to {MAX_BEATS} beats")]


class HeartbeatAnswer(TypedDict):
    """The answer to a post of heartbeats."""

    version: Literal[1]
    interval_ms: int  # when to send the next
    in_budget: bool  # whether the namespace is in budget
    over: NotRequired[bool]  # every other container of the pod has ended for good; absent: no, or not known
    ca: NotRequired[str]  # CA bundle (PEM) to trust from now on
