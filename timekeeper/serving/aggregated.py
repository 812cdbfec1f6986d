"""The REST API behind the API server, as an aggregated API (docs/decisions/0050). The API server
authenticates the caller and passes ``/apis/timekeeper.bursar.dev/v1/...`` on with the caller's name in
headers; it is answered as ``/v1/...``.

It has a listener of its own, whose clients must show the front proxy's certificate. Each answer ends its
connection, so every request is verified by the CA and the names of that moment, which it
follows in a ConfigMap of the API server.
"""

from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from flask import Flask, Response

from timekeeper.api.create_app import app_of
from timekeeper.api.http.answers import answer
from timekeeper.api.http.routes import LARGEST_BODY
from timekeeper.api.http.services import Services
from timekeeper.api.resources.heartbeats import PATH as HEARTBEATS
from timekeeper.core.json_values import mapping
from timekeeper.core.names import AGGREGATED_GROUP
from timekeeper.edge.reflector import UnreachableError
from timekeeper.log import log
from timekeeper.runtime.api_server import ANSWER_S, Api, accepted
from timekeeper.runtime.auth.front_proxy import FrontProxy, FrontProxyGate, front_proxy_tls, read_front_proxy
from timekeeper.runtime.auth.gate import Count
from timekeeper.runtime.http.problem_details import Problem
from timekeeper.runtime.http.service import HttpAnswer, HttpLimits, HttpService
from timekeeper.runtime.http.wsgi_gateway import REQUEST
from timekeeper.settings import TimekeeperSettings

CONFIG_MAP = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
_LOOK_INTERVAL_S = 10.0

ROOT = f"/apis/{AGGREGATED_GROUP}"
VERSION = "v1"
_THREADS = 24
_LIMITS = HttpLimits(LARGEST_BODY, connections=200)

_GROUP_VERSION = {"groupVersion": f"{AGGREGATED_GROUP}/{VERSION}", "version": VERSION}
_GROUP: dict[str, Any] = {
    "name": AGGREGATED_GROUP,
    "versions": [_GROUP_VERSION],
    "preferredVersion": _GROUP_VERSION,
}
# What the API server and its clients ask to discover. The routes are no resources: their answers are no
# Kubernetes objects, so clients such as kubectl and the namespace controller list none of them.
DISCOVERY: dict[str, dict[str, Any]] = {
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_GROUP]},
    ROOT: {"kind": "APIGroup", "apiVersion": "v1", **_GROUP},
    f"{ROOT}/{VERSION}": {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": _GROUP_VERSION["groupVersion"],
        "resources": [],
    },
}


class FrontProxyWatch:
    """What the ConfigMap says now, looked at every ten seconds. While it cannot be read the last one counts.
    One per process, made after the fork."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._stop = Event()
        self._trouble = ""
        self.now: FrontProxy | None = None  # None: there is none, and no caller is believed

    def start(self) -> None:
        """Look from now on, in a thread."""
        Thread(target=self._run, name="front-proxy", daemon=True).start()

    def _run(self) -> None:
        self.look()
        while not self._stop.wait(_LOOK_INTERVAL_S):
            self.look()

    def look(self) -> None:
        """Look once. Each trouble is logged once."""
        trouble = ""
        try:
            found = accepted(self._api.call("GET", CONFIG_MAP, timeout_s=ANSWER_S))
            self.now = read_front_proxy(mapping(found.get("data")))
        except UnreachableError as error:
            trouble = str(error)
        except ValueError as error:
            trouble, self.now = str(error), None
        if trouble and trouble != self._trouble:
            log("front-proxy-unknown", level="error", error=trouble)
        self._trouble = trouble


if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication


def aggregated_service(
    settings: TimekeeperSettings, api: Api, services: Services, count: Count
) -> HttpService:
    """The service of one worker. It starts a thread, so it is made after the fork."""
    watch = FrontProxyWatch(api)
    watch.start()
    gate = FrontProxyGate(api, lambda: watch.now, count)
    return HttpService(
        aggregated_app(replace(services, gate=gate)),
        _THREADS,
        _LIMITS,
        tls=front_proxy_tls(Path(settings.tls_cert), Path(settings.tls_key), lambda: watch.now),
        refusal=refusal,
        ends_connections=lambda: True,
        is_known=lambda shown: watch.now is not None and watch.now.is_known(shown),
    )


def aggregated_app(services: Services) -> "WSGIApplication":
    """The WSGI application. Of the timekeeper's routes it has those below ``/v1/`` alone."""
    app = app_of(services)
    for path, document in DISCOVERY.items():
        app.add_url_rule(path, path, _discovery(document))

    @app.post(HEARTBEATS)
    def heartbeats() -> Response:
        services.gate.pod(None)  # refuses every caller: the API server states no pod
        return _none(HEARTBEATS)

    return _below_root(app)


def refusal(status: HTTPStatus, sentence: str) -> HttpAnswer:
    """The answer to a request that no route has answered."""
    is_ours = status is HTTPStatus.INTERNAL_SERVER_ERROR
    return Problem(status, sentence if is_ours else f"the request cannot be read: {sentence}").http_answer()


def _discovery(document: dict[str, Any]) -> Any:
    return lambda: answer(document)


def _below_root(app: Flask) -> "WSGIApplication":
    def call(environ: dict[str, Any], start_response: "StartResponse") -> Any:
        path = environ["PATH_INFO"]
        if not environ[REQUEST].is_verified:
            problem = Problem(
                HTTPStatus.FORBIDDEN, "the certificate is not that of the API server's front proxy"
            )
            return problem.response()(environ, start_response)
        if path.startswith(f"{ROOT}/{VERSION}/"):
            return app({**environ, "SCRIPT_NAME": ROOT, "PATH_INFO": path.removeprefix(ROOT)}, start_response)
        if path not in DISCOVERY:
            return _none(path)(environ, start_response)
        return app(environ, start_response)

    return call


def _none(path: str) -> Response:
    return Problem(HTTPStatus.NOT_FOUND, f"there is no route {path}").response()
