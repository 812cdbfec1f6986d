"""Grants: what a namespace or group may use in a period. A changed budget is a further grant, never a changed
row."""

from dataclasses import dataclass, replace

from timekeeper.accounts.budget_history import Account, BudgetInForce, History
from timekeeper.core.ledger.metering import Interval

PERIOD = "period"
CORRECTION = "correction"
MANUAL = "manual"
CARRY = "carry"
TRANSFER = "transfer"

BY_BUDGET = (PERIOD, CORRECTION)  # where the settler makes them; somebody's correction is by hand
BY_HAND = (MANUAL, TRANSFER)

SETTLER = "bursar-timekeeper"
MOST_GRANTED = 2**62  # sums of grants stay far inside 64 bits
MOST_CARRIED = 2**60  # 320 million GPU-hours


@dataclass(frozen=True, slots=True)
class Grant:
    """An amount given to a namespace or group (``_group.NAME``) for the account that ``span`` names; negative
    where a correction, a carry-over or a transfer takes.

    Nobody can make the same grant twice: its ``idempotency_key`` is unique.
    """

    subject: str
    span: Interval
    amount: int
    kind: str
    reason: str
    actor: str
    idempotency_key: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class GrantSums:
    """The sums of an account's grants: by its budget (period and corrections), by hand (transfers and what
    somebody corrected, too), and carried over from the period before in ``carries`` rows, the latest written
    at ``carried_ms``."""

    by_budget: int | None = None
    by_hand: int = 0
    carried: int = 0
    carries: int = 0
    carried_ms: int = 0

    @property
    def amount(self) -> int:
        """All that was granted."""
        return (self.by_budget or 0) + self.by_hand + self.carried

    def plus(self, grant: Grant) -> "GrantSums":
        """The sums with a further grant, of the settler's own kinds, in them."""
        if grant.kind == CARRY:
            carried, carries = self.carried + grant.amount, self.carries + 1
            return replace(self, carried=carried, carries=carries, carried_ms=grant.created_ms)
        return replace(self, by_budget=(self.by_budget or 0) + grant.amount)


NO_GRANTS = GrantSums()


def budget_grant(
    subject: str, in_force: BudgetInForce, account: Account, granted: GrantSums, now_ms: int
) -> Grant | None:
    """The grant that brings the account to what its budget says: the period's own, or the correction after a
    change; None where nothing is to be given."""
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


def carry_part(history: History, subject: str, account: Account) -> int:
    """The part of what is left at the account's end that moves on, in thousandths: by the budget in force in
    its last millisecond; 0 where there was no limit."""
    budget = history.budget(subject, account.span.end_ms - 1).budget
    return 0 if budget.amount is None else budget.carry_over_milli


def carry_due(part_milli: int, granted: int, spent: int) -> int:
    """What is carried over of an account in which so much was granted and spent: rounded down to whole
    milli-GPU x milliseconds, at most MOST_CARRIED; a debt moves nowhere."""
    return min(MOST_CARRIED, max(0, granted - spent) * part_milli // 1000)


def carry_grant(
    subject: str, before: Account, account: Account, granted: GrantSums, due: int, now_ms: int
) -> Grant | None:
    """The grant that brings what is carried over into the account to what is due; None where it is so."""
    difference = due - granted.carried
    if not difference:
        return None
    span = account.span
    key = f"{CARRY}/{subject}/{span.start_ms}/{span.end_ms}/{granted.carries}"
    reason = f"carried over from the {before.kind} before" + (", corrected" if granted.carries else "")
    return Grant(subject, span, difference, CARRY, reason, SETTLER, key, now_ms)


def manual_grant(
    namespace: str, span: Interval, amount: int, reason: str, actor: str, key: str, now_ms: int
) -> Grant:
    """A grant that someone asked for, under the idempotency key of the request."""
    return Grant(namespace, span, amount, MANUAL, reason, actor, f"{MANUAL}/{namespace}/{key}", now_ms)
