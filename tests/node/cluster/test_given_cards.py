"""The cards that a device plugin gave, as a real gRPC server lists them: use, warnings, and a kubelet that is
away."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from sidecar.node.holder_survey import KUBELET_AGAIN_MS
from tests.node.podresources_server import Kubelet, pod_json, serving
from tests.node.unit.test_given_cards import GPU, STEP_MS, World, pod

UNTIL_ASKED = KUBELET_AGAIN_MS // STEP_MS  # looks until the kubelet is asked again


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    with serving(tmp_path) as running:
        yield running


def test_a_pod_is_measured_and_warned_on_the_card_that_the_kubelet_gave_it(
    tmp_path: Path, kubelet: Kubelet
) -> None:
    world = World(tmp_path, pod("train", "GPU-a"), pod("rest", "GPU-b"), socket=kubelet.socket).starts()
    kubelet.has(("team-a", "train", {GPU: ["GPU-b"]}), ("team-a", "rest", {GPU: ["GPU-a"]}))

    assert world.looks(("train", "GPU-b")) == {"train": [("GPU-b", 95)], "rest": [("GPU-a", 0)]}
    assert [name for name, _ in world.breaks("GPU-a")] == ["rest"]


def test_replicas_and_instances_are_the_cards_that_they_are_of(tmp_path: Path, kubelet: Kubelet) -> None:
    world = World(tmp_path, pod("train", "GPU-a"), pod("rest", "GPU-c"), socket=kubelet.socket).starts()
    kubelet.has(
        ("team-a", "train", {GPU: ["GPU-b::3", "GPU-b::0"]}),
        ("team-a", "rest", {"nvidia.com/mig-1g.10gb": ["MIG-1"]}),
    )

    assert world.looks(("train", "GPU-b")) == {"train": [("GPU-b", 95)], "rest": [("MIG-1", 0)]}


def test_a_device_that_is_no_card_here_leaves_the_pod_without_figures(
    tmp_path: Path, kubelet: Kubelet
) -> None:
    """GKE's plugin has such names."""
    world = World(tmp_path, pod("train", "GPU-a"), socket=kubelet.socket).starts()
    kubelet.has(("team-a", "train", {GPU: ["nvidia0"]}))

    assert world.looks(("train", "GPU-b")) == {}


def test_cards_of_several_containers_are_the_pods(tmp_path: Path, kubelet: Kubelet) -> None:
    placed = (("main", ("GPU-a",)), ("aux", ("GPU-b",)))
    world = World(tmp_path, pod("train", containers=placed), socket=kubelet.socket).starts()
    main, aux = (pod_json("team-a", "train", {GPU: [each]})["containers"][0] for each in ("GPU-b", "GPU-c"))
    containers = [main, {**aux, "name": "aux"}]
    kubelet.answer({"podResources": [{"namespace": "team-a", "name": "train", "containers": containers}]})

    assert world.looks(("train", "GPU-c")) == {"train": [("GPU-b", 0), ("GPU-c", 95)]}


def test_while_the_kubelet_is_away_pods_keep_their_cards_and_new_ones_have_none(tmp_path: Path) -> None:
    """Also over a restart of the agent, which knows them by the node."""
    folder = Path(mkdtemp(dir="/tmp"))  # a socket's path has at most 107 characters
    pods = pod("train", "GPU-a"), pod("rest", "GPU-b")
    world = World(tmp_path, *pods, socket=str(folder / "kubelet.sock")).starts()
    with serving(folder) as kubelet:
        kubelet.has(("team-a", "train", {GPU: ["GPU-b"]}))
        world.looks()
    busy = ("train", "GPU-b"), ("rest", "GPU-a")
    away = world.looks(*busy)
    anew = world.starts({"train": ["GPU-b"]}).looks(*busy)
    with serving(folder) as kubelet:
        kubelet.has(("team-a", "train", {GPU: ["GPU-b"]}), ("team-a", "rest", {GPU: ["GPU-a"]}))
        back = [world.looks(*busy) for _ in range(UNTIL_ASKED)][-1]

    assert away == anew == {"train": [("GPU-b", 95)]}
    assert back == {"train": [("GPU-b", 95)], "rest": [("GPU-a", 95)]}
