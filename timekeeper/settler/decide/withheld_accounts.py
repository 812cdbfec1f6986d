"""Accounts whose changes contradict a law of the ledger: they are not written, and other accounts go on."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from timekeeper.accounts.balance import Statement
from timekeeper.accounts.budget_history import GROUP, History
from timekeeper.accounts.laws import Breach, Charged, LedgerFacts, breaches
from timekeeper.accounts.posting import Posting
from timekeeper.settler.cluster.cluster_state import ClusterState
from timekeeper.settler.decide.settlement import Settlement
from timekeeper.settler.decide.stages import SessionChanges
from timekeeper.settler.state.ledger_state import LedgerState
from timekeeper.settler.state.statement_cache import StatementCache


@dataclass(frozen=True, slots=True)
class Withheld:
    """``namespaces``: those of the accounts, with all of their groups' members; ``groups``: the groups."""

    breaches: tuple[Breach, ...] = ()
    namespaces: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()

    @property
    def subjects(self) -> frozenset[str]:
        """Namespaces and groups, as grants name them."""
        return self.namespaces | {GROUP + group for group in self.groups}


NOTHING = Withheld()


def withheld(
    ledger: LedgerState,
    changes: SessionChanges,
    settled: Settlement,
    history: History,
) -> Withheld:
    """What of this tick contradicts a law."""
    new: dict[str, list[Posting]] = {}
    for posting in settled.postings:
        new.setdefault(posting.session_uid, []).append(posting)
    charged = [
        Charged(session, (*ledger.posted.get(uid, ()), *new.get(uid, ())))
        for uid, session in {**changes.sessions, **settled.settled}.items()
    ]
    found = tuple(breaches(LedgerFacts(charged=charged)))
    if not found:
        return NOTHING
    broken = {breach.namespace for breach in found}
    groups = frozenset(group for name in broken for group in history.groups_of(name))
    names = {*history.namespaces(), *ledger.namespaces, *(each.session.namespace for each in charged)}
    members = {name for name in names if groups & history.groups_of(name)} if groups else set()
    return Withheld(found, frozenset(broken | members), groups)


def without(
    withheld: Withheld, cluster: ClusterState, changes: SessionChanges, settled: Settlement
) -> tuple[SessionChanges, Settlement]:
    """The changes of all other accounts."""
    names = withheld.namespaces
    cluster.claims.lost -= {uid for uid, each in changes.sessions.items() if each.namespace in names}
    sessions = {uid: session for uid, session in changes.sessions.items() if session.namespace not in names}
    return (
        replace(changes, sessions=sessions, opened=changes.opened & sessions.keys()),
        Settlement(
            tuple(posting for posting in settled.postings if posting.namespace not in names),
            {uid: session for uid, session in settled.settled.items() if session.namespace not in names},
        ),
    )


def keeping(withheld: Withheld, cache: StatementCache, last: StatementCache | None) -> StatementCache:
    """The statements, of withheld accounts as they were last."""
    if last is None:
        return cache
    made, known = cache.statements, last.statements
    return replace(
        cache,
        statements=replace(
            made,
            namespaces={**made.namespaces, **_of(known.namespaces, withheld.namespaces)},
            groups={**made.groups, **_of(known.groups, withheld.subjects)},
        ),
    )


def _of(known: Mapping[str, Statement], names: frozenset[str]) -> dict[str, Statement]:
    return {name: known[name] for name in names & known.keys()}
