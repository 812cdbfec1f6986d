"""Every JSON document that Bursar's own parts exchange, declared once. All are ``version: 1`` where they
travel alone."""

from typing import Literal, NotRequired, TypedDict

StandingWord = Literal["IN_BUDGET", "OVER_BUDGET", "UNLIMITED", "UNKNOWN"]


class CardWire(TypedDict):
    """One card of a node's inventory; memory in MiB.

    ``numa``: the number of its NUMA node. ``links``: the UUIDs of the node's cards that it reaches without
    going through a CPU: by NVLink, else by a PCIe switch. Null or left out: not known. ``fault``: why it is
    not healthy, for people. ``mps``: processes compute on it through MPS, and have for a while; left out:
    they do not, or nobody looked.
    """

    uuid: str
    index: int
    model: str
    memory_mib: int
    healthy: bool
    numa: NotRequired[int | None]
    links: NotRequired[list[str] | None]
    mig: str | None
    fault: NotRequired[str]
    mps: NotRequired[bool]


class Inventory(TypedDict):
    """Node annotation ``bursar.dev/inventory``."""

    version: Literal[1]
    cards: list[CardWire]


class Holders(TypedDict):
    """Node annotation ``bursar.dev/holders``, written by the node agent alone.

    ``boot``: the node's boot ID. ``known``: the agent has seen everything once since it began; before that
    nothing may be concluded from what is not listed. ``pods``: by UID, the pods whose GPU containers are on
    the node now, in whatever state their objects are, with the UUIDs of the cards that they have: those that
    the kubelet's plugin gave them where one chooses, else those of their placement. ``closed``: why the node
    gives out no cards, for people; empty where it does.
    """

    version: Literal[1]
    boot: str
    known: bool
    pods: dict[str, list[str]]
    closed: str


class CardUse(TypedDict):
    """What one pod uses of one card by NVML's account of its processes: percent of the card's time, MiB; None
    where the card does not tell."""

    uuid: str
    utilisation: int | None
    memory_mib: int | None


class PodUse(TypedDict):
    """The cards that one pod uses."""

    uid: str
    cards: list[CardUse]


class Use(TypedDict):
    """One look at a node, ``age_ms`` old by the agent's monotonic clock when it is sent; ``cards``: each
    card's use as a whole."""

    age_ms: int
    pods: list[PodUse]
    cards: list[CardUse]


class NodeUsage(TypedDict):
    """``POST /v1/nodeusage``, under the identity of a node's agent: the node is the one that the token names.
    ``boot`` and ``sequence`` as in `Heartbeats`."""

    version: Literal[1]
    boot: str
    sequence: int
    uses: list[Use]


class NodeUsageAnswer(TypedDict):
    """When to report next, and the CA bundle (PEM) to trust from now on."""

    version: Literal[1]
    interval_ms: int
    ca: NotRequired[str]


class MeasuredCards(TypedDict):
    """``GET /v1/nodeusage``: node -> card UUID -> its use as last reported, of the last two minutes alone."""

    version: Literal[1]
    nodes: dict[str, dict[str, CardUse]]


class SliceWire(TypedDict):
    """What one container holds of one card: thousandths of its compute, MiB of its memory."""

    uuid: str
    index: int
    share_milli: int
    memory_mib: int


class Devices(TypedDict):
    """Pod annotation ``bursar.dev/devices``, written by the Binding: container -> the slices it holds."""

    version: Literal[1]
    containers: dict[str, list[SliceWire]]


class PriorityClassWire(TypedDict):
    """A priority class by name, with its value and preemptionPolicy where the timekeeper has seen it in the
    cluster (else None)."""

    name: str
    value: int | None
    preemptionPolicy: str | None


class PriorityClasses(TypedDict):
    """The class of each standing."""

    inBudget: PriorityClassWire
    overBudget: PriorityClassWire


class StandingSettings(TypedDict):
    """What webhook and extender need of ``_settings``. Durations in milliseconds; ``rules``: the modes that
    differ from the catalogue's, by rule; ``exempt``: users and groups."""

    mode: Literal["enforce", "observe"]
    rules: dict[str, str]
    exempt: list[str]
    schedulerName: str
    sidecar: bool
    sidecarNative: bool
    priorityClasses: PriorityClasses
    unknownStanding: Literal["inBudget", "overBudget"]
    maxGracePeriodMs: int
    pdbGraceMs: int
    lookaheadMs: int
    policy: str


class StandingEntry(TypedDict):
    """One namespace: amounts in milli-GPU x milliseconds, times in milliseconds since 1970.

    ``ratio``: thousandths of what was granted that are spent; ``warnAt``: thousandths from which on a user is
    warned, or None; ``remaining``: granted - posted - pending - reserved, or None where unlimited;
    ``validUntil``: when the standing must be asked anew; where ``onExhausted`` is deny, the period's end;
    ``mode``: the cluster's, or the namespace's own; ``rules`` and ``exempt`` come on top of the cluster's.
    ``group``: the group that the namespace is in, empty where in none; amounts, ``onExhausted`` and
    ``warnAt`` are the group's where that decides.
    """

    standing: StandingWord
    onExhausted: str
    priorityClass: str
    ratio: int | None
    warnAt: int | None
    remaining: int | None
    validUntil: int | None
    mode: Literal["enforce", "observe"]
    rules: dict[str, str]
    exempt: list[str]
    policy: str
    group: NotRequired[str]


class Standings(TypedDict):
    """``GET /v1/standings``; strong ETag = the revision in quotes."""

    version: Literal[1]
    revision: str
    generated: int
    settings: StandingSettings
    default: StandingEntry
    namespaces: dict[str, StandingEntry]


class BeatDevice(TypedDict):
    """NVML's figures for one card as seen in the pod: percent, MiB, and whether others share the card."""

    uuid: str
    utilisation: int | None
    memory_mib: int | None
    scope: Literal["exclusive", "shared"]


class Beat(TypedDict):
    """One heartbeat, ``age_ms`` old by the sender's monotonic clock when it is sent."""

    age_ms: int
    devices: list[BeatDevice]


class Heartbeats(TypedDict):
    """``POST /v1/heartbeats``: ``boot`` names the sidecar's run, ``sequence`` counts its posts (a repeat
    carries the same)."""

    version: Literal[1]
    boot: str
    sequence: int
    beats: list[Beat]


class HeartbeatAnswer(TypedDict):
    """When to beat next, whether the namespace is in budget, and the CA bundle (PEM) to trust from now on.

    ``over``: every other container of the pod has ended and none will be started again; left out where that
    is not so, or not known.
    """

    version: Literal[1]
    interval_ms: int
    in_budget: bool
    over: NotRequired[bool]
    ca: NotRequired[str]
