"""Which namespaces must give up their cards, by whose account, and on which terms. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from timekeeper.accounts.balance import Statement
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.ledger.metering import FOREVER_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionTerms:
    """An account over budget with ``onExhausted: evict``, as it concerns one namespace.

    The account is exhausted while its charges and reservations reach the grant: then its pods get their
    notice. Pods are evicted only once the charges alone reach it (``is_spent``). What a pod has reserved and
    not used would come back with its eviction, its replacement would be admitted, and be evicted in its turn.
    """

    subject: str  # the namespace or the group (``_group.NAME``) whose account it is
    entry: str  # the key of its budget
    since_ms: int  # its period began then: an older notice was for another period
    is_spent: bool
    grace_ms: int  # from a pod's notice until it may be evicted
    rate: int  # evictions of the account in a minute
    pdb_grace_ms: int  # how long a PodDisruptionBudget is respected after it refused an eviction
    granted: int
    spent: int
    is_observed: bool  # mode observe or meter: nothing is done to the namespace's pods

    @property
    def spacing_ms(self) -> int:
        """Between two evictions of the account."""
        return 60_000 // self.rate


def terms_of(
    namespace: str, statement: Statement, settings: BudgetSettings, now_ms: int
) -> EvictionTerms | None:
    """The terms on which the namespace's pods must leave; None where they need not. A statement that is not
    valid any more because a period has ended says nothing."""
    return None if _until_ms(statement) <= now_ms else _terms_of(namespace, statement, settings)


def _terms_of(namespace: str, statement: Statement, settings: BudgetSettings) -> EvictionTerms | None:
    if statement.standing != "OVER_BUDGET":
        return None
    if statement.deciding.in_force.budget.on_exhausted != "evict":
        return None
    account = _account(statement)
    budget, balance = account.in_force.budget, account.balance
    return EvictionTerms(
        subject=namespace if account is statement else account.in_force.key,
        entry=account.in_force.key,
        since_ms=account.account.span.start_ms,
        is_spent=balance.is_spent,
        grace_ms=settings.evict_grace_ms if budget.evict_grace_ms is None else budget.evict_grace_ms,
        rate=budget.evict_rate or settings.evict_rate,
        pdb_grace_ms=settings.pdb_grace_ms,
        granted=balance.granted or 0,
        spent=balance.spent,
        is_observed=(statement.in_force.budget.mode or settings.mode) != "enforce",
    )


class EvictingNamespaces:
    """The terms of all namespaces. Those of a statement that is the same object are reused. Used by one
    thread."""

    def __init__(self) -> None:
        self._settings: BudgetSettings | None = None
        # namespace -> its statement, the terms that follow from it, and until when it is valid
        self._known: dict[str, tuple[Statement, EvictionTerms | None, int]] = {}

    def terms(
        self, statements: Mapping[str, Statement], settings: BudgetSettings, now_ms: int
    ) -> dict[str, EvictionTerms]:
        """The terms of each namespace whose pods must leave."""
        before = self._known if self._settings == settings else {}
        known: dict[str, tuple[Statement, EvictionTerms | None, int]] = {}
        for name, each in statements.items():
            found = before.get(name)
            if found is None or found[0] is not each:
                found = each, _terms_of(name, each, settings), _until_ms(each)
            known[name] = found
        self._settings, self._known = settings, known
        return {
            name: terms
            for name, (_, terms, until_ms) in known.items()
            if terms is not None and until_ms > now_ms
        }


def _account(statement: Statement) -> Statement:
    """Of the namespace's accounts over budget with ``evict`` the spent one; of two alike the group's, so that
    its members' pods are in one order."""
    both = (statement.group, statement) if statement.group else (statement,)
    exhausted = [
        each
        for each in both
        if each.balance.standing == "OVER_BUDGET" and each.in_force.budget.on_exhausted == "evict"
    ]
    return max(exhausted, key=lambda each: each.balance.is_spent)


def _until_ms(statement: Statement) -> int:
    """When the statement says nothing any more."""
    return FOREVER_MS if statement.valid_until_ms is None else statement.valid_until_ms
