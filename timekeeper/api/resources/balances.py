"""``GET /v1/balances`` and ``/v1/balances/{namespace}``: only the figures of an account."""

from typing import Any

from flask import Flask, Response

from timekeeper.api.http.answers import BalancesAnswer, OneBalance, answer
from timekeeper.api.http.parameters import AFTER, LIMIT, NAMESPACE_IN_PATH, cursor, shaped
from timekeeper.api.http.routes import JSON, ApiRoute, Call, Right, serve
from timekeeper.api.http.services import Services
from timekeeper.api.resources.budgets import figures

_RIGHT = Right("get", "balances")

BALANCES = ApiRoute(
    "GET",
    "/v1/balances",
    "the present balance of every account, by name",
    _RIGHT,
    {JSON: BalancesAnswer},
    (LIMIT, AFTER),
)
BALANCE = ApiRoute(
    "GET",
    "/v1/balances/{namespace}",
    "the present balance of one account",
    _RIGHT,
    {JSON: OneBalance},
    (NAMESPACE_IN_PATH,),
)
ROUTES = (BALANCES, BALANCE)


def register(app: Flask, services: Services) -> None:
    """Add the routes."""

    def balances(call: Call) -> Response:
        after = shaped(call.get("after"), str)
        accounts, follows = services.ledger.account_page(call.get("limit"), after[0] if after else "")
        page = cursor(follows) if follows else None
        rows: list[dict[str, Any]] = [figures(each) for each in accounts]
        return answer({"version": 1, "balances": rows, "next": page}, page)

    def balance(call: Call) -> Response:
        return answer({"version": 1, **figures(services.ledger.account_now(call.given["namespace"]))})

    serve(app, services, BALANCES, balances)
    serve(app, services, BALANCE, balance)
