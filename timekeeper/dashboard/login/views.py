"""The pages on which visitors log in, by a token or by the provider, and log out."""

from typing import TYPE_CHECKING

from flask import Flask, Response, make_response, redirect, request

from timekeeper.dashboard import sessions
from timekeeper.dashboard.api_caller import ApiCaller, ApiRefusedError
from timekeeper.dashboard.login import pending
from timekeeper.dashboard.login.id_token import LoginRefusedError, ProviderAwayError
from timekeeper.dashboard.login.oidc import OidcLogin
from timekeeper.dashboard.responses import NOT_OURS, going_on, problem_page, redirection, rendered
from timekeeper.dashboard.visits import FORBIDDEN
from timekeeper.runtime.auth.tokens import is_login
from timekeeper.runtime.http.problem_details import Problem

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

_AWAY = "The login's provider does not answer as it should. Try again, or log in with a token."


def add_logins(app: Flask, api: "WSGIApplication", oidc: OidcLogin | None) -> None:
    """Add the routes. ``oidc`` None: visitors log in by tokens alone."""
    _add_token_login(app, api)
    _add_logout(app, oidc)
    if oidc is not None:
        _add_oidc(app, oidc)


def _add_oidc(app: Flask, oidc: OidcLogin) -> None:
    @app.get("/login/oidc")
    def begin_login() -> Response:
        login = pending.begin(sessions.own_path(request.args.get("next", "/")))
        try:
            where = oidc.first_step(login)
        except ProviderAwayError:
            return _refused(503, _AWAY, login.onward)
        response = make_response(redirect(where, 303))
        pending.remember(response, login)
        return response

    @app.get("/login/callback")
    def end_login() -> Response:
        try:
            begun = oidc.last_step(request)
        except LoginRefusedError as error:
            response = _refused(403, f"The login failed: {error}.", "/")
        except ProviderAwayError:
            response = _refused(503, _AWAY, "/")
        except Problem as problem:
            response = _refused(problem.status, f"The login failed: {problem.detail}.", "/")
        else:
            # The provider led here, so a browser would send the session's cookie only with a request that
            # a page of ours makes.
            response = going_on(sessions.first_page(request, begun.onward))
            sessions.remember(response, sessions.SESSION, begun.token)
        pending.forget(response)
        return response


def _add_logout(app: Flask, oidc: OidcLogin | None) -> None:
    @app.post("/logout")
    def log_out() -> Response:
        token = sessions.token_of(request)
        if not sessions.is_own_form(request, request.form, token):
            return problem_page(400, NOT_OURS)
        try:
            onward = oidc.end(token) if oidc and is_login(token) else ""
        except Problem as problem:
            return problem_page(problem.status, f"You are still logged in: {problem.detail}.")
        # A form may lead to this server alone, so a page leads on to the provider.
        response = going_on(onward) if onward else redirection("/login")
        sessions.forget(response, sessions.SESSION)
        sessions.forget(response, sessions.SECRET)
        return response


def _refused(status: int, problem: str, onward: str) -> Response:
    page = rendered("login.html", problem=problem, next=onward)
    page.status_code = status
    return page


def _add_token_login(app: Flask, api: "WSGIApplication") -> None:
    @app.get("/login")
    def login() -> Response:
        onward = sessions.own_path(request.args.get("next", "/"))
        if "arrived" in request.args and sessions.token_of(request):
            return redirection(onward)
        ended = "Your session has ended. Log in again." if "ended" in request.args else ""
        return rendered("login.html", problem=ended, next=onward)

    @app.post("/login")
    def log_in() -> Response:
        form, onward = request.form, sessions.own_path(request.form.get("next", "/"))
        token = "".join(form.get("token", "").split())
        problem = ""
        if not sessions.is_own_form(request, form, sessions.token_of(request)):
            problem = f"{NOT_OURS} Try again."
        elif not sessions.is_storable(token):
            problem = "This is not a service account's token."
        else:
            problem = _token_problem(ApiCaller(api, token))
        if problem:
            return _refused(400, problem, onward)
        response = redirection(sessions.first_page(request, onward))
        sessions.remember(response, sessions.SESSION, token)
        return response


def _token_problem(caller: ApiCaller) -> str:
    """Why the API does not accept the token; "" if it does. A missing right is no matter of the login."""
    try:
        caller.get("/v1/budgets", limit=1)
    except ApiRefusedError as error:
        if error.status != FORBIDDEN:
            return f"The login failed: {error.detail}."
    return ""
