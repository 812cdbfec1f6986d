"""One tick's decisions: the world as heard against the ledger as written.

Values in, changes out. What the book keeps of sums moves along, and is trusted again only once the changes
are written.
"""

from dataclasses import dataclass, replace

from timekeeper.accounts.budget_history import DEFAULTS, History
from timekeeper.accounts.changes import Changes, Pulse
from timekeeper.accounts.grants import Grant
from timekeeper.accounts.standings import StandingsDocument, publish
from timekeeper.settler.budget_entries import EntryChanges
from timekeeper.settler.cluster.cluster_state import ClusterState
from timekeeper.settler.decide import settlement as counting
from timekeeper.settler.decide.session_changes import SessionChanges, advanced_watermarks, changed_sessions
from timekeeper.settler.decide.settlement import Settlement
from timekeeper.settler.state import statement_cache as kept
from timekeeper.settler.state.ledger_state import LedgerState
from timekeeper.settler.state.statement_cache import StatementCache
from timekeeper.settler.state.totals import Stored, TickTotals

PULSE_MS = 1_000  # how often the settler says that it lives where it has nothing else to write


@dataclass(frozen=True, slots=True)
class TickInputs:
    """What a tick is decided by beside the world and the book: the budgets as they are read now, the history
    with what takes effect now in it, the namespaces to be listed, and the database's own sums."""

    read: EntryChanges
    history: History
    names: tuple[str, ...]
    stored: Stored
    now_ms: int


@dataclass(frozen=True, slots=True)
class TickDecision:
    """What is to be written, and what the settler goes on with once it is."""

    changes: Changes
    moved: SessionChanges
    kept: StatementCache


def listed_namespaces(history: History, world: ClusterState, book: LedgerState) -> tuple[str, ...]:
    """The namespaces whose standing may differ from the default: those with an entry; where the default has a
    limit, those with pods or charges too."""
    named = {key for key in history.living() if not key.startswith("_")}
    if history.text(DEFAULTS) is not None:
        named |= book.namespaces | world.namespaces.keys()
    return tuple(sorted(named))


def decide(world: ClusterState, book: LedgerState, facts: TickInputs) -> TickDecision:
    """Everything that follows from what was heard."""
    history, now_ms = facts.history, facts.now_ms
    settings = history.settings(now_ms)
    is_anew = counting.begin(book, settings, now_ms)
    moved = changed_sessions(world, book, settings, now_ms)
    for session in moved.sessions.values():
        book.tally.runs_on(session)
    watermarks = advanced_watermarks(world, book, now_ms)
    counted = counting.settle_due(book, moved.sessions, watermarks, history, now_ms)
    waiting = book.waits.follow(world, settings, now_ms)
    touched = kept.Invalidation(
        namespaces=book.tally.touched.keys() | waiting | book.regranted,
        keys=frozenset(each.key for each in facts.read.entries),
        everything=is_anew,
    )
    accounts, grants = kept.renewed(book.kept, touched, _asked(book, facts, moved, counted))
    published = _published(world, book, facts, accounts)
    changes = _changes(book, facts, moved, counted, grants, published)
    new_nodes = frozenset(watermarks.keys() - book.watermarks.keys())
    changes = replace(changes, watermarks=watermarks, new_nodes=new_nodes)
    if abs(now_ms - book.pulse.decided_ms) >= PULSE_MS or changes != Changes():
        changes = replace(changes, pulse=Pulse(now_ms, now_ms, ""))
    return TickDecision(changes, moved, accounts)


def _asked(
    book: LedgerState, facts: TickInputs, moved: SessionChanges, counted: Settlement
) -> kept.StatementInputs:
    new = {each.namespace for each in moved.sessions.values()} - book.namespaces
    spenders = book.namespaces | new if new else book.namespaces
    postings = counted.by_namespace()
    sums = TickTotals(
        book.grants, book.totals, book.tally, book.waits.rates, postings, facts.stored, facts.now_ms
    )
    return kept.StatementInputs(facts.history, facts.names, spenders, sums, facts.now_ms)


def _published(
    world: ClusterState, book: LedgerState, facts: TickInputs, accounts: StatementCache
) -> StandingsDocument | None:
    """The standings document; looked at where anything may be told otherwise, and each second."""
    now_ms, settings = facts.now_ms, facts.history.settings(facts.now_ms)
    is_same = accounts is book.kept and facts.history is book.history and world.ranks == book.ranks
    if is_same and book.published and abs(now_ms - book.pulse.decided_ms) < PULSE_MS:
        return book.published
    made = accounts.statements
    default, namespaces = made.default, made.namespaces
    return publish(settings, world.classes, default, namespaces, now_ms, book.published, book.entries)


def _changes(
    book: LedgerState,
    facts: TickInputs,
    moved: SessionChanges,
    counted: Settlement,
    grants: tuple[Grant, ...],
    published: StandingsDocument | None,
) -> Changes:
    changed = {**moved.sessions, **counted.settled}
    return Changes(
        entries=facts.read.entries,
        errors=facts.read.errors if facts.read.errors != book.errors else None,
        opened=tuple(each for uid, each in changed.items() if uid in moved.opened),
        changed=tuple(each for uid, each in changed.items() if uid not in moved.opened),
        postings=counted.postings,
        grants=grants,
        waiting=_waiting(book),
        published=published if published is not book.published else None,
    )


def _waiting(book: LedgerState) -> dict[str, int] | None:
    """The namespaces whose waiting pods will have another rate than is written; 0 where none wait."""
    now, written = book.waits.rates, book.waiting
    if now is written:
        return None
    names = [name for name in now.keys() | written.keys() if now.get(name) != written.get(name)]
    return {name: now.get(name, 0) for name in names} or None
