"""``/v1/groups/{group}/grants``: a group's budget among its namespaces, for the people who lead the group."""

from http import HTTPStatus
from typing import Any

from flask import Flask, Response, request

from timekeeper.accounts.budget_history import GROUP
from timekeeper.accounts.grants import CORRECTION
from timekeeper.accounts.usage import gpu_hours
from timekeeper.api import sheets
from timekeeper.api.http.answers import GroupGrantsAnswer, WrittenGrantsAnswer, answer
from timekeeper.api.http.bodies import Body
from timekeeper.api.http.parameters import GROUP_IN_PATH, IDEMPOTENCY_KEY
from timekeeper.api.http.routes import JSON, ApiRoute, Call, Right, admit, read_body, serve
from timekeeper.api.http.services import Services
from timekeeper.api.ledger.granting import GroupBudget, PassingOn, group_budget, pass_on
from timekeeper.api.resources.grants import (
    ONE_AMOUNT,
    GivenAmount,
    Namespace,
    granted,
    written_answer,
)
from timekeeper.core.ledger.metering import FOREVER_MS
from timekeeper.runtime.auth.gate import Caller
from timekeeper.runtime.http.problem_details import Problem
from timekeeper.store.engine.engine import Connection

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


GROUP_GRANTS = ApiRoute(
    method="GET",
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
    refuses=(409, 413, 422),
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
        shown = {**_shown(group, budget), "mayPassOn": _may_pass_on(services, group)}
        return answer({**shown, "members": members})

    def give(call: Call) -> Response:
        group, key = call.given["group"], call.given["Idempotency-Key"]
        asked = read_passing_on(read_body())
        caller = _lead(services, group)
        given = pass_on(services.ledger, group, asked, caller.username, key)
        return written_answer(given)

    serve(app, services, GROUP_GRANTS, read)
    serve(app, services, PASS_ON, give)


def _lead(services: Services, group: str) -> Caller:
    """The caller, if it may pass the group's budget on. Raises a Problem."""
    authorization = request.headers.get("Authorization")
    return services.gate.allow(authorization, _CREATE.verb, _CREATE.resource, name=group)


def _may_pass_on(services: Services, group: str) -> bool:
    try:
        _lead(services, group)
    except Problem as problem:
        if problem.status != HTTPStatus.FORBIDDEN:
            raise
        return False
    return True


def _members(services: Services, connection: Connection, group: str) -> list[str]:
    now_ms, history = services.ledger.moment(connection)
    return sorted(each for each in history.namespaces() if history.group(each, now_ms) == group)


def _shown(group: str, budget: GroupBudget) -> dict[str, Any]:
    exact = {"granted": budget.granted, "passedOn": budget.total, "left": budget.left}
    return {
        "version": 1,
        "group": group,
        "from": budget.span.start_ms,
        "to": _end(budget.span.end_ms),
        **exact,
        "gpuHours": {name: None if each is None else gpu_hours(each) for name, each in exact.items()},
        "split": [
            {"namespace": name, "amount": amount, "gpuHours": gpu_hours(amount), "problem": problem}
            for name, amount, problem in budget.split
        ],
        "namespaces": [
            {
                "namespace": namespace,
                "from": start_ms,
                "to": _end(end_ms),
                "amount": amount,
                "gpuHours": gpu_hours(amount),
            }
            for (namespace, start_ms, end_ms), amount in sorted(budget.passed_on.items())
        ],
    }


def _end(end_ms: int) -> int | None:
    return None if end_ms >= FOREVER_MS else end_ms
