"""Secrets, webhook configurations and the APIService, as the certificate process reads and writes them."""

import base64
import binascii
from datetime import datetime
from typing import Any

from timekeeper.core.json_values import Json
from timekeeper.runtime.api_server import MERGE, STRATEGIC_MERGE, Answered, Api
from webhook.controller.plan import CA_SECRET, CertificatePair

AGENTS_CA = "bursar-ca"  # the ConfigMap from which the nodes' agents read the CAs
_API_SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"
_TRUSTED_SINCE = "bursar.dev/trusted-since"  # of the CA's Secret: an RFC 3339 time
_LABELS = {"app.kubernetes.io/part-of": "bursar"}
_TIMEOUT_S = 10.0


class CertificateStoreError(Exception):
    """A call to the API server failed or was refused; the text gives call and reason."""


class NoSuchObjectError(CertificateStoreError):
    """The object does not exist."""


class CertificateStore:
    """The objects of one namespace in the API server. Each call raises CertificateStoreError."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self._secrets = f"/api/v1/namespaces/{namespace}/secrets"

    def secret(self, name: str) -> tuple[CertificatePair | None, str]:
        """A stored pair with its resourceVersion; None and an empty version where the Secret does not exist.
        A key that is missing in the Secret is empty."""
        status, found = self._call("GET", f"{self._secrets}/{name}")
        if status == 404:
            return None, ""
        self._demand(status == 200, f"read Secret {name}", found)
        return _pair(name, found), str(found["metadata"]["resourceVersion"])

    def store(self, name: str, pair: CertificatePair, version: str) -> bool:
        """Creates the Secret, or updates the one of this version and keeps fields of other writers; False
        where another writer was faster."""
        data = {key: base64.b64encode(value).decode() or None for key, value in _data(name, pair).items()}
        metadata: dict[str, Any] = {"labels": _LABELS, "annotations": _annotations(name, pair)}
        body: dict[str, Any]
        if version:
            body = {"metadata": metadata | {"resourceVersion": version}, "data": data}
            status, found = self._call("PATCH", f"{self._secrets}/{name}", body, MERGE)
        else:
            metadata |= {"name": name, "namespace": self._namespace}
            metadata["annotations"] = {k: v for k, v in metadata["annotations"].items() if v}
            body = {"apiVersion": "v1", "kind": "Secret", "type": _type(name), "metadata": metadata}
            body["data"] = {key: value for key, value in data.items() if value}
            status, found = self._call("POST", self._secrets, body)
        if status == 409 or (version and status == 404):
            return False
        self._demand(status in (200, 201), f"write Secret {name}", found)
        return True

    def bundles(self, kind: str, name: str) -> dict[str, bytes]:
        """The CA bundle of each webhook of a configuration, by the webhook's name; empty where it has none.
        Raises NoSuchObjectError where there is no such configuration."""
        found = self._configured(kind, name)
        return {each["name"]: _decoded(each["clientConfig"].get("caBundle")) for each in found}

    def trust(self, kind: str, name: str, bundle: bytes) -> bool:
        """Writes the CA bundle into every webhook of a configuration; False where nothing changed.
        Raises NoSuchObjectError where there is no such configuration."""
        text = base64.b64encode(bundle).decode()
        webhooks = self._configured(kind, name)
        stale = [each["name"] for each in webhooks if each["clientConfig"].get("caBundle") != text]
        if not stale:
            return False
        # merged by the webhooks' names, so that other fields stay
        changes = {"webhooks": [{"name": each, "clientConfig": {"caBundle": text}} for each in stale]}
        status, found = self._call("PATCH", f"{_CONFIGURATIONS}/{kind}/{name}", changes, STRATEGIC_MERGE)
        self._demand(status == 200, f"write the CA into {kind}/{name}", found)
        return True

    def trust_api_service(self, name: str, bundle: bytes) -> bool:
        """Writes the CA bundle into an APIService; False where nothing changed, or where there is none."""
        text = base64.b64encode(bundle).decode()
        status, found = self._call("GET", f"{_API_SERVICES}/{name}")
        if status == 404 or (status == 200 and found["spec"].get("caBundle") == text):
            return False
        if status == 200:
            change = {"spec": {"caBundle": text}}
            status, found = self._call("PATCH", f"{_API_SERVICES}/{name}", change, MERGE)
        self._demand(status == 200, f"write the CA into apiservices/{name}", found)
        return True

    def hand_out(self, namespace: str, bundle: bytes, name: str = AGENTS_CA) -> bool:
        """Writes the CA bundle into a ConfigMap of a namespace, for those who may not read our Secrets. False
        if nothing changed, or if the namespace does not exist."""
        folder = f"/api/v1/namespaces/{namespace}/configmaps"
        data = {"ca.crt": bundle.decode("ascii")}
        status, found = self._call("GET", f"{folder}/{name}")
        if status == 200 and (found.get("data") or {}).get("ca.crt") == data["ca.crt"]:
            return False
        if status == 404:
            metadata = {"name": name, "namespace": namespace, "labels": _LABELS}
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
            status, found = self._call("POST", folder, body)
            if status == 404:
                return False
        if status in (200, 409):  # it exists now
            status, found = self._call("PATCH", f"{folder}/{name}", {"data": data}, MERGE)
        self._demand(status in (200, 201), f"write ConfigMap {namespace}/{name}", found)
        return True

    def _configured(self, kind: str, name: str) -> list[dict[str, Any]]:
        status, found = self._call("GET", f"{_CONFIGURATIONS}/{kind}/{name}")
        if status == 404:
            raise NoSuchObjectError(f"there is no {kind}/{name}")
        self._demand(status == 200, f"read {kind}/{name}", found)
        return list(found.get("webhooks") or [])

    def _call(
        self, method: str, path: str, body: Json | None = None, content_type: str = "application/json"
    ) -> tuple[int, Any]:
        reply = self._api.call(method, path, body, content_type=content_type, timeout_s=_TIMEOUT_S)
        if not isinstance(reply, Answered):
            raise CertificateStoreError(reply.message)
        return reply.status, reply.body

    def _demand(self, holds: bool, what: str, answer: Any) -> None:
        if not holds:
            raise CertificateStoreError(f"cannot {what}: {answer.get('message')}")


def _type(name: str) -> str:
    return "Opaque" if name == CA_SECRET else "kubernetes.io/tls"


def _data(name: str, pair: CertificatePair) -> dict[str, bytes]:
    if name == CA_SECRET:
        return {"ca.crt": pair.bundle, "ca.key": pair.key, "former.key": pair.former_key}
    return {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": pair.bundle}


def _annotations(name: str, pair: CertificatePair) -> dict[str, str | None]:
    if name != CA_SECRET:
        return {}
    return {_TRUSTED_SINCE: pair.trusted_since.isoformat() if pair.trusted_since else None}


def _pair(name: str, secret: dict[str, Any]) -> CertificatePair:
    held = {key: _decoded(value) for key, value in (secret.get("data") or {}).items()}
    bundle = held.get("ca.crt", b"")
    if name != CA_SECRET:
        return CertificatePair(held.get("tls.crt", b""), held.get("tls.key", b""), bundle)
    since = (secret["metadata"].get("annotations") or {}).get(_TRUSTED_SINCE, "")
    return CertificatePair(bundle, held.get("ca.key", b""), bundle, held.get("former.key", b""), _time(since))


def _decoded(text: str | None) -> bytes:
    """The bytes of base64 text; empty where it is not valid."""
    try:
        return base64.b64decode(text or "", validate=True)
    except binascii.Error:
        return b""


def _time(text: str) -> datetime | None:
    """A time with its zone; None where the text is not one."""
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        return None
    return read if read.tzinfo is not None else None
