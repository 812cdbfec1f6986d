"""Who holds which card where a device plugin picks the cards: by the real kubelet's books and the real
kernel's cgroups, beside the real plugin protocol."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local.cleanup import FOLDER
from sidecar.disk import node_boot
from sidecar.node.holder_survey import HolderSurvey, SurveyPaths
from sidecar.node.host import cgroups
from sidecar.node.kubelet import podresources
from sidecar.node.nvml.cards import NVIDIA
from sidecar.node.state.plugin_devices import PluginDevices
from sidecar.node.values import DeviceReading, NodeState, PodState
from tests.kubelet.plugins import RESOURCE, device_plugin
from tests.kubelet.worlds import CARDS, NAMESPACE, PODS, SIDECAR, World, container, gpu_pod

SOCKET = f"{FOLDER}/kubelet/pod-resources/kubelet.sock"
NVIDIAS = (("nvidia.com/gpu", "2"),)
ENDS_LATE = (
    "import signal, time; signal.signal(signal.SIGTERM, lambda *_: print('asked')); print('begun');"
    " time.sleep(8)"
)


@pytest.fixture(scope="module")
def plugin(world: World) -> Iterator[None]:
    """A device plugin that gives out the node's cards under a name of its own, as replicas of them."""
    with device_plugin(world, [f"{uuid}::0" for uuid in CARDS]):
        yield


class Agent:
    """The agent's part that tells who is there, by this machine's kernel and kubelet."""

    def __init__(self, annotation: str | None = None) -> None:
        places = SurveyPaths("/proc", "/sys/fs/cgroup", SOCKET, (), True, frozenset(), NVIDIA)
        self._parts = HolderSurvey(places, node_boot(), _say, lambda _: None)
        self._parts.on_node(NodeState("n", "1", "", None, annotation, NVIDIAS, NVIDIAS, None, False))
        self._now_ms = 0

    def tells(self, *pods: dict[str, Any]) -> dict[str, Any]:
        """The annotation after a look, where the API server tells of these pods."""
        self._now_ms += 60_000
        seen = tuple(_seen(pod["metadata"]) for pod in pods)
        look = DeviceReading((), (), (), (), (), (), (), "")
        told: dict[str, Any] = json.loads(
            self._parts.survey(look, {}, seen, frozenset(CARDS), self._now_ms) or "null"
        )
        return told


def _say(event: str, **pairs: object) -> None:
    print(event, pairs)


def _seen(metadata: dict[str, Any]) -> PodState:
    return PodState(metadata["uid"], metadata["namespace"], metadata["name"], (), False, ())


def test_a_pod_that_the_plugin_gave_a_card_holds_it_until_its_last_process_has_ended(
    world: World, plugin: None
) -> None:
    main = container("main", ENDS_LATE)
    main["resources"]["limits"] = {RESOURCE: "1"}
    world.create(gpu_pod("old", main, terminationGracePeriodSeconds=60))
    pod = world.running("old")
    world.said(pod, "main", "begun")
    uid = pod["metadata"]["uid"]
    (given,) = podresources.listed(SOCKET)
    (device,) = [device for _, device in given.devices]
    card = device.removesuffix("::0")

    while_it_runs = Agent().tells(pod)
    world.stack.cp.api.call("DELETE", f"{PODS}/old", {"gracePeriodSeconds": 0})
    world.said(pod, "main", "asked")
    world.until("the kubelet to forget the pod", lambda: podresources.listed(SOCKET) == ())
    forced = Agent(json.dumps(while_it_runs))
    after_a_restart = forced.tells()
    world.until("its last process to end", lambda: forced.tells()["pods"] == {})

    assert given == PluginDevices(NAMESPACE, "old", ((RESOURCE, f"{card}::0"),))
    assert (while_it_runs["known"], while_it_runs["pods"]) == (True, {uid: [card]})
    assert (after_a_restart["known"], after_a_restart["pods"]) == (True, {uid: [card]})
    assert not cgroups.populated(Path("/sys/fs/cgroup")).get(uid, False)


@pytest.fixture
def most_cards(world: World) -> Iterator[None]:
    """The namespace's LimitRange says only how many cards a container has at most, so Kubernetes gives as
    many to each container that names none."""
    limits = f"/api/v1/namespaces/{NAMESPACE}/limitranges"
    spec = {"limits": [{"type": "Container", "max": {RESOURCE: "1"}}]}
    world.stack.cp.api.call("POST", limits, {"metadata": {"name": "most"}, "spec": spec})
    yield
    world.stack.cp.api.call("DELETE", f"{limits}/most")


def test_the_kubelet_gives_the_sidecar_no_card_where_a_limit_range_says_only_the_most(
    world: World, plugin: None, most_cards: None
) -> None:
    main = container("main", ENDS_LATE, gpu_percent="50")
    main["resources"]["limits"] |= {RESOURCE: "1"}
    world.create(gpu_pod("limited", main))

    pod = world.running("limited")

    asked = {each["name"]: each["resources"]["limits"].get(RESOURCE) for each in _containers(pod)}
    assert asked == {"main": "1", SIDECAR: "0"}
    given = [each for each in podresources.listed(SOCKET) if each.name == "limited"]
    assert [len(each.devices) for each in given] == [1]


def _containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
