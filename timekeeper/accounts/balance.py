"""A namespace's balance, from the same figures for the settler and for whoever asks over REST."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from timekeeper.accounts.budget_history import Account, BudgetInForce, History
from timekeeper.accounts.posting import Posting, amount_within
from timekeeper.accounts.session import Session
from timekeeper.core.ledger.metering import (
    FOREVER_MS,
    Balance,
    Evidence,
    Interval,
    WitnessedInterval,
    charge,
    exhausted_at,
    reserved,
    witnessed,
)


@dataclass(frozen=True, slots=True)
class UnsettledSession:
    """A session that is not settled, all that is known of it, and what was posted of it so far."""

    session: Session
    evidence: Evidence
    posted: tuple[Posting, ...] = ()

    def witnessed(self, now_ms: int) -> WitnessedInterval:
        """The interval it is charged for at this moment."""
        return witnessed(self.evidence, self.session.terms, now_ms)

    def pending(self, span: Interval, now_ms: int) -> int:
        """What it owes for time inside the span, beyond what was posted; below zero where a correction is
        due."""
        due = self.witnessed(now_ms).interval.within(span)
        return charge(self.session.rate_milli, due) - amount_within(self.posted, span)


@dataclass(frozen=True, slots=True)
class Statement:
    """An account at a moment: the budget in force, the account's span, its balance, of which ``carried`` was
    granted by carrying over, and when it is exhausted at the present rate (None: not in this period).

    ``group``: the account of the namespace's group. A namespace is in budget only if its group is too.
    """

    in_force: BudgetInForce
    account: Account
    balance: Balance
    carried: int = 0
    own_exhausted_ms: int | None = None
    group: "Statement | None" = None

    @property
    def standing(self) -> str:
        """IN_BUDGET, OVER_BUDGET, or UNLIMITED where neither the namespace nor its group has a limit."""
        if any(each.balance.standing == "OVER_BUDGET" for each in self._limited):
            return "OVER_BUDGET"
        return "IN_BUDGET" if self._limited else "UNLIMITED"

    @property
    def deciding(self) -> "Statement":
        """The account, its own or its group's, that the standing comes from: the one that is exhausted, else
        the one with less left. Where both are exhausted, the one whose ``onExhausted`` is stricter."""
        over = [each for each in self._limited if each.balance.standing == "OVER_BUDGET"]
        if over:
            return min(over, key=lambda each: _STRICTEST.index(each.in_force.budget.on_exhausted))
        return min(self._limited, key=lambda each: each.balance.remaining or 0, default=self)

    @property
    def warning(self) -> "Statement":
        """The account whose users are to be warned: one that is spent beyond its ``warnAt``, else
        `deciding`."""
        return next((each for each in self._limited if each.is_nearly_spent), self.deciding)

    @property
    def is_nearly_spent(self) -> bool:
        """True from ``warnAt`` on."""
        ratio, warn_at = self.balance.ratio_milli, self.in_force.budget.warn_at_milli
        return ratio is not None and warn_at is not None and ratio >= warn_at

    @property
    def valid_until_ms(self) -> int | None:
        """When the standing may change by time alone; None where nothing but events changes it.

        In budget that is the earlier end of the two accounts, over budget the end of the last one that is
        exhausted.
        """
        over = [each.ends_ms for each in self._limited if each.balance.standing == "OVER_BUDGET"]
        at = max(over) if over else min((each.ends_ms for each in self._limited), default=FOREVER_MS)
        return None if at >= FOREVER_MS else at

    @property
    def exhausted_ms(self) -> int | None:
        """When the namespace is out of budget at the present rate, by its own account or its group's; None
        where not before the account's period ends, or where it is already."""
        if self.standing == "OVER_BUDGET":
            return None
        moments = (each.own_exhausted_ms for each in self._limited)
        return min((at for at in moments if at is not None), default=None)

    @property
    def ends_ms(self) -> int:
        """The end of the account's own period."""
        return self.account.span.end_ms

    @property
    def _limited(self) -> "tuple[Statement, ...]":
        both = (self, self.group) if self.group else (self,)
        return tuple(each for each in both if each.balance.granted is not None)


_STRICTEST = ("deny", "hold", "evict", "reclaim", "deprioritize")


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of one namespace now: ``reserving_milli`` of its live sessions that were admitted in budget,
    ``running_milli`` of all whose charge has begun and has not ended, ``waiting_milli`` of its admitted pods
    without a node."""

    reserving_milli: int = 0
    running_milli: int = 0
    waiting_milli: int = 0


NO_RATES = Rates()


@dataclass(frozen=True, slots=True)
class BalanceFigures:
    """The sums that an account's balance is made of: what was ``granted`` and ``posted`` in it, what its open
    sessions owe beyond (``pending``), the rates of its sessions, and how much of what was granted was
    ``carried`` over."""

    granted: int = 0
    posted: int = 0
    pending: int = 0
    rates: Rates = NO_RATES
    carried: int = 0


def rates_of(held: Iterable[UnsettledSession], waiting_milli: int, now_ms: int) -> Rates:
    """The rates of a namespace from its sessions that are not settled, one by one. Those admitted over budget
    reserve nothing, or the standing would swing."""
    reserving = running = 0
    for each in held:
        seen = each.witnessed(now_ms)
        if not seen.closed:
            reserving += each.session.rate_milli if each.session.admitted_in_budget else 0
            running += each.session.rate_milli if seen.interval.start_ms else 0
    return Rates(reserving, running, waiting_milli)


def figures_of(
    span: Interval,
    granted: int,
    posted: int,
    held: Iterable[UnsettledSession],
    waiting_milli: int,
    now_ms: int,
) -> BalanceFigures:
    """The figures of an account with this span from its sessions that are not settled, one by one."""
    sessions = tuple(held)
    pending = sum(each.pending(span, now_ms) for each in sessions)
    return BalanceFigures(granted, posted, pending, rates_of(sessions, waiting_milli, now_ms))


def statement(
    history: History, subject: str, figures: BalanceFigures, now_ms: int, group: Statement | None = None
) -> Statement:
    """The account of a namespace or a group now, from its figures; ``group``: that of the namespace's
    group."""
    in_force, account = history.budget(subject, now_ms), history.account(subject, now_ms)
    lookahead, rates = history.settings(now_ms).lookahead_ms, figures.rates
    reserving = (rates.reserving_milli, rates.waiting_milli)
    balance = Balance(
        granted=None if in_force.budget.amount is None else figures.granted,
        posted=figures.posted,
        pending=figures.pending,
        reserved=reserved(reserving, lookahead, account.span, now_ms),
    )
    ends = exhausted_at(balance, rates.running_milli, sum(reserving), lookahead, account.span, now_ms)
    return Statement(in_force, account, balance, figures.carried, ends, group)


def untouched(history: History, now_ms: int, groups: Mapping[str, Statement]) -> Statement:
    """The account of a namespace that has no entry, no pod and no charge: the one of ``_defaults``, whose
    group may be a common pool; ``groups``: the groups' accounts by their names."""
    nobody = ""  # no namespace has this name
    in_force, account = history.budget(nobody, now_ms), history.account(nobody, now_ms)
    budget = in_force.budget
    balance = Balance(budget.amount, posted=0, pending=0, reserved=0)
    return Statement(in_force, account, balance, group=groups.get(budget.group))
