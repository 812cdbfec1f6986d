"""Kubeconfigs, as kubectl reads them. The `kubernetes` package finds and renews the credentials; calls do not
use it, for it takes minutes to decode a hundred thousand pods into its objects.

No serving process imports this module where it has a service account.
"""

import math
import os
import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from kubernetes import client, config
from kubernetes.client.rest import should_bypass_proxies
from kubernetes.config import kube_config

from timekeeper.core.json_values import Json, mapping
from timekeeper.edge import http_client
from timekeeper.edge.http_client import Server, server_of
from timekeeper.runtime.api_server import CONNECTIONS, Api, RequestHeaders
from timekeeper.runtime.flags import KUBECONFIG, UnusableError

IDENTITY_S = 1.0  # the package renews what expires within five minutes
IMPERSONATION = ("as", "as-uid", "as-groups", "as-user-extra")
_OF_NAMES = "!#$&'*+^`|"  # what a header's name may hold beside letters, digits and -._~


def connect(kubeconfig: Path | None, connections: int, context: str = "") -> Api:
    """The API server of this file; None: of kubectl's own, ``$KUBECONFIG`` or ``~/.kube/config``.
    ``context``: one of the file's; "": its current one. Raises UnusableError."""
    where = f"--kubeconfig {kubeconfig}" if kubeconfig else "kubectl's own kubeconfig"
    where += f", --context {context}" if context else ""
    configuration = client.Configuration()
    try:
        config.load_kube_config(
            str(kubeconfig) if kubeconfig else None, context or None, client_configuration=configuration
        )
        impersonated = _impersonation(_user(kubeconfig, context))
    except UnusableError as error:
        raise UnusableError(f"{where}: {error}; {KUBECONFIG}") from error
    except Exception as error:  # a malformed file leads the package to errors of any kind
        raise UnusableError(f"{where}: {_reason(error, kubeconfig)}; {KUBECONFIG}") from error
    problem = _problem(configuration)
    if problem:
        raise UnusableError(f"{where}: {problem}; {KUBECONFIG}")
    return of_configuration(configuration, connections, impersonated)


def of_configuration(
    configuration: client.Configuration,
    connections: int = CONNECTIONS,
    impersonated: RequestHeaders = MappingProxyType({}),
) -> Api:
    """The API server that this configuration of the package names. A proxy that it names is asked for a way
    there. ``impersonated``: the headers that name whose rights count."""
    known: tuple[float, RequestHeaders] = -math.inf, {}

    def identity() -> RequestHeaders:
        nonlocal known
        again_s, headers = known
        if time.monotonic() >= again_s:  # the package takes as long as the rest of a call
            settings: Mapping[str, Any] = dict(configuration.auth_settings())
            own = {s["key"]: s["value"] for s in settings.values() if s["in"] == "header" and s["value"]}
            headers = {**own, **impersonated}
            known = time.monotonic() + IDENTITY_S, headers
        return headers

    def connected(server: Server, within_s: float) -> socket.socket:
        context = _context(configuration) if server.is_tls else None
        raw = _reached(configuration, server, within_s)
        name = configuration.tls_server_name or server.host
        return raw if context is None else http_client.secured(raw, context, name)

    return Api(configuration.host, connected, identity, connections)


def _user(kubeconfig: Path | None, context: str) -> Json:
    """The user of the context, which the package reads without the one that it impersonates. Raises errors of
    any kind."""
    where = str(kubeconfig) if kubeconfig else kube_config.KUBE_CONFIG_DEFAULT_LOCATION
    merged = kube_config.KubeConfigMerger(where).config
    chosen = merged["contexts"].get_with_name(context or merged["current-context"])["context"]
    users = [entry.value for entry in merged["users"].value if entry["name"] == chosen.safe_get("user")]
    return mapping(users[0].get("user")) if users else {}


def _impersonation(user: Json) -> RequestHeaders:
    """The headers for ``as``, ``as-uid``, ``as-groups`` and ``as-user-extra``, as kubectl sends them. Raises
    UnusableError."""
    groups, extra = user.get("as-groups") or [], user.get("as-user-extra") or {}
    names = {field: user.get(field) or "" for field in ("as", "as-uid")}
    for field, value in names.items():
        _check(field, "a text", isinstance(value, str), [value])
    _check("as-groups", "a list of texts", isinstance(groups, list), groups)
    _check("as-user-extra", "lists of texts by name", isinstance(extra, dict), extra)
    for texts in extra.values():
        _check("as-user-extra", "lists of texts by name", isinstance(texts, list), texts)
    if not names["as"]:
        if others := [field for field in IMPERSONATION[1:] if user.get(field)]:
            raise UnusableError(f"its user has {others[0]} without as, whose name is needed beside it")
        return {}
    return {
        "Impersonate-User": names["as"],
        **({"Impersonate-Uid": names["as-uid"]} if names["as-uid"] else {}),
        **({"Impersonate-Group": tuple(groups)} if groups else {}),
        **{f"Impersonate-Extra-{quote(name, safe=_OF_NAMES)}": tuple(texts) for name, texts in extra.items()},
    }


def _check(field: str, allowed: str, is_of_kind: bool, texts: Iterable[object]) -> None:
    """Raises UnusableError."""
    if not is_of_kind or not all(isinstance(text, str) for text in texts):
        raise UnusableError(f"{field} of its user must be {allowed}")
    if not all(str(text).isascii() and str(text).isprintable() for text in texts):
        raise UnusableError(f"{field} of its user must be of printable ASCII letters")


def _reached(configuration: client.Configuration, server: Server, within_s: float) -> socket.socket:
    """A connection to the server, or through the proxy that is set for it. Raises OSError or ValueError."""
    proxy = configuration.proxy
    if not proxy or should_bypass_proxies(configuration.host, configuration.no_proxy or ""):
        return http_client.tcp(server, within_s)
    raw = http_client.tcp(server_of(proxy), within_s)
    try:
        http_client.tunnel(raw, server, dict(configuration.proxy_headers or {}), within_s)
    except BaseException:
        raw.close()
        raise
    return raw


def _context(configuration: client.Configuration) -> ssl.SSLContext:
    """How the server is verified, and what we show to it. Raises OSError."""
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert, cadata=configuration.ca_cert_data)
    if configuration.assert_hostname is False or not configuration.verify_ssl:
        context.check_hostname = False
    if not configuration.verify_ssl:
        context.verify_mode = ssl.CERT_NONE
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file, password="")
    return context


def _reason(error: Exception, kubeconfig: Path | None) -> str:
    """The error on one line. Errors of other kinds than these name the inside of the package's parsers."""
    if kubeconfig and not any(os.path.exists(path) for path in str(kubeconfig).split(os.pathsep)):
        return "there is no such file"
    if isinstance(error, OSError):
        return f"it cannot be read ({error.strerror})"
    if isinstance(error, config.ConfigException):
        return " ".join(str(error).split()).rstrip(".")
    return "it is not a kubeconfig"


def _problem(configuration: client.Configuration) -> str:
    """What would make every call fail, whatever the API server answers; "" for nothing."""
    try:
        server = server_of(configuration.host)
    except ValueError:
        return f'the server "{configuration.host}" is no URL such as https://10.0.0.1:6443'
    if configuration.proxy and not configuration.proxy.startswith("http://"):
        return f'the proxy "{configuration.proxy}" is no URL such as http://10.0.0.1:3128'
    if not server.is_tls:
        return ""
    try:
        ssl.create_default_context(cafile=configuration.ssl_ca_cert, cadata=configuration.ca_cert_data)
    except OSError:
        return "its certificate authority contains no readable certificate"
    try:
        _context(configuration)
    except OSError:
        return "its client certificate and key cannot be read, or do not belong together"
    return ""
