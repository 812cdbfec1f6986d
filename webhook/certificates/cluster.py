"""The Secrets and the webhook configurations, as the certificate process reads and writes them."""

import base64
from pathlib import Path
from typing import Any

import orjson
import urllib3
from kubernetes import client, config
from kubernetes.config import ConfigException

from webhook.certificates.plan import CA_SECRET, Pair

KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"
_TIMEOUT_S = 10.0


class UnreachableError(Exception):
    """The API server could not be asked, or refused; the text says what and why."""


class Cluster:
    """The API server, by a kubeconfig file or, with None, by the pod's own service account.

    Raises UnreachableError from every call, from the first on where there is no configuration to use.
    """

    def __init__(self, kubeconfig: Path | None, namespace: str) -> None:
        self._secrets = f"/api/v1/namespaces/{namespace}/secrets"
        self._namespace = namespace
        self._configuration = client.Configuration()
        try:
            if kubeconfig is None:
                config.load_incluster_config(self._configuration)  # type: ignore[no-untyped-call]
            else:
                config.load_kube_config(  # type: ignore[no-untyped-call]
                    str(kubeconfig), client_configuration=self._configuration
                )
        except (ConfigException, OSError) as error:
            raise UnreachableError(f"no way to an API server: {error}") from error
        self._http = client.ApiClient(self._configuration).rest_client.pool_manager

    def secret(self, name: str) -> tuple[Pair | None, str]:
        """A stored pair with its resourceVersion: the version empty where there is no Secret, the pair None
        where there is none or it lacks a key."""
        status, found = self._call("GET", f"{self._secrets}/{name}")
        if status == 404:
            return None, ""
        self._demand(status in (200,), f"read Secret {name}", found)
        version = str(found["metadata"]["resourceVersion"])
        return _pair(name, found.get("data") or {}), version

    def store(self, name: str, pair: Pair, version: str) -> bool:
        """Creates the Secret, or replaces the one of this version; False where someone else was faster."""
        metadata: dict[str, Any] = {
            "name": name,
            "namespace": self._namespace,
            "labels": {"app.kubernetes.io/part-of": "bursar"},
        }
        body = {"apiVersion": "v1", "kind": "Secret", "type": _type(name), "metadata": metadata}
        body["data"] = {key: base64.b64encode(value).decode() for key, value in _data(name, pair).items()}
        if version:
            metadata["resourceVersion"] = version
            status, found = self._call("PUT", f"{self._secrets}/{name}", body)
        else:
            status, found = self._call("POST", self._secrets, body)
        if status == 409 or (version and status == 404):
            return False
        self._demand(status in (200, 201), f"write Secret {name}", found)
        return True

    def trust(self, kind: str, name: str, bundle: bytes) -> bool:
        """Puts the CA bundle into every webhook of a configuration; False where nothing was to be changed."""
        path = f"{_CONFIGURATIONS}/{kind}/{name}"
        status, found = self._call("GET", path)
        self._demand(status == 200, f"read {kind}/{name}", found)
        text = base64.b64encode(bundle).decode()
        webhooks = found.get("webhooks") or []
        stale = [each["name"] for each in webhooks if each["clientConfig"].get("caBundle") != text]
        if not stale:
            return False
        # merged by the webhooks' names, so that nothing else in them is touched
        changes = {"webhooks": [{"name": each, "clientConfig": {"caBundle": text}} for each in stale]}
        status, found = self._call("PATCH", path, changes, "application/strategic-merge-patch+json")
        self._demand(status == 200, f"write the CA into {kind}/{name}", found)
        return True

    def _call(
        self, method: str, path: str, body: object = None, content_type: str = "application/json"
    ) -> tuple[int, Any]:
        headers = {"Accept": "application/json", "Content-Type": content_type}
        token = self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        if token:
            headers["Authorization"] = token
        try:
            answer = self._http.request(
                method,
                self._configuration.host + path,
                body=None if body is None else orjson.dumps(body),
                headers=headers,
                timeout=_TIMEOUT_S,
                retries=False,
            )
            return answer.status, orjson.loads(answer.data)
        except (urllib3.exceptions.HTTPError, orjson.JSONDecodeError, OSError) as error:
            raise UnreachableError(f"the API server does not answer: {error}") from error

    def _demand(self, holds: bool, what: str, answer: Any) -> None:
        if not holds:
            said = answer.get("message") if isinstance(answer, dict) else answer
            raise UnreachableError(f"cannot {what}: {said}")


def _type(name: str) -> str:
    return "Opaque" if name == CA_SECRET else "kubernetes.io/tls"


def _data(name: str, pair: Pair) -> dict[str, bytes]:
    if name == CA_SECRET:
        return {"ca.crt": pair.bundle, "ca.key": pair.key}
    return {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": pair.bundle}


def _pair(name: str, data: dict[str, str]) -> Pair | None:
    try:
        of = {key: base64.b64decode(value, validate=True) for key, value in data.items()}
        if name == CA_SECRET:
            return Pair(of["ca.crt"], of["ca.key"], of["ca.crt"])
        return Pair(of["tls.crt"], of["tls.key"], of["ca.crt"])
    except (KeyError, ValueError):
        return None
