"""The dashboard as a WSGI application, beside the REST API in front of which it stands."""

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from flask import Flask, Response, make_response, redirect, render_template, request, send_from_directory
from werkzeug.exceptions import HTTPException

from timekeeper.core import texts
from timekeeper.core.budgets.modes import mode_sentence
from timekeeper.core.budgets.policy import GROUP
from timekeeper.dashboard import sessions
from timekeeper.dashboard.api_caller import ApiCaller, ApiRefusedError
from timekeeper.dashboard.pages import accounts, budgets, cluster, costs, months, would
from timekeeper.dashboard.pages import cluster as decisions
from timekeeper.dashboard.pages import cluster as waste
from timekeeper.dashboard.visits import FORBIDDEN, Download, PageContent, Visit, link, segment
from timekeeper.runtime.auth.tokens import subject_of
from timekeeper.runtime.log import log_exception

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

PageMaker = Callable[..., PageContent | Download]

PAGES: dict[str, PageMaker] = {
    "/": budgets.overview,
    "/namespaces/<namespace>": accounts.namespace,
    "/groups": budgets.groups,
    "/groups/<group>": budgets.group,
    "/map": cluster.cluster,
    "/waiting": cluster.waiting,
    "/waste": waste.waste,
    "/costs": costs.costs,
    "/costs/<any(csv, focus):form>": costs.download,
    "/estimate": costs.estimated,
    "/months": months.months,
    "/months/<month>": months.month,
    "/would": would.would,
    "/decisions": decisions.decisions,
    "/pods/<namespace>/<pod>": decisions.pod,
    "/pods/<namespace>/<kind>/<name>": decisions.owner,
}
_ROOTS = frozenset({each.split("/")[1] for each in PAGES} | {"login", "logout", "static"})
_UNAUTHORIZED = 401
_NOT_OURS = "The form was not sent by this page, or is too old."
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
    api: "WSGIApplication", clock: Callable[[], int], only_meter: bool = False, token_file: str = ""
) -> "WSGIApplication":
    """The REST API with the dashboard's pages before it. ``clock``: milliseconds since 1970; ``only_meter``:
    of a ledger alone; ``token_file``: where its one visitor finds the token, "": visitors have accounts."""
    dashboard = create_dashboard(api, clock)
    dashboard.jinja_env.globals["has_extender"] = not only_meter
    dashboard.jinja_env.globals["token_file"] = token_file

    def serve(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        is_page = path.startswith("/") and path.split("/")[1] in _ROOTS
        return (dashboard if is_page else api)(environ, start_response)

    return serve


def create_dashboard(api: "WSGIApplication", clock: Callable[[], int]) -> Flask:
    """The pages alone, over this API."""
    app = Flask("timekeeper.dashboard", static_folder=None)
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    app.jinja_env.filters.update(
        hours=_hours,
        gpus=texts.gpus,
        moment=texts.moment,
        iso=_iso,
        printable=_printable,
        state=budgets.state_of,
        used=budgets.used_of,
        segment=segment,
    )
    app.jinja_env.globals.update(link=link, percent=texts.percent, age=texts.age, floor=texts.floor)
    app.jinja_env.globals.update(not_placed=texts.NOT_PLACED, mode_sentence=mode_sentence)
    app.jinja_env.globals["without_timekeeper"] = texts.WITHOUT_TIMEKEEPER
    for rule, make in PAGES.items():
        app.add_url_rule(rule, rule, _view(api, clock, make), methods=["GET"])

    @app.get("/namespaces")
    def namespace_named() -> Response:
        group = request.args.get("group", "")
        named = request.args.get("namespace", "") or f"{GROUP}{group}"
        if named.startswith(GROUP):
            return _redirect(f"/groups/{segment(named.removeprefix(GROUP))}")
        return _redirect(f"/namespaces/{segment(named)}")

    _add_passing_on(app, api, clock)
    _add_sessions(app, api)
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
            return _arriving() if sessions.is_from_elsewhere(request) else _to_login()
        visit = Visit(ApiCaller(api, token), _home(token), request.path, request.args.to_dict(), clock())
        try:
            page = make(visit, **in_path)
        except ApiRefusedError as error:
            return _refused(error, visit, in_path)
        return _sent(page) if isinstance(page, Download) else _shown(page, visit, in_path)

    return view


def _sent(file: Download) -> Response:
    response = Response(file.answer.iter_encoded(), content_type=file.answer.content_type)
    response.call_on_close(file.answer.close)
    response.headers.set("Content-Disposition", "attachment", filename=file.name)
    return response


def _shown(page: PageContent, visit: Visit, in_path: dict[str, str]) -> Response:
    chosen = in_path.get("namespace", visit.namespace)
    if "group" in in_path:
        chosen = f"{GROUP}{in_path['group']}"
    return _rendered(page.template, visit=visit, chosen=chosen, **page.values)


def _add_passing_on(app: Flask, api: "WSGIApplication", clock: Callable[[], int]) -> None:
    @app.post("/groups/<group>")
    def pass_on(group: str) -> Response:
        token = sessions.token_of(request)
        if not sessions.is_own_form(request, request.form, token):
            return _problem(400, _NOT_OURS)
        visit = Visit(ApiCaller(api, token), _home(token), request.path, {}, clock())
        try:
            form = accounts.pass_on(visit.api, group, accounts.filled_form(request.form))
            if form is None:
                return _redirect(f"{link(request.path, **{'passed-on': '1'})}#pass-on")
            page = _shown(budgets.group(visit, group, form), visit, {"group": group})
        except ApiRefusedError as error:
            return _refused(error, visit, {"group": group})
        page.status_code = form.status
        return page


def _refused(error: ApiRefusedError, visit: Visit, in_path: dict[str, str]) -> Response:
    """Without a right to all namespaces, the page of the visitor's own one; without one to that either, the
    question for another."""
    if error.status == _UNAUTHORIZED:
        return _to_login(ended=True)
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
            return _redirect(f"/namespaces/{segment(visit.home)}")
        return _redirect(visit.link(namespace=visit.home))
    return _problem(error.status, error.detail, visit=visit, asks_namespace=is_of_all or is_of_home)


def _add_sessions(app: Flask, api: "WSGIApplication") -> None:
    @app.get("/login")
    def login() -> Response:
        onward = sessions.own_path(request.args.get("next", "/"))
        if "arrived" in request.args and sessions.token_of(request):
            return _redirect(onward)
        ended = "Your session has ended. Log in again." if "ended" in request.args else ""
        return _rendered("login.html", problem=ended, next=onward)

    @app.post("/login")
    def log_in() -> Response:
        form, onward = request.form, sessions.own_path(request.form.get("next", "/"))
        token = "".join(form.get("token", "").split())
        problem = ""
        if not sessions.is_own_form(request, form, sessions.token_of(request)):
            problem = f"{_NOT_OURS} Try again."
        elif not sessions.is_storable(token):
            problem = "This is not a service account's token."
        else:
            problem = _token_problem(ApiCaller(api, token))
        if problem:
            page = _rendered("login.html", problem=problem, next=onward)
            page.status_code = 400
            return page
        response = _redirect(onward)
        sessions.remember(response, sessions.SESSION, token)
        return response

    @app.post("/logout")
    def log_out() -> Response:
        if not sessions.is_own_form(request, request.form, sessions.token_of(request)):
            return _problem(400, _NOT_OURS)
        response = _redirect("/login")
        sessions.forget(response, sessions.SESSION)
        sessions.forget(response, sessions.SECRET)
        return response


def _token_problem(caller: ApiCaller) -> str:
    """Why the API does not accept the token; "" if it does. A missing right is no matter of the login."""
    try:
        caller.get("/v1/budgets", limit=1)
    except ApiRefusedError as error:
        if error.status != FORBIDDEN:
            return f"The login failed: {error.detail}."
    return ""


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
        return _problem(error.code or 500, detail)

    @app.errorhandler(Exception)
    def own_up(error: Exception) -> Response:
        log_exception("internal-error", error, route=request.path)
        return _problem(500, "Internal error; the timekeeper's log has the details.")


def _rendered(template: str, **values: object) -> Response:
    """The page with what every page has: the visitor's name, and the token of its forms."""
    secret, token = sessions.secret_of(request), sessions.token_of(request)
    about = {
        "account": subject_of(token) if token else "",
        "form_token": sessions.form_token(secret, token),
        "form_field": sessions.FIELD,
        "now_ms": time.time_ns() // 1_000_000,
    }
    visit = values.get("visit")
    if isinstance(visit, Visit):
        about["now_ms"] = visit.now_ms
    response = make_response(render_template(template, **about, **values))
    if request.cookies.get(sessions.SECRET) != secret:
        sessions.remember(response, sessions.SECRET, secret)
    return response


def _problem(status: int, detail: str, **values: object) -> Response:
    page = _rendered("problem.html", status=status, detail=detail, **values)
    page.status_code = status
    return page


def _to_login(ended: bool = False) -> Response:
    return _redirect(_login_link(ended="1" if ended else None))


def _arriving() -> Response:
    """The answer to a link of another site. A browser sends no cookie with that request, but with the next
    one, which this page makes; it sets none, for the visitor may have some."""
    onward = _login_link(arrived="1")
    response = make_response(render_template("arriving.html", onward=onward))
    response.headers["Refresh"] = f"0; url={onward}"
    return response


def _login_link(**query: str | None) -> str:
    """The address of the login that leads back to the requested page."""
    asked = request.query_string.decode(errors="replace")
    here = sessions.own_path(request.path + (f"?{asked}" if asked else ""))
    return link("/login", next=None if here == "/" else here, **query)


def _redirect(path: str) -> Response:
    response = make_response(redirect(path, 303))
    response.autocorrect_location_header = False
    if urlsplit(path).netloc:
        raise ValueError("a redirection stays on this server")
    return response


def _home(token: str) -> str:
    """The namespace of the token's account, which the API has not checked: a first guess of what to show."""
    parts = subject_of(token).split(":")
    return parts[2] if parts[:2] == ["system", "serviceaccount"] and len(parts) == 4 else ""


def _hours(amount: int | None) -> str:
    """GPU-hours with commas between thousands."""
    text = texts.hours(amount)
    whole, point, rest = text.partition(".")
    return f"{int(whole):,}{point}{rest}" if amount is not None and abs(amount) >= texts.GPU_HOUR else text


def _iso(time_ms: int) -> str:
    """A time for machines."""
    return texts.moment(time_ms).replace(" ", "T")


def _printable(text: object) -> str:
    """Text of tenants without control characters and marks that turn the direction of writing."""
    return "".join(each if each.isprintable() else "�" for each in str(text))
