"""Kubeconfigs, as kubectl reads them. The `kubernetes` package finds and renews the credentials; calls do not
use it, for it takes minutes to decode a hundred thousand pods into its objects.

No serving process imports this module where it has a service account.
"""

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kubernetes import client, config

from timekeeper.runtime.api_server import Api
from timekeeper.runtime.flags import KUBECONFIG, UnusableError


def connect(kubeconfig: Path | None, connections: int, context: str = "") -> Api:
    """The API server of this file; None: of kubectl's own, ``$KUBECONFIG`` or ``~/.kube/config``.
    ``context``: one of the file's; "": its current one. Raises UnusableError."""
    where = f"--kubeconfig {kubeconfig}" if kubeconfig else "kubectl's own kubeconfig"
    where += f", --context {context}" if context else ""
    configuration = client.Configuration()
    configuration.connection_pool_maxsize = connections
    try:
        config.load_kube_config(  # type: ignore[no-untyped-call]
            str(kubeconfig) if kubeconfig else None, context or None, client_configuration=configuration
        )
    except Exception as error:  # a malformed file leads the package to errors of any kind
        raise UnusableError(f"{where}: {_reason(error, kubeconfig)}; {KUBECONFIG}") from error
    problem = _problem(configuration)
    if problem:
        raise UnusableError(f"{where}: {problem}; {KUBECONFIG}")
    return of_configuration(configuration)


def of_configuration(configuration: client.Configuration) -> Api:
    """The API server that this configuration of the package names."""

    def identity() -> dict[str, str]:
        settings: Mapping[str, Any] = dict(configuration.auth_settings())
        return {s["key"]: s["value"] for s in settings.values() if s["in"] == "header" and s["value"]}

    return Api(configuration.host, client.ApiClient(configuration).rest_client.pool_manager, identity)


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
    address = urlsplit(configuration.host)
    if address.scheme not in ("http", "https") or not address.hostname:
        return f'the server "{configuration.host}" is no URL such as https://10.0.0.1:6443'
    if address.scheme == "http":
        return ""
    try:
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    except OSError:
        return "its certificate authority contains no readable certificate"
    try:
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, configuration.key_file, password="")
    except OSError:
        return "its client certificate and key cannot be read, or do not belong together"
    return ""
