"""A namespace's balance, from the same figures for the settler and for whoever asks over REST."""

from collections.abc import Iterable
from dataclasses import dataclass

from timekeeper.accounts.history import Account, History, InForce
from timekeeper.accounts.posting import Posting, amount_within
from timekeeper.accounts.session import Session
from timekeeper.core.ledger import (
    FOREVER_MS,
    Balance,
    Evidence,
    Interval,
    Witnessed,
    charge,
    reserved,
    witnessed,
)


@dataclass(frozen=True, slots=True)
class Held:
    """A session that is not settled, all that is known of it, and what was posted of it so far."""

    session: Session
    evidence: Evidence
    posted: tuple[Posting, ...] = ()

    def witnessed(self, now_ms: int) -> Witnessed:
        """The interval it is charged for at this moment."""
        return witnessed(self.evidence, self.session.terms, now_ms)

    def pending(self, span: Interval, now_ms: int) -> int:
        """What it owes for time inside the span, beyond what was posted; below zero where a correction is
        due."""
        due = self.witnessed(now_ms).interval.within(span)
        return charge(self.session.rate_milli, due) - amount_within(self.posted, span)


@dataclass(frozen=True, slots=True)
class Statement:
    """A namespace's account at a moment: the budget in force, the account's span, and its balance."""

    in_force: InForce
    account: Account
    balance: Balance

    @property
    def valid_until_ms(self) -> int | None:
        """When the standing must be looked up anew, whatever happens; None where nothing but events changes
        it."""
        unlimited = self.balance.granted is None
        return None if unlimited or self.account.span.end_ms >= FOREVER_MS else self.account.span.end_ms


@dataclass(frozen=True, slots=True)
class Figures:
    """The sums that an account's balance is made of: what was ``granted`` and ``posted`` in it, what its open
    sessions owe beyond (``pending``), the rate of those that reserve, and the rate that its admitted pods
    without a node will have."""

    granted: int = 0
    posted: int = 0
    pending: int = 0
    reserving_milli: int = 0
    waiting_milli: int = 0


def figures_of(
    span: Interval, granted: int, posted: int, held: Iterable[Held], waiting_milli: int, now_ms: int
) -> Figures:
    """The figures of an account with this span from its sessions that are not settled, one by one."""
    sessions = tuple(held)
    return Figures(
        granted,
        posted,
        pending=sum(each.pending(span, now_ms) for each in sessions),
        reserving_milli=sum(_reserving(sessions, now_ms)),
        waiting_milli=waiting_milli,
    )


def statement(history: History, namespace: str, figures: Figures, now_ms: int) -> Statement:
    """The account of one namespace now, from its figures."""
    in_force, account = history.budget(namespace, now_ms), history.account(namespace, now_ms)
    lookahead = history.settings(now_ms).lookahead_ms
    rates = (figures.reserving_milli, figures.waiting_milli)
    balance = Balance(
        granted=None if in_force.budget.amount is None else figures.granted,
        posted=figures.posted,
        pending=figures.pending,
        reserved=reserved(rates, lookahead, account.span, now_ms),
    )
    return Statement(in_force, account, balance)


def untouched(history: History, now_ms: int) -> Statement:
    """The account of a namespace that has no entry, no pod and no charge: the one of ``_defaults``."""
    nobody = ""  # no namespace has this name
    in_force, account = history.budget(nobody, now_ms), history.account(nobody, now_ms)
    budget = in_force.budget
    return Statement(in_force, account, Balance(budget.amount, posted=0, pending=0, reserved=0))


def _reserving(sessions: Iterable[Held], now_ms: int) -> Iterable[int]:
    """The rates of live sessions that were admitted in budget; the others would make the standing swing."""
    return (
        each.session.rate_milli
        for each in sessions
        if each.session.admitted_in_budget and not each.witnessed(now_ms).closed
    )
