"""Reads lists of objects from the API server, page by page."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from timekeeper.core.json_values import Json
from timekeeper.edge.reflector import TooLongError
from timekeeper.runtime import kubeconfig as kubeconfigs
from timekeeper.runtime.api_server import CONNECTIONS, Answered, Api, Lost
from timekeeper.runtime.connect import of_service_account
from timekeeper.runtime.flags import UnusableError

PAGE = 500
_TIMEOUT_S = 30.0
_TRIES = 5


class ClusterUnreachableError(Exception):
    """The API server does not answer; the text gives the reason."""


class ListRefusedError(Exception):
    """The API server refused a request; the text names it and gives the reason."""


class NoSuchKindError(Exception):
    """The cluster has no such kind."""


def connect(kubeconfig: Path | None, context: str = "") -> Api:
    """The API server of a kubeconfig, or of a context in it; without both, that of the pod's own service
    account. Without a kubeconfig outside a cluster, or with a context: kubectl's own one. Raises
    UnusableError."""
    if kubeconfig is not None or context:
        return kubeconfigs.connect(kubeconfig, CONNECTIONS, context)
    try:
        return of_service_account()
    except UnusableError:
        return kubeconfigs.connect(None, CONNECTIONS)


class ClusterReader:
    """Reads lists from an API server, in pages of ``page`` objects."""

    def __init__(self, api: Api, page: int = PAGE) -> None:
        self._api, self._page = api, page

    def objects(self, path: str, label: str = "", field: str = "") -> Iterator[dict[str, Any]]:
        """Every object of a list, or those of a label's or a field's selector, read in pages; one that is too
        long is requested again with half the objects. Raises ClusterUnreachableError, ListRefusedError, or
        NoSuchKindError where the cluster has no such resource."""
        token, limit = "", self._page
        while True:
            query = (
                {"limit": str(limit)}
                | ({"labelSelector": label} if label else {})
                | ({"fieldSelector": field} if field else {})
                | ({"continue": token} if token else {})
            )
            try:
                status, answer = self._get(f"{path}?{urlencode(query)}")
            except TooLongError as error:
                if limit == 1:
                    raise ClusterUnreachableError(str(error)) from error
                limit //= 2
                continue
            metadata = answer.get("metadata") or {}
            if status == 404:
                raise NoSuchKindError(path)
            if status == 410 and metadata.get("continue"):
                token = metadata[
                    "continue"
                ]  # the list expired while it was read; the rest is of a newer version
                continue
            self._demand(status, f"list {path}", answer)
            yield from answer.get("items") or ()
            token = metadata.get("continue") or ""
            if not token:
                return

    def resource(self, group: str, kind: str) -> tuple[str, str]:
        """The path of a custom kind's group, in the version that the cluster prefers, and the name of its
        resource. Raises ClusterUnreachableError, ListRefusedError, or NoSuchKindError where the cluster
        has no such kind."""
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

    def _get(self, path: str) -> tuple[int, Json]:
        reply = self._api.call("GET", path, timeout_s=_TIMEOUT_S, tries=_TRIES)
        if isinstance(reply, Lost) and reply.is_too_long:
            raise TooLongError(reply.message)
        if not isinstance(reply, Answered):
            raise ClusterUnreachableError(reply.message)
        return reply.status, reply.body

    def _demand(self, status: int, what: str, answer: Json) -> None:
        if status != 200:
            raise ListRefusedError(f"cannot {what}: {answer.get('message', status)}")
