"""Asks Prometheus' HTTP API: at a URL, or at the Service found in a namespace. Each answer is bounded in
size, and as a whole in time."""

import ssl
from collections.abc import Mapping
from urllib.parse import urlencode

import orjson

from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.edge import http_client
from timekeeper.edge.http1 import MAX_BODY
from timekeeper.edge.http_client import HttpClient, server_of
from timekeeper.runtime.api_server import LIST_S, Answered, Api
from timekeeper.runtime.prometheus_settings import PrometheusSettings

FOUND_BY = "app.kubernetes.io/name=prometheus"
SMALL_BYTES = 16 * 1024 * 1024  # of an answer that is read beside other work of its process
TIMEOUT_S = 10.0  # also for an answer as a whole
_WEB_PORTS = ("web", "http-web", "http")  # of the operator, of its chart, of Prometheus' own chart


class PrometheusError(ValueError):
    """Prometheus gave no usable answer, or its Service is not found; the text says why."""


class PrometheusClient:
    """Token file and CA bundle are read before each call, for both may be renewed. ``most_bytes``: of an
    answer. For one thread."""

    def __init__(self, settings: PrometheusSettings, api: Api, most_bytes: int = MAX_BODY) -> None:
        self._settings, self._api, self._most_bytes = settings, api, most_bytes
        self._client: HttpClient | None = None

    def ask(self, path: str, **parameters: str) -> bytes:
        """The answer to a GET. Raises PrometheusError."""
        if self._client is None:
            url = self._settings.url or found(self._api, self._settings.namespace)
            self._client = HttpClient(server_of(url), http_client.connecting(self._context))
        asked = f"{path}?{urlencode(parameters)}"
        try:
            answer = self._client.call(
                "GET", asked, self._headers(), within_s=TIMEOUT_S, repeat=True, most=self._most_bytes
            )
        except http_client.FAILURES as error:
            raise PrometheusError(
                f"Prometheus does not answer: {http_client.sentence(error, TIMEOUT_S)}"
            ) from error
        if answer.status != 200:
            raise PrometheusError(f"Prometheus answers {answer.status}: {_said(answer.body)}")
        return answer.body

    def close(self) -> None:
        """Closes the connection; the next call finds the Service again, and opens another."""
        if self._client is not None:
            self._client.close()
        self._client = None

    def _context(self) -> ssl.SSLContext:
        ca = self._settings.ca
        return (
            http_client.system_context()
            if ca is None
            else http_client.trusting(http_client.read_bundle(str(ca)))
        )

    def _headers(self) -> Mapping[str, str]:
        token = self._settings.token_file and http_client.read_token(str(self._settings.token_file))
        return {"Accept-Encoding": "gzip", **({"Authorization": f"Bearer {token}"} if token else {})}


def found(api: Api, namespace: str) -> str:
    """The URL of the Service of Prometheus in the namespace, by its label; of several the first by name.
    Raises PrometheusError."""
    path = f"/api/v1/namespaces/{namespace}/services?" + urlencode({"labelSelector": FOUND_BY})
    reply = api.call("GET", path, timeout_s=LIST_S)
    if not isinstance(reply, Answered) or reply.status != 200:
        raise PrometheusError(f"the Services of namespace {namespace} cannot be listed: {reply.message}")
    urls = (service_url(each) for each in sorted(map(mapping, sequence(reply.body.get("items"))), key=_name))
    url = next((each for each in urls if each), "")
    if not url:
        raise PrometheusError(
            f"namespace {namespace} has no Service with the label {FOUND_BY} and a TCP port"
        )
    return url


def service_url(service: Json) -> str:
    """Where a Service answers: by its cluster IP, or by name where it has none; "" without a TCP port."""
    spec = mapping(service.get("spec"))
    ports = [
        each for each in map(mapping, sequence(spec.get("ports"))) if each.get("protocol", "TCP") == "TCP"
    ]
    named = {each.get("name"): each for each in reversed(ports)}
    port = next((named[name] for name in _WEB_PORTS if name in named), ports[0] if ports else {}).get("port")
    if not port:
        return ""
    name, namespace = (mapping(service.get("metadata")).get(key) for key in ("name", "namespace"))
    address = spec.get("externalName") or spec.get("clusterIP")
    host = f"{name}.{namespace}.svc" if address in (None, "", "None") else str(address)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _name(service: Json) -> str:
    return str(mapping(service.get("metadata")).get("name", ""))


def _said(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["error"])[:200]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
