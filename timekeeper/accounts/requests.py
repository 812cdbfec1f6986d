"""What people whose budget does not suffice ask for, and of which people. Pure."""

from decimal import ROUND_UP, Decimal

from timekeeper.accounts.balance import Statement
from timekeeper.accounts.budget_history import is_group
from timekeeper.accounts.held.needs import BudgetNeed
from timekeeper.accounts.held.order import HeldPod
from timekeeper.core.ledger.metering import FOREVER_MS
from timekeeper.core.object_names import timestamp
from timekeeper.core.texts import GPU_HOUR, apart

_ADMINISTRATORS = "the people who run Bursar"


def request_for_more(subject: str, statement: Statement, need: BudgetNeed | None, pod: HeldPod | None) -> str:
    """The text of people of a namespace or group that is over budget, or whose held pod, or gang as one,
    needs more than is left; "": nothing is missing."""
    account = statement.deciding
    whose, left, ends_ms = _whose(subject, account), account.balance.remaining or 0, account.ends_ms
    hours, reason, more = "HOURS", "REASON", f", more than {apart(-left)[0]}" if left < 0 else ""
    wanted = f"HOURS GPU-hours{more}, for REASON"
    if need is not None and pod is not None and need.missing:
        whose, left, ends_ms = need.whose, need.left, need.ends_ms
        hours = str((need.missing / GPU_HOUR).quantize(Decimal("0.01"), ROUND_UP))
        reason = pod.gang.partition("/")[2] if pod.is_gang else pod.name
        wanted = f"at least {hours} GPU-hours, for {'gang' if pod.is_gang else 'pod'} {reason}"
    elif statement.standing != "OVER_BUDGET":
        return ""
    group, who, flag = statement.group, "An administrator grants them", ""
    if group is not None and group.balance.granted is not None and not is_group(whose):
        name = statement.in_force.budget.group
        who, flag = f"A lead of group {name} passes them on", f" --group {name}"
    command = f'kubectl bursar grant {whose} {hours}{flag} --reason "{reason}"'
    return f"{subject} asks for GPU time: {_has(whose, left, ends_ms)}. Wanted: {wanted}. {who}: {command}"


def people_to_ask(statement: Statement) -> str:
    """The leads of the group, as its entry names them, or who else can help."""
    name, group = statement.in_force.budget.group, statement.group
    leads = group.in_force.budget.leads if group is not None else ()
    if leads:
        return f"{', '.join(leads)} ({'lead' if len(leads) == 1 else 'leads'} of group {name})"
    return f"the leads of group {name}, or {_ADMINISTRATORS}" if name else _ADMINISTRATORS


def budget_sentence(namespace: str, statement: Statement) -> str:
    """The account that decides the standing, in a sentence."""
    account = statement.deciding
    left = account.balance.remaining
    if left is None:
        return f"{namespace} has no GPU budget: it is unlimited"
    return _has(_whose(namespace, account), left, account.ends_ms)


def _whose(subject: str, account: Statement) -> str:
    key = account.in_force.key
    return key if is_group(key) else subject


def _has(whose: str, left: int, ends_ms: int) -> str:
    until = "" if ends_ms >= FOREVER_MS else f" until {timestamp(ends_ms)}"
    (hours,) = apart(abs(left))
    if left > 0:
        return f"{whose} has {hours} GPU-hours of its budget left{until}"
    return f"{whose} is {hours} GPU-hours over budget{until}"
