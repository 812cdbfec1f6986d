"""Rows of the table ``accounts``: what the running account of a namespace or group has, owes and may, as of a
tick. The settler writes them; everybody else reads them, and adds nothing to them."""

from bisect import bisect
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace

from timekeeper.accounts.balance import Rates, Statement
from timekeeper.accounts.budget_history import DEFAULTS, GROUP, History, is_group
from timekeeper.accounts.fair_shares import FairStanding, PostedUse, read_standing
from timekeeper.accounts.statements import Statements
from timekeeper.core.ledger.metering import Balance, Interval, exhausted_at

FORMAT = 1  # of the figures: another number once one of them means something else
EVERY_MS = 10_000  # what time alone changes is written so often
_MOST = 2**63 - 1  # what the database holds


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRow:
    """Amounts in milli-GPU x milliseconds, rates in milli-GPU, times in milliseconds since 1970.

    ``subject``: a namespace, ``_group.NAME``, or `DEFAULTS` for every namespace without a row. ``granted``
    None: unlimited. ``reserved`` contains ``declared``. ``term``: the writer's. The last four: as
    `fair_shares.PostedUse` and `FairStanding.text`; None: not known, or shares are off.
    """

    subject: str
    start_ms: int
    end_ms: int
    granted: int | None
    carried: int
    received: int
    posted: int
    pending: int
    reserved: int
    declared: int
    reserving_milli: int
    running_milli: int
    waiting_milli: int
    standing: str
    as_of_ms: int
    term: int
    format: int = FORMAT
    decayed: float | None = None
    decayed_ms: int | None = None
    half_life_ms: int | None = None
    fair: str | None = None


def row_of(
    subject: str,
    statement: Statement,
    now_ms: int,
    term: int,
    used: PostedUse | None = None,
    fair: FairStanding | None = None,
) -> AccountRow:
    """The statement of this moment as a row. ``used``, ``fair``: what is known of the account's share."""
    span, balance, rates = statement.account.span, statement.balance, statement.rates
    return AccountRow(
        subject=subject,
        start_ms=span.start_ms,
        end_ms=span.end_ms,
        granted=balance.granted,
        carried=statement.carried,
        received=statement.received,
        posted=_stored(balance.posted),
        pending=_stored(balance.pending),
        reserved=_stored(balance.reserved),
        declared=_stored(balance.declared),
        reserving_milli=rates.reserving_milli,
        running_milli=rates.running_milli,
        waiting_milli=rates.waiting_milli,
        standing=statement.standing,
        as_of_ms=now_ms,
        term=term,
        decayed=None if used is None else used.value,
        decayed_ms=None if used is None else used.at_ms,
        half_life_ms=None if used is None else used.half_life_ms,
        fair=None if fair is None else fair.text(),
    )


def _stored(amount: int) -> int:
    return min(_MOST, max(-_MOST, amount))


def group_of(history: History, subject: str, rows: Mapping[str, AccountRow]) -> str:
    """The group of a namespace, as of its row; "": none."""
    row = _row(subject, rows)
    return "" if is_group(subject) else history.group(row.subject, row.as_of_ms)


def statement_of(history: History, subject: str, rows: Mapping[str, AccountRow]) -> Statement:
    """The account of a namespace or group by its row, with that of its group by the group's. A namespace
    without a row has the account of `DEFAULTS`, which must be among the rows."""
    row = _row(subject, rows)
    at_ms, rates = row.as_of_ms, Rates(row.reserving_milli, row.running_milli, row.waiting_milli)
    balance = Balance(row.granted, row.posted, row.pending, row.reserved, row.declared)
    account = replace(history.account(row.subject, at_ms), span=Interval(row.start_ms, row.end_ms))
    lookahead_ms, reserving = history.settings(at_ms).lookahead_ms, row.reserving_milli + row.waiting_milli
    group, in_force = group_of(history, subject, rows), history.budget(row.subject, at_ms)
    is_one_of_many = not is_group(subject) and in_force.key != subject
    return Statement(
        in_force,
        account,
        balance,
        row.carried,
        exhausted_at(balance, rates.running_milli, reserving, lookahead_ms, account.span, at_ms),
        statement_of(history, GROUP + group, rows) if group else None,
        rates=rates,
        received=row.received,
        fair=read_standing(rows[DEFAULTS].fair if is_one_of_many else row.fair),
    )


def _row(subject: str, rows: Mapping[str, AccountRow]) -> AccountRow:
    """A group without a row has no limit. The history has no name for what it does not know."""
    row = rows.get(subject) or replace(rows[DEFAULTS], subject="")
    return replace(row, subject=subject, granted=None) if is_group(subject) and not row.subject else row


@dataclass(frozen=True, slots=True)
class AccountChanges:
    """``written``: by subject, what is written in this tick; ``gone``: subjects without an account;
    ``left``: those that time alone has changed since they were written."""

    written: Mapping[str, Statement]
    gone: Set[str] = frozenset()
    left: Set[str] = frozenset()


def moments_of(subjects: Iterable[str], known: Mapping[str, int]) -> dict[str, int]:
    """When in each `EVERY_MS` an account is written that time alone changed: neighbours by name one after the
    other, for their rows lie in the same pages of a file. ``known``: those so far, which do not move."""
    names, before = sorted(subjects), sorted(known)
    if not before:
        return {name: place * EVERY_MS // len(names) for place, name in enumerate(names)}
    places = {name: max(0, bisect(before, name) - 1) for name in names if name not in known}
    return {name: known[before[places[name]]] if name in places else known[name] for name in names}


def changed_accounts(
    history: History,
    made: Statements,
    written: Mapping[str, Statement],
    moments: Mapping[str, int],
    stated: Iterable[str],
    moved: Set[str],
    since_ms: int,
    now_ms: int,
    shares: Set[str] = frozenset(),
) -> AccountChanges:
    """What the rows of accounts lack. ``written``: the statements as written last; ``moments``: when their
    subjects have their turn (`moments_of`); ``stated``: subjects whose statements may differ; ``moved``:
    namespaces that something happened to; ``shares``: subjects whose fair shares differ.

    What an event changed is written at once. What time alone changed is written every `EVERY_MS`, each
    account at its own moment of these; ``since_ms``: the tick before. A group and its members are written
    together.
    """
    found = {subject: _stated(made, subject) for subject in {*stated, *shares}}
    pending = {
        subject: statement
        for subject, statement in found.items()
        if statement is not None and (subject in shares or _differs(written.get(subject), statement))
    }
    units = {subject: _unit(history, subject, now_ms) for subject in pending}
    at_once = {
        units[subject]
        for subject, statement in pending.items()
        if subject in moved
        or subject in shares
        or (before := written.get(subject)) is None
        or _by_events(before) != _by_events(statement)
    }
    for unit in set(units.values()) - at_once:
        own_ms = moments.get(unit, 0)
        if (now_ms - own_ms) // EVERY_MS != (since_ms - own_ms) // EVERY_MS:
            at_once.add(unit)
    now = {subject: statement for subject, statement in pending.items() if units[subject] in at_once}
    gone = written.keys() - made.namespaces.keys() - made.groups.keys() - {DEFAULTS}
    return AccountChanges(now, gone, pending.keys() - now.keys())


def _differs(before: Statement | None, statement: Statement) -> bool:
    return before is not statement and (before is None or _figures(before) != _figures(statement))


def _stated(made: Statements, subject: str) -> Statement | None:
    if subject == DEFAULTS:
        return made.default
    return made.groups.get(subject) if is_group(subject) else made.namespaces.get(subject)


def _unit(history: History, subject: str, now_ms: int) -> str:
    """The group of a namespace that is in one; else itself."""
    group = "" if is_group(subject) or subject == DEFAULTS else history.group(subject, now_ms)
    return GROUP + group if group else subject


def _by_events(statement: Statement) -> tuple[object, ...]:
    """What time alone does not change."""
    balance = statement.balance
    return (
        *(statement.in_force, statement.account, statement.standing, statement.rates),
        *(balance.granted, statement.carried, statement.received, balance.posted),
    )


def _figures(statement: Statement) -> tuple[object, ...]:
    return *_by_events(statement), statement.balance
