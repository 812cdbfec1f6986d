"""The OpenAPI document describes the API: schemathesis asks every route whatever the document allows, and
what it does not, as somebody who may everything, as a pod, and as nobody."""

import copy
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.support.clock import Clock
from tests.support.profile import examples
from tests.support.routed import routed
from tests.timekeeper.books import Books, Run, days
from tests.timekeeper.worlds import ADMIN, DAY, HOUR, T0, Town, budgets, gpu_pod, node, pod_status, token
from timekeeper.api.create_app import ROUTES
from timekeeper.api.http.routes import ApiRoute
from timekeeper.api.resources.health import probes
from timekeeper.api.resources.heartbeats import HeartbeatHandler
from timekeeper.serving.gunicorn_app import heartbeat_route

Json = dict[str, Any]

POD = token("uid-pod")
JUNK = "junk.junk.junk"


def every_check() -> list[Any]:
    """Not that whatever the document allows is taken: a question may be right in each of its parts and wrong
    as a whole, such as an end before its beginning."""
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    return [
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
        checks.response_headers_conformance,
        checks.negative_data_rejection,
        checks.missing_required_header,
    ]


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Books]:
    town = Town(tmp_path_factory.mktemp("openapi"), Clock(T0 + DAY))
    entry = "gpuHours: 10\ngroup: blue\nprice: 2.5"
    town.begin(("nodes", node()), ("configmaps", budgets(team_a=entry, team_b=entry)))
    town.close()
    built = Books(town.url)
    built.reviews.tokens[POD] = pod_status(gpu_pod("pod"))
    for number in range(5):
        run = Run(f"u{number}", namespace=f"team-{'ab'[number % 2]}", labels=(("team", "x"),), owner="Job/j")
        built.write(replace(run, posted=days(T0 - DAY, T0 + HOUR), settled=number > 0))
    built.used("u1", T0, "node", HOUR, HOUR)
    yield built
    built.close()


@pytest.fixture(scope="module")
def document(books: Books) -> Json:
    found: Json = books.client.get("/v1/openapi.json").get_json()
    return found


def strict(document: Json) -> Json:
    """The document without leave to answer anything that it does not name. Tokens are the test's own: a
    request that schemathesis makes wrong by leaving the token out would be sent with one all the same."""
    made = copy.deepcopy(document)
    for operation in (made, *(each for path in made["paths"].values() for each in path.values())):
        operation.pop("security", None)
    for schema in made["components"]["schemas"].values():
        schema.setdefault("additionalProperties", False)
    return made


@pytest.fixture(scope="module")
def schema(books: Books, document: Json) -> Any:
    """What schemathesis reads in the document, and the app that it asks."""
    import schemathesis  # here, for every worker imports this file, and it takes half a second

    read = schemathesis.openapi.from_dict(strict(document))
    services = books.services
    read.app = routed(books.app, (heartbeat_route(HeartbeatHandler(services)), *probes(services.readiness)))
    return read


@pytest.mark.parametrize("bearer", [ADMIN, POD, JUNK], ids=["admin", "pod", "junk"])
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_answers_as_it_is_described(
    books: Books, schema: Any, route: ApiRoute, bearer: str
) -> None:
    import schemathesis

    operation = schema[route.path][route.method]
    good = operation.as_strategy(schemathesis.GenerationMode.POSITIVE)
    takes = route.parameters or route.body
    drawn = good | operation.as_strategy(schemathesis.GenerationMode.NEGATIVE) if takes else good
    headers = {"Authorization": f"Bearer {bearer}"} if route.needs_token else {}
    plainly = {"Accept-Encoding": "identity"}  # schemathesis would ask for gzip, and not unpack it
    books.reviews.asked.clear()
    books.services.readiness.look()
    checks = every_check()

    @settings(
        max_examples=examples(10, soak=500) if takes and bearer == ADMIN else 3,
        deadline=None,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=drawn)
    def ask(case: Any) -> None:
        answer = case.call(headers=headers | plainly)
        case.validate_response(answer, checks=checks)
        assert bearer != JUNK or not headers or answer.status_code == 401

    ask()
    assert bearer != JUNK or books.reviews.asked == []


def test_the_document_has_every_route_of_the_app_and_no_other(books: Books, document: Json) -> None:
    exist = {
        (method, re.sub(r"<(?:[a-z]+:)?(\w+)>", r"{\1}", rule.rule))
        for rule in books.app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }

    exist |= {("POST", "/v1/heartbeats"), ("GET", "/livez"), ("GET", "/readyz")}  # routes of the loop
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == exist


def test_the_document_is_openapi_3_1(document: Json) -> None:
    import schemathesis

    assert document["openapi"] == "3.1.0"
    schemathesis.openapi.from_dict(document).validate()


def test_what_a_grant_takes_and_needs_is_described_whole(document: Json) -> None:
    schemas, route = document["components"]["schemas"], document["paths"]["/v1/grants"]

    assert schemas["NewGrant"]["additionalProperties"] is False
    assert schemas["NewGrant"]["oneOf"] == [{"required": ["gpuHours"]}, {"required": ["amount"]}]
    assert "reason" in schemas["Increase"]["properties"]
    assert "`create grants`" in route["post"]["description"]
    assert "304" in route["get"]["responses"]


def test_every_body_and_answer_that_is_described_has_its_description(document: Json) -> None:
    schemas = document["components"]["schemas"]

    assert [name for name, schema in schemas.items() if not schema["description"]] == []
    assert {
        "Usage",
        "NewGrant",
        "SessionsAnswer",
        "BalancesAnswer",
        "BudgetsAnswer",
        "Standings",
    } <= schemas.keys()
