"""The Kubernetes API server, with the timekeeper's own credentials: HTTP/1.1 kept alive, JSON by orjson.

The `kubernetes` package finds and renews the credentials; the calls themselves are raw, for decoding a
hundred thousand pods into its objects takes minutes.
"""

import os
import ssl
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

import orjson
import urllib3
from kubernetes import client, config

from timekeeper.core.kube.reflector import ExpiredError, UnreachableError
from timekeeper.settings import UnusableError

Json = Mapping[str, Any]

_CONNECT_S = 5.0
_ANSWER_S = 15.0
_PAGE = 500
_GONE = 410

_ALLOWED = (
    "it must be a YAML file with clusters, users, contexts and current-context, as kubectl reads it, such as"
    " /etc/kubernetes/admin.conf; or nothing, in a pod that has a service account"
)


class RefusedError(UnreachableError):
    """The API server understood and said no; ``status`` is its HTTP code, ``body`` the Status that it sent,
    as far as there was one."""

    def __init__(self, status: int, sentence: str, body: Json) -> None:
        super().__init__(sentence)
        self.status = status
        self.body = body


class ApiServer:
    """Calls of one process. Not to be carried over a fork: its connections would be shared."""

    def __init__(self, configuration: client.Configuration) -> None:
        configuration.connection_pool_maxsize = 32
        self._configuration = configuration
        self._pool = client.ApiClient(configuration).rest_client.pool_manager

    @property
    def token(self) -> str:
        """The bearer token of our own, empty where we have a certificate."""
        return self._header().partition(" ")[2]

    def get(self, path: str, **parameters: str) -> Json:
        """One object or list. Raises UnreachableError, RefusedError or ExpiredError."""
        return self._call("GET", path, parameters, None)

    def post(self, path: str, body: Json) -> Json:
        """Create an object, or ask a review. Raises as `get` does."""
        return self._call("POST", path, {}, body)

    def put(self, path: str, body: Json) -> Json:
        """Replace an object, of the version that the body names. Raises as `get` does."""
        return self._call("PUT", path, {}, body)

    def pages(self, path: str) -> Iterator[tuple[list[Json], str]]:
        """Every object of a collection, a page at a time, each with the resource version of the whole."""
        parameters = {"limit": str(_PAGE)}
        while True:
            page = self.get(path, **parameters)
            metadata = page.get("metadata") or {}
            yield list(page.get("items") or ()), str(metadata.get("resourceVersion", ""))
            if not metadata.get("continue"):
                return
            parameters["continue"] = metadata["continue"]

    def watch(self, path: str, version: str, for_s: int) -> Iterator[Json]:
        """The raw events from a resource version on, bookmarks among them; ends when the server ends it,
        after ``for_s``."""
        parameters = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(for_s),
        }
        try:
            response = self._request("GET", path, parameters, None, for_s + _ANSWER_S)
            try:
                yield from _lines(response)
            finally:
                response.close()
        except urllib3.exceptions.HTTPError as error:
            raise UnreachableError(f"GET {path}: {error}") from error

    def _call(self, method: str, path: str, parameters: Mapping[str, str], body: Json | None) -> Json:
        try:
            response = self._request(method, path, parameters, body, _ANSWER_S)
            data = response.read(decode_content=True)
            response.release_conn()
            answer = orjson.loads(data)
        except urllib3.exceptions.HTTPError as error:
            raise UnreachableError(f"{method} {path}: {error}") from error
        except orjson.JSONDecodeError as error:
            raise UnreachableError(f"{method} {path}: the answer is no JSON") from error
        if not isinstance(answer, dict):
            raise UnreachableError(f"{method} {path}: the answer is no object")
        return answer

    def _request(
        self, method: str, path: str, parameters: Mapping[str, str], body: Json | None, answer_s: float
    ) -> Any:
        query = f"?{urlencode(parameters)}" if parameters else ""
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if self._header():
            headers["Authorization"] = self._header()
        if body is not None:
            headers["Content-Type"] = "application/json"
        response = self._pool.request(
            method,
            f"{self._configuration.host}{path}{query}",
            body=None if body is None else orjson.dumps(body),
            headers=headers,
            preload_content=False,
            retries=False,
            timeout=urllib3.Timeout(connect=_CONNECT_S, read=answer_s),
        )
        if response.status >= 300:
            _refuse(method, path, response)
        return response

    def _header(self) -> str:
        """``Bearer ...``; the configuration reads a renewed token from its file when it is due."""
        settings: Mapping[str, Any] = dict(self._configuration.auth_settings())
        given = (each["value"] for each in settings.values() if each["key"] == "authorization")
        return str(next(given, None) or "")


def connect(kubeconfig: str) -> ApiServer:
    """The API server of a kubeconfig, or of the cluster we run in where none is named. Raises UnusableError
    with a sentence for the operator."""
    where = (
        f"--kubeconfig {kubeconfig}"
        if kubeconfig
        else "--kubeconfig: none is given, in-cluster configuration"
    )
    configuration = client.Configuration()
    try:
        if kubeconfig:
            load = config.load_kube_config
            load(config_file=kubeconfig, client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except Exception as error:  # a malformed file leads the package to errors of any kind
        raise UnusableError(f"{where}: {_reason(error, kubeconfig)}; {_ALLOWED}") from error
    problem = _problem(configuration)
    if problem:
        raise UnusableError(f"{where}: {problem}; {_ALLOWED}")
    return ApiServer(configuration)


def _reason(error: Exception, kubeconfig: str) -> str:
    """What the package found, on one line; its words for a file that is no kubeconfig at all name only its
    own inside."""
    if kubeconfig and not any(os.path.exists(path) for path in kubeconfig.split(os.pathsep)):
        return "there is no such file"
    if isinstance(error, OSError):
        return f"it cannot be read ({error.strerror})"
    if isinstance(error, config.ConfigException):
        return " ".join(str(error).split()).rstrip(".")
    return "it is no kubeconfig"


def _problem(configuration: client.Configuration) -> str:
    """What would make every call fail, whatever the API server says; empty where nothing does."""
    address = urlsplit(configuration.host)
    if address.scheme not in ("http", "https") or not address.hostname:
        return f'the server "{configuration.host}" is no URL such as https://10.0.0.1:6443'
    if address.scheme == "http":
        return ""
    try:
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    except (OSError, ssl.SSLError):
        return "its certificate authority holds no certificate that can be read"
    try:
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, configuration.key_file, password="")
    except (OSError, ssl.SSLError):
        return "its client certificate and key cannot be read, or do not belong together"
    return ""


def _refuse(method: str, path: str, response: Any) -> None:
    data = response.read(2048, decode_content=True)
    response.close()
    if response.status == _GONE:
        raise ExpiredError
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError:
        body = None
    body = body if isinstance(body, dict) else {}
    message = body.get("message", "")
    raise RefusedError(response.status, f"{method} {path}: {response.status} {message}".rstrip(), body)


def _lines(response: Any) -> Iterator[Json]:
    """The JSON documents of a stream, one a line."""
    rest = b""
    for chunk in response.stream(65536, decode_content=True):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                try:
                    yield orjson.loads(line)
                except orjson.JSONDecodeError as error:
                    raise UnreachableError("the watch sent something that is no JSON") from error
