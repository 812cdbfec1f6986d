"""The manifests on the pages of other systems through a real API server and kube-scheduler, on nodes that
look like those of these systems. No webhook runs here, so each pod has what the webhook adds, but for the
sidecar. Pods of HAMi and Volcano wait for their plugin's answer: `tests/scheduler_ext/cluster/test_hami.py`.
"""

import pytest

from deploy.local.kwok_nodes import kwok_node
from tests.docs.coming_from import WORLDS, manifest
from tests.scheduler_ext.clusters import PODS, World, extender, placed, plane, rate_of, world
from tests.support.waiting import eventually
from tests.webhook.worlds import governed

__all__ = ["extender", "plane", "world"]

# page -> what the ledger charges, in thousandths of a GPU
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
def test_its_pod_is_placed_as_it_stands_and_charged(world: World, page: str) -> None:
    capacity, annotations, labels, expected = WORLDS[page]
    node = kwok_node("n", capacity=capacity, labels=labels)
    node["metadata"]["annotations"] |= annotations
    world.plane.api.call("POST", "/api/v1/nodes", node)
    eventually(lambda: world.extender.answers("/v1/cluster?node=n"))
    after = governed(manifest(page))
    main = next(each for each in after["spec"]["containers"] if each["name"] == "main")
    spec = {
        "schedulerName": "bursar-scheduler",
        "containers": [{key: main[key] for key in ("name", "image", "resources") if key in main}],
    }
    given = {key: after["metadata"][key] for key in ("annotations", "labels") if key in after["metadata"]}
    world.plane.api.call("POST", PODS, {"metadata": {"name": "p", **given}, "spec": spec})
    placed(world, "p")

    assert world.node_info_of("p") == "n"
    assert rate_of(world, "p") == RATES[page]
    assert expected.items() <= world.get("p")["metadata"]["annotations"].items()
