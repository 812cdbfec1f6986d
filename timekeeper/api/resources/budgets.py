"""``GET /v1/budgets`` and ``/v1/budgets/{namespace}``: what was granted, spent, and is left."""

from dataclasses import replace
from typing import Any

from flask import Flask, Response, request

from timekeeper.accounts.balance import Statement
from timekeeper.accounts.budget_history import GROUP
from timekeeper.accounts.usage import gpu_hours
from timekeeper.api import sheets
from timekeeper.api.http.answers import (
    BalancesAnswer,
    BrokenEntryAnswer,
    BudgetsAnswer,
    OneBalance,
    OneBudget,
    answer,
)
from timekeeper.api.http.parameters import AFTER, LIMIT, MEMBERS_OF, NAMESPACE_IN_PATH, cursor, shaped
from timekeeper.api.http.routes import JSON, ApiRoute, Call, Right, may, serve
from timekeeper.api.http.services import Services
from timekeeper.api.ledger import protected_answers
from timekeeper.api.ledger.ledger_reader import AccountReading
from timekeeper.api.ledger.recent_value import RecentValue, oldest_ms
from timekeeper.core.budgets.policy import ineffective_fields
from timekeeper.core.ledger.metering import FOREVER_MS

_RIGHT = Right("get", "budgets")
_BALANCES_RIGHT = Right("get", "balances")

BUDGETS = ApiRoute(
    method="GET",
    path="/v1/budgets",
    about="the budgets of all namespaces with an entry, or with a session where _defaults has a limit, by"
    " name; on the first page those of all groups too",
    right=_RIGHT,
    answers={JSON: BudgetsAnswer},
    parameters=(MEMBERS_OF, LIMIT, AFTER),
    sheet=sheets.BUDGETS,
)
BUDGET = ApiRoute(
    method="GET",
    path="/v1/budgets/{namespace}",
    about="one budget; for an unknown namespace, the budget that it would have",
    right=_RIGHT,
    answers={JSON: OneBudget},
    parameters=(NAMESPACE_IN_PATH,),
    sheet=sheets.BUDGET,
)
BALANCES = ApiRoute(
    method="GET",
    path="/v1/balances",
    about="the present balance of every account, by name",
    right=_BALANCES_RIGHT,
    answers={JSON: BalancesAnswer},
    parameters=(LIMIT, AFTER),
)
BALANCE = ApiRoute(
    method="GET",
    path="/v1/balances/{namespace}",
    about="the present balance of one account",
    right=_BALANCES_RIGHT,
    answers={JSON: OneBalance},
    parameters=(NAMESPACE_IN_PATH,),
)
ROUTES = (BUDGETS, BUDGET, BALANCES, BALANCE)


def register(app: Flask, services: Services) -> None:
    """Add the routes."""
    recent = RecentValue(services.ledger.all_accounts)

    def budgets(call: Call) -> Response:
        after, limit, group = shaped(call.get("after"), str), call.get("limit"), call.get("group", "")
        follows, group_accounts = "", list[AccountReading]()
        if after is None and limit is None and not group:
            account, group_accounts = recent.get(oldest_ms(request.cache_control.max_age))
        else:
            account, follows = services.ledger.account_page(limit, after[0] if after else "", group)
            group_accounts = [] if after else services.ledger.group_accounts(group)
        page = cursor(follows) if follows else None
        made: dict[str, dict[str, Any]] = {}
        # a caller that may list all budgets may get each by name
        body = {
            "version": 1,
            "budgets": [shown(each, True, made) for each in account],
            "groups": [shown(each, True) for each in group_accounts],
            "broken": [] if after or group else _broken(services),
            "next": page,
        }
        return answer(body, page)

    def budget(call: Call) -> Response:
        account = services.ledger.account_now(call.given["namespace"])
        group = account.statement.in_force.budget.group
        return answer({"version": 1, **shown(account, not group or may(services, _RIGHT, GROUP + group))})

    def balances(call: Call) -> Response:
        after = shaped(call.get("after"), str)
        accounts, follows = services.ledger.account_page(call.get("limit"), after[0] if after else "")
        page = cursor(follows) if follows else None
        rows: list[dict[str, Any]] = [figures(each) for each in accounts]
        return answer({"version": 1, "balances": rows, "next": page}, page)

    def balance(call: Call) -> Response:
        return answer({"version": 1, **figures(services.ledger.account_now(call.given["namespace"]))})

    serve(app, services, BUDGETS, budgets)
    serve(app, services, BUDGET, budget)
    serve(app, services, BALANCES, balances)
    serve(app, services, BALANCE, balance)


def _broken(services: Services) -> list[BrokenEntryAnswer]:
    found = services.ledger.broken_entries()
    return [{"key": key, "error": sentence} for key, sentence in sorted(found.items())]


def figures(account: AccountReading) -> dict[str, Any]:
    """Only an account's figures."""
    span = account.statement.account.span
    return {
        "namespace": account.namespace,
        "standing": account.standing,
        "from": span.start_ms,
        "to": None if span.end_ms >= FOREVER_MS else span.end_ms,
        **amounts(account.statement),
    }


def amounts(statement: Statement) -> dict[str, Any]:
    """A balance in milli-GPU x milliseconds and as decimal GPU-hours."""
    balance = statement.balance
    exact = {
        "granted": balance.granted,
        "carried": statement.carried,
        "posted": balance.posted,
        "pending": balance.pending,
        "reserved": balance.reserved,
        "remaining": balance.remaining,
    }
    hours = {name: None if each is None else gpu_hours(each) for name, each in exact.items()}
    return {**exact, "gpuHours": hours}


def shown(
    account: AccountReading, with_group: bool, made: dict[str, dict[str, Any]] | None = None
) -> dict[str, Any]:
    """One account: amounts in milli-GPU x milliseconds and as decimal GPU-hours, times in milliseconds.
    ``with_group``: include the figures of its group's account; otherwise only the group's standing, which the
    namespace's own follows from. ``made``: the parts of groups that other accounts of the same answer share,
    by name; this adds its own."""
    statement = account.statement
    budget, group = statement.in_force.budget, statement.group
    groups = {} if made is None else made
    if group and budget.group not in groups:
        groups[budget.group] = _group(budget.group, group, account.group_error, with_group)
    warnings = _group_warnings(budget.group, group) if with_group else ()
    placement = budget.placement or account.placement
    return {
        "namespace": account.namespace,
        "mode": account.mode or None,
        "modeFrom": account.mode_source if account.mode else None,
        "idle": account.idle,
        **_account(statement, account.error),
        "standing": account.standing,
        "validUntil": statement.valid_until_ms,
        "exhaustedAt": statement.exhausted_ms,
        "group": groups[budget.group] if group else None,
        "protect": protected_answers.shown(account.protected),
        "received": _received(account),
        "placement": placement,
        "warnings": [*ineffective_fields(budget, placement), *warnings],
    }


def _received(account: AccountReading) -> dict[str, Any] | None:
    if not account.received and not account.each_period:
        return None
    return {
        "amount": account.received,
        "gpuHours": gpu_hours(account.received),
        "eachPeriod": account.each_period,
        "eachPeriodGpuHours": gpu_hours(account.each_period),
    }


def _group(name: str, group: Statement, error: str, with_figures: bool) -> dict[str, Any]:
    account = _account(group, error)
    return {"name": name, **(account if with_figures else {"standing": account["standing"]})}


def _account(statement: Statement, error: str) -> dict[str, Any]:
    """Only the account, without its group."""
    in_force, balance, account = statement.in_force, statement.balance, statement.account
    budget, alone = in_force.budget, replace(statement, group=None)
    return {
        "standing": alone.standing,
        "entry": in_force.key or None,
        "onExhausted": budget.on_exhausted,
        "ratioMilli": balance.ratio_milli,
        "warnAtMilli": budget.warn_at_milli,
        "carryOverMilli": budget.carry_over_milli,
        "maxGPUsMilli": budget.max_gpus_milli,
        "maxGPUsPerPodMilli": budget.max_gpus_per_pod_milli,
        "period": {
            "kind": account.kind if budget.amount is not None else None,
            "timeZone": account.zone,
            "from": account.span.start_ms,
            "to": None if account.span.end_ms >= FOREVER_MS else account.span.end_ms,
        },
        **amounts(statement),
        "validUntil": alone.valid_until_ms,
        "exhaustedAt": alone.exhausted_ms,
        "lastError": error or None,
    }


def _group_warnings(name: str, group: Statement | None) -> tuple[str, ...]:
    if group is None:
        return ()
    if not group.in_force.key:
        return (f"group: {GROUP}{name} is not defined in any budget ConfigMap, so the group has no limit",)
    return tuple(f"{group.in_force.key}: {each}" for each in ineffective_fields(group.in_force.budget))
