"""What a GPUBudget object says of a namespace: rounded figures for people who use kubectl alone."""

from dataclasses import dataclass

from timekeeper.accounts.balance import Statement
from timekeeper.core.json_values import Json
from timekeeper.core.kube.timestamps import timestamp
from timekeeper.core.ledger.metering import FOREVER_MS
from timekeeper.core.texts import hours


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
    percent: int | None
    period_end: str
    exhausted_at: str

    @property
    def urgent(self) -> tuple[object, ...]:
        """What is written at once when it changes."""
        return self.standing, self.on_exhausted, self.group, self.granted, self.period_end

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
            "usedPercent": self.percent,
            "periodEnd": self.period_end,
            "exhaustedAt": self.exhausted_at,
        }
        return {key: value for key, value in named.items() if value not in ("", None)}


NO_BUDGET = BudgetStatus("UNLIMITED", "", "", "", "", "", None, "", "")
"""Of a namespace that has no budget any more."""


def status_of(statement: Statement) -> BudgetStatus:
    """The namespace's own account; standing and exhaustion consider its group's too."""
    balance, budget = statement.balance, statement.in_force.budget
    used = balance.posted + balance.pending
    limited = statement.standing != "UNLIMITED"
    return BudgetStatus(
        standing=statement.standing,
        on_exhausted=statement.deciding.in_force.budget.on_exhausted if limited else "",
        group=budget.group,
        granted=_hours(balance.granted),
        used=_hours(used),
        remaining=_hours(balance.remaining),
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
        percent=percent if isinstance(percent, int) else None,
        period_end=text("periodEnd"),
        exhausted_at=text("exhaustedAt"),
    )


def _hours(amount: int | None) -> str:
    return "" if amount is None else hours(amount)


def _moment(time_ms: int | None) -> str:
    return "" if time_ms is None or time_ms >= FOREVER_MS else timestamp(time_ms)
