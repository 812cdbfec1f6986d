"""Statements as serving workers make them: equal to the settler's, from the database's present content."""

from collections.abc import Collection

from timekeeper.accounts.balance import Statement
from timekeeper.accounts.budget_history import History, is_group
from timekeeper.accounts.grants import GrantSums
from timekeeper.accounts.statements import stated, working_set
from timekeeper.store.engine.engine import Connection
from timekeeper.store.queries import held_pods, ledger
from timekeeper.store.queries.sums import DatabaseSums

_FEW = 5  # accounts that are read one after another; what more of them need is read together


def stated_now(
    connection: Connection, history: History, subjects: Collection[str], now_ms: int
) -> dict[str, tuple[Statement, GrantSums]]:
    """The accounts of these namespaces and groups, each with its grants, including grants that are due and
    not yet written by the settler."""
    is_alone = len(subjects) == 1 and not any(
        is_group(each) or history.group(each, now_ms) for each in subjects
    )
    if is_alone:
        sums = DatabaseSums(connection, ledger.waiting(connection, *subjects), now_ms)
        return stated(history, subjects, subjects, sums, now_ms)
    declared = held_pods.declared(connection)
    spenders = ledger.namespaces(connection) | {each.namespace for each in declared}
    is_few = len(subjects) <= _FEW
    known = {} if is_few else ledger.granted(connection, now_ms)
    sums = DatabaseSums(connection, ledger.waiting(connection), now_ms, _granted=known)
    sums.reserve(declared, spenders | set(subjects))
    if not is_few:
        names = [each for each in subjects if not is_group(each)]
        asked = working_set(history, names, spenders, now_ms)
        sums.expect_granted(asked.accounts)
        sums.expect(asked.parts)
    return stated(history, subjects, spenders, sums, now_ms)
