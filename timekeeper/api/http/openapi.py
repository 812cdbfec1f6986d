"""The OpenAPI 3.1 document, made from the routes' declarations and their answers' types."""

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from types import UnionType
from typing import Any, get_args

import msgspec

from timekeeper.api.http.answers import ProblemDetails
from timekeeper.api.http.routes import JSON, TABLE, ApiRoute, Parameter
from timekeeper.api.sheets.sheet import TableAnswer
from timekeeper.core import __version__
from timekeeper.runtime.http.problem_details import CONTENT_TYPE as PROBLEM
from timekeeper.wire.forms import document_of, documented

Json = dict[str, Any]
Schemas = Mapping[Any, Json]

_ALWAYS = (400, 406, 500, 503)
_WITH_TOKEN = (401, 403)
_WHY = {
    400: "a parameter, a header or the body is invalid; `field` names it",
    401: "no token, or a rejected one",
    403: "the caller lacks the permission",
    404: "the object does not exist",
    406: "the answer has none of the types in `Accept`",
    409: "the current state of the ledger does not allow it",
    413: "the body is too large",
    422: "the idempotency key was used for another grant",
    500: "internal error",
    501: "the ledger runs alone",
    503: "the database or the API server is unreachable; retry",
}


def document(routes: Iterable[ApiRoute]) -> Json:
    """The document of these routes."""
    listed = list(routes)
    schemas, components = _schemas(listed)
    paths: dict[str, Json] = {}
    for route in listed:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Bursar",
            "version": __version__,
            "description": "Budgets of GPU time. Amounts are integers, milli-GPU x milliseconds; times are"
            " milliseconds since 1970. Authorization is Kubernetes RBAC on the API group bursar.dev.",
        },
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "a service account's token for the audience `bursar`",
                }
            },
        },
    }


def _schemas(routes: Iterable[ApiRoute]) -> tuple[Schemas, Json]:
    """The JSON Schema of each type of a body or an answer, and the components that these refer to."""
    kinds: dict[Any, tuple[Any, ...]] = {ProblemDetails: (ProblemDetails,)}
    for route in routes:
        bodies = (route.body.kind,) if route.body else ()
        for kind in (*_answers(route).values(), *route.parts, *bodies):
            kinds[kind] = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    parts = list(dict.fromkeys(part for listed in kinds.values() for part in listed))
    found, described = msgspec.json.schema_components(parts, ref_template="#/components/schemas/{name}")
    components: Json = msgspec.json.decode(documented(msgspec.json.encode(described)))
    for schema in components.values():
        schema["description"] = " ".join(schema.get("description", "").split())
    for body in (route.body for route in routes if route.body and route.body.schema):
        components[body.kind.__name__] |= body.schema
    of = dict(zip(parts, found, strict=True))
    either = {kind: {"anyOf": [of[part] for part in listed]} for kind, listed in kinds.items()}
    return either | of, components


def _answers(route: ApiRoute) -> Mapping[str, Any]:
    return {**route.answers, TABLE: TableAnswer} if route.sheet else route.answers


def _operation(route: ApiRoute, schemas: Schemas) -> Json:
    said: Json = {
        "summary": route.about,
        "operationId": f"{route.method.lower()}{route.path}",
        "parameters": [_parameter(each) for each in route.parameters],
        "responses": _responses(route, schemas),
        "security": [{"token": []}] if route.needs_token else [],
    }
    needs = route.needs or (f"`{route.right.verb} {route.right.resource}`" if route.right else "")
    if needs:
        said["description"] = f"Needs {needs} in API group bursar.dev."
    if route.body is not None:
        schema = schemas[route.body.kind]
        said["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
    return said


def _parameter(given: Parameter) -> Json:
    return {
        "name": given.name,
        "in": given.place,
        "required": given.required,
        "description": given.about,
        "schema": {"type": "string", **document_of(given.form)},
    }


def _responses(route: ApiRoute, schemas: Schemas) -> Json:
    content = {kind: {"schema": schemas[answer]} for kind, answer in _answers(route).items()}
    good: Mapping[str, Json] = {"200": {"description": "the answer", "content": content}}
    if route.has_tag:
        good = {**good, "304": {"description": "the answer still has the ETag in `If-None-Match`"}}
    statuses = {*route.refuses, *(_WITH_TOKEN if route.needs_token else ()), *_ALWAYS}
    statuses |= {413} if route.body else set()
    return {**good, **{str(status): _problem(status, schemas) for status in sorted(statuses)}}


def _problem(status: int, schemas: Schemas) -> Json:
    why = _WHY.get(status, HTTPStatus(status).phrase)
    return {"description": why, "content": {PROBLEM: {"schema": schemas[ProblemDetails]}}}
