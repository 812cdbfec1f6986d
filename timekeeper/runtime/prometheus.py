"""Asks Prometheus' HTTP API: at a URL, or at the Service found in a namespace. Each answer is bounded in
size, and as a whole in time."""

import time
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import urlencode

import orjson
import urllib3
from urllib3.exceptions import HTTPError

from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.runtime.api_server import LIST_S, Answered, Api
from timekeeper.runtime.prometheus_settings import PrometheusSettings
from timekeeper.runtime.timekeeper_client import MAX_BYTES

FOUND_BY = "app.kubernetes.io/name=prometheus"
SMALL_BYTES = 16 * 1024 * 1024  # of an answer that is read beside other work of its process
TIMEOUT_S = 10.0  # also for an answer as a whole
_WEB_PORTS = ("web", "http-web", "http")  # of the operator, of its chart, of Prometheus' own chart
_READ_BYTES = 65_536


class PrometheusError(ValueError):
    """Prometheus gave no usable answer, or its Service is not found; the text says why."""


class PrometheusClient:
    """Token file and CA bundle are read before each call, for both may be renewed. ``most_bytes``: of an
    answer; 0: the most that any caller takes. For one thread."""

    def __init__(self, settings: PrometheusSettings, api: Api, most_bytes: int = 0) -> None:
        self._settings, self._api, self._most_bytes = settings, api, most_bytes
        self._pool: urllib3.PoolManager | None = None
        self._url = ""

    def ask(self, path: str, **parameters: str) -> bytes:
        """The answer to a GET. Raises PrometheusError."""
        try:
            return self._answer(f"{path}?{urlencode(parameters)}")
        except (HTTPError, OSError, UnicodeError) as error:
            raise PrometheusError(f"Prometheus does not answer: {error}") from error

    def close(self) -> None:
        """Closes the connection; the next call finds the Service again, and opens another."""
        if self._pool is not None:
            self._pool.clear()
        self._pool, self._url = None, ""

    def _answer(self, path: str) -> bytes:
        self._url = self._url or self._settings.url or found(self._api, self._settings.namespace)
        if self._pool is None:
            ca = self._settings.ca
            self._pool = urllib3.PoolManager(num_pools=1, ca_certs=None if ca is None else str(ca))
        until_s = time.monotonic() + TIMEOUT_S
        response = self._pool.request(
            "GET",
            self._url + path,
            headers=self._headers(),
            timeout=TIMEOUT_S,
            retries=False,
            preload_content=False,
        )
        try:
            parts = response.stream(_READ_BYTES, decode_content=True)
            body = within(parts, until_s, most_bytes=self._most_bytes or MAX_BYTES)
        except BaseException:
            response.close()
            raise
        response.release_conn()
        if response.status != 200:
            raise PrometheusError(f"Prometheus answers {response.status}: {_said(body)}")
        return body

    def _headers(self) -> Mapping[str, str]:
        headers = {"Accept-Encoding": "gzip"}
        if self._settings.token_file is not None:
            headers["Authorization"] = (
                f"Bearer {self._settings.token_file.read_text(encoding='ascii').strip()}"
            )
        return headers


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


def within(
    parts: Iterable[bytes],
    until_s: float,
    now_s: Callable[[], float] = time.monotonic,
    most_bytes: int = MAX_BYTES,
) -> bytes:
    """The parts together. Raises PrometheusError if they are too large, or not there by ``until_s``."""
    body = bytearray()
    for part in parts:
        body += part
        if len(body) > most_bytes:
            raise PrometheusError(f"Prometheus' answer is larger than {most_bytes} bytes")
        if now_s() > until_s:
            raise PrometheusError(f"Prometheus' answer has not arrived within {TIMEOUT_S:.0f} s")
    return bytes(body)


def _name(service: Json) -> str:
    return str(mapping(service.get("metadata")).get("name", ""))


def _said(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["error"])[:200]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
