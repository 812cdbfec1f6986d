"""What is to be done for gangs: decisions return it, and `GangStarts` does it, in order."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduler_ext.gangs.memory import Memory
from scheduler_ext.gangs.plan import GangPlan
from scheduler_ext.model.pod import CPUMember, Pod
from scheduler_ext.snapshot.gang_table import GangState
from scheduler_ext.snapshot.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class KeepCards:
    """For all members of the plan, or for none if the cluster has changed since the snapshot. Then the memory
    is ``kept``, and gates go. ``begins``: a start does, so the gang's drain ends."""

    gang: GangState
    plan: GangPlan
    snapshot: Snapshot
    kept: Memory
    gates: Iterable[Pod]
    begins: bool


@dataclass(frozen=True, slots=True)
class EndPlans:
    """No cards are kept for these pods any more. ``failure``: how their start came to nothing, "": it did
    not."""

    uids: Iterable[str]
    failure: str = ""


@dataclass(frozen=True, slots=True)
class PlanAnew:
    """For these members of a start."""

    gang: GangState
    pods: Sequence[Pod]


@dataclass(frozen=True, slots=True)
class OpenGates:
    """The gang's gate goes from these pods. Those that have none are woken."""

    pods: Iterable[Pod | CPUMember]


@dataclass(frozen=True, slots=True)
class Mark:
    """The member says that its gang has started."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class Evict:
    """The members with a node leave. ``failure``: as above, if it is not counted yet; ``is_told``: an Event
    says why."""

    gang: GangState
    why: str
    is_told: bool
    failure: str = ""


@dataclass(frozen=True, slots=True)
class TellGang:
    """An Event says what the gang waits for."""

    gang: GangState
    text: str


@dataclass(frozen=True, slots=True)
class Grow:
    """Cards of nodes that come until then are kept for the gang; None: for none any more."""

    gang: GangState | None
    until_ms: int = 0


Change = KeepCards | EndPlans | PlanAnew | OpenGates | Mark | Evict | TellGang | Grow
Decision = tuple[Memory, Sequence[Change]]
