"""The API server, as the audit reads it: lists, page by page."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import orjson
import urllib3
from kubernetes import client, config
from kubernetes.config import ConfigException

PAGE = 500
_TIMEOUT_S = 30.0
# a busy API server answers 429, one that is being replaced 503: both with when to come again
_RETRY = urllib3.Retry(
    total=4,
    connect=0,
    redirect=0,
    status_forcelist=(429, 502, 503, 504),
    backoff_factor=0.5,
    raise_on_status=False,
)


class ClusterUnreachableError(Exception):
    """The API server could not be asked; the text says why."""


class ListRefusedError(Exception):
    """The API server did not answer one of our questions; the text says which and why."""


class NoSuchKindError(Exception):
    """The cluster has no such resource."""


class ClusterReader:
    """The API server, by a kubeconfig file; with None by the pod's own service account, and outside a cluster
    by kubectl's own file. Lists are read in pages of ``page`` objects. Raises UnreachableError where there is
    no configuration to use."""

    def __init__(self, kubeconfig: Path | None, page: int = PAGE) -> None:
        self._page = page
        self._configuration = client.Configuration()
        try:
            self._configure(kubeconfig)
        except (ConfigException, OSError) as error:
            raise ClusterUnreachableError(f"no way to an API server: {error}") from error
        self._http = client.ApiClient(self._configuration).rest_client.pool_manager

    def objects(self, path: str, label: str = "") -> Iterator[dict[str, Any]]:
        """Every object of a list, or those of a label, read in pages. Raises UnreachableError, RefusedError,
        or AbsentError where the cluster has no such resource."""
        token = ""
        while True:
            query = (
                {"limit": str(self._page)}
                | ({"labelSelector": label} if label else {})
                | ({"continue": token} if token else {})
            )
            status, answer = self._get(f"{path}?{urlencode(query)}")
            metadata = answer.get("metadata") or {}
            if status == 404:
                raise NoSuchKindError(path)
            if status == 410 and metadata.get("continue"):
                token = metadata["continue"]  # the list was too long in the reading; the rest, as it is now
                continue
            self._demand(status, f"list {path}", answer)
            yield from answer.get("items") or ()
            token = metadata.get("continue") or ""
            if not token:
                return

    def resource(self, group: str, kind: str) -> tuple[str, str]:
        """The path of a custom kind's group, in the version that the cluster prefers, and the name of its
        resource. Raises UnreachableError, RefusedError, or AbsentError where the cluster has no such kind."""
        status, found = self._get(f"/apis/{group}")
        if status == 404:
            raise NoSuchKindError(group)
        self._demand(status, f"read the versions of {group}", found)
        version = found["preferredVersion"]["groupVersion"]
        status, found = self._get(f"/apis/{version}")
        self._demand(status, f"read the resources of {version}", found)
        for each in found.get("resources") or ():
            if each.get("kind") == kind and "/" not in each["name"]:
                return f"/apis/{version}", str(each["name"])
        raise NoSuchKindError(f"{group}/{kind}")

    def _configure(self, kubeconfig: Path | None) -> None:
        if kubeconfig is None:
            try:
                config.load_incluster_config(self._configuration)  # type: ignore[no-untyped-call]
            except ConfigException:
                config.load_kube_config(  # type: ignore[no-untyped-call]
                    client_configuration=self._configuration
                )
            return
        config.load_kube_config(  # type: ignore[no-untyped-call]
            str(kubeconfig), client_configuration=self._configuration
        )

    def _get(self, path: str) -> tuple[int, dict[str, Any]]:
        headers = {"Accept": "application/json"}
        token = self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        if token:
            headers["Authorization"] = token
        try:
            answer = self._http.request(
                "GET", self._configuration.host + path, headers=headers, timeout=_TIMEOUT_S, retries=_RETRY
            )
            body = orjson.loads(answer.data)
        except orjson.JSONDecodeError as error:
            if answer.status == 404:
                return 404, {}
            raise ClusterUnreachableError(f"the API server answers {answer.status} without JSON") from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ClusterUnreachableError(f"the API server does not answer: {error}") from error
        return answer.status, body if isinstance(body, dict) else {}

    def _demand(self, status: int, what: str, answer: dict[str, Any]) -> None:
        if status != 200:
            raise ListRefusedError(f"cannot {what}: {answer.get('message', status)}")
