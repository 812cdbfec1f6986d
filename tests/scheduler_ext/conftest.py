"""A running extender in front of a small API server, asked through its WSGI app."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from werkzeug.test import Client

from scheduler_ext import settings
from scheduler_ext.assembly.extender import Extender
from scheduler_ext.model.node import read_node
from scheduler_ext.reports.cluster_posts import bodies
from scheduler_ext.serving.routes import verb_routes
from scheduler_ext.snapshot.immutable_map import Map
from tests.scheduler_ext.apiserver import ApiServer, api_server
from tests.scheduler_ext.store import Store
from tests.support.kubeconfig import kubeconfig
from tests.support.routed import client_of
from tests.support.waiting import eventually
from tests.worlds import Json
from timekeeper.edge.log_events import Level
from timekeeper.runtime.api_server import Api
from timekeeper.runtime.connect import connect


@dataclass
class Running:
    """The extender, its client, and the store of the API server that it follows."""

    api: Store
    extender: Extender
    client: Client
    lines: list[str]

    def filter(self, pod: Json, *nodes: str) -> Json:
        """kube-scheduler's filter call."""
        answer = self.client.post("/filter", json={"Pod": pod, "Nodes": None, "NodeNames": list(nodes)})
        assert answer.status_code == 200
        body: Json = answer.get_json()
        return body

    def prioritize(self, pod: Json, *nodes: str) -> dict[str, int]:
        """kube-scheduler's prioritize call."""
        answer = self.client.post("/prioritize", json={"Pod": pod, "Nodes": None, "NodeNames": list(nodes)})
        assert answer.status_code == 200
        return {each["Host"]: each["Score"] for each in answer.get_json()}

    def bind(self, pod: Json, node: str) -> str:
        """kube-scheduler's bind call; the error it is told."""
        metadata = pod["metadata"]
        order = {
            "PodName": metadata["name"],
            "PodNamespace": metadata["namespace"],
            "PodUID": metadata["uid"],
        }
        answer = self.client.post("/bind", json={**order, "Node": node})
        assert answer.status_code == 200
        error: str = answer.get_json()["Error"]
        return error

    def free(self, node: str) -> list[int]:
        """What is free of each card, in thousandths."""
        rooms = self.extender.cache.snapshot.node(node).free_by_card
        return [room.share_milli for room in rooms if room is not None]

    def posted(self) -> Json:
        """What it posts to a timekeeper that knows nothing: nodes and waiting pods by their names."""
        waiting = self.extender.waiting_pods()
        posts = map(json.loads, bodies(self.extender.cache.snapshot.nodes, Map(), None, ""))
        nodes = {node["name"]: node for post in posts for node in post["nodes"]}
        return {"nodes": nodes, "waiting": {pod["name"]: pod for pod in waiting["pods"]}}

    def put_pod(self, raw: Json) -> Json:
        """Create or change a pod, and wait until the extender has heard of it."""
        stored = self.api.put("pods", raw)
        self.hears(stored)
        return stored

    def hears(self, stored: Json) -> None:
        """Wait until the extender knows this version of the pod or a later one: it may have changed the pod
        itself."""
        self._hears(stored["metadata"]["uid"], int(stored["metadata"]["resourceVersion"]))

    def _hears(self, uid: str, version: int) -> None:
        eventually(lambda: self._knows(uid, version), f"version {version} of pod {uid}")

    def _knows(self, uid: str, version: int) -> bool:
        pod = self.extender.cache.snapshot.pods.get(uid)
        return pod is not None and int(pod.version) >= version

    def put_node(self, raw: Json) -> None:
        """Create or change a node, and wait until the extender has heard of it."""
        self.api.put("nodes", raw)
        self.hears_node(raw)

    def hears_node(self, raw: Json) -> None:
        """Wait until the extender knows this node."""
        node_object = read_node(raw)
        eventually(lambda: self.extender.cache.snapshot.node(node_object.name).node_object == node_object)


Start = Callable[..., Running]


def event_line(event: str, fields: dict[str, object]) -> str:
    """A line of its log."""
    return " ".join([event, *(f"{key}={value}" for key, value in fields.items())])


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with api_server() as server:
        yield server


@pytest.fixture
def start(api: ApiServer, tmp_path: Path) -> Iterator[Start]:
    """Starts an extender; ``wait=False`` does not wait for its books."""
    config = kubeconfig(tmp_path, api.url)
    started: list[Extender] = []
    callers: list[Api] = []
    died: list[int] = []

    def begin(*flags: str, wait: bool = True) -> Running:
        lines: list[str] = []

        def say(event: str, *, level: Level = "info", **fields: object) -> None:
            lines.append(event_line(event, fields))

        wanted = settings.read(["--kubeconfig", str(config), "--bind-timeout", "10s", *flags], {})
        caller = connect(config)
        callers.append(caller)
        extender = Extender(wanted, caller, say, died.append)
        extender.start()
        started.append(extender)
        if wait:
            eventually(lambda: any(line.startswith("complete") for line in lines))
            eventually(extender.leadership.leads)
        return Running(api, extender, client_of(extender.app, verb_routes(extender.calls, 4)), lines)

    yield begin
    for extender in started:
        extender.stop()
    for caller in callers:
        caller.close()
    assert not died, "a thread of the extender died"


@pytest.fixture
def running(start: Start) -> Running:
    """An extender whose books are complete, and empty."""
    return start()
