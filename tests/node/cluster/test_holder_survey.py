"""Which pods hold which cards where a device plugin picks them, asked of a real gRPC server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.node.holder_survey import KUBELET_AGAIN_MS
from tests.node.podresources_server import Kubelet, serving
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
        {"what": "devices", "reason": "not in the inventory: team-a/web has GPU-9"},
        {"what": "devices"},
    ]
