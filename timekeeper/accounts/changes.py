"""The result of one tick of the settler: written in one transaction, or not at all."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from timekeeper.accounts.account_rows import AccountRow
from timekeeper.accounts.budget_history import BudgetEntry
from timekeeper.accounts.grants import Grant
from timekeeper.accounts.held.declared import DeclaredReservation
from timekeeper.accounts.held.order import HeldPod
from timekeeper.accounts.posting import Posting
from timekeeper.accounts.session import Session
from timekeeper.accounts.standings import StandingsDocument


@dataclass(frozen=True, slots=True)
class Pulse:
    """The settler's sign of life."""

    tick_ms: int  # when it was alive
    decided_ms: int  # when it last decided; 0: not yet
    state: str  # what it is waiting for; "": nothing
    claims: str | None = None  # the text of `ClaimingPods`; None: not known
    watches: str = ""  # `watches_text` of those that fail
    device_claims: str = ""  # the text of `ClaimFindings`; "": claims are not followed


NEVER = Pulse(0, 0, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """All rows that one tick writes."""

    pulse: Pulse | None = None
    entries: tuple[BudgetEntry, ...] = ()
    errors: Mapping[str, str] | None = None  # all errors by entry key; None: unchanged
    opened: tuple[Session, ...] = ()
    changed: tuple[Session, ...] = ()
    watermarks: Mapping[str, int] = field(default_factory=dict)  # node -> until when it was observed
    leases: Mapping[str, bool] = field(default_factory=dict)  # node -> whether it has ever had a Lease
    # node -> since when the API server has no such Node; None: it has it again
    gone: Mapping[str, int | None] = field(default_factory=dict)
    postings: tuple[Posting, ...] = ()
    grants: tuple[Grant, ...] = ()
    # namespace -> changed rate of waiting pods, 0: none left; None: unchanged
    waiting: Mapping[str, int] | None = None
    held: tuple[HeldPod, ...] = ()  # pods that are held now, or whose figures changed
    released: tuple[str, ...] = ()  # UIDs of pods that are held no more
    declared: tuple[DeclaredReservation, ...] = ()  # reservations of declared time that no release wrote
    undeclared: Set[str] = frozenset()  # UIDs of pods whose reservation is over or has become a session
    accounts: tuple[AccountRow, ...] = ()
    closed: Set[str] = frozenset()  # subjects that have no account any more
    is_first: bool = False  # of a settler: no row of accounts stays
    published: StandingsDocument | None = None  # the standings document; None: unchanged
