"""What the tests of the local control plane share: builders of objects, waiting, watching, small servers."""

import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from deploy.local.api import AdminApi, ApiError
from deploy.local.limits import LONGEST_S
from tests.support.waiting import eventually

NAMESPACES = "/api/v1/namespaces"
NODES = "/api/v1/nodes"

Seen = TypeVar("Seen")


def pod(name: str, *, limits: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod of one container; `annotations` and whatever else is to be in its spec as keywords."""
    annotations = spec.pop("annotations", {})
    containers = [{"name": "main", "image": "example", "resources": {"limits": limits or {}}}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"containers": containers, **spec},
    }


def get(api: AdminApi, path: str) -> Any:
    """An object, or None if there is no such thing."""
    try:
        return api.call("GET", path)
    except ApiError as error:
        if error.status == 404:
            return None
        raise


def events(api: AdminApi, path: str, name: str, version: str) -> Iterator[dict[str, Any]]:
    """All that happens to one object of the collection at `path` from a resource version on, as the API
    server tells it."""
    target = urlsplit(api.url)
    tls = ssl.create_default_context(cafile=str(api.ca_file))
    connection = http.client.HTTPSConnection(
        target.hostname or "", target.port, context=tls, timeout=LONGEST_S
    )
    query = f"?watch=1&timeoutSeconds=60&fieldSelector=metadata.name%3D{name}&resourceVersion={version}"
    connection.request("GET", path + query, headers={"Authorization": f"Bearer {api.token}"})
    with closing(connection), connection.getresponse() as response:
        for line in response:
            yield json.loads(line)


@contextmanager
def namespace(api: AdminApi, name: str) -> Iterator[str]:
    """A namespace that is ready for pods, with its pods' path; deleted at exit, without waiting for it."""
    api.call("POST", NAMESPACES, {"metadata": {"name": name, "labels": {"test": name}}})
    eventually(lambda: get(api, f"{NAMESPACES}/{name}/serviceaccounts/default"))
    try:
        yield f"{NAMESPACES}/{name}/pods"
    finally:
        api.call("DELETE", f"{NAMESPACES}/{name}")


def processes_with(text: str) -> list[str]:
    """The command lines of the processes that have a text in their environment and have not ended."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # it has ended, or is another user's
    return found
