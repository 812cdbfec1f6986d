"""``GET /v1/findings``: what the timekeeper finds wrong with itself, its charges and the use of cards."""

from collections.abc import Iterator
from typing import TypedDict

from flask import Flask, Response

from timekeeper.api.http.answers import answer
from timekeeper.api.http.routes import JSON, ApiRoute, Call, Right, serve
from timekeeper.api.http.services import Services
from timekeeper.api.resources.node_usage import idle_pods
from timekeeper.api.resources.sessions import present_doubts
from timekeeper.core.findings import FindingLevel, RoleFinding, of_classes, of_doubts, of_use
from timekeeper.wire.values import Version


class FindingAnswer(TypedDict):
    """`code`: of the catalogue; `about`: what was looked at; `figures`: by name, times in milliseconds;
    `sentence`: the same for people."""

    code: str
    level: FindingLevel
    about: str
    figures: dict[str, int | str]
    sentence: str


class Findings(TypedDict):
    """The findings, those of the settler first."""

    version: Version
    findings: list[FindingAnswer]


FINDINGS = ApiRoute(
    method="GET",
    path="/v1/findings",
    about="what the timekeeper finds wrong with itself, its charges and the use of cards",
    right=Right("get", "sessions"),
    answers={JSON: Findings},
)
ROUTES = (FINDINGS,)


def register(app: Flask, services: Services) -> None:
    """Add the route."""

    def findings(_call: Call) -> Response:
        return answer({"version": 1, "findings": [_shown(finding) for finding in _found(services)]})

    serve(app, services, FINDINGS, findings)


def _found(services: Services) -> Iterator[RoleFinding]:
    yield from of_doubts(present_doubts(services))
    yield from of_use(idle_pods(services))
    served, _ = services.ledger.standings()
    if served.revision:
        yield from of_classes(served.settings)


def _shown(finding: RoleFinding) -> FindingAnswer:
    return {
        "code": finding.code,
        "level": finding.kind.level,
        "about": finding.kind.about,
        "figures": dict(finding.figures),
        "sentence": finding.sentence,
    }
