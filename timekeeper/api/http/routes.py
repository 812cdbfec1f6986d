"""Routes as values: parameters, rights and answers are declared once; the declaration parses requests and
makes the OpenAPI document."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, Literal
from zoneinfo import ZoneInfo

import orjson
from flask import Flask, Response, request
from msgspec import Meta
from werkzeug.http import parse_options_header

from timekeeper.accounts.budget_history import is_group
from timekeeper.api.http.bodies import Body
from timekeeper.api.http.services import Services
from timekeeper.api.sheets.sheet import Sheet
from timekeeper.core.budgets.policy import group_key
from timekeeper.core.names import DOMAIN
from timekeeper.core.violation import first_of
from timekeeper.runtime.auth.gate import Caller
from timekeeper.runtime.http.problem_details import Problem, bad
from timekeeper.wire.forms import fits, sentence

JSON = "application/json"
CSV = "text/csv"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
TABLE_ROWS = 10_000  # of one answer without a limit
_MOST_ASKED, _MOST_NAMED = 100, 4  # namespaces of a group whose rights are looked up, and named


@dataclass(frozen=True, slots=True)
class Right:
    """The required right in API group ``bursar.dev``: in the request's namespace if it names one, else in
    all; for a group of namespaces, on the resource named by its key; with ``by_members`` also in each of
    them."""

    verb: str
    resource: str
    by_members: bool = False


def check(name: str, text: str, form: Meta) -> None:
    """Raises a Problem for a text that does not have this form."""
    if not fits(form, text):
        raise bad(name, sentence(form))


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a route. ``form``: its texts; ``value(name, text)``: its value, None: the text itself;
    raises a Problem that names the parameter. ``place``: query, path or header."""

    name: str
    about: str
    form: Meta
    value: Callable[[str, str], Any] | None = None
    place: str = "query"
    required: bool = False

    def read(self, text: str) -> Any:
        """Its value. Raises a Problem that names it."""
        check(self.name, text, self.form)
        return text if self.value is None else self.value(self.name, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRoute:
    """One route. ``right`` None: it needs none, or its handler checks rights itself. ``shared_by``: who share
    an answer that is made: all with the right, or a caller's requests; "": no two, for it is sent while it is
    read, has seats of its own, or is there already. ``answers``: content type -> type of a successful answer.
    ``refuses``: its problem statuses beside those that all routes have,
    or all with a body. ``needs``: the rights that its handler checks, in words; ``sheet``: of its Table,
    None: it has none; ``sheets``: others, by the parameter `table`; ``parts``: types that only a schema of
    its answers names."""

    method: str = "GET"
    path: str
    about: str
    right: Right | None
    answers: Mapping[str, Any]
    parameters: tuple[Parameter, ...] = ()
    body: Body[Any] | None = None
    refuses: tuple[int, ...] = ()
    needs_token: bool = True
    shared_by: Literal["right", "caller", ""] = "caller"
    needs: str = ""
    sheet: Sheet | None = None
    sheets: Mapping[str, Sheet] = field(default_factory=dict)
    parts: tuple[Any, ...] = ()

    @property
    def has_tag(self) -> bool:
        """True if its answers have an ETag."""
        return self.method == "GET" and self.path.startswith("/v1/")

    @property
    def rule(self) -> str:
        """The path in Flask's notation."""
        return self.path.replace("{", "<").replace("}", ">")


@dataclass(frozen=True, slots=True)
class Call:
    """An authorized request: its given parameters' values by name, and the caller's tenant."""

    given: Mapping[str, Any]
    tenant: str = ""

    def get(self, name: str, otherwise: Any = None) -> Any:
        """A parameter's value."""
        return self.given.get(name, otherwise)


Handler = Callable[[Call], Response]


def serve(app: Flask, services: Services, route: ApiRoute, handler: Handler) -> None:
    """Add the route. It checks authentication (401), then parameters (400) and the accepted content types
    (406), then authorization (403)."""

    def view(**in_path: str) -> Response:
        authorization = request.headers.get("Authorization")
        caller = services.gate.caller(authorization)
        given = read(route, in_path)
        options = _table_options(route)
        sheet = None if options is None else route.sheets.get(given.get("table", ""), route.sheet)
        if sheet and given.get("format", "json") != "json":
            raise bad("format", "it must be json where a Table is asked for")
        group = given.get("group")  # of reports: what to group by
        of_group = group_key(group) if isinstance(group, str) else ""
        subject = given.get("namespace") or given.get("subject") or of_group
        if route.right is not None:
            admit(services, route.right, subject)
        if sheet is not None and any(each.name == "limit" for each in route.parameters):
            given = {"limit": TABLE_ROWS, **given}

        def make() -> Response:
            made = handler(Call(given, caller.tenant))
            if sheet is None:
                return made
            answer = orjson.loads(made.get_data())
            # the zone that cut the steps
            zone = ZoneInfo(given["timeZone"]) if "timeZone" in given else services.ledger.zone()
            is_exact = (options or {}).get("exact") == "true"
            step = given.get("by", "all").removeprefix("all")
            table = sheet.table(answer, services.clock(), zone, step, is_exact)
            return Response(orjson.dumps(table), content_type=TABLE, headers={"Cache-Control": "no-store"})

        if route.method != "GET" or not route.shared_by:
            return make()
        asked = (
            request.script_root,
            request.full_path,
            str(request.accept_mimetypes),
            request.cache_control.max_age,
        )
        kind = route.path, sheet is None, subject == "", "limit" in given
        return services.shared.get((*asked, caller if route.shared_by == "caller" else None), kind, make)

    app.add_url_rule(route.rule, f"{route.method} {route.path}", view, methods=[route.method])


def _table_options(route: ApiRoute) -> Mapping[str, str] | None:
    """The options of the Table that the request prefers to the plain answer, None: it does not. Raises a
    Problem where it accepts neither."""
    ranges = sorted(request.accept_mimetypes, key=lambda each: -each[1])
    for text, quality in ranges:
        named, options = parse_options_header(text)
        if "as" in options:
            form = options["as"].lower(), options.get("v"), options.get("g")
            if route.sheet and quality and named == JSON and form == ("table", "v1", "meta.k8s.io"):
                return options
        elif quality and any(_fits(named, kind) for kind in route.answers):
            return None
    if not ranges:
        return None
    allowed = (*route.answers, *((TABLE,) if route.sheet else ()))
    raise Problem(
        HTTPStatus.NOT_ACCEPTABLE,
        f"this route has none of these types; it has {', '.join(allowed)}",
        "Accept",
    )


def _fits(accepted: str, kind: str) -> bool:
    named = kind.partition(";")[0]
    return accepted in ("*/*", f"{named.partition('/')[0]}/*", named)


def admit(services: Services, right: Right, subject: str) -> Caller:
    """The caller, if it may do this to a namespace, a group (by its key), or with an empty ``subject`` to
    all. Raises a Problem."""
    authorization = request.headers.get("Authorization")
    if not is_group(subject):
        return services.gate.allow(authorization, right.verb, right.resource, subject)
    try:
        return services.gate.allow(authorization, right.verb, right.resource, "", subject)
    except Problem as problem:
        if problem.status != HTTPStatus.FORBIDDEN or not right.by_members:
            raise
        return _admitted_by_members(services, right, subject, problem)


def _admitted_by_members(services: Services, right: Right, key: str, refused: Problem) -> Caller:
    """The caller, if it may do this in each namespace that is in the group now. Raises ``refused``, or a
    Problem that names those where it may."""
    with services.ledger.store.reading() as connection:
        members = services.ledger.members(connection, key)
    caller = services.gate.caller(request.headers.get("Authorization"))
    asked = members if len(members) <= _MOST_ASKED else ()
    mine = [name for name in asked if may(partial(admit, services, right, name))]
    if not mine:
        raise refused
    if len(mine) < len(members):
        what = f"{caller.username} may {right.verb} {right.resource}.{DOMAIN} of {key}"
        need = f"it needs the right on {key}, or in each of its namespaces"
        raise Problem(HTTPStatus.FORBIDDEN, f"{what} in {first_of(mine, _MOST_NAMED)} alone: {need}")
    return caller


def may(check: Callable[[], object]) -> bool:
    """True if the caller passes this check of a right. Raises a Problem if the API server cannot answer."""
    try:
        check()
    except Problem as problem:
        if problem.status != HTTPStatus.FORBIDDEN:
            raise
        return False
    return True


def read(route: ApiRoute, in_path: Mapping[str, str]) -> Mapping[str, Any]:
    """The values of the request's parameters: each known, given once, and valid. Raises a Problem."""
    texts = {**_query(route), **_headers(route), **in_path}
    known = {each.name: each for each in route.parameters}
    for each in route.parameters:
        if each.required and each.name not in texts:
            kind = "header" if each.place == "header" else "parameter"
            raise bad(each.name, f"this {kind} is needed: {each.about}")
    return {name: known[name].read(text) for name, text in texts.items()}


def _query(route: ApiRoute) -> Mapping[str, str]:
    known = [each.name for each in route.parameters if each.place == "query"]
    given = request.args.to_dict(flat=False)
    for name, values in given.items():
        if name not in known:
            there = f"allowed: {', '.join(known)}" if known else "this route takes none"
            raise bad(name, f"no such parameter; {there}")
        if len(values) != 1:
            raise bad(name, f"it is given {len(values)} times; once is allowed")
    return {name: values[0] for name, values in given.items()}


def _headers(route: ApiRoute) -> Mapping[str, str]:
    names = (each.name for each in route.parameters if each.place == "header")
    return {name: request.headers[name] for name in names if name in request.headers}


LARGEST_BODY = 256 * 1024  # the server reads no more of a request (`timekeeper/serving`)


def read_body() -> bytes:
    """The whole body. Raises a Problem: 413 if it is too large."""
    if (request.content_length or 0) > LARGEST_BODY:
        raise Problem(413, f"the body may have {LARGEST_BODY} bytes at most")
    return request.get_data(cache=False)
