"""The dashboard as a WSGI application, beside the REST API in front of which it stands."""

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, tzinfo
from itertools import chain
from typing import TYPE_CHECKING

from flask import Flask, Response, g, request, send_from_directory
from markupsafe import Markup
from werkzeug.exceptions import HTTPException

from timekeeper.api import sheets
from timekeeper.api.create_app import ROUTES
from timekeeper.core import texts
from timekeeper.core.budgets.modes import mode_sentence
from timekeeper.core.budgets.policy import GROUP
from timekeeper.core.budgets.sentences import account_name, fair_sentence
from timekeeper.core.ledger.metering import calendar_name
from timekeeper.core.names import LEADS
from timekeeper.dashboard import sessions
from timekeeper.dashboard.api_caller import ApiCaller, ApiRefusedError
from timekeeper.dashboard.login.oidc import OidcLogin
from timekeeper.dashboard.login.views import add_logins
from timekeeper.dashboard.pages import accounts, budgets, cluster, costs
from timekeeper.dashboard.responses import (
    ACCOUNT_OF,
    NOT_OURS,
    arriving,
    problem_page,
    redirection,
    rendered,
    to_login,
)
from timekeeper.dashboard.visits import FORBIDDEN, Download, PageContent, Visit, link, segment
from timekeeper.log import log_exception
from timekeeper.runtime.auth.gate import Gate
from timekeeper.runtime.auth.tokens import subject_of
from timekeeper.runtime.http.problem_details import Problem

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

PageMaker = Callable[..., PageContent | Download]

PAGES: dict[str, PageMaker] = {
    "/": budgets.overview,
    "/namespaces/<namespace>": accounts.namespace,
    "/groups": budgets.groups,
    "/groups/<group>": budgets.group,
    "/map": cluster.cluster,
    "/nodes/<node>": cluster.node,
    "/waiting": cluster.waiting,
    "/waste": cluster.waste,
    "/costs": costs.costs,
    "/costs/<any(csv, focus):form>": costs.download,
    "/months": costs.months,
    "/months/<month>": costs.month,
    "/would": accounts.would,
    "/decisions": cluster.decisions,
    "/pods/<namespace>/<pod>": cluster.pod,
    "/pods/<namespace>/<kind>/<name>": cluster.owner,
}
_ROOTS = frozenset({each.split("/")[1] for each in PAGES} | {"login", "logout", "static"})
_OF_THE_API = frozenset(route.path.split("/")[1] for route in ROUTES)
_UNAUTHORIZED = 401
_END_OF_WORD = re.compile("(?<=[._])|(?<=-)(?=[0-9])")  # after other hyphens browsers break by themselves
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def with_dashboard(
    api: "WSGIApplication",
    clock: Callable[[], int],
    only_meter: bool = False,
    token_file: str = "",
    oidc: OidcLogin | None = None,
    zone: Callable[[], tzinfo] = lambda: UTC,
    gate: Gate | None = None,
) -> "WSGIApplication":
    """The REST API with the dashboard's pages before it. ``clock``: milliseconds since 1970; ``only_meter``:
    of a ledger alone; ``token_file``: where its one visitor finds the token, "": visitors have accounts;
    ``oidc``: the login by a provider, None: by tokens alone; ``zone``: the budgets', of all times shown;
    ``gate``: the API's, None: all tabs are shown."""
    dashboard = create_dashboard(api, clock, oidc, zone)
    dashboard.jinja_env.globals["has_extender"] = not only_meter
    dashboard.jinja_env.globals["opens"] = lambda path, chosen: _opens(gate, path, chosen)
    dashboard.jinja_env.globals["token_file"] = token_file

    def serve(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        root = path.split("/")[1] if path.startswith("/") else ""
        is_of_nobody = root not in _OF_THE_API and "text/html" in environ.get("HTTP_ACCEPT", "")
        return (dashboard if root in _ROOTS or is_of_nobody else api)(environ, start_response)

    return serve


def create_dashboard(
    api: "WSGIApplication",
    clock: Callable[[], int],
    oidc: OidcLogin | None = None,
    zone: Callable[[], tzinfo] = lambda: UTC,
) -> Flask:
    """The pages alone, over this API."""
    app = Flask("timekeeper.dashboard", static_folder=None)
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    app.jinja_env.filters.update(
        hours=_hours,
        cell=_cell,
        gpus=texts.gpus,
        moment=lambda time_ms: texts.moment(time_ms, _zone()),
        exact=lambda time_ms: texts.moment(time_ms, _zone(), "seconds"),
        month=lambda time_ms: calendar_name("month", str(_zone()), time_ms),
        iso=_iso,
        printable=_printable,
        name=_name,
        in_zone=lambda text: texts.in_zone(str(text), _zone()),
        state=budgets.state_of,
        used=budgets.used_of,
        segment=segment,
    )
    app.jinja_env.globals.update(
        link=link, percent=texts.percent, share=texts.share, floor=texts.floor, caps=texts.caps
    )
    app.jinja_env.globals["sheets"] = sheets
    app.jinja_env.globals["account_name"] = account_name
    app.jinja_env.globals["fair_sentence"] = fair_sentence
    app.jinja_env.globals.update(not_placed=texts.NOT_PLACED, mode_sentence=mode_sentence)
    app.jinja_env.globals["without_timekeeper"] = texts.WITHOUT_TIMEKEEPER
    app.jinja_env.globals["work_without_timekeeper"] = texts.WORK_WITHOUT_TIMEKEEPER

    @app.before_request
    def read_zone() -> None:
        g.zone = UTC if request.path.startswith("/static/") else zone()

    for rule, make in PAGES.items():
        app.add_url_rule(rule, rule, _view(api, clock, make), methods=["GET"])

    @app.get("/namespaces")
    def namespace_named() -> Response:
        group = request.args.get("group", "")
        named = request.args.get("namespace", "") or f"{GROUP}{group}"
        if named.startswith(GROUP):
            return redirection(f"/groups/{segment(named.removeprefix(GROUP))}")
        return redirection(f"/namespaces/{segment(named)}")

    _add_passing_on(app, api, clock)
    add_logins(app, api, oidc)
    app.extensions[ACCOUNT_OF] = oidc.sessions.name_of if oidc else subject_of
    app.jinja_env.globals["has_oidc"] = oidc is not None
    _add_static(app)
    _add_errors(app)

    @app.after_request
    def protect(response: Response) -> Response:
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    return app


def _view(api: "WSGIApplication", clock: Callable[[], int], make: PageMaker) -> Callable[..., Response]:
    def view(**in_path: str) -> Response:
        token = sessions.token_of(request)
        if not token:
            return arriving() if sessions.is_from_elsewhere(request) else to_login()
        visit = Visit(
            ApiCaller(api, token), _home(token), request.path, request.args.to_dict(), clock(), zone=_zone()
        )
        try:
            page = make(visit, **in_path)
        except ApiRefusedError as error:
            return _refused(error, visit, in_path)
        if isinstance(page, Download):
            return _sent(page)
        shown = _shown(page, visit, in_path)
        sessions.remember_page(shown, request.full_path.rstrip("?"))
        return shown

    return view


def _sent(file: Download) -> Response:
    body = chain((file.start,), file.answer.iter_encoded())
    response = Response(body, content_type=file.answer.content_type)
    response.call_on_close(file.answer.close)
    response.headers.set("Content-Disposition", "attachment", filename=file.name)
    return response


def _shown(page: PageContent, visit: Visit, in_path: dict[str, str]) -> Response:
    chosen = in_path.get("namespace", visit.namespace)
    if "group" in in_path:
        chosen = f"{GROUP}{in_path['group']}"
    return rendered(page.template, visit=visit, chosen=chosen, **page.values)


def _add_passing_on(app: Flask, api: "WSGIApplication", clock: Callable[[], int]) -> None:
    @app.post("/groups/<group>")
    def pass_on(group: str) -> Response:
        token = sessions.token_of(request)
        if not sessions.is_own_form(request, request.form, token):
            return problem_page(400, NOT_OURS)
        visit = Visit(ApiCaller(api, token), _home(token), request.path, {}, clock(), zone=_zone())
        try:
            form = accounts.filled_form(request.form)
            refused = accounts.pass_on(visit.api, group, form)
            if refused is None:
                return redirection(f"{link(request.path, **{'passed-on': form.texts['namespace']})}#pass-on")
            page = _shown(budgets.group(visit, group, refused), visit, {"group": group})
        except ApiRefusedError as error:
            return _refused(error, visit, {"group": group})
        page.status_code = refused.status
        return page


def _refused(error: ApiRefusedError, visit: Visit, in_path: dict[str, str]) -> Response:
    """Without a right to all namespaces, the page of the visitor's own one; without one to that either, the
    question for another."""
    if error.status == _UNAUTHORIZED:
        return to_login(ended=True)
    named = {name: in_path[name] for name in ("namespace", "group") if name in in_path}
    if visit.namespace:
        named["namespace"] = visit.namespace
    is_of_all = error.status == FORBIDDEN and not named
    is_of_home = (
        not visit.path.startswith("/pods/")
        and error.status == FORBIDDEN
        and named == {"namespace": visit.home}
    )
    if is_of_all and visit.home:
        if visit.path == "/":
            return redirection(_own_page(visit))
        return redirection(visit.link(namespace=visit.home))
    return problem_page(error.status, error.detail, visit=visit, asks_namespace=is_of_all or is_of_home)


def _own_page(visit: Visit) -> str:
    """Of the account: its namespace's; of a group's leads the group's, which the account is named after."""
    if visit.home == LEADS:
        return f"/groups/{segment(subject_of(sessions.token_of(request)).rpartition(':')[2])}"
    return f"/namespaces/{segment(visit.home)}"


_NEEDS = {"/map": "sessions", "/waiting": "sessions", "/decisions": "decisions"}


def _opens(gate: Gate | None, path: str, chosen: str) -> bool:
    """Whether a tab is shown: not to one who reads all budgets, and nothing of this page."""
    resource, token = _NEEDS.get(path), f"Bearer {sessions.token_of(request)}"
    if gate is None or resource is None or chosen.startswith(GROUP):
        return True
    where = ("", chosen) if chosen else ("",)
    is_refused = all(_is_refused(gate, token, resource, namespace) for namespace in where)
    return not is_refused or _is_refused(gate, token, "budgets", "")


def _is_refused(gate: Gate, token: str, resource: str, namespace: str) -> bool:
    """Whether the visitor may not read it; False also where the API server cannot be asked."""
    try:
        gate.allow(token, "get", resource, namespace)
    except Problem as problem:
        return problem.status == FORBIDDEN
    return False


def _add_static(app: Flask) -> None:
    @app.get("/static/<name>")
    def static(name: str) -> Response:
        response = send_from_directory(f"{app.root_path}/static", name)
        response.headers["Cache-Control"] = "no-cache"  # its ETag says whether it is new
        return response


def _add_errors(app: Flask) -> None:
    @app.errorhandler(HTTPException)
    def refuse(error: HTTPException) -> Response:
        detail = "There is no such page." if error.code == 404 else error.description or error.name
        return problem_page(error.code or 500, detail)

    @app.errorhandler(Exception)
    def own_up(error: Exception) -> Response:
        log_exception("internal-error", error, route=request.path)
        return problem_page(500, "Internal error; the timekeeper's log has the details.")


def _home(token: str) -> str:
    """The namespace of the token's account, which the API has not checked: a first guess of what to show."""
    parts = subject_of(token).split(":")
    return parts[2] if parts[:2] == ["system", "serviceaccount"] and len(parts) == 4 else ""


def _hours(amount: int | None) -> str:
    """GPU-hours with commas between thousands."""
    return _with_commas(texts.hours(amount), amount)


def _cell(amount: int | None, is_used: bool = False) -> str:
    """The same in a column."""
    return _with_commas(texts.cell(amount, is_used), amount)


def _with_commas(text: str, amount: int | None) -> str:
    whole, point, rest = text.partition(".")
    return f"{int(whole):,}{point}{rest}" if amount is not None and abs(amount) >= texts.GPU_HOUR else text


def _iso(time_ms: int) -> str:
    """A time for machines."""
    return f"{datetime.fromtimestamp(time_ms // 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _zone() -> tzinfo:
    """The budgets' time zone, as of the beginning of this request."""
    zone: tzinfo = g.zone
    return zone


def _printable(text: object) -> str:
    """Text of tenants without control characters and marks that turn the direction of writing."""
    return "".join(each if each.isprintable() else "�" for each in str(text))


def _name(text: object) -> Markup:
    """A name, printable, that may be broken after each of its words."""
    return Markup("<wbr>").join(_END_OF_WORD.split(_printable(text)))
