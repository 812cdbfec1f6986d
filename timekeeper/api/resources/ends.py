"""``POST /v1/ends``: each extender reports the removals of bound pods, with what proves their ends."""

from typing import Any, TypedDict

from flask import Flask, Response, request

from timekeeper.accounts.ends import ReportedEnd
from timekeeper.api.http.answers import Version, answer
from timekeeper.api.http.posts import MAX_FIGURE, OLDEST_MS, is_natural, read_object
from timekeeper.api.http.routes import JSON, ApiRoute, read_body
from timekeeper.api.http.services import Services
from timekeeper.api.resources.bindings import MAX_BINDINGS, read_identity, read_objects
from timekeeper.core.ledger.hold import PodHold
from timekeeper.core.wire import Ends
from timekeeper.runtime.http.problem_details import bad
from timekeeper.store import ends

MAX_ENDS = MAX_BINDINGS
_LATEST_MS = 2**53


def read_ends(body: bytes, received_ms: int) -> tuple[ReportedEnd, ...]:
    """Parse the body, received at that time. Raises a Problem that names the field."""
    raw = read_object(body, ())
    if raw.get("version") != 1:
        raise bad("version", "it must be 1")
    listed = read_objects(raw.get("ends"), "ends", MAX_ENDS)
    return tuple(_end(each, f"ends[{at}]", received_ms) for at, each in enumerate(listed))


def _end(raw: dict[str, Any], where: str, received_ms: int) -> ReportedEnd:
    identity = read_identity(raw, where)
    removed_age_ms = _whole(raw, "removed_age_ms", where, OLDEST_MS)
    left_age_ms = None if raw.get("left_age_ms") is None else _whole(raw, "left_age_ms", where, OLDEST_MS)
    return ReportedEnd(
        *identity,
        _hold(raw, where),
        received_ms - removed_age_ms,
        None if left_age_ms is None else received_ms - left_age_ms,
    )


def _hold(raw: dict[str, Any], where: str) -> PodHold:
    over, ended_ms = raw.get("over"), _moment(raw, "ended_ms", where)
    if not isinstance(over, bool):
        raise bad(f"{where}.over", "it must be true or false")
    if ended_ms is not None and not over:
        raise bad(f"{where}.ended_ms", "it must be null where `over` is false")
    return PodHold(
        bound_ms=_moment(raw, "bound_ms", where),
        over=over,
        ended_ms=ended_ms,
        reported_ms=_moment(raw, "reported_ms", where),
        witnessed_ms=_whole(raw, "witnessed_ms", where, _LATEST_MS),
        grace_ms=_whole(raw, "grace_ms", where, MAX_FIGURE),
        deletion_ms=_moment(raw, "deletion_ms", where),
    )


def _moment(raw: dict[str, Any], key: str, where: str) -> int | None:
    """A time that is known, or null."""
    figure = raw.get(key)
    if figure is not None and not (is_natural(figure, _LATEST_MS) and figure > 0):
        raise bad(f"{where}.{key}", f"it must be null or a whole number from 1 to {_LATEST_MS}")
    return figure


def _whole(raw: dict[str, Any], key: str, where: str, most: int) -> int:
    figure = raw.get(key)
    if not is_natural(figure, most):
        raise bad(f"{where}.{key}", f"it must be a whole number from 0 to {most}")
    return figure


PATH = "/v1/ends"


class EndsAccepted(TypedDict):
    """The ends are stored."""

    version: Version


REPORT = ApiRoute(
    "POST",
    PATH,
    "each extender reports the removals that it saw, so that a pod that ends while no settler runs is "
    "charged exactly",
    None,
    {JSON: EndsAccepted},
    body=Ends,
    refuses=(413,),
    needs="`create bindings` in all namespaces",
)
ROUTES = (REPORT,)


def register(app: Flask, services: Services) -> None:
    """Add the route."""

    @app.post(PATH)
    def removed() -> Response:
        received_ms = services.clock()
        services.gate.allow(request.headers.get("Authorization"), "create", "bindings")
        reported = read_ends(read_body(), received_ms)
        with services.ledger.store.writing() as connection:
            ends.record(connection, reported, received_ms)
        return answer({"version": 1})
