"""``GET /v1/budgets`` and ``/v1/budgets/{namespace}``: what was granted, spent, and is left."""

from dataclasses import replace
from itertools import chain
from typing import Annotated, Any, TypedDict

from flask import Flask, Response, request
from msgspec import Meta

from timekeeper.accounts.balance import Statement
from timekeeper.accounts.budget_history import GROUP
from timekeeper.accounts.card_use.idleness import IdleAction
from timekeeper.accounts.held.needs import BudgetNeed
from timekeeper.accounts.held.order import HeldPod
from timekeeper.accounts.requests import people_to_ask, request_for_more
from timekeeper.accounts.usage import gpu_hours
from timekeeper.api import sheets
from timekeeper.api.http.answers import (
    AmountAnswer,
    Bounds,
    Hours,
    Paged,
    Versioned,
    amount_of,
    answer,
    bounds,
    in_hours,
)
from timekeeper.api.http.parameters import AFTER, LIMIT, MEMBERS_OF, NAMESPACE_IN_PATH, cursor, shaped
from timekeeper.api.http.routes import JSON, ApiRoute, Call, Right, admit, may, serve
from timekeeper.api.http.services import Services
from timekeeper.api.ledger.ledger_reader import AccountReading
from timekeeper.api.ledger.protected_reading import ProtectedReading
from timekeeper.api.ledger.recent_value import RecentValue, oldest_ms
from timekeeper.core.budgets.modes import ModeSource
from timekeeper.core.budgets.policy import ineffective_fields
from timekeeper.core.names import Mode
from timekeeper.core.wire import StandingWord
from timekeeper.store.decisions import held_queues
from timekeeper.wire.values import Subject


class Amounts(TypedDict):
    """A balance as exact decimal GPU-hours; null where unlimited."""

    granted: Hours | None
    carried: Hours
    posted: Hours
    pending: Hours
    reserved: Hours
    remaining: Hours | None


class ExactBalance(TypedDict):
    """A balance in milli-GPU x milliseconds; null where unlimited."""

    granted: int | None
    carried: int
    posted: int
    pending: int
    reserved: int
    remaining: int | None


class BalanceAmounts(ExactBalance):
    """A balance in both forms."""

    gpuHours: Amounts


class BalanceAnswer(Bounds, BalanceAmounts):
    """An account's present balance. `to`: null if it never ends; `granted`, `remaining`: null if
    unlimited."""

    namespace: Subject
    standing: StandingWord


class Period(Bounds):
    """The account's period. `kind`: null if unlimited; `to`: null if it never ends."""

    kind: str | None
    timeZone: str


class FairShareAnswer(TypedDict):
    """What an account has used of late beside its siblings, with `fairShare: on`. `decayed`: use that halves
    in each half-life, with what is reserved; `shareMilli`, `usedMilli`: its part of its siblings' weights
    and of their use; `rank`: 1 goes first, of `of`. Namespaces without an entry have one together."""

    weightMilli: int
    halfLifeMs: int
    shareMilli: int
    usedMilli: int
    decayed: int
    gpuHours: Hours
    rank: int
    of: int


class AccountAnswer(BalanceAmounts):
    """The budget in force for a namespace or group, and its account. `entry`: the ConfigMap key that applies,
    or null; `ratioMilli`, `warnAtMilli`: thousandths of the grant; `carryOverMilli`: thousandths of the
    remainder that carry over; `carried`: the carried-over part of the grant; `exhaustedAt`: when
    the budget runs out at the present rate, null if not in this period or already exhausted; `lastError`:
    the entry's error; its last valid text stays in force; `maxGPUsMilli`, `maxGPUsPerPodMilli`: what the
    namespace, and a pod of it, may hold at a time, null: any number; `fairShare`: null while it is off."""

    standing: StandingWord
    entry: str | None
    onExhausted: str
    ratioMilli: int | None
    warnAtMilli: int | None
    carryOverMilli: int
    maxGPUsMilli: int | None
    maxGPUsPerPodMilli: int | None
    period: Period
    validUntil: int | None
    exhaustedAt: int | None
    lastError: str | None
    fairShare: FairShareAnswer | None


class GroupAccount(AccountAnswer):
    """The group's account: what its members spent while they belonged to it."""

    name: str


class GroupStanding(TypedDict):
    """The group, for callers that may not see its account."""

    name: str
    standing: StandingWord


# msgspec tells no two types of objects apart that have no tag; null: without a group
_OF_GROUP = [{"$ref": f"#/components/schemas/{kind.__name__}"} for kind in (GroupAccount, GroupStanding)]
GroupOfBudget = Annotated[Any, Meta(extra_json_schema={"anyOf": [*_OF_GROUP, {"type": "null"}]})]


class ProtectedAnswer(TypedDict):
    """The pods that `protect` of the entry selects by `labels` and kinds of `owners`. Of the floors
    `cardsMilli` and `amount` one is null; `left`: of it for further pods, null: not known; `used`: what the
    selected pods have used in the period, posted and pending; `rateMilli`: of those that hold cards, in
    thousandths of a weighted GPU; `pods`: how many are protected now, 0 in budget, null: not known."""

    labels: dict[str, str]
    owners: list[str]
    cardsMilli: int | None
    amount: int | None
    used: int
    gpuHours: Hours
    rateMilli: int
    left: int | None
    pods: int | None


class ReceivedAnswer(AmountAnswer):
    """What groups have passed on to a namespace for its period, beside its own `gpuHours`, and what its group
    passes on anew in each period."""

    eachPeriod: int
    eachPeriodGpuHours: Hours


class DecidingAnswer(TypedDict):
    """The account, a namespace's own or its group's, that says how much may still be spent. `remaining`:
    granted - posted - pending - reserved, null: neither has a limit; `to`: the end of its period, null: it
    has none."""

    subject: Subject
    remaining: int | None
    to: int | None


class BudgetAnswer(AccountAnswer):
    """An account with its group's. `standing`, `validUntil`, `exhaustedAt` and `deciding` consider both; the
    other figures are the namespace's own. `group`: null without a group; only name and standing for callers
    that may not `get budgets` of it. `protect`: null if the entry protects no pods; `placement`: `off` where
    pods keep their scheduler, else `on`. `received`: null where no group passes anything on. `mode`: the one
    in force, null for a group; `modeFrom`: what it comes from, the namespace's entry, its label,
    `_defaults`, the cluster, or a ledger that governs nothing. `idle`: what happens to idle pods, null:
    nothing does."""

    namespace: Subject
    mode: Mode | None
    modeFrom: ModeSource | None
    idle: IdleAction | None
    deciding: DecidingAnswer
    group: GroupOfBudget
    protect: ProtectedAnswer | None
    received: ReceivedAnswer | None
    placement: str
    warnings: list[str]


class RequestAnswer(TypedDict):
    """How its people ask for more. `to`: the leads of its group by name, or who else can help; `text`: what
    they may send, with what is left and wanted. Nothing is sent."""

    to: str
    text: str


class OneBudget(BudgetAnswer, Versioned):
    """One budget. `silentSince`: see `BudgetsAnswer`; `request`: null: it is not over budget."""

    silentSince: int | None
    request: RequestAnswer | None


class BrokenEntryAnswer(TypedDict):
    """A budget entry with mistakes. `error`: its ConfigMap, and each mistake with its line and field."""

    key: str
    error: str


class BudgetsAnswer(Paged):
    """Budgets by name; groups' budgets, and the entries with mistakes, are on the first page. `silentSince`:
    they are as of then, for the settler has decided nothing for ten seconds; null: they are up to date."""

    silentSince: int | None
    budgets: list[BudgetAnswer]
    groups: list[BudgetAnswer]
    broken: list[BrokenEntryAnswer]


class OneBalance(BalanceAnswer, Versioned):
    """One account. `silentSince`: see `BudgetsAnswer`."""

    silentSince: int | None


class BalancesAnswer(Paged):
    """The accounts, by name. `silentSince`: see `BudgetsAnswer`."""

    silentSince: int | None
    balances: list[BalanceAnswer]


_Group = GroupAccount | GroupStanding

_RIGHT = Right("get", "budgets")
_BALANCES_RIGHT = Right("get", "balances")

BUDGETS = ApiRoute(
    path="/v1/budgets",
    about="the budgets of all namespaces with an entry, or with a session where _defaults has a limit, by"
    " name; on the first page those of all groups too",
    right=_RIGHT,
    answers={JSON: BudgetsAnswer},
    parts=(GroupAccount, GroupStanding),
    parameters=(MEMBERS_OF, LIMIT, AFTER),
    shared_by="right",
    sheet=sheets.BUDGETS,
)
BUDGET = ApiRoute(
    path="/v1/budgets/{namespace}",
    about="one budget; for an unknown namespace, the budget that it would have",
    right=_RIGHT,
    answers={JSON: OneBudget},
    parameters=(NAMESPACE_IN_PATH,),
    sheet=sheets.BUDGET,
)
BALANCES = ApiRoute(
    path="/v1/balances",
    about="the present balance of every account, by name",
    right=_BALANCES_RIGHT,
    answers={JSON: BalancesAnswer},
    shared_by="right",
    parameters=(LIMIT, AFTER),
)
BALANCE = ApiRoute(
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
        made: dict[str, _Group] = {}
        # a caller that may list all budgets may get each by name
        body: BudgetsAnswer = {
            "version": 1,
            "silentSince": _silent_since(account, group_accounts),
            "budgets": [_shown(each, True, made) for each in account],
            "groups": [_shown(each, True) for each in group_accounts],
            "broken": [] if after or group else _broken(services),
            "next": page,
        }
        return answer(body, page)

    def budget(call: Call) -> Response:
        account = services.ledger.account_now(call.given["namespace"])
        group = account.statement.in_force.budget.group
        shown = _shown(account, not group or may(lambda: admit(services, _RIGHT, GROUP + group)))
        request = request_answer(account.namespace, account.statement)
        if account.statement.in_force.budget.kueue == "hold":
            with services.ledger.store.reading() as connection:
                held = held_queues(connection, (account.namespace,))
            shown["warnings"] += [said.rstrip(".") for said in held.values()]
        return answer(OneBudget(version=1, silentSince=account.silent_since, request=request, **shown))

    def balances(call: Call) -> Response:
        after = shaped(call.get("after"), str)
        accounts, follows = services.ledger.account_page(call.get("limit"), after[0] if after else "")
        page = cursor(follows) if follows else None
        rows = [_balance(account) for account in accounts]
        return answer(
            BalancesAnswer(version=1, silentSince=_silent_since(accounts), balances=rows, next=page), page
        )

    def balance(call: Call) -> Response:
        account = services.ledger.account_now(call.given["namespace"])
        return answer(OneBalance(version=1, silentSince=account.silent_since, **_balance(account)))

    serve(app, services, BUDGETS, budgets)
    serve(app, services, BUDGET, budget)
    serve(app, services, BALANCES, balances)
    serve(app, services, BALANCE, balance)


def _silent_since(*accounts: list[AccountReading]) -> int | None:
    return next((account.silent_since for account in chain(*accounts)), None)


def _broken(services: Services) -> list[BrokenEntryAnswer]:
    found = services.ledger.broken_entries()
    return [{"key": key, "error": sentence} for key, sentence in sorted(found.items())]


def _balance(account: AccountReading) -> BalanceAnswer:
    """Only an account's figures."""
    return {
        "namespace": account.namespace,
        "standing": account.statement.standing,
        **bounds(account.statement.account.span),
        **_amounts(account.statement),
    }


def _amounts(statement: Statement) -> BalanceAmounts:
    """A balance in milli-GPU x milliseconds and as decimal GPU-hours."""
    balance = statement.balance
    exact: ExactBalance = {
        "granted": balance.granted,
        "carried": statement.carried,
        "posted": balance.posted,
        "pending": balance.pending,
        "reserved": balance.reserved,
        "remaining": balance.remaining,
    }
    return {**exact, "gpuHours": in_hours(exact)}


def _shown(account: AccountReading, with_group: bool, made: dict[str, _Group] | None = None) -> BudgetAnswer:
    """One account: amounts in milli-GPU x milliseconds and as decimal GPU-hours, times in milliseconds.
    ``with_group``: include the figures of its group's account; otherwise only the group's standing, which the
    namespace's own follows from. ``made``: the parts of groups that other accounts of the same answer share,
    by name; this adds its own."""
    statement = account.statement
    budget, group = statement.in_force.budget, statement.group
    groups = {} if made is None else made
    if group and budget.group not in groups:
        groups[budget.group] = _group(budget.group, group, account.group_error, with_group)
    warnings = _group_warnings(budget.group, group, account.fair_share) if with_group else ()
    placement = budget.placement or account.placement
    return {
        "namespace": account.namespace,
        "mode": account.mode,
        "modeFrom": account.mode_source if account.mode else None,
        "idle": account.idle,
        **_account(statement, account.error),
        "standing": account.statement.standing,
        "validUntil": statement.valid_until_ms,
        "exhaustedAt": statement.exhausted_ms,
        "deciding": deciding_answer(account),
        "group": groups[budget.group] if group else None,
        "protect": _protected(account.protected),
        "received": _received(account),
        "placement": placement,
        "warnings": [*ineffective_fields(budget, placement, account.fair_share), *warnings],
    }


def request_answer(
    subject: str, statement: Statement, need: BudgetNeed | None = None, pod: HeldPod | None = None
) -> RequestAnswer | None:
    """What `request_for_more` says."""
    text = request_for_more(subject, statement, need, pod)
    return {"to": people_to_ask(statement), "text": text} if text else None


def deciding_answer(account: AccountReading) -> DecidingAnswer:
    """The account that says how much the namespace or group may still spend."""
    statement = account.statement
    deciding, group = statement.deciding, statement.in_force.budget.group
    return {
        "subject": account.namespace if deciding is statement else GROUP + group,
        "remaining": deciding.balance.remaining,
        "to": bounds(deciding.account.span)["to"],
    }


def _received(account: AccountReading) -> ReceivedAnswer | None:
    if not account.statement.received and not account.each_period:
        return None
    return {
        **amount_of(account.statement.received),
        "eachPeriod": account.each_period,
        "eachPeriodGpuHours": gpu_hours(account.each_period),
    }


def _protected(reading: ProtectedReading | None) -> ProtectedAnswer | None:
    if reading is None:
        return None
    protection = reading.protection
    return {
        "labels": dict(protection.labels),
        "owners": list(protection.kinds),
        "cardsMilli": protection.cards_milli,
        "amount": protection.amount,
        "used": reading.used,
        "gpuHours": gpu_hours(reading.used),
        "rateMilli": reading.rate_milli,
        "left": reading.left,
        "pods": reading.pods,
    }


def _group(name: str, group: Statement, error: str, with_figures: bool) -> _Group:
    account = _account(group, error)
    return {"name": name, **account} if with_figures else {"name": name, "standing": account["standing"]}


def _account(statement: Statement, error: str) -> AccountAnswer:
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
            **bounds(account.span),
        },
        **_amounts(statement),
        "validUntil": alone.valid_until_ms,
        "exhaustedAt": alone.exhausted_ms,
        "lastError": error or None,
        "fairShare": fair_share(statement),
    }


def fair_share(statement: Statement) -> FairShareAnswer | None:
    """Where the account stands."""
    fair = statement.fair
    if fair is None:
        return None
    return {
        "weightMilli": fair.weight_milli,
        "halfLifeMs": fair.half_life_ms,
        "shareMilli": fair.share_milli,
        "usedMilli": fair.used_milli,
        "decayed": fair.use,
        "gpuHours": gpu_hours(fair.use),
        "rank": fair.rank,
        "of": fair.of,
    }


def _group_warnings(name: str, group: Statement | None, fair_share: str) -> tuple[str, ...]:
    if group is None:
        return ()
    if not group.in_force.key:
        return (f"group: {GROUP}{name} is not defined in any budget ConfigMap, so the group has no limit",)
    found = ineffective_fields(group.in_force.budget, fair_share=fair_share)
    return tuple(f"{group.in_force.key}: {sentence}" for sentence in found)
