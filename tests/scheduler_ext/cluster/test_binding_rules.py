"""What fencing and settling rest on, of the API server that is played in tests and of the real one: which
Bindings are refused, and how."""

from collections.abc import Callable, Iterator

import pytest

from deploy.local.api import ApiError
from deploy.local.cluster import ControlPlane
from tests.scheduler_ext.store import Store
from tests.worlds import Json

PODS = "/api/v1/namespaces/default/pods"
KEPT = ["example.com/kept"]  # a deletion only marks the pod


class Played:
    """The one that tests play."""

    def __init__(self) -> None:
        self.store = Store()

    def make(self, spec: Json) -> Json:
        """A new pod."""
        metadata = {"name": "p", "namespace": "default", "uid": "uid-p"}
        return self.store.put("pods", {"metadata": metadata, "spec": spec, "status": {}})

    def delete(self) -> None:
        """It is to end, and stays for now."""
        raw = self.store.pod("p", "default")
        raw["metadata"]["deletionTimestamp"] = self.store.leaves_at
        self.store.put("pods", raw)

    def bind(self, body: Json) -> int:
        """The status of a Binding."""
        return self.store.bind("default", "p", body)[0]

    def pod(self) -> Json:
        """As it is now."""
        return self.store.pod("p", "default")


class Real:
    """A real one."""

    def __init__(self, plane: ControlPlane) -> None:
        self._api = plane.api

    def make(self, spec: Json) -> Json:
        """A new pod."""
        spec = {"containers": [{"name": "main", "image": "x"}], "schedulerName": "nobody", **spec}
        body = {"metadata": {"name": "p", "finalizers": KEPT}, "spec": spec}
        made: Json = self._api.call("POST", PODS, body)
        return made

    def delete(self) -> None:
        """It is to end, and stays for now."""
        self._api.call("DELETE", f"{PODS}/p")

    def bind(self, body: Json) -> int:
        """The status of a Binding."""
        body = {"apiVersion": "v1", "kind": "Binding", **body}
        try:
            self._api.call("POST", f"{PODS}/p/binding", body)
        except ApiError as error:
            return error.status
        return 201

    def pod(self) -> Json:
        """As it is now."""
        found: Json = self._api.call("GET", f"{PODS}/p")
        return found

    def clear(self) -> None:
        """The pod is gone."""
        self._api.call("DELETE", f"{PODS}/p?gracePeriodSeconds=0")
        patch = {"metadata": {"finalizers": None}}
        self._api.call("PATCH", f"{PODS}/p", patch, "application/merge-patch+json")


Server = Played | Real


@pytest.fixture(params=["played", "real"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Each in turn."""
    if request.param == "played":
        yield Played()
        return
    real = Real(request.getfixturevalue("control_plane"))
    yield real
    real.clear()


def binding(pod: Json, **other: str) -> Json:
    """A Binding of this pod as it was, but for what is said otherwise."""
    metadata = {key: pod["metadata"][key] for key in ("name", "uid", "resourceVersion")} | other
    return {"metadata": metadata, "target": {"kind": "Node", "name": "n"}}


def bound(server: Server) -> Json:
    """A pod that has been bound, as it was before."""
    pod = server.make({})
    assert server.bind(binding(pod)) == 201
    return pod


def leaving(server: Server) -> Json:
    """A pod that is being deleted, as it is now."""
    server.make({})
    server.delete()
    return server.pod()


def gated(server: Server) -> Json:
    """A pod with a scheduling gate."""
    return server.make({"schedulingGates": [{"name": "example.com/gate"}]})


def test_a_binding_that_names_the_pod_as_it_is_succeeds_once(server: Server) -> None:
    pod = server.make({})

    assert server.bind(binding(pod)) == 201
    assert server.pod()["spec"]["nodeName"] == "n"
    assert server.bind(binding(server.pod())) == 409


@pytest.mark.parametrize("prepare", [bound, leaving, gated])
def test_a_pod_that_moved_or_leaves_or_is_gated_is_not_bound(
    server: Server, prepare: Callable[[Server], Json]
) -> None:
    assert server.bind(binding(prepare(server))) == 409


@pytest.mark.parametrize("other", [{"uid": "another"}, {"resourceVersion": "7"}])
def test_a_binding_of_another_pod_or_version_is_refused(server: Server, other: dict[str, str]) -> None:
    pod = server.make({})

    assert server.bind(binding(pod, **other)) == 409
    assert not server.pod()["spec"].get("nodeName")
