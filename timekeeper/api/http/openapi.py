"""The OpenAPI 3.1 document, made from the routes' declarations and their answers' types."""

import types
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from timekeeper.api.http.answers import ProblemDetails, TableAnswer
from timekeeper.api.http.routes import JSON, TABLE, ApiRoute, Parameter
from timekeeper.core import __version__
from timekeeper.core.forms import Form
from timekeeper.runtime.http.problem_details import CONTENT_TYPE as PROBLEM

Json = dict[str, Any]

_PLAIN: dict[Any, Json] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
}
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
    429: "another simulation is running; retry",
    500: "internal error",
    501: "the ledger runs alone",
    503: "the database or the API server is unreachable; retry",
}


def document(routes: Iterable[ApiRoute]) -> Json:
    """The document of these routes."""
    schemas: Json = {}
    paths: dict[str, Json] = {}
    for route in routes:
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
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "a service account's token for the audience `bursar`",
                }
            },
        },
    }


def schema_of(kind: Any, schemas: Json) -> Json:
    """The JSON Schema of a type. TypedDicts are collected in ``schemas``, with their additional properties,
    and referenced."""
    if kind in _PLAIN:
        return dict(_PLAIN[kind])
    if is_typeddict(kind):
        return _object(kind, schemas)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated and is_typeddict(arguments[0]):
        reference = _object(arguments[0], schemas)
        schemas[arguments[0].__name__] |= _schema_of_forms(arguments)
        return reference
    if origin is Annotated:
        return schema_of(arguments[0], schemas) | _schema_of_forms(arguments)
    if origin in (NotRequired, Required):
        return schema_of(arguments[0], schemas)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(each, schemas) for each in arguments]}
    if origin is list:
        return {"type": "array", "items": schema_of(arguments[0], schemas)}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(arguments[1], schemas)}
    raise TypeError(f"no schema for {kind}")


def _schema_of_forms(arguments: tuple[Any, ...]) -> Json:
    """Of all forms of an annotation; a later one may narrow an earlier."""
    forms = (each.schema for each in arguments if isinstance(each, Form))
    return {name: value for schema in forms for name, value in schema.items()}


def _object(kind: Any, schemas: Json) -> Json:
    reference = {"$ref": f"#/components/schemas/{kind.__name__}"}
    if kind.__name__ not in schemas:
        schemas[kind.__name__] = {}
        hints = get_type_hints(kind, include_extras=True)
        schemas[kind.__name__] = {
            "type": "object",
            "description": " ".join((kind.__doc__ or "").split()),
            "properties": {name: schema_of(hint, schemas) for name, hint in hints.items()},
            "required": sorted(kind.__required_keys__),
        }
    return reference


def _operation(route: ApiRoute, schemas: Json) -> Json:
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
        schema = schema_of(route.body.declared, schemas)
        said["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
    return said


def _parameter(given: Parameter) -> Json:
    return {
        "name": given.name,
        "in": given.place,
        "required": given.required,
        "description": given.about,
        "schema": {"type": "string", **given.form.schema},
    }


def _responses(route: ApiRoute, schemas: Json) -> Json:
    answers = {**route.answers, **({TABLE: TableAnswer} if route.sheet else {})}
    content = {kind: {"schema": schema_of(answer, schemas)} for kind, answer in answers.items()}
    good: Mapping[str, Json] = {"200": {"description": "the answer", "content": content}}
    if route.has_tag:
        good = {**good, "304": {"description": "the answer still has the ETag in `If-None-Match`"}}
    statuses = {*route.refuses, *(_WITH_TOKEN if route.needs_token else ()), *_ALWAYS}
    return {**good, **{str(status): _problem(status, schemas) for status in sorted(statuses)}}


def _problem(status: int, schemas: Json) -> Json:
    why = _WHY.get(status, HTTPStatus(status).phrase)
    return {"description": why, "content": {PROBLEM: {"schema": schema_of(ProblemDetails, schemas)}}}
