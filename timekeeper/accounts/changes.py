"""All that one tick of the settler decides: written in one transaction, or not at all."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from timekeeper.accounts.budget_history import BudgetEntry
from timekeeper.accounts.grants import Grant
from timekeeper.accounts.posting import Posting
from timekeeper.accounts.session import Session
from timekeeper.accounts.standings import StandingsDocument


@dataclass(frozen=True, slots=True)
class Pulse:
    """That the settler lives at ``tick_ms``, and decided last at ``decided_ms`` (0: never yet); ``state``
    tells what it waits for, empty where nothing."""

    tick_ms: int
    decided_ms: int
    state: str


NEVER = Pulse(0, 0, "")


@dataclass(frozen=True, slots=True)
class Changes:
    """The difference that a tick makes.

    ``watermarks``: node -> until when it was heard; ``new_nodes`` are those among them that have no row yet.
    ``errors``, ``waiting`` and ``published`` are None where they stay as they are; ``waiting`` has the rates
    that are others now, 0 where none is left.
    """

    pulse: Pulse | None = None
    entries: tuple[BudgetEntry, ...] = ()
    errors: Mapping[str, str] | None = None
    opened: tuple[Session, ...] = ()
    changed: tuple[Session, ...] = ()
    watermarks: Mapping[str, int] = field(default_factory=dict)
    new_nodes: frozenset[str] = frozenset()
    postings: tuple[Posting, ...] = ()
    grants: tuple[Grant, ...] = ()
    waiting: Mapping[str, int] | None = None
    published: StandingsDocument | None = None
