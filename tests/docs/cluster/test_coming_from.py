"""The manifests on the pages of other systems, created as they stand, through the real API server with
webhook and policies, kube-scheduler and extender, on nodes that look like those of these systems. What the
Binding writes for the node plugin is compared whole: annotations, and labels, by which plugins select pods.
The charge is that of the running timekeeper. Pods of HAMi and Volcano that wait for their plugin's answer:
`tests/scheduler_ext/cluster/test_hami.py`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deploy.local.kwok_nodes import kwok_node
from deploy.local.stack import Stack
from tests.deploy.reading import ROOT
from tests.docs.coming_from import WORLDS, foreign, manifest
from tests.support.control_plane import create_namespace, kubectl
from tests.support.waiting import eventually
from tests.support.worker_control_plane import Lender
from tests.worlds import Json

# page -> what the ledger charges, in thousandths of a GPU
RATES = {
    "kubernetes-gpusharing": 500,
    "gpu-manager": 500,
    "nano-gpu": 200,
    "gpushare": 188,
    "hami": 300,
    "intel-gas": 500,
    "volcano": 500,
    "nvidia": 2000,
    "kubegpu": 2000,
    "genius": 2000,
}
QUICK = ("hami", "kubegpu")  # annotations that one plugin reads, and labels that another one does


@pytest.fixture(scope="module")
def stack(lender: Lender) -> Iterator[Stack]:
    """Every role as a process; the extender may lock nodes for their plugins."""
    with lender.stack() as running:
        kubectl(running.cp, "apply", "-f", str(ROOT / "deploy" / "samples" / "node-locks.yaml"))
        running.stop("extender")
        running.start("extender", "--lock-nodes=hami,volcano")
        running.wait("the extender", lambda: running.is_ready(running.extender_url), "extender")
        yield running
        running.stop("extender")
        running.start("extender")
        running.wait("the extender", lambda: running.is_ready(running.extender_url), "extender")


def test_every_page_with_a_node_has_a_rate_here() -> None:
    assert {*RATES} == {*WORLDS}


@pytest.mark.parametrize(
    "page", [page if page in QUICK else pytest.param(page, marks=pytest.mark.soak) for page in RATES]
)
def test_its_pod_is_admitted_placed_and_charged_as_it_stands(stack: Stack, page: str) -> None:
    world, raw = WORLDS[page], manifest(page)
    raw["metadata"] = {key: each for key, each in raw["metadata"].items() if key not in ("namespace", "uid")}
    with node_of(stack, page), created(stack, page, raw) as path:
        eventually(lambda: stack.cp.api.call("GET", path)["spec"].get("nodeName") == "n")
        metadata = stack.cp.api.call("GET", path)["metadata"]
        reader = stack.reader_token()
        (session,) = eventually(lambda: stack.get(f"/v1/sessions?namespace={page}", reader)["sessions"])

    own = {key: raw["metadata"].get(key, {}) for key in ("annotations", "labels")}
    written = {key: foreign(metadata.get(key, {}), own[key]) for key in own}
    assert (session["pod"], session["node"], session["rateMilli"]) == (
        raw["metadata"]["name"],
        "n",
        RATES[page],
    )
    times = {name: written["annotations"].get(name) for name in world.times}
    assert written["annotations"] == world.annotations | times
    assert written["labels"] == world.labels
    assert metadata["annotations"].items() >= world.ours.items()


@contextmanager
def node_of(stack: Stack, page: str) -> Iterator[None]:
    """The node of the page's system."""
    world = WORLDS[page]
    node = kwok_node("n", capacity=world.capacity, labels=world.node_labels)
    node["metadata"]["annotations"] |= world.node_annotations
    stack.cp.api.call("POST", "/api/v1/nodes", node)
    try:
        yield
    finally:
        stack.cp.api.call("DELETE", "/api/v1/nodes/n")


@contextmanager
def created(stack: Stack, namespace: str, raw: Json) -> Iterator[str]:
    """The path of the pod, in a new namespace. It ends before its object goes, so the next one gets its cards
    at once."""
    pods = create_namespace(stack.cp, namespace)
    stack.cp.api.call("POST", pods, raw)
    path = f"{pods}/{raw['metadata']['name']}"
    try:
        yield path
    finally:
        ended = {"phase": "Succeeded", "initContainerStatuses": [], "containerStatuses": []}
        merge = "application/merge-patch+json"
        stack.cp.api.call("PATCH", f"{path}/status", {"status": ended}, content_type=merge)
        stack.cp.api.call("DELETE", f"{path}?gracePeriodSeconds=0")
