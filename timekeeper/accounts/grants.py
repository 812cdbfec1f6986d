"""Grants: what a namespace or group may use in a period. A changed budget adds a grant; rows never change."""

from dataclasses import dataclass, replace
from typing import Final, Literal
from urllib.parse import quote

from timekeeper.accounts.budget_history import GROUP, BudgetInForce, History, is_group
from timekeeper.core.ledger.metering import Interval
from timekeeper.core.ledger.period_rules import Account

GrantKind = Literal["period", "correction", "manual", "carry", "transfer"]
PERIOD: Final = "period"
CORRECTION: Final = "correction"
MANUAL: Final = "manual"
CARRY: Final = "carry"
TRANSFER: Final = "transfer"
SPLIT = "split"  # begins the keys of transfers that the settler makes

BY_BUDGET = (PERIOD, CORRECTION)  # if made by the settler; a person's correction counts as by hand
BY_HAND = (MANUAL, TRANSFER)

SETTLER = "bursar-timekeeper"
MAX_GRANTED = 2**62  # sums of grants stay far inside 64 bits
MAX_CARRIED = 2**60  # 320 million GPU-hours


@dataclass(frozen=True, slots=True)
class Grant:
    """An amount granted to a namespace or group (``_group.NAME``) for the account with this span. Negative if
    a correction, a carry-over or a transfer reduces it.

    ``idempotency_key`` is unique, so the same grant cannot be made twice.
    """

    subject: str
    span: Interval
    amount: int
    kind: GrantKind
    reason: str
    actor: str
    idempotency_key: str
    created_ms: int
    group: str = ""  # that passed it on (``_group.NAME``); "": none
    group_span: Interval | None = None  # the group's account, in whose sum it counts


@dataclass(frozen=True, slots=True)
class GrantSums:
    """The grants of one account, in milli-GPU x ms."""

    by_budget: int | None = None  # period grant and corrections; None: there is no period grant yet
    by_hand: int = 0  # manual grants, transfers, and corrections made by people
    carried: int = 0  # carried over from the period before
    carries: int = 0  # number of carry-over rows
    carried_ms: int = 0  # when the latest of them was written
    received: int = 0  # the part of ``by_hand`` that groups have passed on
    splits: int = 0  # number of rows by the `split` of a group

    @property
    def amount(self) -> int:
        """The sum, in milli-GPU x ms."""
        return (self.by_budget or 0) + self.by_hand + self.carried

    def plus(self, grant: Grant) -> "GrantSums":
        """The sums including another grant, of the settler's own kinds."""
        if grant.kind == CARRY:
            carried, carries = self.carried + grant.amount, self.carries + 1
            return replace(self, carried=carried, carries=carries, carried_ms=grant.created_ms)
        if grant.kind == TRANSFER:
            by_hand, received = self.by_hand + grant.amount, self.received + grant.amount
            return replace(self, by_hand=by_hand, received=received, splits=self.splits + 1)
        return replace(self, by_budget=(self.by_budget or 0) + grant.amount)


NO_GRANTS = GrantSums()


def budget_grant(
    subject: str, in_force: BudgetInForce, account: Account, granted: GrantSums, now_ms: int
) -> Grant | None:
    """The grant that brings the account to its budget: the period's own, or a correction after a change; None
    if nothing is due."""
    amount = in_force.budget.amount
    if amount is None or amount == granted.by_budget:
        return None
    span = account.span
    key = f"{PERIOD}/{subject}/{span.start_ms}/{span.end_ms}"
    if granted.by_budget is None:
        reason = (
            f"budget of {in_force.key} for the {account.kind}" if account.kind != "once" else "budget, once"
        )
        return Grant(subject, span, amount, PERIOD, reason, SETTLER, key, now_ms)
    reason = f"the budget of {in_force.key} was changed"
    difference = amount - granted.by_budget
    return Grant(subject, span, difference, CORRECTION, reason, SETTLER, f"{key}/{now_ms}", now_ms)


@dataclass(frozen=True, slots=True)
class SplitPart:
    """What a group passes on to a namespace's account by its entry, anew in each of its own accounts."""

    group: str  # ``_group.NAME``
    group_span: Interval
    amount: int


def split_part(history: History, namespace: str, account: Account, now_ms: int) -> SplitPart | None:
    """The part of the namespace's present account, by the `split` that its group had when the period began;
    None: it has none. Both need a limit, and periods of the same kind that end together. If the group has
    less by now than its parts together, each part is cut alike."""
    budget = history.budget(namespace, now_ms).budget
    if is_group(namespace) or not budget.group or budget.amount is None:
        return None
    group = GROUP + budget.group
    of_it, amount = history.account(group, now_ms), history.budget(group, now_ms).budget.amount
    entry = history.entry_of_period(group, of_it.span)
    if entry is None or amount is None or _other_period(account, of_it):
        return None
    total, part = sum(each for _, each in entry.split), dict(entry.split).get(namespace, 0)
    if total > amount:
        part = part * amount // total
    return SplitPart(group, of_it.span, part) if part else None


def no_part(history: History, group: str, namespace: str, now_ms: int) -> str:
    """Why the namespace gets nothing of the split of ``_group.NAME``, as its entry and periods are now; "":
    it gets its part."""
    budget = history.budget(namespace, now_ms).budget
    if GROUP + budget.group != group:
        return "it is not in the group"
    if budget.amount is None:
        return "its own budget has no limit"
    return _other_period(history.account(namespace, now_ms), history.account(group, now_ms))


def _other_period(own: Account, of_group: Account) -> str:
    """How the periods of a namespace and of its group differ; "": they are the same."""
    if own.kind != of_group.kind:
        return f"its period is {own.kind}, and the group's is {of_group.kind}"
    is_same = own.span.end_ms == of_group.span.end_ms
    return "" if is_same else "its period ends at another time than the group's"


def split_key(namespace: str, account: Account) -> str:
    """The ledger's key of the part of an account, which gets one alone."""
    return f"{SPLIT}/{namespace}/{account.span.start_ms}/{account.span.end_ms}"


def split_grant(
    history: History, namespace: str, account: Account, granted: GrantSums, now_ms: int
) -> Grant | None:
    """The grant of `split_part`; None if there is none, or it was made. It is not changed in its period."""
    part = None if granted.splits else split_part(history, namespace, account, now_ms)
    if part is None:
        return None
    reason = f"its part of the budget of {part.group}, by its split"
    key = split_key(namespace, account)
    own = part.group, part.group_span
    return Grant(namespace, account.span, part.amount, TRANSFER, reason, SETTLER, key, now_ms, *own)


def carry_part(history: History, subject: str, account: Account) -> int:
    """The part of the remainder that is carried over, in thousandths, by the budget in force in the account's
    last millisecond; 0 without a limit."""
    budget = history.budget(subject, account.span.end_ms - 1).budget
    return 0 if budget.amount is None else budget.carry_over_milli


def carry_due(part_milli: int, granted: int, spent: int) -> int:
    """The amount to carry over from an account with these totals, rounded down to milli-GPU x milliseconds,
    at most MAX_CARRIED. Debt is not carried over."""
    return min(MAX_CARRIED, max(0, granted - spent) * part_milli // 1000)


def carry_grant(
    subject: str, before: Account, account: Account, granted: GrantSums, due: int, now_ms: int
) -> Grant | None:
    """The grant that brings the carry-over into the account to ``due``; None if it is already right."""
    difference = due - granted.carried
    if not difference:
        return None
    span = account.span
    key = f"{CARRY}/{subject}/{span.start_ms}/{span.end_ms}/{granted.carries}"
    reason = f"carried over from the {before.kind} before" + (", corrected" if granted.carries else "")
    return Grant(subject, span, difference, CARRY, reason, SETTLER, key, now_ms)


def caller_key(place: int, actor: str, key: str) -> str:
    """The ledger's key of a caller's grant, or of a transfer's second one: each caller's are separate."""
    return f"grant/{place}/{quote(actor, safe='')}/{key}"


def manual_grant(
    namespace: str, span: Interval, amount: int, reason: str, actor: str, key: str, now_ms: int
) -> Grant:
    """A grant that a person requested, with the request's idempotency key."""
    return Grant(namespace, span, amount, MANUAL, reason, actor, f"{MANUAL}/{namespace}/{key}", now_ms)
