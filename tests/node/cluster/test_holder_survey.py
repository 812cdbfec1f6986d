"""Which pods hold which cards where a device plugin picks them, asked of a real gRPC server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.node.holder_survey import KUBELET_AGAIN_MS, SLICES_AGAIN_MS
from sidecar.node.kube.api import ApiAnswer
from sidecar.node.values import GPUProcess
from tests.node.podresources_server import Kubelet, claimed, pod_json, serving
from tests.node.unit.test_device_slices import device, listed
from tests.node.unit.test_holder_survey import GPU, TRAIN, WEB, World


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    with serving(tmp_path) as running:
        yield running


def test_where_a_plugin_picks_the_cards_the_kubelet_lists_them(tmp_path: Path, kubelet: Kubelet) -> None:
    (tmp_path / "config.toml").touch()
    world = World(tmp_path, ((GPU, "2"),), kubelet.socket)
    kubelet.has(("team-a", "web", {GPU: ["GPU-2"]}), ("team-a", "train", {GPU: ["GPU-1"]}))

    assert world.look()["pods"] == {TRAIN: ["GPU-1"], WEB: ["GPU-2"]}


def test_where_the_plugin_follows_placements_the_kubelet_lists_the_other_pods(
    tmp_path: Path, kubelet: Kubelet
) -> None:
    (tmp_path / "config.toml").touch()
    world = World(tmp_path, ((GPU, "2"),), kubelet.socket, is_described=True)
    kubelet.has(("team-a", "web", {GPU: ["GPU-1-3"]}), ("team-a", "train", {GPU: ["GPU-2-7"]}))

    assert world.look()["pods"] == {TRAIN: ["GPU-1"], WEB: ["GPU-1"]}


def test_until_the_kubelet_has_answered_nothing_is_known(tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch()
    world = World(tmp_path, ((GPU, "2"),), str(tmp_path / "kubelet.sock"))
    before = world.look()
    with serving(tmp_path) as kubelet:
        kubelet.has(("team-a", "web", {GPU: ["GPU-2"]}))
        at_once = world.look(after_ms=KUBELET_AGAIN_MS - 1)
        later = world.look(after_ms=1)
    away = world.look()

    assert (before["known"], before["pods"]) == (False, {})
    assert not at_once["known"], "it is left alone for a while"
    assert (later["known"], later["pods"]) == (True, {WEB: ["GPU-2"]})
    assert (away["known"], away["pods"]) == (True, {WEB: ["GPU-2"]})
    assert [event for event, _ in world.said] == ["not-seen", "seen-again", "not-seen"]


def test_a_device_that_is_no_card_of_the_inventory_is_reported(tmp_path: Path, kubelet: Kubelet) -> None:
    (tmp_path / "config.toml").touch()
    world = World(tmp_path, ((GPU, "2"),), kubelet.socket)
    kubelet.has(("team-a", "web", {GPU: ["GPU-9"]}))
    world.look()
    kubelet.has()
    world.look()

    assert [pairs for _, pairs in world.said] == [
        {"level": "warning", "what": "devices", "reason": "not in the inventory: team-a/web has GPU-9"},
        {"what": "devices"},
    ]


def uses(world: World, *cards: str) -> None:
    """The pod web computes on these cards."""
    world.processes = tuple(GPUProcess(2, card, 100, 5) for card in cards)


def with_claim(kubelet: Kubelet, *devices: str) -> None:
    """The pod web has these devices by a claim."""
    web = pod_json("team-a", "web", {})
    web["containers"][0]["dynamicResources"] = [claimed(each) for each in devices]
    kubelet.answer({"podResources": [web]})


def test_a_pod_on_the_card_of_its_claim_is_no_stranger_and_on_another_it_is(
    tmp_path: Path, kubelet: Kubelet
) -> None:
    (tmp_path / "config.toml").touch()
    published = listed(device("gpu-0", "GPU-2"), device("gpu-1", "GPU-1"))
    world = World(tmp_path, (), kubelet.socket, slices=lambda: ApiAnswer(200, published, ""))
    with_claim(kubelet, "gpu-0")

    uses(world, "GPU-2")
    assert [world.look()["closed"] for _ in range(3)] == [""] * 3
    uses(world, "GPU-1", "GPU-2")
    world.look()
    assert world.look()["closed"] == "pod team-a/web uses card GPU-1, which is not allocated to it"


def test_where_slices_cannot_be_read_it_is_one_until_they_can(tmp_path: Path, kubelet: Kubelet) -> None:
    (tmp_path / "config.toml").touch()
    answers = [ApiAnswer(403, None, "forbidden")]
    world = World(tmp_path, (), kubelet.socket, slices=lambda: answers[-1])
    with_claim(kubelet, "gpu-0")
    uses(world, "GPU-2")

    world.look()
    assert "GPU-2" in world.look()["closed"]
    answers.append(ApiAnswer(200, listed(device("gpu-0", "GPU-2")), ""))
    world.look(after_ms=SLICES_AGAIN_MS)
    assert world.look(after_ms=60_000)["closed"] == ""
    assert [pairs["what"] for event, pairs in world.said if event != "stranger"] == ["resource-slices"] * 2
