"""A decision about a pod or a budget, as each part of Bursar records it: what, when, why, and its figures."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from timekeeper.core.wire import DecisionEntry

# kinds of decisions
REFUSED = "refused"  # the webhook refused the pod
DEMOTED = "demoted"  # the pod was created with the class of pods over budget
PLACED = "placed"  # bound to a node and cards
BIND_UNDONE = "bind-undone"  # a placement whose Binding failed
WAITING = "waiting"  # why the pod has no node
HELD = "held"  # the pod was created with a scheduling gate
RELEASED = "released"  # its scheduling gate was removed
CAPPED = "capped"  # it waits because of maxGPUs or maxGPUsPerPod
WARNED = "warned"  # it will be evicted or ended, unless something changes
RECLAIMABLE = "reclaimable"  # other pods may take its cards from now on
PREEMPTED = "preempted"  # evicted for a pod of higher priority
RECLAIMED = "reclaimed"  # evicted, over budget, for a pod in budget
EVICTED = "evicted"  # evicted or deleted for another reason
BUDGET = "budget"  # a budget entry changed
GRANT = "grant"  # a grant was added
STANDING = "standing"  # the standing of a namespace or group changed
KINDS = (
    *(REFUSED, DEMOTED, PLACED, BIND_UNDONE, WAITING, HELD, RELEASED, CAPPED),
    *(WARNED, RECLAIMABLE, PREEMPTED, RECLAIMED, EVICTED, BUDGET, GRANT, STANDING),
)

# figures with a meaning of their own
MESSAGE = "message"  # the sentence for people; it names no pod of another namespace
OTHER_NAMESPACE = (
    "otherNamespace"  # the pod for which, or because of which, it was decided: shown to those who
)
OTHER_POD = "otherPod"  # may read decisions of its namespace

MOST_FIGURES = 24
MOST_TEXT = 1_000  # characters of a figure; a longer text is cut
MOST_NAME = 320  # of names, and of an owner's kind and name
MOST_INTEGER = 2**63 - 1
MOST_COUNT = 2**31

Figure = int | str


@dataclass(frozen=True, slots=True)
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
    figures = sorted(decision.figures.items())[:MOST_FIGURES]
    return replace(
        decision,
        figures={name: _bounded(value) for name, value in figures},
        owner=_text(decision.owner, MOST_NAME),
        name=_text(decision.name, MOST_NAME),
        generate_name=_text(decision.generate_name, MOST_NAME),
        uid=_text(decision.uid, MOST_NAME),
        budget=_text(decision.budget, MOST_NAME),
    )


def _bounded(value: Figure) -> Figure:
    return max(-MOST_INTEGER, min(MOST_INTEGER, value)) if isinstance(value, int) else _text(value, MOST_TEXT)


def _text(text: str, most: int) -> str:
    cut = text[:most]
    return cut if cut.isprintable() else "".join(each if each.isprintable() else "?" for each in cut)


def decision_entry(run: DecisionRun, now_ms: int) -> DecisionEntry:
    """The run in a post. ``now_ms``: by the clock that gave its times."""
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
