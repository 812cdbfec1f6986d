"""``GET /v1/findings``: what roles find wrong with themselves and with what they follow."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypedDict

import msgspec
from flask import Flask, Response

from timekeeper.accounts.budget_history import DAY_MS
from timekeeper.api.http.answers import Versioned, answer
from timekeeper.api.http.routes import JSON, ApiRoute, Call, Right, serve
from timekeeper.api.http.services import Services
from timekeeper.api.resources.node_usage import idle_pods
from timekeeper.api.resources.sessions import present_doubts
from timekeeper.core.findings import RoleFinding, of_classes, of_doubts, of_entries, of_use, published
from timekeeper.runtime.auth.gate import GOOD_FOR_MS
from timekeeper.store import ledger, role_findings
from timekeeper.store.engine.engine import ConflictError, UnavailableError
from timekeeper.wire.findings import PostedFinding

_OWN = "timekeeper"
_REPORT_S = 10.0


class FindingAnswer(PostedFinding, frozen=True):
    """With the role that finds it."""

    role: str


class FindingRole(TypedDict):
    """A role with a list. `ageMs`: of the list; `more`: by code, how many findings it leaves out."""

    role: str
    ageMs: int
    more: dict[str, int]


class Findings(Versioned):
    """`roles`: those that say something, the timekeeper first; `findings`: in the same order."""

    roles: list[FindingRole]
    findings: list[FindingAnswer]


FINDINGS = ApiRoute(
    path="/v1/findings",
    about="what timekeeper and extender find wrong with themselves, charges, budgets, nodes and use of cards",
    right=Right("get", "sessions"),
    answers={JSON: Findings},
)
ROUTES = (FINDINGS,)


def register(app: Flask, services: Services) -> None:
    """Add the route."""

    def findings(_call: Call) -> Response:
        now_ms = services.clock()
        with services.ledger.store.reading() as connection:
            posted = role_findings.lists(connection)
        at_ms, refused = posted.pop(_OWN, (0, None))
        rows_of_now = refused.findings if refused and now_ms - at_ms <= GOOD_FOR_MS else ()
        about_others = (RoleFinding(row.code, row.figures) for row in rows_of_now)
        lists = {_OWN: (0, published((*about_others, *_found(services))))} | {
            role: (max(0, now_ms - at_ms), msgspec.to_builtins(found))
            for role, (at_ms, found) in posted.items()
        }
        roles: list[FindingRole] = [
            {"role": role, "ageMs": age_ms, "more": its["more"]} for role, (age_ms, its) in lists.items()
        ]
        rows: list[Any] = [
            {"role": role, **row} for role, (_, its) in lists.items() for row in its["findings"]
        ]
        return answer(Findings(version=1, roles=roles, findings=rows))

    serve(app, services, FINDINGS, findings)


def keep_reporting(services: Services, wait_s: Callable[[float], object]) -> None:
    """Until ``wait_s`` is true, write whose tokens this process refuses: others are asked for findings."""
    while not wait_s(_REPORT_S):
        if found := [RoleFinding("token-refused", figures) for figures in services.gate.refused()]:
            with suppress(UnavailableError, ConflictError), services.ledger.store.writing() as connection:
                role_findings.record(connection, _OWN, published(found), services.clock())


def _found(services: Services) -> Iterator[RoleFinding]:
    yield from of_doubts(present_doubts(services))
    yield from of_use(idle_pods(services))
    with services.ledger.store.reading() as connection:
        now_ms, history = services.ledger.moment(connection)
        errors = ledger.entry_errors(connection)
    yield from of_entries(history.ended_since(now_ms - DAY_MS), errors)
    served, _ = services.ledger.standings()
    if served.revision:
        yield from of_classes(served.settings)
