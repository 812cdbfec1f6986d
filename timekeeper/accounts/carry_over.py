"""Carry-over from one period to the next: which accounts must be recomputed, and the grants that are due in
them.

The carry-over into an account follows from the account before it. It is granted when the account begins, and
corrected by a further grant if the earlier spending changes: by late evidence, or by a correction of
sessions.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from timekeeper.accounts.budget_history import History
from timekeeper.accounts.grants import (
    NO_GRANTS,
    Grant,
    GrantSums,
    budget_grant,
    carry_due,
    carry_grant,
    carry_part,
)
from timekeeper.core.ledger.metering import Interval
from timekeeper.core.ledger.period_rules import Account

# Evidence of a period's last seconds arrives during the first seconds of the next. The carry-over is granted
# at once and corrected at most this often.
CORRECTED_INTERVAL_MS = 60_000

GrantedIn = Callable[[Account], GrantSums]
SpentIn = Callable[[Account], int]


@dataclass(frozen=True, slots=True)
class DueGrants:
    """The grants that a subject's account is due."""

    grants: tuple[Grant, ...]
    granted: GrantSums  # what its present account has after these grants
    # when it must be recomputed in any case; None: not before something of it changes
    again_ms: int | None = None


def regular_accounts(history: History, subject: str, now_ms: int) -> tuple[Account, ...]:
    """The accounts that every tick reads: the present one, and its predecessor if that carries over."""
    present = history.account(subject, now_ms)
    before = carry_source(history, subject, present)
    return (before, present) if before else (present,)


def accounts_read(
    history: History, subject: str, granted_in: GrantedIn, changed_since_ms: int | None, now_ms: int
) -> Iterator[Account]:
    """The accounts before the present one whose grants `chain` reads if no period was missed, latest
    first."""
    account = history.account(subject, now_ms)
    is_new = granted_in(account) == NO_GRANTS
    while (before := carry_source(history, subject, account)) is not None:
        yield before
        if not is_new and (changed_since_ms is None or changed_since_ms >= before.span.start_ms):
            return
        account, is_new = before, False


def chain(
    history: History,
    subject: str,
    granted_in: GrantedIn,
    last_granted: Callable[[int], Interval | None],
    changed_since_ms: int | None,
    now_ms: int,
) -> tuple[Account, ...]:
    """The accounts whose carry-over must be recomputed, oldest first, the present one last: back to the first
    account whose charges changed (from ``changed_since_ms`` on), and across missed periods to the last one
    with a grant. When an account begins, the carry-over into its predecessor is recomputed once more, because
    a correction may have been deferred until now (see `due`).

    A subject's first account is the first one with a grant: nothing is carried over from earlier times.
    """
    found = [history.account(subject, now_ms)]
    while (before := carry_source(history, subject, found[0])) is not None:
        is_new, is_missed = granted_in(found[0]) == NO_GRANTS, granted_in(before) == NO_GRANTS
        if is_missed and last_granted(before.span.start_ms) is None:
            break
        found.insert(0, before)
        if not (is_new or is_missed) and (
            changed_since_ms is None or changed_since_ms >= before.span.start_ms
        ):
            break
    return tuple(found)


def due(
    history: History,
    subject: str,
    accounts: tuple[Account, ...],
    granted_in: GrantedIn,
    spent_in: SpentIn,
    now_ms: int,
) -> DueGrants:
    """The grants that are due in the accounts of a `chain`: for the present account what its budget says, for
    missed ones what it said at their end, and what each carries over into the next."""
    grants: list[Grant] = []
    first, present = accounts[0], accounts[-1]
    granted, own = _by_budget(history, subject, first, granted_in(first), first is present, now_ms)
    grants += own
    again_ms = None
    for before, account in pairwise(accounts):
        amount = carry_due(carry_part(history, subject, before), granted.amount, spent_in(before))
        so_far = granted_in(account)
        granted, own = _by_budget(history, subject, account, so_far, account is present, now_ms)
        grants += own
        if account is present and amount != so_far.carried and _is_fresh(so_far, now_ms):
            again_ms = so_far.carried_ms + CORRECTED_INTERVAL_MS
            continue
        carried = carry_grant(subject, before, account, so_far, amount, now_ms)
        if carried:
            grants.append(carried)
            granted = granted.plus(carried)
    return DueGrants(tuple(grants), granted, again_ms)


def carry_source(history: History, subject: str, account: Account) -> Account | None:
    """The preceding account, if it carries anything over into this one."""
    before = history.preceding(subject, account)
    return before if before and carry_part(history, subject, before) else None


def _by_budget(
    history: History, subject: str, account: Account, granted: GrantSums, is_present: bool, now_ms: int
) -> tuple[GrantSums, list[Grant]]:
    """What the account has, including the grant that its budget still owes it. An ended account is owed only
    a grant that it never received."""
    if not is_present and granted.by_budget is not None:
        return granted, []
    in_force = history.budget(subject, now_ms if is_present else account.span.end_ms - 1)
    grant = budget_grant(subject, in_force, account, granted, now_ms)
    return (granted.plus(grant), [grant]) if grant else (granted, [])


def _is_fresh(granted: GrantSums, now_ms: int) -> bool:
    return granted.carries > 0 and 0 <= now_ms - granted.carried_ms < CORRECTED_INTERVAL_MS
