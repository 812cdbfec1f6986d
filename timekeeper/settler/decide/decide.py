"""One tick's decisions: the observed cluster compared with the ledger.

Values in, changes out. The table of open sessions in the ledger state is updated on the way; it counts as
valid again only after the changes are written.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

from timekeeper.accounts.account_rows import AccountChanges, changed_accounts, row_of
from timekeeper.accounts.balance import Statement
from timekeeper.accounts.budget_history import DEFAULTS, LABEL, History
from timekeeper.accounts.changes import Changes, Pulse
from timekeeper.accounts.ends import ReportedEnd
from timekeeper.accounts.failing_watches import watches_text
from timekeeper.accounts.grants import Grant
from timekeeper.accounts.held.order import HeldPod
from timekeeper.accounts.pods import LedgerPod
from timekeeper.accounts.protection import ProtectedPods
from timekeeper.accounts.session import CLAIMS, CLAIMS_SEEN
from timekeeper.accounts.standings import StandingsDocument, publish
from timekeeper.core.claims.drivers import rules_of
from timekeeper.settler.budget_entries import EntryChanges
from timekeeper.settler.cluster.cluster_state import ClusterState
from timekeeper.settler.decide import settlement
from timekeeper.settler.decide.claim_changes import changed_claims, unallocated
from timekeeper.settler.decide.payers import payers_of
from timekeeper.settler.decide.protected_pods import TickPostings, protected_pods
from timekeeper.settler.decide.reservation_pods import reservation_changes
from timekeeper.settler.decide.reserved_changes import DeclaredChanges, changed_reservations, reserved_changes
from timekeeper.settler.decide.session_changes import advanced_watermarks, changed_sessions
from timekeeper.settler.decide.settlement import Settlement
from timekeeper.settler.decide.stages import PodChanges, SessionChanges, TickFacts, TickSessions, together
from timekeeper.settler.decide.withheld_accounts import Withheld, keeping, withheld, without
from timekeeper.settler.state import statement_cache
from timekeeper.settler.state.fair_use import NO_USE, FairUse, followed, ranked, uses
from timekeeper.settler.state.ledger_state import LedgerState
from timekeeper.settler.state.statement_cache import StatementCache
from timekeeper.settler.state.totals import StoredTotals, TickTotals

PULSE_MS = 1_000  # how often the settler writes a sign of life if there is nothing else to write


@dataclass(frozen=True, slots=True)
class TickInputs:
    """What a tick decides from, besides the cluster and the ledger."""

    entry_changes: EntryChanges
    history: History  # with the entries that take effect now
    names: tuple[str, ...]  # the namespaces to list
    stored: StoredTotals  # the database's own totals
    now_ms: int
    unseen: tuple[LedgerPod, ...] = ()  # pods that were bound, have no session, and do not exist any more
    ends: tuple[ReportedEnd, ...] = ()  # what extenders saw of removals
    since_ms: int = 0  # metered pods are charged from then on at the earliest
    arrears_ms: int = 0  # likewise those that only metering charges
    term: int = 0  # the settler's


@dataclass(frozen=True, slots=True)
class TickDecision:
    """What is to be written, and the state to continue with after that."""

    changes: Changes
    sessions: TickSessions
    statement_cache: StatementCache
    accounts: AccountChanges
    protected: Mapping[str, ProtectedPods]  # by namespace
    withheld: Withheld  # accounts of which nothing is written
    fair: FairUse = NO_USE


def ended_host_sessions(facts: TickFacts, pods: PodChanges) -> SessionChanges:
    """Sessions for CPU and memory, which an earlier release charged, end where the charges of their pods'
    cards do now."""
    ledger, changes = facts.ledger, SessionChanges()
    for session in [ledger.sessions[uid] for uid in ledger.of_host]:
        own = session.owner_uid
        of_cards = pods.sessions.get(own) or ledger.session(own) or session
        known = ledger.unsettled(of_cards, ledger.watermarks.get(of_cards.node))
        end_ms = known.witnessed(facts.now_ms).interval.end_ms
        changes.put(replace(session, ended_ms=max(end_ms, session.bound_ms), vanished_ms=None))
    return changes


DERIVED = (
    reserved_changes,
    reservation_changes,
    ended_host_sessions,
)  # from the sessions of pods, in any order


def listed_namespaces(history: History, cluster: ClusterState, ledger: LedgerState) -> tuple[str, ...]:
    """The namespaces whose account may differ from the default: those with an entry, a label or charges, and
    if the default has a limit, those with pods."""
    named = history.namespaces() | ledger.namespaces
    if history.text(DEFAULTS) is not None:
        named |= cluster.pods.namespaces.keys()
    return tuple(sorted(named))


def with_standing(history: History, namespaces: Mapping[str, Statement]) -> Mapping[str, Statement]:
    """Those whose standing or mode may differ from the default: without a limit of the default, those with an
    entry or a label."""
    if history.text(DEFAULTS) is not None:
        return namespaces
    return {name: namespaces[name] for name in history.namespaces() if name in namespaces}


def decide(cluster: ClusterState, ledger: LedgerState, tick: TickInputs) -> TickDecision:
    """Everything that follows from cluster and ledger at ``tick.now_ms``, as changes that are not written
    yet. In ``ledger`` only what is derived changes: totals, the pods without a session, caches."""
    history, now_ms = tick.history, tick.now_ms
    settings = history.settings(now_ms)
    is_again = settlement.begin(ledger, now_ms)

    def only_metered_since(namespace: str) -> int:
        return max(tick.since_ms, tick.arrears_ms, history.metered_since(namespace, now_ms))

    facts = TickFacts(cluster, ledger, settings, now_ms)
    of_classes = cluster.pods.claim_requests.known_classes.settings
    cluster.claims.judge_again(rules_of(settings.drivers, of_classes), now_ms)
    payers = payers_of(facts)
    pods = changed_sessions(facts, payers, tick.unseen, tick.ends, tick.since_ms, only_metered_since)
    derived = [changes_of(facts, pods) for changes_of in DERIVED]
    sessions = together(pods, changed_claims(facts, payers), derived)
    session_changes = sessions.all
    for session in session_changes.sessions.values():
        ledger.table.index_witness(session)
    watermarks = advanced_watermarks(cluster, ledger, now_ms)
    settled = settlement.settle_due(
        ledger, session_changes.sessions, watermarks, history, settings.settle_after_ms, now_ms
    )
    kept_back = withheld(ledger, session_changes, settled, history)
    if kept_back.breaches:
        session_changes, settled = without(kept_back, cluster, session_changes, settled)
    rest = unallocated(cluster, ledger, session_changes)
    waiting = ledger.without_node.update(cluster, settings, now_ms, rest)
    declared = changed_reservations(cluster, ledger, session_changes, now_ms)
    moved = waiting | ledger.changed_grants | declared.namespaces
    invalid = statement_cache.Invalidation(
        namespaces=ledger.table.changed_since.keys() | moved,
        moved=moved,
        keys=frozenset(each.key.removeprefix(LABEL) for each in tick.entry_changes.entries),
        everything=is_again,
    )
    cache, grants = statement_cache.refreshed(
        ledger.statement_cache, invalid, _statement_inputs(ledger, tick, session_changes, settled, declared)
    )
    if kept_back.breaches:
        cache = keeping(kept_back, cache, ledger.statement_cache)
        grants = tuple(grant for grant in grants if grant.subject not in kept_back.subjects)
    postings = TickPostings({**session_changes.sessions, **settled.settled}, settled.by_namespace())
    protected = protected_pods(cluster, ledger, history, postings, tick.stored, now_ms)
    claims = ledger.claims_with(session_changes.sessions)
    fair = _fair_use(ledger, tick, settled, declared)
    published = _published(cluster, ledger, tick, cache, protected, claims, kept_back.namespaces, fair.ranks)
    changes = _changes(ledger, tick, session_changes, settled, grants, published)
    accounts = _changed_accounts(ledger, tick, cache, invalid, changes, fair.changed_since(ledger.fair))
    changes = replace(changes, closed=accounts.gone, is_first=not ledger.accounts)
    new_nodes = frozenset(watermarks.keys() - ledger.watermarks.keys())
    changes = replace(
        changes,
        watermarks=watermarks,
        leases=_leases(cluster, ledger, new_nodes),
        gone=_gone(cluster, ledger, now_ms),
        declared=declared.added,
        undeclared=declared.removed,
    )
    if abs(now_ms - ledger.pulse.decided_ms) >= PULSE_MS or accounts.written or changes != Changes():
        default = {DEFAULTS: cache.statements.default}  # in each tick: see `store.accounts.rows`
        rows = {**accounts.written, **default}.items()
        changes = replace(
            changes,
            accounts=tuple(
                row_of(subject, statement, now_ms, tick.term, *fair.row(subject))
                for subject, statement in rows
            ),
            pulse=_pulse(cluster, ledger, now_ms),
        )
    return TickDecision(changes, sessions, cache, accounts, protected, kept_back, fair)


def _fair_use(
    ledger: LedgerState, tick: TickInputs, settled: Settlement, declared: DeclaredChanges
) -> FairUse:
    history, now_ms = tick.history, tick.now_ms
    if history.settings(now_ms).fair_share == "off":
        return NO_USE
    layout = ledger.layout(history, now_ms, {entry.key for entry in tick.entry_changes.entries})
    fair = followed(
        ledger.fair, layout, settled.postings, ledger.namespaces, tick.stored.charges_since, now_ms
    )

    def uses_now() -> dict[str, float]:
        rows = (row for uid, row in ledger.declared.rows.items() if uid not in declared.removed)
        reserving = ledger.reserving((*rows, *declared.added), history, now_ms)
        return uses(fair, layout, ledger.table, reserving, now_ms)

    return ranked(fair, layout, uses_now, now_ms)


def _changed_accounts(
    ledger: LedgerState,
    tick: TickInputs,
    cache: StatementCache,
    invalid: statement_cache.Invalidation,
    changes: Changes,
    shares: Set[str],
) -> AccountChanges:
    if cache is ledger.statement_cache and not ledger.accounts_left and not shares:
        return AccountChanges({})
    stated = ledger.accounts_left | (cache.fresh if cache is not ledger.statement_cache else frozenset())
    of_sessions = {session.namespace for session in (*changes.opened, *changes.changed)}
    all_moved = any(key.startswith("_") for key in invalid.keys)
    moved = stated if all_moved else of_sessions | invalid.moved
    return changed_accounts(
        tick.history,
        cache.statements,
        ledger.accounts,
        ledger.account_moments,
        stated,
        moved,
        ledger.pulse.decided_ms,
        tick.now_ms,
        shares,
    )


def _leases(cluster: ClusterState, ledger: LedgerState, new_nodes: frozenset[str]) -> dict[str, bool]:
    """Of the nodes that ran pods: those that never had a Lease, and those that have their first one."""
    never = dict.fromkeys(new_nodes - cluster.nodes.had_lease - {CLAIMS, CLAIMS_SEEN}, False)
    return never | dict.fromkeys(ledger.leaseless & cluster.nodes.leases.keys(), True)


def _gone(cluster: ClusterState, ledger: LedgerState, now_ms: int) -> dict[str, int | None]:
    """Of the nodes that ran pods: those whose Node is gone since the last tick, and those that are back."""
    absent = ledger.watermarks.keys() - cluster.nodes.keys() - {CLAIMS, CLAIMS_SEEN}
    if absent == ledger.gone.keys():
        return {}
    back = dict.fromkeys(ledger.gone.keys() - absent)
    return {**back, **dict.fromkeys(absent - ledger.gone.keys(), now_ms)}


def _pulse(cluster: ClusterState, ledger: LedgerState, now_ms: int) -> Pulse:
    claims, orphans = cluster.claims, cluster.orphans(ledger.running_claims, now_ms)
    found = claims.findings(orphans).text() if claims.is_followed else ""
    uncharged = cluster.uncharged_claims().text
    return Pulse(now_ms, now_ms, "", uncharged, watches_text(cluster.failing), found)


def _statement_inputs(
    ledger: LedgerState,
    tick: TickInputs,
    session_changes: SessionChanges,
    settled: Settlement,
    declared: DeclaredChanges,
) -> statement_cache.StatementInputs:
    new = {each.namespace for each in session_changes.sessions.values()}
    new = new.union(ledger.declared.namespaces(), declared.namespaces) - ledger.namespaces
    spenders = ledger.namespaces | new if new else ledger.namespaces
    postings = settled.by_namespace()
    sums = TickTotals(
        ledger.grants,
        ledger.totals,
        ledger.table,
        ledger.without_node.rates,
        postings,
        tick.stored,
        tick.now_ms,
        declared.within,
    )
    return statement_cache.StatementInputs(tick.history, tick.names, spenders, sums, tick.now_ms)


def _published(
    cluster: ClusterState,
    ledger: LedgerState,
    tick: TickInputs,
    cache: StatementCache,
    protected: Mapping[str, ProtectedPods],
    claims: Mapping[str, int],
    stale: Set[str],
    ranks: Mapping[str, int],
) -> StandingsDocument | None:
    """The standings document. It is recomputed if a statement, an entry or a priority class changed, and
    every second. A claim that changes changes a statement."""
    now_ms, settings = tick.now_ms, tick.history.settings(tick.now_ms)
    queued = ledger.without_node.queued
    is_same = (
        cache is ledger.statement_cache
        and queued == ledger.queued
        and protected is ledger.protected
        and tick.history is ledger.history
        and cluster.classes.version == ledger.classes_version
        and ranks is ledger.fair.ranks
    )
    if is_same and ledger.published and abs(now_ms - ledger.pulse.decided_ms) < PULSE_MS:
        return ledger.published
    made = cache.statements
    lacking = cluster.pods.lacking_sidecars(now_ms)
    default, namespaces = made.default, with_standing(tick.history, made.namespaces)
    more = {name: made.namespaces[name] for name in lacking if name in made.namespaces}
    return publish(
        settings,
        cluster.classes,
        default,
        {**namespaces, **more} if more else namespaces,
        now_ms,
        ledger.published,
        ledger.entry_cache,
        queued,
        cluster.nodes.card_host(),
        protected,
        claims,
        stale,
        lacking,
        ranks,
    )


def _changes(
    ledger: LedgerState,
    tick: TickInputs,
    session_changes: SessionChanges,
    settled: Settlement,
    grants: tuple[Grant, ...],
    published: StandingsDocument | None,
) -> Changes:
    changed = {**session_changes.sessions, **settled.settled}
    held, released = _held(ledger)
    return Changes(
        held=held,
        released=released,
        entries=tick.entry_changes.entries,
        errors=tick.entry_changes.errors if tick.entry_changes.errors != ledger.errors else None,
        opened=tuple(each for uid, each in changed.items() if uid in session_changes.opened),
        changed=tuple(each for uid, each in changed.items() if uid not in session_changes.opened),
        postings=settled.postings,
        grants=grants,
        waiting=_waiting(ledger),
        published=published if published is not ledger.published else None,
    )


def _held(ledger: LedgerState) -> tuple[tuple[HeldPod, ...], tuple[str, ...]]:
    """The held pods whose rows differ, and the UIDs of rows of pods that are held no more."""
    now, written = ledger.without_node.held, ledger.held
    if now is written:
        return (), ()
    # most are the same objects: with 10,000 of them, comparing their fields took a third of a tick
    differ = (each for uid, each in now.items() if (row := written.get(uid)) is not each and row != each)
    return tuple(differ), tuple(written.keys() - now.keys())


def _waiting(ledger: LedgerState) -> dict[str, int] | None:
    """Namespaces whose waiting pods' rate differs from the written one; 0: none wait any more."""
    now, written = ledger.without_node.rates, ledger.waiting
    if now is written:
        return None
    names = [name for name in now.keys() | written.keys() if now.get(name) != written.get(name)]
    return {name: now.get(name, 0) for name in names} or None
