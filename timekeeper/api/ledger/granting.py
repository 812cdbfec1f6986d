"""Writes what a caller grants, once per Idempotency-Key."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from timekeeper.accounts.balance import Statement
from timekeeper.accounts.budget_history import GROUP, History
from timekeeper.accounts.decisions.ledger_decisions import of_changes
from timekeeper.accounts.grants import (
    MAX_GRANTED,
    TRANSFER,
    Grant,
    caller_key,
    no_part,
    split_key,
    split_part,
)
from timekeeper.accounts.usage import gpu_hours
from timekeeper.api.ledger.ledger_reader import LedgerReader
from timekeeper.core.ledger.metering import Interval
from timekeeper.core.texts import not_in_group
from timekeeper.log import log
from timekeeper.runtime.http.problem_details import Problem, together
from timekeeper.store import decisions, grants
from timekeeper.store import grants as granted
from timekeeper.store.accounts import NotWrittenError
from timekeeper.store.engine.engine import Connection
from timekeeper.store.grants import GrantRow


def grant_once(
    ledger: LedgerReader,
    caller: tuple[str, str],
    is_same: Callable[[tuple[GrantRow, ...]], bool],
    made: Callable[[Connection], tuple[Grant, ...]],
) -> tuple[GrantRow, ...]:
    """The rows that ``made`` returns, written; or those of an earlier call. ``caller``: its name, and its
    key. ``is_same``: whether the earlier rows are of the same request; 422 if they are not. ``made`` raises a
    Problem where the rules do not allow the grant.

    Readings and rows are one transaction, which takes the turn of all that grant by hand.
    """
    actor, key = caller
    with ledger.store.writing(turn=grants.TURN) as connection:
        known = grants.known(connection, caller_key(0, actor, key), caller_key(1, actor, key))
        if known:
            if not is_same(known):
                detail = "this Idempotency-Key was already used for another grant"
                raise Problem(422, detail, "Idempotency-Key")
            return known
        new = made(connection)
        now_ms, _ = ledger.moment(connection)
        if any(grant.span.end_ms <= now_ms for grant in new):
            raise NotWrittenError  # its next account has begun
        given = grants.give(connection, *new)
        if given.is_new:
            decisions.record(connection, decisions.SOURCE, of_changes((), given.grants))
    for each in given.grants:
        log(
            "granted",
            subject=each.subject,
            amount=each.amount,
            kind=each.kind,
            group=each.group.removeprefix(GROUP) or None,
            actor=actor,
            reason=each.reason,
        )
    return given.written


@dataclass(frozen=True, slots=True)
class PassingOn:
    """An amount for a namespace of the group; a negative one is taken back."""

    namespace: str
    amount: int
    reason: str


@dataclass(frozen=True, slots=True)
class GroupBudget:
    """The running account of a group. ``granted`` None: unlimited. ``passed_on``: by subject, start and end
    of the account that received it."""

    span: Interval
    granted: int | None
    passed_on: Mapping[tuple[str, int, int], int]
    due: int = 0  # parts of its split that are not written yet, because nothing of those namespaces was
    # what its split passes on anew in each period, and why it does not, "": it does
    split: tuple[tuple[str, int, str], ...] = ()

    @property
    def total(self) -> int:
        """What is passed on."""
        return sum(self.passed_on.values())

    @property
    def left(self) -> int | None:
        """What can still be passed on; None: unlimited."""
        return None if self.granted is None else max(0, self.granted - self.total - self.due)


def group_budget(ledger: LedgerReader, connection: Connection, group: str) -> GroupBudget:
    """The running account of the group (without ``_group.``), and what it has passed on."""
    statement = ledger.account(connection, GROUP + group)
    span, balance = statement.account.span, statement.balance
    passed_on = granted.passed_on(connection, GROUP + group, span)
    now_ms, history = ledger.moment(connection)
    due = _due_parts(connection, history, GROUP + group, span, now_ms)
    split = tuple(
        (namespace, amount, no_part(history, GROUP + group, namespace, now_ms))
        for namespace, amount in statement.in_force.budget.split
    )
    return GroupBudget(span, balance.granted, passed_on, due, split)


def _due_parts(connection: Connection, history: History, group: str, span: Interval, now_ms: int) -> int:
    entry, parts = history.entry_of_period(group, span), {}
    for namespace, _ in entry.split if entry else ():
        account = history.account(namespace, now_ms)
        part = split_part(history, namespace, account, now_ms)
        if part is not None and part.group == group:
            parts[split_key(namespace, account)] = part.amount
    written = {each.grant.idempotency_key for each in grants.known(connection, *parts)}
    return sum(amount for key, amount in parts.items() if key not in written)


def pass_on(ledger: LedgerReader, group: str, asked: PassingOn, actor: str, key: str) -> tuple[GrantRow, ...]:
    """Add the amount to the namespace's running account, once per caller's key. Raises a Problem."""

    def is_same(known: tuple[GrantRow, ...]) -> bool:
        before = known[0].grant
        same = PassingOn(before.subject, before.amount, before.reason)
        return before.group == GROUP + group and same == asked

    def made(connection: Connection) -> tuple[Grant, ...]:
        return (_Passing(ledger, connection, group, asked).grant(actor, key),)

    return grant_once(ledger, (actor, key), is_same, made)


@dataclass(frozen=True, slots=True)
class _Passing:
    """One amount inside its transaction, which also reads the accounts that allow it."""

    ledger: LedgerReader
    connection: Connection
    group: str
    asked: PassingOn

    def grant(self, actor: str, key: str) -> Grant:
        """The row for the namespace. Raises a Problem where the rules do not allow it."""
        now_ms, history = self.ledger.moment(self.connection)
        namespace, amount = self.asked.namespace, self.asked.amount
        budget = group_budget(self.ledger, self.connection, self.group)
        if budget.span.end_ms <= now_ms:
            raise NotWrittenError
        too_much = self._too_much(budget)
        if history.group(namespace, now_ms) != self.group:
            stranger = Problem(409, not_in_group(namespace, self.group), "namespace")
            raise together([stranger, *too_much])
        if budget.left is None:
            raise Problem(409, f"group {self.group} has no budget: it is unlimited", "group")
        account = self._account(too_much)
        span = account.account.span
        if too_much:
            raise too_much[0]
        if amount > 0:
            self._check_total(account)
        else:
            self._check_taken_back(budget.passed_on.get((namespace, span.start_ms, span.end_ms), 0), account)
        reason, number = self.asked.reason, caller_key(0, actor, key)
        own = GROUP + self.group, budget.span
        return Grant(namespace, span, amount, TRANSFER, reason, actor, number, now_ms, *own)

    def _account(self, too_much: Sequence[Problem]) -> Statement:
        """Of the namespace. ``too_much``: what is wrong beside, if it has none."""
        namespace = self.asked.namespace
        account = self.ledger.account(self.connection, namespace)
        if account.balance.granted is None:
            unlimited = Problem(409, f"{namespace} has no budget: it is unlimited", "namespace")
            raise together([unlimited, *too_much])
        return account

    def _too_much(self, budget: GroupBudget) -> tuple[Problem, ...]:
        """What is wrong with the amount if the group has not so much left; else nothing."""
        if budget.left is None or self.asked.amount <= budget.left:
            return ()
        of, gone = gpu_hours(budget.granted or 0), gpu_hours(budget.total + budget.due)
        detail = f"{of} GPU-hours were granted to group {self.group}, and {gone} of them are passed on"
        return (Problem(409, f"{detail}: {gpu_hours(budget.left)} are left", "gpuHours"),)

    def _check_total(self, account: Statement) -> None:
        if (account.balance.granted or 0) + self.asked.amount > MAX_GRANTED:
            raise Problem(409, "the total granted would exceed what the ledger can hold", "gpuHours")

    def _check_taken_back(self, received: int, account: Statement) -> None:
        """Only what this account of the group passed on to this one of the namespace, and is unused."""
        most = max(0, min(received, account.balance.remaining or 0))
        if -self.asked.amount > most:
            detail = f"{gpu_hours(max(0, received))} GPU-hours were passed on to {self.asked.namespace}"
            raise Problem(
                409, f"{detail} for its running period: {gpu_hours(most)} can be taken back", "gpuHours"
            )
