"""The API's answers as types; the OpenAPI document is made from them. Amounts are milli-GPU x milliseconds,
times milliseconds since 1970."""

from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, TypedDict
from urllib.parse import urlencode

import msgspec
from flask import Response, request
from msgspec import Meta

from timekeeper.accounts.usage import gpu_hours
from timekeeper.core.ledger.metering import FOREVER_MS, Interval
from timekeeper.wire.values import Version

CONTENT_TYPE = "application/json"

Hours = Annotated[str, Meta(pattern=r"^-?[0-9]+(\.[0-9]{1,12})?$")]
Next = Annotated[str | None, Meta(description="the `after` of the next page; null where this is the last")]


# `from` cannot be a field name in a class statement; `to` None: it never ends
Since = TypedDict("Since", {"from": int})
Span = TypedDict("Span", {"from": int, "to": int})
Bounds = TypedDict("Bounds", {"from": int, "to": int | None})


class Versioned(TypedDict):
    """Every answer."""

    version: Version


class Accepted(Versioned):
    """What was posted is stored."""


class Paged(Versioned):
    """An answer in pages."""

    next: Next


class AmountAnswer(TypedDict):
    """An amount, and the same as exact decimal GPU-hours."""

    amount: int
    gpuHours: Hours


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


def in_hours(exact: Mapping[str, Any]) -> Any:
    """The same amounts as exact decimal GPU-hours; None: unlimited."""
    return {name: None if amount is None else gpu_hours(amount) for name, amount in exact.items()}


def amount_of(amount: int) -> AmountAnswer:
    """The amount in both forms."""
    return {"amount": amount, "gpuHours": gpu_hours(amount)}


def bounds(span: Interval) -> Bounds:
    """The times of an account's period."""
    return {"from": span.start_ms, "to": None if span.end_ms >= FOREVER_MS else span.end_ms}


def answer(body: object, next_page: str | None = None) -> Response:
    """A body with a strong ETag."""
    response = Response(msgspec.json.encode(body), content_type=CONTENT_TYPE)
    return tagged(response, next_page)


def tagged(response: Response, next_page: str | None = None) -> Response:
    """The answer with its ETag and the link to the next page."""
    if next_page is not None:
        arguments = {**request.args.to_dict(), "after": next_page}
        response.headers["Link"] = f'<{request.script_root}{request.path}?{urlencode(arguments)}>; rel="next"'
    response.headers["Cache-Control"] = "no-cache"
    response.add_etag()
    return response
