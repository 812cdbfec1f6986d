"""Every account's statement, and the grants that are due, from totals alone. Pure: values in, values out.

How the totals are kept is the settler's business; `LedgerTotals` says what they must be.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from timekeeper.accounts import carry_over
from timekeeper.accounts.balance import BalanceFigures, Rates, Statement, statement, untouched
from timekeeper.accounts.budget_history import GROUP, History, is_group
from timekeeper.accounts.grants import CARRY, NO_GRANTS, TRANSFER, Grant, GrantSums, split_grant
from timekeeper.core.ledger.metering import Interval
from timekeeper.core.ledger.period_rules import Account

AccountKey = tuple[str, int, int]  # a namespace or group (``_group.NAME``), and the bounds of its account
Part = tuple[str, int, int]  # a namespace, and the bounds of any span, such as its time as a group's member


class SpentTotals(Protocol):
    """What was spent, including this tick's postings."""

    def posted(self, part: Part) -> int:
        """What is posted for the namespace's time inside the part, this tick's postings included."""

    def pending(self, part: Part) -> int:
        """What the namespace's unsettled sessions owe for time inside the part beyond what is posted.
        Negative if a correction is due."""


class LedgerTotals(SpentTotals, Protocol):
    """The ledger's totals, including this tick's postings.

    ``posted`` and ``pending`` are mostly read for the same parts in each tick (see `working_set`), and
    sometimes for parts of accounts that have ended. The parts to be read are announced first, for many
    accounts at once.
    """

    def expect(self, parts: Iterable[Part]) -> None:
        """``posted`` of these parts will be read."""

    def expect_granted(self, keys: Iterable[AccountKey]) -> None:
        """The grants of these accounts, which have ended, will be read."""

    def granted(self, key: AccountKey) -> GrantSums:
        """The sums of the account's grants, also of an ended account; NO_GRANTS if it has none."""

    def last_granted(self, subject: str, before_ms: int) -> Interval | None:
        """The span of the subject's latest account with a grant that ended by then; None without one."""

    def declared(self, part: Part) -> int:
        """What the namespace's pods that declared their time reserve inside the part."""

    def rates(self, namespace: str) -> Rates:
        """The rates of the namespace's sessions and waiting pods now."""

    def changed_since(self, namespace: str) -> int | None:
        """The earliest moment whose charge differs from the last written tick; None: no change. In the first
        tick: the start of its first open session."""


@dataclass(frozen=True, slots=True)
class Statements:
    """The accounts of a tick."""

    namespaces: Mapping[str, Statement]  # those whose standing may differ from ``default``
    default: Statement  # of every other namespace
    groups: Mapping[str, Statement] = field(default_factory=dict)  # by subject
    grants: tuple[Grant, ...] = ()  # to be written with this tick
    # subject -> when it must be stated again even if nothing of it changes
    again_ms: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """What `statements` reads in each tick, and is therefore worth caching."""

    accounts: frozenset[AccountKey]  # accounts whose grants it reads
    parts: frozenset[Part]  # parts whose ``posted`` and ``pending`` it reads


def working_set(history: History, names: Iterable[str], spenders: Iterable[str], now_ms: int) -> WorkingSet:
    """What the statements of these names, and of all groups they were ever in, read. Same arguments as
    `statements`."""
    names = tuple(names)
    members = _members(history, spenders)
    found = [
        (subject, account.span)
        for subject in (*names, *_group_subjects(history, names, members, now_ms))
        for account in carry_over.regular_accounts(history, subject, now_ms)
    ]
    return WorkingSet(
        frozenset((subject, span.start_ms, span.end_ms) for subject, span in found),
        frozenset(part for subject, span in found for part in _parts(members, subject, span)),
    )


def statements(
    history: History, names: Iterable[str], spenders: Iterable[str], sums: LedgerTotals, now_ms: int
) -> Statements:
    """The accounts of these namespaces, and of all groups that they were ever in.

    ``names``: the namespaces to state, of those that are listed (`decide.listed_namespaces`). ``spenders``:
    every namespace that ever had a session, this tick's included, because a group counts what its former
    members spent. Groups without members are stated too.
    """
    names = tuple(names)
    teller = _StatementMaker(history, sums, _members(history, spenders), now_ms)
    group_subjects = _group_subjects(history, names, teller.members, now_ms)
    chains = teller.chains((*group_subjects, *names))
    make = {subject: teller.make(subject, chains[subject], None) for subject in group_subjects}
    groups = {subject.removeprefix(GROUP): each.statement for subject, each in make.items()}
    for name in names:
        each = teller.make(name, chains[name], groups.get(history.group(name, now_ms)))
        if each.is_listed:
            make[name] = each
    return Statements(
        {subject: each.statement for subject, each in make.items() if not is_group(subject)},
        untouched(history, now_ms, groups),
        {subject: each.statement for subject, each in make.items() if is_group(subject)},
        tuple(grant for each in make.values() for grant in each.due.grants),
        {subject: at for subject, each in make.items() if (at := each.due.again_ms) is not None},
    )


def spent_in(
    history: History, subject: str, spenders: Iterable[str], sums: SpentTotals, span: Interval
) -> int:
    """What counts as spent in a namespace's or group's account with this span: posted and pending."""
    own = _parts(_members(history, spenders) if is_group(subject) else {}, subject, span)
    return sum(map(sums.posted, own)) + sum(map(sums.pending, own))


Members = Mapping[str, list[tuple[str, Interval]]]  # group -> its members, and when they were in it


@dataclass(frozen=True, slots=True)
class _SubjectStatement:
    statement: Statement
    due: carry_over.DueGrants
    is_listed: bool


@dataclass(frozen=True, slots=True)
class _StatementMaker:
    """The inputs of all statements of one moment."""

    history: History
    sums: LedgerTotals
    members: Members
    now_ms: int

    def chains(self, subjects: Iterable[str]) -> dict[str, tuple[Account, ...]]:
        """Each subject's accounts that must be recomputed. What they need is announced together."""
        history, now_ms = self.history, self.now_ms
        changed_since = {subject: self._changed_since(subject) for subject in subjects}
        self.sums.expect_granted(
            (subject, account.span.start_ms, account.span.end_ms)
            for subject, changed_since_ms in changed_since.items()
            for account in carry_over.accounts_read(
                history, subject, partial(self._granted, subject), changed_since_ms, now_ms
            )
        )
        self.sums.expect_granted(
            (subject, account.span.start_ms, account.span.end_ms)
            for subject in changed_since
            if (account := self._before_the_missed(subject)) is not None
        )
        chains = {
            subject: self._chain(subject, changed_since_ms)
            for subject, changed_since_ms in changed_since.items()
        }
        self.sums.expect(
            part
            for subject, accounts in chains.items()
            for account in accounts
            for part in _parts(self.members, subject, account.span)
        )
        return chains

    def make(self, subject: str, accounts: tuple[Account, ...], group: Statement | None) -> _SubjectStatement:
        """The statement of a namespace or group, with the grants that are due to it now."""
        history, now_ms = self.history, self.now_ms

        def granted_in(account: Account) -> GrantSums:
            return self._granted(subject, account)

        def spent_in(account: Account) -> int:
            return sum(self._spent(subject, account.span))

        due = carry_over.due(history, subject, accounts, granted_in, spent_in, now_ms)
        part = split_grant(history, subject, accounts[-1], due.granted, now_ms)
        if part is not None:
            due = replace(due, grants=(*due.grants, part), granted=due.granted.plus(part))
        posted, pending = self._spent(subject, accounts[-1].span)
        figures = BalanceFigures(
            due.granted.amount,
            posted,
            pending,
            self._rates(subject),
            due.granted.carried,
            sum(map(self.sums.declared, _parts(self.members, subject, accounts[-1].span))),
            due.granted.received,
        )
        each = statement(history, subject, figures, now_ms, group)
        is_listed = (
            each.in_force.key == subject
            or is_group(subject)
            or subject in self.history.labelled
            or bool(each.balance.spent or each.balance.reserved)
            or granted_in(accounts[-1]) != NO_GRANTS
            or any(grant.kind in (CARRY, TRANSFER) for grant in due.grants)
        )
        return _SubjectStatement(each, due, is_listed)

    def _before_the_missed(self, subject: str) -> Account | None:
        """If periods were missed: the account before the last one with a grant."""
        present = self.history.account(subject, self.now_ms)
        missed = carry_over.carry_source(self.history, subject, present)
        if missed is None or any(self._granted(subject, each) != NO_GRANTS for each in (present, missed)):
            return None
        latest = self.sums.last_granted(subject, missed.span.start_ms)
        account = self.history.account(subject, latest.start_ms) if latest else None
        return carry_over.carry_source(self.history, subject, account) if account else None

    def _chain(self, subject: str, changed_since_ms: int | None) -> tuple[Account, ...]:
        def granted_in(account: Account) -> GrantSums:
            return self._granted(subject, account)

        def last_granted(before_ms: int) -> Interval | None:
            return self.sums.last_granted(subject, before_ms)

        return carry_over.chain(
            self.history, subject, granted_in, last_granted, changed_since_ms, self.now_ms
        )

    def _granted(self, subject: str, account: Account) -> GrantSums:
        return self.sums.granted((subject, account.span.start_ms, account.span.end_ms))

    def _spent(self, subject: str, span: Interval) -> tuple[int, int]:
        own = _parts(self.members, subject, span)
        return sum(map(self.sums.posted, own)), sum(map(self.sums.pending, own))

    def _rates(self, subject: str) -> Rates:
        """For a group: the rates of its present members, without pods that have no node."""
        if not is_group(subject):
            return self.sums.rates(subject)
        members = [name for name, at in self._members_of(subject) if at.start_ms <= self.now_ms < at.end_ms]
        each = [self.sums.rates(name) for name in members]
        return Rates(sum(rates.reserving_milli for rates in each), sum(rates.running_milli for rates in each))

    def _changed_since(self, subject: str) -> int | None:
        if not is_group(subject):
            return self.sums.changed_since(subject)
        changed_since = ((self.sums.changed_since(name), at) for name, at in self._members_of(subject))
        moments = (max(ms, at.start_ms) for ms, at in changed_since if ms is not None and ms < at.end_ms)
        return min(moments, default=None)

    def _members_of(self, subject: str) -> list[tuple[str, Interval]]:
        return self.members.get(subject.removeprefix(GROUP), [])


def _members(history: History, spenders: Iterable[str]) -> Members:
    members: dict[str, list[tuple[str, Interval]]] = {}
    for name in spenders if history.has_groups else ():
        for interval, group in history.memberships(name):
            members.setdefault(group, []).append((name, interval))
    return members


def _group_subjects(history: History, names: Iterable[str], members: Members, now_ms: int) -> tuple[str, ...]:
    """The groups that these names were ever in, the shared pool of all others, and groups without members."""
    if not history.has_groups:
        return ()
    groups = {group for name in names for group in history.groups_of(name)}
    groups |= {group for group in history.groups if group not in members}
    groups |= {history.group("", now_ms)} - {""}
    return tuple(GROUP + group for group in sorted(groups))


def _parts(members: Members, subject: str, span: Interval) -> tuple[Part, ...]:
    """Which namespaces' spending, and during which time, counts in an account with this span."""
    if not is_group(subject):
        return ((subject, span.start_ms, span.end_ms),)
    clipped = ((name, at.within(span)) for name, at in members.get(subject.removeprefix(GROUP), []))
    return tuple((name, at.start_ms, at.end_ms) for name, at in clipped if at.length_ms)
