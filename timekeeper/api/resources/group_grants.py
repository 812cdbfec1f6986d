"""``/v1/groups/{group}/grants``: a group's budget among its namespaces, for the people who lead the group."""

from typing import TypedDict

from flask import Flask, Response, request

from timekeeper.accounts.budget_history import GROUP
from timekeeper.accounts.grants import CORRECTION
from timekeeper.api import sheets
from timekeeper.api.http.answers import (
    AmountAnswer,
    Bounds,
    Hours,
    Versioned,
    amount_of,
    answer,
    bounds,
    in_hours,
)
from timekeeper.api.http.bodies import Body
from timekeeper.api.http.parameters import GROUP_IN_PATH, IDEMPOTENCY_KEY
from timekeeper.api.http.routes import JSON, ApiRoute, Call, Right, admit, may, read_body, serve
from timekeeper.api.http.services import Services
from timekeeper.api.ledger.granting import GroupBudget, PassingOn, group_budget, pass_on
from timekeeper.api.resources.grants import (
    ONE_AMOUNT,
    GivenAmount,
    Namespace,
    WrittenGrantsAnswer,
    granted,
    written_answer,
)
from timekeeper.core.ledger.metering import Interval
from timekeeper.runtime.auth.gate import Caller
from timekeeper.store.engine.engine import Connection
from timekeeper.wire.values import Subject

_READ = Right("get", "grants")
_CREATE = Right("create", "groups/grants")


class NewPassingOn(GivenAmount, frozen=True, kw_only=True):
    """Either `gpuHours`, decimal with at most 8 places, or `amount`. A negative one is taken back."""

    namespace: Namespace


BODY = Body(NewPassingOn, ONE_AMOUNT)


def read_passing_on(body: bytes) -> PassingOn:
    """The body of a post. Raises a Problem that names the field."""
    new = BODY.read(body)
    # as in a correction, a negative amount takes
    return PassingOn(new.namespace, granted(new, CORRECTION), new.reason)


class PassedOnAnswer(Bounds, AmountAnswer):
    """What a group has passed on to a namespace's account, which begins at `from`."""

    namespace: Subject


class SplitAnswer(AmountAnswer):
    """What a group passes on to a namespace in each of its periods. `problem`: why it does not; empty if it
    does."""

    namespace: Subject
    problem: str


class GroupAmounts(TypedDict):
    """Exact decimal GPU-hours; null where unlimited."""

    granted: Hours | None
    passedOn: Hours
    left: Hours | None


class ExactGroup(TypedDict):
    """The same in milli-GPU x milliseconds."""

    granted: int | None
    passedOn: int
    left: int | None


class GroupGrantsAnswer(Bounds, ExactGroup, Versioned):
    """What a group was granted in its running period, and how much of it is passed on to its namespaces.
    `granted`, `left`: null if unlimited; `to`: null if it never ends; `mayPassOn`: whether the caller may
    pass on more of it; `members`: the namespaces of the group, by name; `split`: what its entry passes on
    anew in each period; parts that are not passed on yet are not `left`."""

    group: str
    gpuHours: GroupAmounts
    mayPassOn: bool
    members: list[str]
    split: list[SplitAnswer]
    namespaces: list[PassedOnAnswer]


GROUP_GRANTS = ApiRoute(
    path="/v1/groups/{group}/grants",
    about="what a group was granted in its running period, and has passed on to its namespaces",
    right=None,
    answers={JSON: GroupGrantsAnswer},
    parameters=(GROUP_IN_PATH,),
    needs="`get grants` of `_group.NAME`",
    sheet=sheets.GROUP_GRANTS,
)
PASS_ON = ApiRoute(
    method="POST",
    path="/v1/groups/{group}/grants",
    about="pass an amount on to a namespace of the group, or take it back; once per Idempotency-Key",
    right=None,
    answers={JSON: WrittenGrantsAnswer},
    parameters=(GROUP_IN_PATH, IDEMPOTENCY_KEY),
    body=BODY,
    refuses=(409, 422),
    needs="`create groups/grants` of the group",
    sheet=sheets.GRANTS,
)
ROUTES = (GROUP_GRANTS, PASS_ON)


def register(app: Flask, services: Services) -> None:
    """Add the routes."""

    def read(call: Call) -> Response:
        group = call.given["group"]
        admit(services, _READ, GROUP + group)
        with services.ledger.store.reading() as connection:
            budget = group_budget(services.ledger, connection, group)
            members = _members(services, connection, group)
        return answer(_shown(group, budget, may(lambda: _lead(services, group)), members))

    def give(call: Call) -> Response:
        group, key = call.given["group"], call.given["Idempotency-Key"]
        asked = read_passing_on(read_body())
        caller = _lead(services, group)
        given = pass_on(services.ledger, group, asked, caller.username, key)
        return written_answer(services, given)

    serve(app, services, GROUP_GRANTS, read)
    serve(app, services, PASS_ON, give)


def _lead(services: Services, group: str) -> Caller:
    """The caller, if it may pass the group's budget on. Raises a Problem."""
    authorization = request.headers.get("Authorization")
    return services.gate.allow(authorization, _CREATE.verb, _CREATE.resource, name=group)


def _members(services: Services, connection: Connection, group: str) -> list[str]:
    now_ms, history = services.ledger.moment(connection)
    return sorted(each for each in history.namespaces() if history.group(each, now_ms) == group)


def _shown(group: str, budget: GroupBudget, may_pass_on: bool, members: list[str]) -> GroupGrantsAnswer:
    exact: ExactGroup = {"granted": budget.granted, "passedOn": budget.total, "left": budget.left}
    return {
        "version": 1,
        "group": group,
        **bounds(budget.span),
        **exact,
        "gpuHours": in_hours(exact),
        "mayPassOn": may_pass_on,
        "members": members,
        "split": [
            {"namespace": name, **amount_of(amount), "problem": problem}
            for name, amount, problem in budget.split
        ],
        "namespaces": [
            {"namespace": namespace, **bounds(Interval(*times)), **amount_of(amount)}
            for (namespace, *times), amount in sorted(budget.passed_on.items())
        ],
    }
