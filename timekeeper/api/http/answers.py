"""What the API answers, as types: the OpenAPI document is made from them. Amounts are milli-GPU x
milliseconds, times milliseconds since 1970."""

from typing import Annotated, Any, Literal, NotRequired, TypedDict
from urllib.parse import urlencode

import orjson
from flask import Response, request

from timekeeper.api.http.parameters import SUBJECT
from timekeeper.api.http.routes import Form
from timekeeper.core.wire import StandingWord

CONTENT_TYPE = "application/json"

Hours = Annotated[str, Form(pattern=r"^-?[0-9]+(\.[0-9]{1,12})?$")]
Next = Annotated[str | None, Form(description="the `after` of the next page; null where this is the last")]
Subject = Annotated[str, Form(pattern=f"^(?:{SUBJECT})$")]
Version = Literal[1]


class ProblemDetails(TypedDict):
    """RFC 9457. `field`: the parameter, header or field of the body that is at fault."""

    type: str
    title: str
    status: int
    detail: str
    field: NotRequired[str]


class Amounts(TypedDict):
    """A balance as exact decimal GPU-hours; null where unlimited."""

    granted: Hours | None
    carried: Hours
    posted: Hours
    pending: Hours
    reserved: Hours
    remaining: Hours | None


# `from` is no name for a field of a class
_From = TypedDict("_From", {"from": int})


class BalanceAnswer(_From):
    """What an account holds now. `to`: null where it never ends; `granted`, `remaining`: null where
    unlimited."""

    namespace: Subject
    standing: StandingWord
    to: int | None
    granted: int | None
    carried: int
    posted: int
    pending: int
    reserved: int
    remaining: int | None
    gpuHours: Amounts


class Period(_From):
    """The account's span. `kind`: null where unlimited; `to`: null where it never ends."""

    kind: str | None
    timeZone: str
    to: int | None


class AccountAnswer(TypedDict):
    """What is in force for a namespace or a group, and its account. `entry`: the key of the ConfigMap that it
    stands under, null where none; `ratio`, `warnAt`: thousandths of what was granted; `carryOver`:
    thousandths of what is left that move on; `carried`: how much of what was granted was carried over;
    `exhaustedAt`: when it is out of budget at the present rate, null where not in this period, or where it is
    already; `lastError`: what is wrong with the entry, whose last good text then stays in force."""

    standing: StandingWord
    entry: str | None
    onExhausted: str
    ratio: int | None
    warnAt: int | None
    carryOver: int
    period: Period
    granted: int | None
    carried: int
    posted: int
    pending: int
    reserved: int
    remaining: int | None
    gpuHours: Amounts
    validUntil: int | None
    exhaustedAt: int | None
    lastError: str | None


class GroupAccount(AccountAnswer):
    """The account of a namespace's group: what its members spent while they were in it."""

    name: str


class GroupStanding(TypedDict):
    """The group, for who may not see its account."""

    name: str
    standing: StandingWord


class BudgetAnswer(AccountAnswer):
    """An account with that of its group. `standing`, `validUntil` and `exhaustedAt` take both into account,
    the other figures are its own; `group`: null where in none, with name and standing alone for who may not
    `get budgets` of it."""

    namespace: Subject
    group: GroupAccount | GroupStanding | None
    warnings: list[str]


class OneBudget(BudgetAnswer):
    """One budget."""

    version: Version


class BudgetsAnswer(TypedDict):
    """The budgets, by name; those of groups on the first page."""

    version: Version
    budgets: list[BudgetAnswer]
    groups: list[BudgetAnswer]
    next: Next


class OneBalance(BalanceAnswer):
    """One account."""

    version: Version


class BalancesAnswer(TypedDict):
    """The accounts, by name."""

    version: Version
    balances: list[BalanceAnswer]
    next: Next


class GrantAnswer(_From):
    """An amount given for the account of this span; never changed. `to`: null where it never ends."""

    id: int
    subject: Subject
    to: int | None
    amount: int
    gpuHours: Hours
    kind: Literal["period", "correction", "manual", "carry", "transfer"]
    reason: str
    actor: str
    created: int


class GrantsAnswer(TypedDict):
    """Grants in the order in which they were given."""

    version: Version
    grants: list[GrantAnswer]
    next: Next


class WrittenGrantsAnswer(TypedDict):
    """What was granted under the idempotency key: one grant, or the two of a move."""

    version: Version
    grants: list[GrantAnswer]


class SessionAnswer(TypedDict):
    """One pod's hold of its cards. `requestedMilli`, `requestedMib`: what it holds of them, unweighted;
    `rateMilli`: what it is charged by; `cards`: their UUIDs, none where no placement could be trusted.
    `ended`: null while it runs, where it vanished, and where no timestamp tells when it ended: then it is
    charged until its last evidence."""

    uid: str
    namespace: str
    pod: str
    owner: str
    node: str
    models: str
    labels: dict[str, str]
    cards: list[str]
    state: Literal["open", "settled"]
    rateMilli: int
    requestedMilli: int
    requestedMib: int
    bound: int
    opened: int
    started: int | None
    ended: int | None
    vanished: int | None
    settled: int | None
    posted: int
    pending: int
    amount: int
    gpuHours: Hours


class SessionsAnswer(TypedDict):
    """Sessions by the UIDs of their pods."""

    version: Version
    sessions: list[SessionAnswer]
    next: Next


class TotalAnswer(TypedDict):
    """The sum of an answer's rows."""

    amount: int
    gpuHours: Hours


_Span = TypedDict("_Span", {"from": NotRequired[int]})


class UsageRow(_Span):
    """What was charged. The columns are those that the report is grouped by; `from` and `to` stand there
    where it is cut by the calendar; `requested` to `usedBy` where use was asked for."""

    to: NotRequired[int]
    namespace: NotRequired[str]
    group: NotRequired[str]
    pod: NotRequired[str]
    uid: NotRequired[str]
    owner: NotRequired[str]
    node: NotRequired[str]
    models: NotRequired[str]
    labels: NotRequired[dict[str, str]]
    posted: int
    pending: int
    amount: int
    gpuHours: Hours
    requested: NotRequired[int]
    measured: NotRequired[int]
    used: NotRequired[int]
    usedBy: NotRequired[Literal["node", "tenant", "node and tenant"] | None]


class Usage(_From):
    """A report. `total` is the sum of the rows of this answer."""

    version: Version
    to: int
    rows: list[UsageRow]
    total: TotalAnswer
    next: Next


class FocusUsage(_From):
    """A report in rows of FOCUS 1.2."""

    version: Version
    to: int
    rows: list[dict[str, Any]]
    next: Next


def answer(body: object, next_page: str | None = None) -> Response:
    """A body with a strong ETag: who sends that as ``If-None-Match`` is spared it."""
    response = Response(orjson.dumps(body), content_type=CONTENT_TYPE)
    return tagged(response, next_page)


def tagged(response: Response, next_page: str | None = None) -> Response:
    """The answer with its ETag, and the link to the page after it."""
    if next_page is not None:
        arguments = {**request.args.to_dict(), "after": next_page}
        response.headers["Link"] = f'<{request.path}?{urlencode(arguments)}>; rel="next"'
    response.headers["Cache-Control"] = "no-cache"
    response.add_etag()
    response.make_conditional(request)
    return response
