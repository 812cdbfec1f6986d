"""Read-only routes for people, dashboards and probes: without a token on the verbs' port, which only
kube-scheduler's pod or its certificate reaches, and with one on the read-only port."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import orjson
from flask import Flask, Response, request

from scheduler_ext.reports.cluster_page import Clusters, UnknownNodeError
from scheduler_ext.reports.metrics import ExtenderMetrics
from scheduler_ext.reports.query import cluster_query, waiting_query
from scheduler_ext.reports.waiting_page import WaitingPods
from scheduler_ext.verbs.protocol import MalformedArgsError
from timekeeper.runtime.http.problem_details import answer_with_problems


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages' sources. ``unready``: why calls should go to another replica; "" if this one serves them."""

    clusters: Clusters
    waiting: WaitingPods
    metrics: ExtenderMetrics
    unready: Callable[[], str]


# Raises a Problem if the request's caller may not get this resource in the namespace ("": in all)
Admit = Callable[[str, str], object]
AdmitScraper = Callable[[], object]  # Raises a Problem if the request's caller may not read metrics


def create_app(pages: Pages, incomplete: Callable[[], str]) -> Flask:
    """The WSGI application of the verbs' port: the routes of ``pages``, without a token."""
    app = Flask("scheduler_ext", static_folder=None)
    register(app, pages, incomplete)
    answer_with_problems(app)
    return app


def register(
    app: Flask,
    pages: Pages,
    incomplete: Callable[[], str],
    admit: Admit = lambda _resource, _namespace: None,
    admit_scraper: AdmitScraper = lambda: None,
) -> None:
    """GET /v1/cluster, /v1/waiting, /metrics, /livez, /readyz. ``incomplete``: why the cluster is not known
    yet; "" if it is."""

    def told(answer: Callable[[], Mapping[str, object]]) -> Response:
        why = incomplete()
        if why:
            return said(503, why)
        try:
            return Response(orjson.dumps(answer()), mimetype="application/json")
        except MalformedArgsError as error:
            return said(400, str(error))
        except UnknownNodeError as error:
            return said(404, str(error))

    @app.get("/v1/cluster")
    def cluster() -> Response:
        admit("cards", "")
        return told(lambda: pages.clusters.answer(cluster_query(request.args.to_dict(flat=False))))

    @app.get("/v1/waiting")
    def waiting() -> Response:
        admit("decisions", request.args.get("namespace", ""))
        return told(lambda: pages.waiting.answer(waiting_query(request.args.to_dict(flat=False))))

    @app.get("/metrics")
    def exposition() -> Response:
        admit_scraper()
        return Response(pages.metrics.exposition(), mimetype="text/plain")

    @app.get("/livez")
    def livez() -> Response:
        return said(200, "ok")

    @app.get("/readyz")
    def readyz() -> Response:
        why = incomplete() or pages.unready()
        return said(503, why) if why else said(200, "ok")


def said(status: int, sentence: str) -> Response:
    """A sentence as text/plain."""
    return Response(sentence + "\n", status=status, mimetype="text/plain")
