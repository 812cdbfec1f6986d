"""A decision about a pod or a budget, as each part of Bursar records it: what, when, why, and its figures."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from timekeeper.core.values import MAX_AMOUNT

MAX_FIGURES = 24  # of a decision
MAX_TEXT = 1_000  # characters of a figure; a longer text is cut
MAX_NAME = 320  # of names, and of an owner's kind and name

REFUSED = "refused"
DEMOTED = "demoted"
PLACED = "placed"
BIND_UNDONE = "bind-undone"
WAITING = "waiting"
HELD = "held"
RELEASED = "released"
GANG = "gang"
CAPPED = "capped"
WARNED = "warned"
RECLAIMABLE = "reclaimable"
PREEMPTED = "preempted"
RECLAIMED = "reclaimed"
EVICTED = "evicted"
DELETED = "deleted"
BUDGET = "budget"
GRANT = "grant"
STANDING = "standing"

# A pod has one record of this reason: an extender that starts or takes over reports again what it sees.
PREEMPTED_BY_SCHEDULER = "PreemptedByScheduler"
WAITS_FOR_CLAIMS, WAITS_FOR_DEVICES = "WaitsForClaims", "WaitsForDevices"


@dataclass(frozen=True, slots=True)
class DecisionKind:
    """A kind of decisions: the role that decides, and its reasons with what each means. The reference page is
    made from this."""

    by: str
    reasons: str


KINDS: Mapping[str, DecisionKind] = {
    REFUSED: DecisionKind(
        "webhook",
        "the violated rule, such as `BudgetExhausted` or `Malformed`. The pod has no UID, and often no name:"
        " then `generateName`. A refused pod template leaves one too, with the workload as the `owner`",
    ),
    DEMOTED: DecisionKind("webhook", "`OverBudget`: created with the class of pods over budget"),
    HELD: DecisionKind(
        "webhook, timekeeper",
        "`OverBudget`, `WaitsForBudget`, `WaitsForTurn`, `WaitsForClaims`, `DeclaredTime`: created with the"
        " scheduling gate `bursar.dev/budget`; `QueueHeld`, `QueueWouldBeHeld`: the budget holds"
        " Kueue's queue, the `owner`, or would",
    ),
    PLACED: DecisionKind("extender", "`Bound`, with node, cards, compute and memory"),
    BIND_UNDONE: DecisionKind("extender", "`BindTakenBack`: a placement whose Binding failed"),
    WAITING: DecisionKind(
        "extender, timekeeper",
        "why the pod has no node, whenever its reasons change: `TooLittleFree`, `NoNodeFits`, `GrantSpent`,"
        " `BindFailed`, and `Unschedulable` (kube-scheduler refuses every node itself); `VictimsEvicted`:"
        " pods are evicted for it; `EvictionsUnused`: its claim did not get the device of pods that were"
        " evicted for it; `WaitsForClaims`: it is not known yet what its device claims ask for, or one is"
        " missing or in use; `WaitsForDevices`: no node has the devices of its claims: where they were"
        " sought, and what kube-scheduler says",
    ),
    CAPPED: DecisionKind(
        "extender",
        "`AboveCap`: it waits for a cap, with the cap, what the others hold, and its least need",
    ),
    RECLAIMED: DecisionKind(
        "extender, timekeeper",
        "`Reclaimed`: evicted, over budget, for a pod in budget, with both priorities and standings; for the"
        " device of a claim by the timekeeper",
    ),
    PREEMPTED: DecisionKind(
        "extender",
        "`Preempted`: evicted for a pod of higher priority, with both priorities and standings;"
        " `PreemptedByScheduler`: the same by kube-scheduler itself, whose Event `Preempted` names that pod;"
        " recorded once for each evicted pod",
    ),
    RELEASED: DecisionKind(
        "timekeeper",
        "`Released`: its scheduling gate was removed; `QueueLetGo`: Kueue's queue is held no more",
    ),
    GANG: DecisionKind(
        "extender",
        "`GangWaits`: what all pods of its gang wait for, whenever that changes",
    ),
    WARNED: DecisionKind(
        "timekeeper",
        "`EvictionNotice`, `IdleWarning`: it will be evicted, or lose its cards, unless something changes;"
        " `OvertimeWarning`: it holds cards past its declared time; `PodIdle`: it is metered, and has used"
        " less than `idleBelow` of what it holds for `idleAfter`",
    ),
    RECLAIMABLE: DecisionKind("timekeeper", "`IdleReclaimable`: other pods may take its cards from now on"),
    EVICTED: DecisionKind(
        "timekeeper, extender",
        "evicted or deleted: `BudgetEviction` (its budget is spent), `GPUMemoryEviction` (it used more memory"
        " than its share), `IdleEviction`, `IdleScaledToZero` (by scaling its owner), `OvertimeEviction`,"
        " `GangEviction` (too few of its gang had a node in time, or were left after a preemption),"
        " `ClaimEviction` (its claims hold more GPUs than it was judged for)",
    ),
    DELETED: DecisionKind(
        "timekeeper",
        "`DeletedUnbound`: the object is gone, and had no node; `DeletionRequested`: the same will"
        " follow once the pod's finalizers are removed. Of pods deleted while no timekeeper ran, held ones"
        " alone have it",
    ),
    STANDING: DecisionKind(
        "timekeeper",
        "`OverBudget`, `BackInBudget`, `BudgetNearlyUsed`, `ForecastExhaustion` (once in a period), of a"
        " namespace or group, with granted, posted, pending and reserved amounts",
    ),
    BUDGET: DecisionKind(
        "timekeeper",
        "`EntryAdded`, `EntryChanged`, `EntryRemoved`: an entry of the budget ConfigMaps, in the transaction"
        " in which it takes effect",
    ),
    GRANT: DecisionKind(
        "timekeeper",
        "`Granted`, in the transaction of the grant: of a period, by a person, a transfer, a"
        " correction, a carry-over; `PassedOn`, `TakenBack`: what a group's"
        " lead passed on to a namespace, recorded for both",
    ),
}

QUEUE = "LocalQueue"  # kind of the owner where Kueue's queue is held, or released

# figures with a meaning of their own
MESSAGE = "message"  # the sentence for people; it names no pod of another namespace
OTHER_NAMESPACE = (
    "otherNamespace"  # the pod for which, or because of which, it was decided: shown to those who
)
OTHER_POD = "otherPod"  # may read decisions of its namespace
GANG_KEY = "gangKey"  # of a member of a gang: what tells its gang from others of the namespace
SCHEDULER_NAME = "schedulerName"  # of a held pod that another scheduler than Bursar's places

Figure = int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One decision. Its subject is a pod (``name``, ``uid``), a pod that was refused before it had a name
    (``generate_name``), a namespace, or a group (``namespace`` is then ``_group.NAME``)."""

    at_ms: int  # milliseconds since 1970
    kind: str  # one of `KINDS`
    reason: str  # one word in CamelCase, as in Events
    namespace: str
    figures: Mapping[str, Figure] = field(default_factory=dict)  # integers have their unit in their name
    owner: str = ""  # the pod's controller as ``Kind/name``, "": none or unknown
    name: str = ""
    generate_name: str = ""
    uid: str = ""
    budget: str = ""  # key of the budget entry, or another version of what it was decided by; "": none

    @property
    def subject(self) -> tuple[str, str]:
        """Namespace, and name or generateName: equal decisions in succession about one subject are one
        record."""
        return self.namespace, self.name or self.generate_name

    def repeats(self, other: "Decision") -> bool:
        """Whether both say the same, at whatever time."""
        return _said(self) == _said(other)


def _said(decision: Decision) -> tuple[object, ...]:
    each = decision
    subject = (each.namespace, each.owner, each.name, each.generate_name, each.uid)
    return (*subject, each.kind, each.reason, each.budget, each.figures)


Record = Callable[[Decision], None]
"""Records a decision. It never raises and never waits; any thread may call it."""


def record_nothing(_: Decision) -> None:
    """Where nothing is recorded."""


@dataclass(frozen=True, slots=True)
class DecisionRun:
    """Equal decisions in succession: the first one, how many, and the time of the last."""

    decision: Decision
    count: int
    last_ms: int


def bounded(decision: Decision) -> Decision:
    """The decision within the limits of a record: texts are cut, and what is not printable is replaced. A
    pod's generateName, for one, may still be any text when the webhook sees it."""
    figures = sorted(decision.figures.items())[:MAX_FIGURES]
    return replace(
        decision,
        figures={name: _bounded(value) for name, value in figures},
        owner=recordable(decision.owner, MAX_NAME),
        name=recordable(decision.name, MAX_NAME),
        generate_name=recordable(decision.generate_name, MAX_NAME),
        uid=recordable(decision.uid, MAX_NAME),
        budget=recordable(decision.budget, MAX_NAME),
    )


def _bounded(value: Figure) -> Figure:
    return max(-MAX_AMOUNT, min(MAX_AMOUNT, value)) if isinstance(value, int) else recordable(value, MAX_TEXT)


def recordable(text: str, most: int) -> str:
    """The text on one line, cut to this many characters, with "?" for each that is not printable."""
    cut = text[:most] if text.isprintable() else " ".join(text.split())[:most]
    return cut if cut.isprintable() else "".join(each if each.isprintable() else "?" for each in cut)


def decision_entry(run: DecisionRun, now_ms: int) -> dict[str, Any]:
    """The run as `timekeeper.wire.decisions` has it. ``now_ms``: by the clock that gave its times."""
    decision = bounded(run.decision)
    return {
        "kind": decision.kind,
        "reason": decision.reason,
        "namespace": decision.namespace,
        "owner": decision.owner,
        "name": decision.name,
        "generate_name": decision.generate_name,
        "uid": decision.uid,
        "budget": decision.budget,
        "figures": dict(decision.figures),
        "count": run.count,
        "first_age_ms": max(0, now_ms - decision.at_ms),
        "last_age_ms": max(0, now_ms - run.last_ms),
    }
