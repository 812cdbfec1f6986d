"""Writes what a caller grants, once per Idempotency-Key."""

from collections.abc import Callable

from timekeeper.accounts.budget_history import GROUP
from timekeeper.accounts.decisions.ledger_decisions import of_changes
from timekeeper.accounts.grants import Grant, caller_key
from timekeeper.api.ledger.ledger_reader import LedgerReader
from timekeeper.api.problem import Problem
from timekeeper.runtime.log import log
from timekeeper.store.engine.engine import Connection
from timekeeper.store.writes import decisions, grants
from timekeeper.store.writes.grants import GrantRow


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
        given = grants.give(connection, *made(connection))
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
