"""The values that decisions depend on: a namespace's standing, the policy of its pods, lifetimes of
certificates."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from timekeeper.core.wire import StandingWord

Mode = Literal["enforce", "observe"]
UnknownStanding = Literal["inBudget", "overBudget"]

WORDS: tuple[StandingWord, ...] = ("IN_BUDGET", "OVER_BUDGET", "UNLIMITED", "UNKNOWN")


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A priority class; ``value`` None where nobody has told it yet.

    ``preemption_policy`` is there only where the timekeeper sees the class in the cluster at this moment:
    then value and policy are those that the API server will find, and may be written into a pod.
    ``absent``: the timekeeper has told that the cluster has no such class; the API server would refuse every
    pod that names it.
    """

    name: str
    value: int | None
    preemption_policy: str | None = None
    absent: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
    """A namespace's standing at this moment, with what a warning tells of it.

    ``ratio_milli`` and ``warn_at_milli``: thousandths of the grant that are spent, and from which on users
    are warned; ``by_estimate``: over budget only by what this worker has itself admitted since the last
    table; ``on_exhausted``: what the budget wants then; ``until_ms``: when its period ends, in milliseconds
    since 1970, None where it does not.
    """

    word: StandingWord
    ratio_milli: int | None = None
    warn_at_milli: int | None = None
    by_estimate: bool = False
    on_exhausted: str = "deprioritize"
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Sidecar:
    """What the injected container needs: its image, where it reports to, and the PEM text of the CA it
    trusts.

    ``native``: an init container that the kubelet starts first and ends last (from Kubernetes 1.29 on); else
    a plain container, which ends by itself where the pod's containers can end. ``cpu`` and ``memory`` are
    quantities, its requests and its limits alike.
    """

    image: str
    timekeeper_url: str
    ca: str
    native: bool = True
    cpu: str = "30m"
    memory: str = "64Mi"


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """How the pods of one namespace are governed now.

    ``rules``: the modes of the rules that differ from the catalogue's, the namespace's over the cluster's;
    ``exempt``: users and groups whose objects are warned of and not refused, where a rule may be relaxed.
    ``known`` is False while these are this process's flags alone, because no table of standings has been
    heard. ``sidecar`` None injects nothing; an empty ``runtime_class`` sets none. ``mps_pipes``: where
    containers find the pipes of their node's MPS daemon; empty where nodes run none, and no container is told
    of limits.
    """

    known: bool
    mode: Mode
    scheduler_name: str
    in_budget: PriorityClass
    over_budget: PriorityClass
    unknown_standing: UnknownStanding
    max_grace_s: int
    runtime_class: str
    sidecar: Sidecar | None
    rules: Mapping[str, str] = field(default_factory=dict)
    exempt: frozenset[str] = frozenset()
    mps_pipes: str = ""

    def class_of(self, word: StandingWord) -> PriorityClass:
        """The class that a pod of this standing gets; while observing nobody is demoted."""
        demoted = word == "OVER_BUDGET" or (word == "UNKNOWN" and self.unknown_standing == "overBudget")
        return self.over_budget if demoted and self.mode == "enforce" else self.in_budget


@dataclass(frozen=True, slots=True)
class CertificateLifetimes:
    """Lifetimes of the CA and of a server's certificate (leaf), and the overlap of two CAs.

    ``overlap``: a CA signs once its bundle has been everywhere for so long, and the former CA is dropped once
    all leaves are of the new one for so long. It must be longer than a kubelet takes to bring a changed
    Secret into a pod (minutes), and than a sidecar goes without an answer that names the bundle (50
    heartbeats).
    """

    ca: timedelta = timedelta(days=3650)
    leaf: timedelta = timedelta(days=365)
    overlap: timedelta = timedelta(days=7)

    def mistake(self) -> str:
        """Why these lifetimes contradict each other, in a sentence; empty where they do not."""
        if self.leaf > self.ca:
            return f"--leaf-life ({self.leaf}) must not be longer than --ca-life ({self.ca})"
        if 4 * self.overlap > self.ca:
            return (
                f"--overlap ({self.overlap}) must be at most a quarter of --ca-life ({self.ca}): a CA is "
                "renewed when a third of its life is left, and the new one takes over within that time"
            )
        return ""
