"""Answers that are no page of the API's figures: rendered templates, problems and redirections."""

from http import HTTPStatus
from urllib.parse import urlsplit

from flask import Response, current_app, g, make_response, redirect, render_template, request

from timekeeper.dashboard import sessions
from timekeeper.dashboard.visits import Visit, link
from timekeeper.edge.clock import now_ms

NOT_OURS = "The form was not sent by this page, or is too old."
ACCOUNT_OF = "bursar-account-of"  # of the application's extensions: a token -> the visitor's name


def rendered(template: str, **values: object) -> Response:
    """The page with what every page has: the visitor's name, and the token of its forms."""
    secret, token = sessions.secret_of(request), sessions.token_of(request)
    about = {
        "account": current_app.extensions[ACCOUNT_OF](token) if token else "",
        "form_token": sessions.form_token(secret, token),
        "form_field": sessions.FIELD,
        "now_ms": now_ms(),
        "zone": g.zone,
    }
    visit = values.get("visit")
    if isinstance(visit, Visit):
        about["now_ms"] = visit.now_ms
    response = make_response(render_template(template, **about, **values))
    if request.cookies.get(sessions.SECRET) != secret:
        sessions.remember(response, sessions.SECRET, secret)
    return response


def problem_page(status: int, detail: str, **values: object) -> Response:
    """A page that says why there is no other."""
    page = rendered("problem.html", status=status, detail=detail, **values)
    page.status_code = status
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        page.headers["Retry-After"] = "2"  # as the API says it
    return page


def to_login(ended: bool = False) -> Response:
    """To the login, and back to the requested page. ``ended``: there was a session."""
    return redirection(_login_link(ended="1" if ended else None))


def arriving() -> Response:
    """The answer to a link of another site. A browser sends no cookie with that request, but with the next
    one, which this page makes; it sets none, for the visitor may have some."""
    return going_on(_login_link(arrived="1"))


def going_on(onward: str) -> Response:
    """A page that leads on at once."""
    response = make_response(render_template("arriving.html", onward=onward))
    response.headers["Refresh"] = f"0; url={onward}"
    return response


def _login_link(**query: str | None) -> str:
    """The address of the login that leads back to the requested page."""
    asked = request.query_string.decode(errors="replace")
    here = sessions.own_path(request.path + (f"?{asked}" if asked else ""))
    return link("/login", next=None if here == "/" else here, **query)


def redirection(path: str) -> Response:
    """To a path of this server."""
    response = make_response(redirect(path, 303))
    response.autocorrect_location_header = False
    if urlsplit(path).netloc:
        raise ValueError("a redirection stays on this server")
    return response
