"""The stages of a tick: who pays; the sessions of pods, and of claims; then those that derive from the pods'
sessions. A stage is given what it needs of an earlier one, and changes nothing of it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from timekeeper.accounts.pods import LedgerPod
from timekeeper.accounts.session import Session
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.settler.cluster.cluster_state import ClusterState
from timekeeper.settler.cluster.device_claims import ClaimSight
from timekeeper.settler.state.ledger_state import LedgerState

# Objects can arrive in any order, because the watches are independent: what a pod costs waits this long for
# its node, or for its claim, and a claim for the slices with its devices.
PATIENCE_MS = 5_000


@dataclass(frozen=True, slots=True)
class TickFacts:
    """The observed cluster and the ledger at the beginning of a tick."""

    cluster: ClusterState
    ledger: LedgerState
    settings: BudgetSettings
    now_ms: int


@dataclass(slots=True)
class SessionChanges:
    """What a stage changes in the sessions."""

    sessions: dict[str, Session] = field(default_factory=dict)  # UID -> new or changed session
    opened: set[str] = field(default_factory=set)  # UIDs of the new ones
    deferred: dict[str, int] = field(default_factory=dict)  # UID of a pod -> since when it waits for a node

    def open(self, session: Session) -> Session:
        """Add a new session, and return it."""
        self.sessions[session.uid] = session
        self.opened.add(session.uid)
        return session

    def put(self, session: Session) -> Session:
        """Add a changed session, and return it."""
        self.sessions[session.uid] = session
        return session


@dataclass(slots=True)
class PodChanges(SessionChanges):
    """The sessions of pods."""

    bound: dict[str, LedgerPod] = field(default_factory=dict)  # UID -> pod whose session is new
    served: set[str] = field(default_factory=set)  # UIDs of pods whose extended resources a claim serves

    def bind(self, session: Session, pod: LedgerPod) -> Session:
        """Add the new session of a pod's cards, and return it."""
        self.bound[pod.uid] = pod
        return self.open(session)


@dataclass(slots=True)
class ClaimChanges(SessionChanges):
    """The sessions of claims."""

    # UID of a claim -> what was seen of it, which waits for a slice with its devices
    sights: dict[str, list[ClaimSight]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TickSessions:
    """What a tick changes in the sessions: the outputs of its stages together."""

    pods: PodChanges
    claims: ClaimChanges
    all: SessionChanges


def together(pods: PodChanges, claims: ClaimChanges, derived: Iterable[SessionChanges]) -> TickSessions:
    """``derived``: what derives from the sessions of pods; where it changes one of these, it counts."""
    every = SessionChanges()
    for stage in (pods, claims, *derived):
        every.sessions |= stage.sessions
        every.opened |= stage.opened
        every.deferred |= stage.deferred
    return TickSessions(pods, claims, every)
