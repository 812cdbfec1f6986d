"""Grants: what a namespace may use in a period. A changed budget is a further grant, never a changed row."""

from dataclasses import dataclass

from timekeeper.accounts.history import Account, InForce
from timekeeper.core.ledger import Interval

PERIOD = "period"
CORRECTION = "correction"
MANUAL = "manual"

SETTLER = "bursar-timekeeper"
MOST_GRANTED = 2**62  # sums of grants stay far inside 64 bits


@dataclass(frozen=True, slots=True)
class Grant:
    """An amount given to a namespace (negative in a correction) for the account that ``span`` names.

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
class Granted:
    """The sums of an account's grants: by its budget (period and corrections), and by hand."""

    by_budget: int | None = None
    by_hand: int = 0

    @property
    def amount(self) -> int:
        """All that was granted."""
        return (self.by_budget or 0) + self.by_hand


NONE = Granted()


def budget_grant(
    namespace: str, in_force: InForce, account: Account, granted: Granted, now_ms: int
) -> Grant | None:
    """The grant that brings the account to what its budget says: the period's own, or the correction after a
    change; None where nothing is to be given."""
    amount = in_force.budget.amount
    if amount is None or amount == granted.by_budget:
        return None
    span = account.span
    key = f"{PERIOD}/{namespace}/{span.start_ms}/{span.end_ms}"
    if granted.by_budget is None:
        reason = (
            f"budget of {in_force.key} for the {account.kind}" if account.kind != "once" else "budget, once"
        )
        return Grant(namespace, span, amount, PERIOD, reason, SETTLER, key, now_ms)
    reason = f"the budget of {in_force.key} was changed"
    difference = amount - granted.by_budget
    return Grant(namespace, span, difference, CORRECTION, reason, SETTLER, f"{key}/{now_ms}", now_ms)


def manual_grant(
    namespace: str, span: Interval, amount: int, reason: str, actor: str, key: str, now_ms: int
) -> Grant:
    """A grant that someone asked for, under the idempotency key of the request."""
    return Grant(namespace, span, amount, MANUAL, reason, actor, f"{MANUAL}/{namespace}/{key}", now_ms)
