"""Compares each carry-over with what the account before had left by the evidence."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby, pairwise

from timekeeper.accounts.budget_history import History
from timekeeper.accounts.carry_over import CORRECTED_INTERVAL_MS
from timekeeper.accounts.grants import CARRY, carry_due, carry_part
from timekeeper.accounts.statements import spent_in
from timekeeper.core.ledger.metering import Interval
from timekeeper.operations.audit.finding import Finding, Tell, hours, time_of
from timekeeper.store import ledger
from timekeeper.store.audit_rows import StoredGrant
from timekeeper.store.engine.engine import Connection
from timekeeper.store.sums import DatabaseSums


@dataclass(frozen=True, slots=True)
class _Account:
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
    sums = DatabaseSums(connection, {}, tick_ms)
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


def _accounts(subject: str, rows: Iterable[StoredGrant]) -> Iterable[_Account]:
    for (start_ms, end_ms), found in groupby(
        rows, key=lambda each: (each.period_start_ms, each.period_end_ms)
    ):
        grants = tuple(found)
        carried = [each for each in grants if each.kind == CARRY]
        yield _Account(
            subject,
            Interval(start_ms, end_ms),
            granted=sum(each.amount for each in grants),
            carried=sum(each.amount for each in carried),
            carried_ms=max((each.created_ms for each in carried), default=0),
        )


def _is_fresh(account: _Account, tick_ms: int) -> bool:
    """Grants after the last correction may not be carried over yet."""
    return tick_ms - account.carried_ms < CORRECTED_INTERVAL_MS
