"""The way to the API server: a kubeconfig, or in a pod its own service account.

A pod's service account is read here, without the `kubernetes` package and its memory. That package is loaded
for a kubeconfig alone.
"""

import os
import ssl
from collections.abc import Mapping
from pathlib import Path

from timekeeper.edge import http_client
from timekeeper.runtime.api_server import CONNECTIONS, Api
from timekeeper.runtime.flags import KUBECONFIG, UnusableError, lacking

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def connect(
    kubeconfig: Path | None, connections: int = CONNECTIONS, environment: Mapping[str, str] = os.environ
) -> Api:
    """The API server of a kubeconfig; None: of the pod's service account. Raises UnusableError."""
    if kubeconfig is None:
        return of_service_account(connections, environment)
    try:
        from timekeeper.runtime import kubeconfig as kubeconfigs
    except ModuleNotFoundError as error:
        raise UnusableError(f"--kubeconfig: {lacking(error, 'kubeconfig')}") from error
    return kubeconfigs.connect(kubeconfig, connections)


def of_service_account(
    connections: int = CONNECTIONS,
    environment: Mapping[str, str] = os.environ,
    folder: Path | None = None,
) -> Api:
    """The API server of the cluster that this pod runs in. The token is read at each call, for the kubelet
    renews it. Raises UnusableError."""

    folder = folder or SERVICE_ACCOUNT

    def identity() -> dict[str, str]:
        return {"authorization": f"Bearer {(folder / 'token').read_text().strip()}"}

    def trusted() -> ssl.SSLContext:
        return http_client.trusting(http_client.read_bundle(str(folder / "ca.crt")))

    host, port = (
        environment.get("KUBERNETES_SERVICE_HOST", ""),
        environment.get("KUBERNETES_SERVICE_PORT", ""),
    )
    try:
        if not host or not port:
            raise ValueError("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
        identity()
        trusted()
        url = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        return Api(url, http_client.connecting(trusted), identity, connections)
    except (OSError, ValueError) as error:  # ssl's errors are OSErrors
        raise UnusableError(
            f"--kubeconfig: none is given, and the pod's own service account cannot be used: {error};"
            f" {KUBECONFIG}"
        ) from error
