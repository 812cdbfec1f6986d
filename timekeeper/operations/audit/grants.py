"""Compares grants with the budgets that were in force when they were made."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby, pairwise

from timekeeper.accounts.budget_history import History, is_group
from timekeeper.accounts.carry_over import CORRECTED_INTERVAL_MS
from timekeeper.accounts.grants import (
    CARRY,
    CORRECTION,
    MANUAL,
    PERIOD,
    SETTLER,
    SPLIT,
    carry_due,
    carry_part,
)
from timekeeper.accounts.statements import Part, spent_in
from timekeeper.core.ledger.metering import Interval
from timekeeper.operations.audit.finding import Finding, Tell, hours, time_of
from timekeeper.operations.audit.spans import Spans
from timekeeper.store import ledger, sessions
from timekeeper.store.audit_rows import StoredGrant
from timekeeper.store.engine.engine import Connection

_Account = tuple[str, int, int]  # subject, start and end


def check_grants(grants: Iterable[StoredGrant], spans: Spans, tell: Tell) -> int:
    """Report wrong grants; they come account by account. Returns their number."""
    count = 0
    added: Counter[_Account] = Counter()
    passed_on: Counter[_Account] = Counter()
    for key, found in groupby(grants, key=lambda each: each[1:4]):
        account = tuple(found)
        count += len(account)
        if is_group(account[0].subject):
            added[key] = sum(each.amount for each in account if each.amount > 0)
        passed_on.update(_passed_on(account))
        for grant in account:
            _check_grant(grant, tell)
            _check_split(grant, spans, tell)
        _check_budget(account, spans, tell)
    _check_groups(added, passed_on, tell)
    return count


def _passed_on(account: Iterable[StoredGrant]) -> dict[_Account, int]:
    """What groups' accounts have passed on to this one."""
    amounts: Counter[_Account] = Counter()
    for each in account:
        if each.group_key is not None and each.group_start_ms is not None and each.group_end_ms is not None:
            amounts[(each.group_key, each.group_start_ms, each.group_end_ms)] += each.amount
    return amounts


def _check_groups(added: Counter[_Account], passed_on: Counter[_Account], tell: Tell) -> None:
    """A group passes on at most what it was granted. A later correction of the group may leave it less, so
    only what was ever added to it is compared."""
    for account, amount in sorted(passed_on.items()):
        if not 0 <= amount <= added[account]:
            subject = f"account of {account[0]} for {time_of(*account[1:])}"
            most = f"at most {hours(added[account])}" if amount > 0 else "0 or more"
            tell(
                Finding(
                    subject, "passed on", hours(amount), most, amount - max(0, min(amount, added[account]))
                )
            )


def _check_grant(grant: StoredGrant, tell: Tell) -> None:
    if grant.amount < 0 and grant.kind in (PERIOD, MANUAL):
        amount = grant.amount
        tell(Finding(_name(grant), "amount", hours(amount), "0 or more", amount))
    if grant.period_end_ms <= grant.period_start_ms:
        span = time_of(grant.period_start_ms, grant.period_end_ms)
        tell(Finding(_name(grant), "period", span, "some time"))


def _check_split(grant: StoredGrant, spans: Spans, tell: Tell) -> None:
    """A part that the settler passed on is the one in the group's entry, or less where the group has less."""
    if grant.group_key is None or not grant.idempotency_key.startswith(f"{SPLIT}/"):
        return
    history = spans.at(grant.group_key, grant.created_ms)
    span = Interval(grant.group_start_ms or 0, grant.group_end_ms or 0)
    entry = history.entry_of_period(grant.group_key, span)
    parts = dict(entry.split) if entry else {}
    part, total = parts.get(grant.subject, 0), sum(parts.values())
    amount = history.budget(grant.group_key, grant.created_ms).budget.amount or 0
    due = part if total <= amount else part * amount // total
    if grant.amount != due:
        tell(Finding(_name(grant), "its part", hours(grant.amount), hours(due), grant.amount - due))


def _check_budget(account: tuple[StoredGrant, ...], spans: Spans, tell: Tell) -> None:
    """After each correction, a period's own grant and its corrections must equal the budget then in force."""
    total: int | None = None
    for grant in account:
        if not _is_by_budget(grant):
            continue
        if total is not None and grant.kind == PERIOD:
            tell(Finding(_name(grant), "kind", "a second grant of the period", "one", grant.amount))
        total = (total or 0) + grant.amount
        # a missed period is granted later, by its budget at its end
        subject, at_ms = grant.subject, min(grant.created_ms, grant.period_end_ms - 1)
        amount = spans.at(subject, at_ms).budget(subject, at_ms).budget.amount
        if amount != total:
            expected = "unlimited" if amount is None else hours(amount)
            tell(Finding(_name(grant), "granted", hours(total), expected, total - (amount or 0)))


def _is_by_budget(grant: StoredGrant) -> bool:
    return grant.actor == SETTLER and grant.kind in (PERIOD, CORRECTION)


def _name(grant: StoredGrant) -> str:
    span = time_of(grant.period_start_ms, grant.period_end_ms)
    return f"grant {grant.id} ({grant.kind}) to {grant.subject} for {span}"


@dataclass(frozen=True, slots=True)
class _CarryAccount:
    """The grants of one account; ``carried_ms``: the time of the last carry-over into it."""

    subject: str
    span: Interval
    granted: int
    carried: int
    carried_ms: int


def check_carry(
    connection: Connection, grants: Iterable[StoredGrant], history: History, tick_ms: int, tell: Tell
) -> None:
    """Report accounts that received more or less carry-over than the account before had left. ``grants`` come
    account by account, in order; ``tick_ms``: the settler's last tick."""
    spenders = ledger.namespaces(connection)
    sums = _Spent(connection, tick_ms)
    for subject, rows in groupby(grants, key=lambda each: each.subject):
        for before, account in pairwise(_accounts(subject, rows)):
            now = history.account(subject, account.span.start_ms)
            last = history.preceding(subject, now)
            if now.span != account.span or _is_fresh(account, tick_ms):
                continue
            due = 0
            if last and last.span == before.span and (part := carry_part(history, subject, last)):
                due = carry_due(part, before.granted, spent_in(history, subject, spenders, sums, last.span))
            if due != account.carried:
                span = time_of(account.span.start_ms, account.span.end_ms)
                stored, difference = hours(account.carried), account.carried - due
                tell(
                    Finding(
                        f"account of {subject} for {span}", "carried over", stored, hours(due), difference
                    )
                )


@dataclass(frozen=True, slots=True)
class _Spent:
    connection: Connection
    now_ms: int

    def posted(self, part: Part) -> int:
        """See `accounts.statements.SpentTotals`."""
        return ledger.posted_of(self.connection, (part,))[part]

    def pending(self, part: Part) -> int:
        """See `accounts.statements.SpentTotals`."""
        return sessions.pending(self.connection, part, self.now_ms)


def _accounts(subject: str, rows: Iterable[StoredGrant]) -> Iterable[_CarryAccount]:
    for (start_ms, end_ms), found in groupby(
        rows, key=lambda each: (each.period_start_ms, each.period_end_ms)
    ):
        grants = tuple(found)
        carried = [each for each in grants if each.kind == CARRY]
        yield _CarryAccount(
            subject,
            Interval(start_ms, end_ms),
            granted=sum(each.amount for each in grants),
            carried=sum(each.amount for each in carried),
            carried_ms=max((each.created_ms for each in carried), default=0),
        )


def _is_fresh(account: _CarryAccount, tick_ms: int) -> bool:
    """Grants after the last correction may not be carried over yet."""
    return tick_ms - account.carried_ms < CORRECTED_INTERVAL_MS
