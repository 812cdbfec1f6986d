"""A namespace's balance. Settler and API compute it from the same figures."""

from collections.abc import Mapping
from dataclasses import dataclass

from timekeeper.accounts.budget_history import BudgetInForce, History
from timekeeper.accounts.fair_shares import FairStanding
from timekeeper.accounts.posting import Posting
from timekeeper.accounts.session import Session
from timekeeper.core.json_values import Json
from timekeeper.core.ledger.metering import (
    FOREVER_MS,
    Balance,
    Evidence,
    WitnessedInterval,
    exhausted_at,
    reserved,
    witnessed,
)
from timekeeper.core.ledger.period_rules import Account
from timekeeper.core.object_names import timestamp
from timekeeper.core.texts import hours
from timekeeper.core.wire import StandingWord

NEARLY_SPENT_MILLI = 800  # thousandths of the grant, where an entry has no warnAt


@dataclass(frozen=True, slots=True)
class UnsettledSession:
    """A session that is not settled, its evidence, and its postings so far."""

    session: Session
    evidence: Evidence
    posted: tuple[Posting, ...] = ()

    def witnessed(self, now_ms: int) -> WitnessedInterval:
        """The interval it is charged for at this moment."""
        return witnessed(self.evidence, now_ms)


@dataclass(frozen=True, slots=True)
class Rates:
    """A namespace's rates now, in milli-GPU."""

    # each without pods that reserve their declared time
    reserving_milli: int = 0  # live sessions that were admitted in budget
    running_milli: int = 0  # sessions whose charge has begun and not ended
    waiting_milli: int = 0  # admitted pods without a node


NO_RATES = Rates()


@dataclass(frozen=True, slots=True)
class Statement:
    """An account at a moment. A namespace is in budget only if its group is too."""

    in_force: BudgetInForce  # the budget
    account: Account  # the account's span
    balance: Balance
    carried: int = 0  # the part of the grants that was carried over
    # when this account is over budget at the present rate; None: not in this period
    own_exhausted_ms: int | None = None
    group: "Statement | None" = None  # the account of the namespace's group
    rates: Rates = NO_RATES
    received: int = 0  # the part of the grants that groups have passed on
    fair: FairStanding | None = None  # of a row; None: `fairShare` is off

    @property
    def standing(self) -> StandingWord:
        """IN_BUDGET, OVER_BUDGET, or UNLIMITED if neither the namespace nor its group has a limit."""
        if any(each.balance.standing == "OVER_BUDGET" for each in self._limited):
            return "OVER_BUDGET"
        return "IN_BUDGET" if self._limited else "UNLIMITED"

    @property
    def deciding(self) -> "Statement":
        """The account, own or group's, that determines the standing: the one over budget, else the one with
        less remaining. If both are over budget, the one with the stricter ``onExhausted``."""
        over = [each for each in self._limited if each.balance.standing == "OVER_BUDGET"]
        if over:
            return min(over, key=lambda each: _STRICTEST.index(each.in_force.budget.on_exhausted))
        return min(self._limited, key=lambda each: each.balance.remaining or 0, default=self)

    @property
    def is_spent(self) -> bool:
        """True if an account, own or group's, that has the ``onExhausted`` of `deciding` has spent its grant,
        reservations not counted."""
        mode = self.deciding.in_force.budget.on_exhausted
        return any(
            each.balance.is_spent for each in self._limited if each.in_force.budget.on_exhausted == mode
        )

    @property
    def warning(self) -> "Statement":
        """The account to warn about: one that is spent beyond its ``warnAt``, else `deciding`."""
        return self.nearly_spent() or self.deciding

    def nearly_spent(self, otherwise_milli: int | None = None) -> "Statement | None":
        """The account, own or group's, that is spent beyond its ``warnAt``; one without ``warnAt`` beyond
        ``otherwise_milli`` thousandths of its grant, None: never."""
        return next((each for each in self._limited if each._is_beyond(otherwise_milli)), None)

    def _is_beyond(self, otherwise_milli: int | None) -> bool:
        ratio, warn_at = self.balance.ratio_milli, self.in_force.budget.warn_at_milli
        limit = otherwise_milli if warn_at is None else warn_at
        return ratio is not None and limit is not None and ratio >= limit

    @property
    def valid_until_ms(self) -> int | None:
        """When time alone may change the standing; None if only events can.

        In budget: the earlier end of the two accounts. Over budget: the end of the last one over budget.
        """
        over = [each.ends_ms for each in self._limited if each.balance.standing == "OVER_BUDGET"]
        at = max(over) if over else min((each.ends_ms for each in self._limited), default=FOREVER_MS)
        return None if at >= FOREVER_MS else at

    @property
    def exhausted_ms(self) -> int | None:
        """When the namespace runs out of budget at the present rate, by its own account or its group's. None:
        not before the account's period ends, or it is out of budget already."""
        if self.standing == "OVER_BUDGET":
            return None
        moments = (each.own_exhausted_ms for each in self._limited)
        return min((at for at in moments if at is not None), default=None)

    @property
    def ends_ms(self) -> int:
        """When the account ends."""
        return self.account.span.end_ms

    @property
    def _limited(self) -> "tuple[Statement, ...]":
        both = (self, self.group) if self.group else (self,)
        return tuple(each for each in both if each.balance.granted is not None)


_STRICTEST = ("deny", "hold", "evict", "reclaim", "deprioritize")


@dataclass(frozen=True, slots=True)
class BalanceFigures:
    """The amounts that an account's balance is computed from."""

    granted: int = 0
    posted: int = 0
    pending: int = 0  # owed by open sessions beyond ``posted``
    rates: Rates = NO_RATES
    carried: int = 0  # the part of ``granted`` that was carried over
    declared: int = 0  # reserved by pods that declared their time
    received: int = 0  # the part of ``granted`` that groups have passed on


def statement(
    history: History, subject: str, figures: BalanceFigures, now_ms: int, group: Statement | None = None
) -> Statement:
    """The account of a namespace or group now, from its figures; ``group``: the statement of the namespace's
    group."""
    in_force, account = history.budget(subject, now_ms), history.account(subject, now_ms)
    lookahead, rates = history.settings(now_ms).lookahead_ms, figures.rates
    reserving = (rates.reserving_milli, rates.waiting_milli)
    balance = Balance(
        granted=None if in_force.budget.amount is None else figures.granted,
        posted=figures.posted,
        pending=figures.pending,
        reserved=reserved(reserving, lookahead, account.span, now_ms) + figures.declared,
        declared=figures.declared,
    )
    ends = exhausted_at(balance, rates.running_milli, sum(reserving), lookahead, account.span, now_ms)
    return Statement(
        in_force, account, balance, figures.carried, ends, group, rates=rates, received=figures.received
    )


def untouched(history: History, now_ms: int, groups: Mapping[str, Statement]) -> Statement:
    """The account of a namespace without entry, pod or charge: that of ``_defaults``, whose group may be a
    shared pool. ``groups``: the groups' statements by name."""
    default = ""  # no namespace has this name
    in_force, account = history.budget(default, now_ms), history.account(default, now_ms)
    budget = in_force.budget
    balance = Balance(budget.amount, posted=0, pending=0, reserved=0)
    return Statement(in_force, account, balance, group=groups.get(budget.group))


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """Texts are GPU-hours as `hours` writes them, and RFC 3339 times; "" where there is none. ``percent``:
    used of what was granted; None without a limit."""

    standing: str
    on_exhausted: str
    group: str
    granted: str
    used: str
    remaining: str
    left: str
    left_of: str
    percent: int | None
    period_end: str
    exhausted_at: str

    @property
    def urgent(self) -> tuple[object, ...]:
        """What is written at once when it changes."""
        return self.standing, self.on_exhausted, self.group, self.granted, self.left_of, self.period_end

    @property
    def significant(self) -> tuple[object, ...]:
        """What is written in turn when it changes; the other figures go with it."""
        return *self.urgent, self.percent, bool(self.exhausted_at)

    def wire(self) -> Json:
        """The object's ``status``."""
        named = {
            "standing": self.standing,
            "onExhausted": self.on_exhausted,
            "group": self.group,
            "granted": self.granted,
            "used": self.used,
            "remaining": self.remaining,
            "left": self.left,
            "leftOf": self.left_of,
            "usedPercent": self.percent,
            "periodEnd": self.period_end,
            "exhaustedAt": self.exhausted_at,
        }
        return {key: value for key, value in named.items() if value not in ("", None)}


NO_BUDGET = BudgetStatus("UNLIMITED", "", "", "", "", "", "", "", None, "", "")
"""Of a namespace that has no budget any more."""


def status_of(statement: Statement) -> BudgetStatus:
    """The namespace's own account; standing, exhaustion and what is left consider its group's too."""
    balance, budget = statement.balance, statement.in_force.budget
    deciding = statement.deciding
    used = balance.posted + balance.pending
    limited = statement.standing != "UNLIMITED"
    return BudgetStatus(
        standing=statement.standing,
        on_exhausted=deciding.in_force.budget.on_exhausted if limited else "",
        group=budget.group,
        granted=_hours(balance.granted),
        used=_hours(used),
        remaining=_hours(balance.remaining),
        left=_hours(deciding.balance.remaining),
        left_of=budget.group if deciding is not statement else "",
        percent=100 * used // balance.granted if balance.granted else None,
        period_end=_moment(statement.ends_ms),
        exhausted_at=_moment(statement.exhausted_ms),
    )


def read_status(raw: Json) -> BudgetStatus:
    """The status of an object that was read. Fields of another form count as absent."""
    percent = raw.get("usedPercent")

    def text(name: str) -> str:
        return str(raw.get(name, ""))

    return BudgetStatus(
        standing=text("standing"),
        on_exhausted=text("onExhausted"),
        group=text("group"),
        granted=text("granted"),
        used=text("used"),
        remaining=text("remaining"),
        left=text("left"),
        left_of=text("leftOf"),
        percent=percent if isinstance(percent, int) else None,
        period_end=text("periodEnd"),
        exhausted_at=text("exhaustedAt"),
    )


def _hours(amount: int | None) -> str:
    return "" if amount is None else hours(amount)


def _moment(time_ms: int | None) -> str:
    return "" if time_ms is None or time_ms >= FOREVER_MS else timestamp(time_ms)
