"""The API's answers as types; the OpenAPI document is made from them. Amounts are milli-GPU x milliseconds,
times milliseconds since 1970."""

from typing import Annotated, Any, Literal, NotRequired, TypedDict
from urllib.parse import urlencode

import msgspec
from flask import Response, request
from msgspec import Meta

from timekeeper.accounts.card_use.idleness import IdleAction
from timekeeper.accounts.usage import gpu_hours
from timekeeper.core.budgets.modes import ModeSource
from timekeeper.core.ledger.months import ChargeCorrection
from timekeeper.core.wire import StandingWord
from timekeeper.wire.values import Subject, Version

CONTENT_TYPE = "application/json"

Hours = Annotated[str, Meta(pattern=r"^-?[0-9]+(\.[0-9]{1,12})?$")]
Next = Annotated[str | None, Meta(description="the `after` of the next page; null where this is the last")]


class FieldError(TypedDict):
    """One of several faults of a request. `field`: of the body; empty if it is about none."""

    detail: str
    field: str


class ProblemDetails(TypedDict):
    """RFC 9457. `field`: the invalid parameter, header or body field; `errors`: where the ledger refuses
    several fields of the body, all of them, the first as in `detail` and `field`."""

    type: str
    title: str
    status: int
    detail: str
    field: NotRequired[str]
    errors: NotRequired[list[FieldError]]


class Amounts(TypedDict):
    """A balance as exact decimal GPU-hours; null where unlimited."""

    granted: Hours | None
    carried: Hours
    posted: Hours
    pending: Hours
    reserved: Hours
    remaining: Hours | None


# `from` cannot be a field name in a class statement
_From = TypedDict("_From", {"from": int})


class BalanceAnswer(_From):
    """An account's present balance. `to`: null if it never ends; `granted`, `remaining`: null if
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
    """The account's period. `kind`: null if unlimited; `to`: null if it never ends."""

    kind: str | None
    timeZone: str
    to: int | None


class AccountAnswer(TypedDict):
    """The budget in force for a namespace or group, and its account. `entry`: the ConfigMap key that applies,
    or null; `ratioMilli`, `warnAtMilli`: thousandths of the grant; `carryOverMilli`: thousandths of the
    remainder that carry over; `carried`: the carried-over part of the grant; `exhaustedAt`: when
    the budget runs out at the present rate, null if not in this period or already exhausted; `lastError`:
    the entry's error; its last valid text stays in force; `maxGPUsMilli`, `maxGPUsPerPodMilli`: what the
    namespace, and a pod of it, may hold at a time, null: any number."""

    standing: StandingWord
    entry: str | None
    onExhausted: str
    ratioMilli: int | None
    warnAtMilli: int | None
    carryOverMilli: int
    maxGPUsMilli: int | None
    maxGPUsPerPodMilli: int | None
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


class ReceivedAnswer(TypedDict):
    """What groups have passed on to a namespace for its period, beside its own `gpuHours`, and what its group
    passes on anew in each period."""

    amount: int
    gpuHours: Hours
    eachPeriod: int
    eachPeriodGpuHours: Hours


class BudgetAnswer(AccountAnswer):
    """An account with its group's. `standing`, `validUntil` and `exhaustedAt` consider both; the other
    figures are the namespace's own. `group`: null without a group; only name and standing for callers that
    may not `get budgets` of it. `protect`: null if the entry protects no pods; `placement`: `off` where pods
    keep their scheduler, else `on`. `received`: null where no group passes anything on. `mode`: the one
    in force, null for a group; `modeFrom`: what it comes from, the namespace's entry, its label,
    `_defaults`, the cluster, or a ledger that governs nothing. `idle`: what happens to idle pods, null:
    nothing does."""

    namespace: Subject
    mode: Literal["enforce", "observe", "meter"] | None
    modeFrom: ModeSource | None
    idle: IdleAction | None
    group: GroupOfBudget
    protect: ProtectedAnswer | None
    received: ReceivedAnswer | None
    placement: str
    warnings: list[str]


class OneBudget(BudgetAnswer):
    """One budget."""

    version: Version


class BrokenEntryAnswer(TypedDict):
    """A budget entry with mistakes. `error`: its ConfigMap, and each mistake with its line and field."""

    key: str
    error: str


class BudgetsAnswer(TypedDict):
    """Budgets by name; groups' budgets, and the entries with mistakes, are on the first page."""

    version: Version
    budgets: list[BudgetAnswer]
    groups: list[BudgetAnswer]
    broken: list[BrokenEntryAnswer]
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
    """An amount granted to the account of this period; never changed. `to`: null if it never ends."""

    id: int
    subject: Subject
    to: int | None
    amount: int
    gpuHours: Hours
    kind: Literal["period", "correction", "manual", "carry", "transfer"]
    reason: str
    actor: str
    created: int
    group: Annotated[str | None, Meta(description="the group that passed the amount on; null: none")]


class GrantsAnswer(TypedDict):
    """Grants in order of creation."""

    version: Version
    grants: list[GrantAnswer]
    next: Next


class PassedOnAnswer(_From):
    """What a group has passed on to a namespace's account, which begins at `from`."""

    namespace: Subject
    to: int | None
    amount: int
    gpuHours: Hours


class SplitAnswer(TypedDict):
    """What a group passes on to a namespace in each of its periods. `problem`: why it does not; empty if it
    does."""

    namespace: Subject
    amount: int
    gpuHours: Hours
    problem: str


class GroupAmounts(TypedDict):
    """Exact decimal GPU-hours; null where unlimited."""

    granted: Hours | None
    passedOn: Hours
    left: Hours | None


class GroupGrantsAnswer(_From):
    """What a group was granted in its running period, and how much of it is passed on to its namespaces.
    `granted`, `left`: null if unlimited; `to`: null if it never ends; `mayPassOn`: whether the caller may
    pass on more of it; `members`: the namespaces of the group, by name; `split`: what its entry passes on
    anew in each period; parts that are not passed on yet are not `left`."""

    version: Version
    group: str
    to: int | None
    granted: int | None
    passedOn: int
    left: int | None
    gpuHours: GroupAmounts
    mayPassOn: bool
    members: list[str]
    split: list[SplitAnswer]
    namespaces: list[PassedOnAnswer]


class WrittenGrantsAnswer(TypedDict):
    """The grants under the idempotency key: one, or the two of a transfer."""

    version: Version
    grants: list[GrantAnswer]


class ClaimedDeviceAnswer(TypedDict):
    """A GPU that a claim holds. `share`: the ID of a share of the device, "": all of
    it; `milli`: which part of a whole device it is, in thousandths; `admin`: by admin access, which is
    free."""

    driver: str
    pool: str
    device: str
    deviceClass: str
    share: str
    milli: int
    admin: bool


class SessionAnswer(TypedDict):
    """One pod's hold of its cards, or with the `kind` claim one allocation of a device claim: then `pod` is
    the claim's name, `devices` are its GPUs, and `consumers` the UIDs of the pods that it is reserved
    for; with the kind `host` what the pod's CPU and memory cost beyond its cards. `admittedInBudget`: false
    if its namespace was over budget when it was created, and did not hold it; in mode `enforce` such a pod
    has the class of pods over budget; null for cards that are reserved for a pod, and for a pod that is
    metered alone. `requestedMilli`, `requestedMib`: its unweighted share of them; `rateMilli`: the rate it is
    charged at; `cards`: their UUIDs, empty if its placement is not trusted. `ended`: null while it runs, if
    the pod vanished, and if no timestamp says when it ended: then it is charged until its last evidence.
    `forgivenMs`: for how long from `bound` on it is not charged, because the start of its gang came to
    nothing. `doubt`: why its rate is not certain, null: it is."""

    uid: str
    namespace: str
    pod: str
    owner: str
    node: str
    models: str
    labels: dict[str, str]
    cards: list[str]
    kind: Literal["pod", "claim", "host"]
    devices: list[ClaimedDeviceAnswer]
    consumers: list[str]
    state: Literal["open", "settled"]
    admittedInBudget: bool | None
    rateMilli: int
    doubt: str | None
    requestedMilli: int
    requestedMib: int
    bound: int
    forgivenMs: int
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
    """Sessions by pod UID."""

    version: Version
    sessions: list[SessionAnswer]
    next: Next


class HeldPodAnswer(TypedDict):
    """A pod behind the gate, or a gang as one: `gang` is its name, else empty, `pods` how many of its pods
    are held, `pod` and `uid` are of the oldest. `ahead`: held pods and gangs of its namespace that are
    released before it; `rateMilli`: the highest rate that it can have; `lengthMs`: its declared time and
    grace, which it reserves, 0: it reserves the lookahead; `earliest`: when it is released at the earliest by
    the present budget, null: not by this budget."""

    uid: str
    namespace: str
    pod: str
    gang: str
    pods: int
    waitsFor: Literal["budget", "turn"]
    priority: int
    created: int
    rateMilli: int
    lengthMs: int
    ahead: int
    earliest: int | None


class HeldAnswer(TypedDict):
    """Held pods in the order of their release, by namespace."""

    version: Version
    held: list[HeldPodAnswer]
    next: Next


class TotalAnswer(TypedDict):
    """The sum of an answer's rows."""

    amount: int
    gpuHours: Hours


_Span = TypedDict("_Span", {"from": NotRequired[int]})


class UsageRow(_Span):
    """A charge. Columns depend on `group`; `from` and `to` appear if the report is cut by the calendar or has
    several time ranges; `requested` to `usedBy` if use was requested. `stranded`: milli-GPU x ms that the
    namespace stranded, and `strandedKnown`: for how many ms of the row's time that is known."""

    to: NotRequired[int]
    namespace: NotRequired[str]
    group: NotRequired[str]
    pod: NotRequired[str]
    uid: NotRequired[str]
    owner: NotRequired[str]
    node: NotRequired[str]
    models: NotRequired[str]
    claim: NotRequired[str]
    classes: NotRequired[str]
    drivers: NotRequired[str]
    devices: NotRequired[str]
    labels: NotRequired[dict[str, str]]
    posted: int
    pending: int
    amount: int
    gpuHours: Hours
    requested: NotRequired[int]
    measured: NotRequired[int]
    used: NotRequired[int]
    usedBy: NotRequired[Literal["node", "tenant", "node and tenant"] | None]
    stranded: NotRequired[int]
    strandedKnown: NotRequired[int]


class CorrectionAnswer(TypedDict):
    """What a person corrected of a bill. `at`: when the wrong charge was, whose price counts; `created`: when
    it was corrected, in whose month it is billed; `pod`: empty for none in particular."""

    id: int
    namespace: str
    pod: str
    at: int
    amount: int
    gpuHours: str
    reason: str
    actor: str
    created: int


class Usage(_From):
    """A report. `clusterName`: of the month of its end, null: none; `total`: the sum of this answer's rows;
    `corrections`: made in its time, with its last rows."""

    version: Version
    to: int
    clusterName: str | None
    rows: list[UsageRow]
    total: TotalAnswer
    corrections: list[CorrectionAnswer]
    next: Next


class FocusUsage(_From):
    """A report in FOCUS 1.2 rows. `clusterName`: of the month of its end, null: none."""

    version: Version
    to: int
    clusterName: str | None
    rows: list[dict[str, Any]]
    next: Next


class TableColumn(TypedDict):
    """A column. `name`: its heading; `format`: what the cells are, as text, such as `gpu-hours`,
    `date-time`, `duration`, `percent` or `namespace`; `priority`: above 0 only wide tables show it; `key`:
    its name in CSV."""

    name: str
    type: Literal["string", "integer"]
    format: str
    description: str
    priority: int
    key: str


class TableRow(TypedDict):
    """`cells`: for people, null: there is none."""

    cells: list[str | int | None]


class TableAnswer(TypedDict):
    """A Table of `meta.k8s.io/v1`, as kubectl asks for one. `metadata.continue`: the `after` of the next
    page, empty where this is the last; `empty`: what is said where there are no rows; `notes`: sentences
    below the table; `warnings`: about it. `key`, `empty`, `notes` and `warnings` are Bursar's own."""

    kind: Literal["Table"]
    apiVersion: Literal["meta.k8s.io/v1"]
    metadata: dict[str, str]
    columnDefinitions: list[TableColumn]
    rows: list[TableRow]
    empty: str
    notes: list[str]
    warnings: list[str]


def correction_answer(each: ChargeCorrection) -> dict[str, Any]:
    """A `CorrectionAnswer`."""
    return {
        "id": each.number,
        "namespace": each.namespace,
        "pod": each.pod,
        "at": each.at_ms,
        "amount": each.amount,
        "gpuHours": gpu_hours(each.amount),
        "reason": each.reason,
        "actor": each.actor,
        "created": each.created_ms,
    }


def answer(body: object, next_page: str | None = None) -> Response:
    """A body with a strong ETag; a request with that ETag in ``If-None-Match`` gets 304."""
    response = Response(msgspec.json.encode(body), content_type=CONTENT_TYPE)
    return tagged(response, next_page)


def tagged(response: Response, next_page: str | None = None) -> Response:
    """The answer with its ETag and the link to the next page."""
    if next_page is not None:
        arguments = {**request.args.to_dict(), "after": next_page}
        response.headers["Link"] = f'<{request.script_root}{request.path}?{urlencode(arguments)}>; rel="next"'
    response.headers["Cache-Control"] = "no-cache"
    response.add_etag()
    response.make_conditional(request)
    return response
