"""A real API server streams its lists, and writes objects so that known ones need no decoding."""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import orjson

from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from deploy.local.limits import LONGEST_S
from tests.support.sources import unnoted
from tests.support.waiting import eventually
from timekeeper.edge.list_watch import KnownVersions, initial_events
from timekeeper.runtime.api_server import Answered, Api
from timekeeper.runtime.connect import connect

PODS = "/api/v1/namespaces/default/pods"
NODES = "/api/v1/nodes"


class Counted:
    """The names of a collection, and which were decoded for the last list."""

    def __init__(self, api: Api, path: str) -> None:
        self._api, self._path = api, path
        self._decoded: list[str] = []
        self._known: KnownVersions[str] = KnownVersions(self._read, orjson.loads, unnoted())

    def _read(self, raw: Mapping[str, Any]) -> str:
        self._decoded.append(raw["metadata"]["name"])
        return self._decoded[-1]

    def listed(self) -> tuple[list[str], list[str]]:
        """The names, and those that were decoded."""
        self._decoded.clear()
        with closing(initial_events(self._api, self._path)) as lines:
            found, version = self._known.listed(lines)
        assert int(version) > 0
        return sorted(found), sorted(self._decoded)


def call(api: Api, method: str, path: str, body: Mapping[str, Any] | None = None) -> None:
    content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
    reply = api.call(method, path, body, content_type=content_type, timeout_s=LONGEST_S)
    assert isinstance(reply, Answered)
    assert reply.status < 300, reply


def test_a_second_list_decodes_only_what_changed(control_plane: ControlPlane) -> None:
    api = connect(control_plane.admin_kubeconfig)
    spec: dict[str, Any] = {"schedulerName": "none", "containers": [{"name": "main", "image": "x"}]}
    for name in ("s-a", "s-b", "s-c"):
        call(api, "POST", NODES, kwok_node(name))
        call(api, "POST", PODS, {"metadata": {"generateName": name, "name": name}, "spec": spec})

    nodes, pods = Counted(api, NODES), Counted(api, PODS)
    there, decoded = pods.listed()
    assert decoded == there
    assert pods.listed() == (there, [])
    eventually(lambda: nodes.listed()[1] == [])  # once controllers have written their labels

    call(api, "PATCH", f"{PODS}/s-b", {"metadata": {"annotations": {"changed": "true"}}})
    call(api, "DELETE", f"{PODS}/s-c", {"gracePeriodSeconds": 0})

    assert pods.listed() == ([name for name in there if name != "s-c"], ["s-b"])
