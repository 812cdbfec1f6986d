"""The manifest on each page of another system beside a real API server and kube-scheduler, on a node that
looks like that system's: placed, written for its node plugin, and charged.

No webhook runs here, so each pod has what the webhook adds, without the sidecar. Pods of HAMi and Volcano,
whose nodes the extender locks, are in `test_hami.py`.
"""

from typing import Any

import pytest

from deploy.local.kwok_nodes import kwok_node
from tests.docs.coming_from import WORLDS, manifest
from tests.scheduler_ext.clusters import PODS, World, extender, placed, plane, rate_of, world
from tests.support.waiting import eventually
from tests.webhook.worlds import governed

__all__ = ["extender", "plane", "world"]

Json = dict[str, Any]

# page -> thousandths of a GPU: the larger part of compute and memory, or of any named resource
RATES = {
    "kubernetes-gpusharing": 500,
    "gpu-manager": 500,
    "nano-gpu": 200,
    "gpushare": 188,
    "intel-gas": 500,
    "nvidia": 2000,
    "kubegpu": 2000,
    "genius": 2000,
}


def test_every_page_has_a_rate_here_or_is_of_a_system_whose_nodes_are_locked() -> None:
    assert {*RATES, "hami", "volcano"} == {*WORLDS}


@pytest.mark.parametrize("page", RATES)
def test_the_pod_of_a_page_is_placed_written_for_its_plugin_and_charged(world: World, page: str) -> None:
    capacity, annotations, labels, expected = WORLDS[page]
    node = kwok_node("n", capacity=capacity, labels=labels)
    node["metadata"]["annotations"] |= annotations
    world.plane.api.call("POST", "/api/v1/nodes", node)
    eventually(lambda: world.extender.answers("/v1/cluster?node=n"))
    after = governed(manifest(page))
    metadata = {key: after["metadata"].get(key, {}) for key in ("annotations", "labels")}
    containers = [
        {key: each[key] for key in ("name", "image", "resources")} for each in after["spec"]["containers"]
    ]
    spec = {
        "schedulerName": after["spec"]["schedulerName"],
        "restartPolicy": "Never",
        "containers": [each for each in containers if each["name"] != "bursar-sidecar"],
    }

    world.plane.api.call("POST", PODS, {"metadata": {"name": "p", **metadata}, "spec": spec})
    placed(world, "p")

    assert world.node_info_of("p") == "n"
    written = world.get("p")["metadata"]["annotations"]
    assert {name: written.get(name) for name in expected} == expected
    assert rate_of(world, "p") == RATES[page]
