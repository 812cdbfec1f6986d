"""What a held pod, or a gang as one, takes of its budget at its release, and what that lacks. Pure."""

from dataclasses import dataclass

from timekeeper.accounts.balance import Statement
from timekeeper.accounts.budget_history import is_group
from timekeeper.accounts.held.limits import KEEPING
from timekeeper.accounts.held.order import HeldPod
from timekeeper.core.ledger.metering import FOREVER_MS
from timekeeper.core.object_names import timestamp
from timekeeper.core.texts import apart


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetNeed:
    """Amounts in milli-GPU x milliseconds. ``amount``: of ``rate_milli`` for ``length_ms``; ``most``: of it
    within one period; ``left``: of the account, which may be less than nothing; ``granted``: of a period,
    where ``most`` must be left at once, and is more."""

    amount: int
    most: int
    left: int
    rate_milli: int
    length_ms: int
    is_declared: bool
    whose: str
    ends_ms: int
    granted: int | None

    @property
    def missing(self) -> int:
        """What the account lacks; 0: nothing."""
        return max(0, self.most - self.left)

    def texts(self, own: int = 0) -> tuple[str, str]:
        """What it takes, and what the account has and lacks, for people. ``own``: what the pod of which this
        is the gang takes by itself; 0: it is that pod. Different amounts have different figures."""
        figures = self.amount, self.most, abs(self.left), self.missing, own, self.granted or 0
        amount, most, left, missing, mine, granted = apart(*figures)
        what = "of declared time and grace period " if self.is_declared else ""
        beside = f" ({mine} of them for this pod)" if own else ""
        part = f", of which a period holds at most {most}" if most != amount else ""
        takes = f"{amount} GPU-hours at once{beside}, for {self.length_ms // 1000} s {what}at the rate "
        until = "" if self.ends_ms >= FOREVER_MS else f" until {timestamp(self.ends_ms)}"
        has, over = f"has {left} GPU-hours of its budget left", f"is {left} GPU-hours over budget"
        lack = f": {missing} are missing" if self.missing else ""
        if self.granted is not None:
            lack += f"; never by the present budget: it needs {most} of {granted} granted a period"
        account = f"{self.whose} {has if self.left >= 0 else over}{until}{lack}"
        return f"{takes}{self.rate_milli / 1000:g}{part}", account


def budget_need(pod: HeldPod, statement: Statement, lookahead_ms: int, now_ms: int) -> BudgetNeed | None:
    """None: no budget keeps it, or its period is over."""
    accounts = (each for each in (statement, statement.group) if each is not None)
    account = next((each for each in accounts if _never_pays(each, pod, lookahead_ms)), statement.deciding)
    key, left = account.in_force.key, account.balance.remaining
    keeps = pod.needs_budget or pod.length_ms > 0 or account.in_force.budget.on_exhausted in KEEPING
    # what is later is the next period's
    length_ms = pod.length_ms or min(lookahead_ms, max(0, account.ends_ms - now_ms))
    if left is None or not keeps or not length_ms:
        return None
    return BudgetNeed(
        amount=pod.rate_milli * length_ms,
        most=pod.rate_milli * min(length_ms, account.account.span.length_ms),
        left=left,
        rate_milli=pod.rate_milli,
        length_ms=length_ms,
        is_declared=pod.length_ms > 0,
        whose=key if is_group(key) else pod.namespace,
        ends_ms=account.ends_ms,
        granted=_granted(account) if _never_pays(account, pod, lookahead_ms) else None,
    )


def _never_pays(account: Statement, pod: HeldPod, lookahead_ms: int) -> bool:
    """Whether a whole grant is less than what must be left at once, as for a gang and for declared time."""
    granted, length_ms = _granted(account), pod.length_ms or lookahead_ms if pod.is_gang else pod.length_ms
    most = pod.rate_milli * min(length_ms, account.account.span.length_ms)
    return granted is not None and most > granted


def _granted(account: Statement) -> int | None:
    granted = account.balance.granted
    return None if granted is None else max(granted, account.in_force.budget.amount or 0)
