"""What tests do to a real kube-scheduler and API server with our extender beside them, and see of them."""

import http.client
import json
import ssl
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from deploy.local.api import AdminApi
from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from deploy.local.limits import LONGEST_S
from tests.scheduler_ext.processes import ROOT, Process
from tests.support.control_plane import apply, apply_files, kubectl
from tests.support.waiting import eventually
from timekeeper.accounts.pods import LedgerPod, read_pod
from timekeeper.accounts.session import open_session
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.rating.nodes import NodeCards
from timekeeper.core.request.inventory import read_cards
from timekeeper.edge.clock import now_ms

Json = dict[str, Any]

SCHEDULER = "gpu-scheduler"
PROFILE = "bursar-scheduler"
PODS = "/api/v1/namespaces/default/pods"


def with_roles(plane: ControlPlane) -> ControlPlane:
    """The same with our roles, and an account for the extender."""
    manifests = ROOT / "deploy" / "manifests"
    apply_files(plane, [manifests / "00-namespace.yaml", manifests / "rbac.yaml"])
    account = {"name": "extender", "namespace": "bursar-system"}
    rbac = "rbac.authorization.k8s.io"
    role = {"apiGroup": rbac, "kind": "ClusterRole", "name": "bursar-extender"}
    subjects = [{"kind": "ServiceAccount"} | account]
    binding = {"metadata": {"name": "x"}, "roleRef": role, "subjects": subjects}
    apply(
        plane,
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRoleBinding"} | binding,
    )
    return plane


@contextmanager
def scheduling(
    plane: ControlPlane, folder: Path, *flags: str, account: str = "extender"
) -> Iterator[Process]:
    """The extender with these flags and the rights of this account, and a kube-scheduler that asks it."""
    token = kubectl(plane, "create", "token", account, "-n", "bursar-system", "--duration=1h").strip()
    process = Process(folder, f"--kubeconfig={plane.kubeconfig(token, account)}", *flags)
    process.start()
    plane.start_scheduler(SCHEDULER, profiles=(PROFILE,), extender_url=process.url)
    process.ready()
    yield process
    process.kill()


def extender_with(*flags: str, account: str = "extender") -> object:
    """A module's fixture: the extender with these flags and the rights of this account, and a kube-scheduler
    that asks it."""

    @pytest.fixture(scope="module")
    def extender(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
        with scheduling(plane, tmp_path_factory.mktemp("extender"), *flags, account=account) as process:
            yield process

    return extender


class World:
    """What the tests do to the cluster, and see of it."""

    def __init__(self, plane: ControlPlane, extender: Process) -> None:
        self.plane, self.extender = plane, extender

    def node(self, name: str, cards: int, memory_mib: int = 16_000, **fields: Any) -> None:
        """A node that the extender knows of."""
        self.plane.api.call(
            "POST", "/api/v1/nodes", kwok_node(name, cards=cards, memory_mib=memory_mib, **fields)
        )
        eventually(lambda: self.extender.known(name))

    def pod(self, name: str, limits: dict[str, str], **fields: Any) -> None:
        """A pod of our profile with one GPU container."""
        annotations = fields.pop("annotations", {})
        body = {
            "metadata": {
                "name": name,
                "annotations": annotations,
                "labels": {"bursar.dev/governed": "true"},
            },
            "spec": {
                "schedulerName": PROFILE,
                "restartPolicy": "Never",
                "containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}],
                **fields,
            },
        }
        self.plane.api.call("POST", PODS, body)

    def get(self, name: str) -> Json:
        """The pod as it is."""
        body: Json = self.plane.api.call("GET", f"{PODS}/{name}")
        return body

    def pods(self) -> list[Json]:
        """Every pod."""
        items: list[Json] = self.plane.api.call("GET", PODS)["items"]
        return items

    def delete(self, name: str, grace_s: int | None = None) -> None:
        """Ask for the pod's end."""
        query = "" if grace_s is None else f"?gracePeriodSeconds={grace_s}"
        self.plane.api.call("DELETE", f"{PODS}/{name}{query}")

    def node_info_of(self, name: str) -> str:
        """Where the pod is bound, "" where it is not."""
        where: str = self.get(name)["spec"].get("nodeName", "")
        return where

    def cards_of(self, name: str) -> list[str]:
        """The UUIDs that the pod's annotation gives its container."""
        devices = json.loads(self.get(name)["metadata"]["annotations"]["bursar.dev/devices"])
        return [each["uuid"] for each in devices["containers"]["main"]]

    def bound(self) -> list[Json]:
        """The pods that are bound."""
        return [pod for pod in self.pods() if pod["spec"].get("nodeName")]

    def refusals(self, name: str) -> str:
        """What kube-scheduler says of a pod that it cannot place."""
        conditions = self.get(name)["status"].get("conditions", [])
        return "".join(each.get("message", "") for each in conditions if each["type"] == "PodScheduled")

    def filters(self) -> int:
        """How often the extender was asked to filter."""
        return self.extender.said().count("event=filter")

    def clear(self) -> None:
        """Remove pods and nodes, and wait until the extender knows."""
        # one by one: a thousand in one call would take longer than the API server gives any call
        paths = [f"{PODS}/{pod['metadata']['name']}" for pod in self.pods()]
        Callers(self.plane.api).each(("DELETE", path, None) for path in paths)
        eventually(lambda: not self.pods())
        nodes = [node["metadata"]["name"] for node in self.plane.api.call("GET", "/api/v1/nodes")["items"]]
        self.plane.api.call("DELETE", "/api/v1/nodes")
        eventually(lambda: not self.extender.known(*nodes))


def placed(world: "World", *names: str) -> None:
    """Wait until each of these is bound."""
    eventually(lambda: all(world.node_info_of(name) for name in names))


def decided(world: "World", *names: str) -> None:
    """Wait until each of these is bound or has been refused."""
    eventually(lambda: all(world.node_info_of(name) or world.refusals(name) for name in names))


def rate_of(world: "World", name: str) -> int:
    """What the ledger charges for it, in thousandths of a GPU."""
    pod = read_pod(world.get(name))
    assert isinstance(pod, LedgerPod)
    node = world.plane.api.call("GET", f"/api/v1/nodes/{pod.node}")
    opened = open_session(pod, NodeCards(read_cards(node) or ()), BudgetSettings(), now_ms())
    assert opened.doubt is None
    return opened.rate_milli


class Callers:
    """Makes many calls of the API server, some at a time, each over a connection that is kept meanwhile."""

    def __init__(self, api: AdminApi, at_a_time: int = 4) -> None:
        self._api, self._at_a_time = api, at_a_time

    def each(self, calls: Iterable[tuple[str, str, Json | None]]) -> list[int]:
        """The status of each call: a method, a path and what is sent."""
        own = threading.local()
        with ExitStack() as opened, ThreadPoolExecutor(self._at_a_time) as pool:

            def call(each: tuple[str, str, Json | None]) -> int:
                if not hasattr(own, "connection"):
                    own.connection = opened.enter_context(closing(self._connection()))
                return self._call(own.connection, *each)

            return list(pool.map(call, calls))

    def _call(
        self, connection: http.client.HTTPSConnection, method: str, path: str, body: Json | None
    ) -> int:
        headers = {"Authorization": f"Bearer {self._api.token}", "Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        response.read()
        return response.status

    def _connection(self) -> http.client.HTTPSConnection:
        target = urlsplit(self._api.url)
        tls = ssl.create_default_context(cafile=str(self._api.ca_file))
        return http.client.HTTPSConnection(target.hostname or "", target.port, context=tls, timeout=LONGEST_S)
