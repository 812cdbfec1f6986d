"""What the leading extender knows of gangs beside what their pods say: immutable values with laws. The memory
is replaced as a whole, so any thread may read it. A successor begins with an empty one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from scheduler_ext.gangs.plan import PlannedMember
from scheduler_ext.model.pod import Pod
from scheduler_ext.snapshot.gang_table import GangKey, GangState
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.node_info import NodeInfo
from scheduler_ext.snapshot.snapshot import Snapshot

AGAIN_MS = 5_000  # at most, until what came to nothing is tried or logged again


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSettings:
    """``deadline_ms``: of a start; ``ready_for_ms``: how long after it a member may stay Pending, 0: for
    ever; ``autoscales``: gates go for an autoscaler, though the gang does not fit."""

    deadline_ms: int = 60_000
    ready_for_ms: int = 0
    autoscales: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One moment, ``at_ms`` by a monotonic clock and ``now_ms`` by the one of objects. ``tried``: UIDs of
    members that kube-scheduler has tried; ``bound``: those whose Binding the snapshot may not show yet."""

    snapshot: Snapshot
    at_ms: int
    now_ms: int
    tried: frozenset[str]
    bound: frozenset[str]
    settings: StartSettings

    def is_tried(self, pod: Pod) -> bool:
        """Whether kube-scheduler has tried the waiting member."""
        return pod.unschedulable or pod.uid in self.tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """``places``: of members without a node, by UID; ``until_ms``: its deadline; ``planned_ms``: when they
    were planned last, 0: not yet; ``joins``: of members of a gang that has started; ``where``: for people;
    ``checked``: by UID the node, as it was when it took the member last; ``is_over``: it came to nothing,
    and its members are evicted. Law: one that is over keeps no cards, and joins no others."""

    began_ms: int
    until_ms: int
    places: Mapping[str, PlannedMember] = field(default_factory=dict)
    planned_ms: int = 0
    joins: bool = False
    where: str = ""
    checked: Mapping[str, NodeInfo] = field(default_factory=dict)
    is_over: bool = False

    def __post_init__(self) -> None:
        if self.is_over and (self.places or self.joins):
            raise ValueError("a start that is over keeps cards, or joins those that run")


@dataclass(frozen=True, slots=True, kw_only=True)
class GangHistory:
    """Of a gang of which a member lives. ``has_run``: it has started; ``steady_ms``: since when it has
    members that may start, and none leaves; ``lack``: why its last plan came to nothing; ``short_ms``: since
    when it lacks cards; ``looked``: the last round in which it had a plan without success; ``logged_ms``:
    when that is logged again; ``avoided``: nodes, and until when; ``late``: UIDs of waiting members that were
    planned before others' turns; ``eviction``: why its members were evicted, and when last. Law: what is
    short of cards has a lack."""

    has_run: bool = False
    steady_ms: int | None = None
    lack: str = ""
    short_ms: int | None = None
    looked: int = 0
    logged_ms: int = 0
    avoided: Mapping[str, int] = field(default_factory=dict)
    late: frozenset[str] = frozenset()
    eviction: tuple[str, int] | None = None

    def __post_init__(self) -> None:
        if self.short_ms is not None and not self.lack:
            raise ValueError("a gang that is short of cards lacks nothing")


@dataclass(frozen=True, slots=True)
class Failures:
    """How many starts came to nothing, and when the last one ended."""

    count: int = 0
    ended_ms: int = -1


@dataclass(frozen=True, slots=True)
class AutoscalerTurn:
    """An autoscaler's. ``key``: whose it is, "": no gang's; ``had``: who had one in this round."""

    key: GangKey = ""
    until_ms: int = 0
    had: frozenset[GangKey] = frozenset()


NEW = GangHistory()


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """``pods``: as they were seen last; ``open``: gangs that wait, start, or lack a mark; ``told``: what they
    wait for; ``marking``: by UID until when no mark is written again; ``failed``: by gang, ``fruitless``: by
    namespace in a row; ``round``: in each every gang has one plan without success, and none has any before
    ``next_plan_ms``."""

    pods: Map[Pod] = field(default_factory=Map)
    open: Mapping[GangKey, GangState] = field(default_factory=dict)
    histories: Map[GangHistory] = field(default_factory=Map)
    starts: Mapping[GangKey, Start] = field(default_factory=dict)
    told: Map[str] = field(default_factory=Map)
    marking: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[GangKey, Failures] = field(default_factory=dict)
    fruitless: Mapping[str, Failures] = field(default_factory=dict)
    round: int = 1
    next_plan_ms: int = 0
    turn: AutoscalerTurn = field(default_factory=AutoscalerTurn)

    def of(self, key: GangKey) -> GangHistory:
        """The gang's history."""
        return self.histories.get(key) or NEW

    def with_history(self, key: GangKey, history: GangHistory) -> "Memory":
        """With this history of the gang."""
        return replace(self, histories=self.histories.set(key, history))

    def with_start(self, key: GangKey, start: Start | None) -> "Memory":
        """With this start of the gang; None: without any."""
        starts = dict(self.starts)
        if start is None:
            starts.pop(key, None)
        else:
            starts[key] = start
        return replace(self, starts=starts)

    @property
    def short(self) -> frozenset[GangKey]:
        """The gangs that lack cards, and for which none are reserved."""
        short = (key for key in self.open if self.of(key).short_ms is not None and key not in self.starts)
        return frozenset(key for key in short if not self.open[key].reserved)

    def is_starting(self, gang: GangState) -> bool:
        """Whether it has not started, and has some nodes, and too few."""
        return 0 < len(gang.bound) < gang.needed and not self.of(gang.key).has_run
