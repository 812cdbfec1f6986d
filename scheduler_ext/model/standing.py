"""The standing of each namespace, as the timekeeper last published it: it decides queueing and preemption."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from scheduler_ext.model.pod import Pod
from timekeeper.core.claims.drivers import DriverRule
from timekeeper.core.standings import NO_CAPS, Caps
from timekeeper.core.wire import StandingWord


@dataclass(frozen=True, slots=True)
class NamespaceStanding:
    """One namespace's standing."""

    status: StandingWord
    on_exhausted: str = "deprioritize"  # what the budget prescribes over budget
    policy: str = ""  # the placement policy that the budget names, or empty
    spent: bool = False  # its charges alone, without reservations, use up the grant
    watched: StandingWord | None = None  # in observe mode: what `status` would be with enforcement on
    caps: Caps = NO_CAPS  # in observe mode nothing is refused for them
    deciding_group: str = ""  # key of the group's budget entry if its account determines the standing
    protected: frozenset[str] = frozenset()  # UIDs of pods that are spared while it is over budget
    claims_milli: int = 0  # what its device claims hold of GPUs, where it has a cap
    lower: int | None = None  # its own `NamespaceStandings.lower`; None: the cluster's
    rank: int = 0  # of waiting pods of one priority, those of the least one go first; 0 for all: by age

    @property
    def over(self) -> bool:
        """True if the namespace's pods go after those of others."""
        return self.status == "OVER_BUDGET"

    @property
    def demotes(self) -> bool:
        """True if admission gives the namespace's new pods the class of pods over budget."""
        return self.over and self.on_exhausted in ("deprioritize", "reclaim")

    @property
    def refuses(self) -> bool:
        """True if the namespace's pods are not bound: its budget is spent, and says ``deny``, ``hold``, or
        ``evict``, which would end them after their grace."""
        return self.over and self.spent and self.on_exhausted in ("deny", "evict", "hold")


UNKNOWN = NamespaceStanding("UNKNOWN")


@dataclass(frozen=True, slots=True)
class NamespaceStandings:
    """One answer of the timekeeper. Without arguments: before the first answer, when nothing is known."""

    listed: Mapping[str, NamespaceStanding] = field(default_factory=dict)
    default: NamespaceStanding = UNKNOWN  # of a namespace that is not listed
    pdb_grace_ms: int | None = None  # how long PDBs of debtors are honoured; None: not published
    drivers: tuple[DriverRule, ...] = ()  # an administrator's: which of their devices are GPUs
    lower: int | None = None  # priority of the class of pods over budget; None: not known

    def of(self, namespace: str) -> NamespaceStanding:
        """The namespace's standing; the default if it is not listed."""
        return self.listed.get(namespace, self.default)

    def of_pod(self, pod: Pod) -> NamespaceStanding:
        """The standing that applies to a pod as one that waits for cards or holds them: a protected one is in
        budget. Its namespace still preempts for none of its pods."""
        standing = self.of(pod.namespace)
        return standing if pod.uid not in standing.protected else replace(standing, status="IN_BUDGET")

    def priority_of(self, pod: Pod) -> int:
        """Its priority by the standing of now. A pod of a namespace over budget that waits, or is saved up,
        has at most that of the class that a new one would get."""
        is_either = pod.governed and (pod.is_saved_up or not pod.node)
        lower = self.lower_of(self.of_pod(pod)) if is_either else None
        return pod.priority if lower is None else min(pod.priority, lower)

    def lower_of(self, standing: NamespaceStanding) -> int | None:
        """The priority of the class of pods over budget, where this standing demotes new ones; else None."""
        own = self.lower if standing.lower is None else standing.lower
        return own if standing.demotes else None

    @property
    def watches(self) -> bool:
        """True if any budget is in observe mode."""
        return any(each.watched is not None for each in (self.default, *self.listed.values()))


UNHEARD = NamespaceStandings()


def as_if_enforced(standings: NamespaceStandings) -> NamespaceStandings:
    """The standings if no budget were in observe mode. Returns the same object if none is."""
    if not standings.watches:
        return standings

    def enforced(standing: NamespaceStanding) -> NamespaceStanding:
        return standing if standing.watched is None else replace(standing, status=standing.watched)

    listed = {namespace: enforced(each) for namespace, each in standings.listed.items()}
    return replace(standings, listed=listed, default=enforced(standings.default))
