"""Pods of Genius, KubeDevice and NVIDIA's replicas and MIG instances beside a real kube-scheduler. No webhook
runs here, so each pod has what the webhook adds."""

import json

from deploy.local.kwok_nodes import kwok_node
from tests.scheduler_ext.clusters import PODS, World, decided
from tests.support.waiting import eventually
from tests.webhook.worlds import governed
from tests.worlds import Json, of_resources, pod
from timekeeper.accounts.pods import LedgerPod, read_pod
from timekeeper.accounts.session import open_session
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.rating.nodes import NodeCards
from timekeeper.core.request.inventory import read_cards
from timekeeper.edge.clock import now_ms

DEVICE_INFO = "KubeDevice/DeviceInfo"
GIB = 2**30
LARGE = (("cards", 1), ("memory", 24 * GIB))


def create(world: World, name: str, limits: Json, **metadata: Json) -> None:
    """A pod as its user writes it, governed, without the sidecar, which needs volumes of a namespace."""
    raw = pod(of_resources(limits))
    raw["metadata"] = {"name": name, **metadata}
    after = governed(raw)
    resources = after["spec"]["containers"][0]["resources"]
    spec = {
        "schedulerName": "bursar-scheduler",
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "x", "resources": resources}],
    }
    world.plane.api.call("POST", PODS, {"metadata": raw["metadata"], "spec": spec})


def device_info_node(name: str, *gib: int) -> Json:
    """A node whose cards have these GiB of memory, in pairs, as KubeDevice's advertiser describes it."""
    amounts: Json = {"nvidia.com/gpu": len(gib)}
    for at, memory in enumerate(gib):
        card = f"resource/group/gpugrp1/0/gpugrp0/{at // 2}/gpu/GPU-{at}"
        amounts |= {f"{card}/cards": 1, f"{card}/memory": memory * GIB}
    node = kwok_node(name, capacity={"nvidia.com/gpu": str(len(gib))})
    described = {"name": name, "capacity": amounts, "allocatable": amounts}
    node["metadata"]["annotations"][DEVICE_INFO] = json.dumps(described)
    return node


def test_pods_of_genius_are_placed_on_our_nodes_by_their_labels(world: World) -> None:
    world.node("small", cards=2, memory_mib=8000)
    world.node("large", cards=2, memory_mib=24_000, model="GeForce RTX 3090")
    create(world, "one", {}, labels={"genius/gpu-number": "1", "genius/gpu-memory-each": "16000"})
    create(world, "two", {}, labels={"genius/gpu-number": "2", "genius/gpu-model": "rtx"})
    create(world, "three", {}, labels={"genius/gpu-number": "3"})

    decided(world, "one", "two", "three")

    found = [world.node_info_of(name) for name in ("one", "two", "three")]
    assert found in (["large", "", ""], ["", "large", ""])
    assert "not enough free GPUs (3 needed)" in world.refusals("three")


def test_pods_of_kubedevice_are_placed_on_its_nodes_in_their_groups(world: World) -> None:
    world.plane.api.call("POST", "/api/v1/nodes", device_info_node("theirs", 16, 16, 16, 16))
    eventually(lambda: world.extender.known("theirs"))
    requests = {f"resource/group/gpugrp0/A/gpu/{name}/cards": 1 for name in "xy"}
    told = json.dumps({"runningcontainer": {"main": {"requests": requests}}})
    create(world, "pair", {}, annotations={DEVICE_INFO: told})
    eventually(lambda: world.node_info_of("pair"))  # kube-scheduler may know the node later than the extender
    create(world, "plain", {"nvidia.com/gpu": "2"})
    decided(world, "plain")
    create(world, "late", {}, annotations={DEVICE_INFO: told})
    decided(world, "late")

    assert [world.node_info_of(name) for name in ("pair", "plain", "late")] == ["theirs", "theirs", ""]
    written = {name: world.get(name)["metadata"]["annotations"][DEVICE_INFO] for name in ("pair", "plain")}
    group = "resource/group/gpugrp1/0/gpugrp0"
    for name, pair in zip(written, (0, 1), strict=True):
        named = [f"{group}/0/gpu/{at}/cards" for at in range(2)]
        chosen = [f"{group}/{pair}/gpu/GPU-{2 * pair + at}/cards" for at in range(2)]
        own = dict.fromkeys(named, 1) if name == "pair" else {}
        main = {
            "requests": {"nvidia.com/gpu": 2, **own},
            "devrequests": dict.fromkeys(named, 1),
            "allocatefrom": dict(zip(named, chosen, strict=True)),
        }
        whole = {
            "nodename": "theirs",
            "requests": {"gpu/gpu-generate-topology": 0},
            "runningcontainer": {"main": main},
        }
        assert written[name] == json.dumps(whole, separators=(",", ":"))


def test_a_pod_of_kubedevice_has_cards_of_several_sets_which_are_written_back_and_charged(
    world: World,
) -> None:
    """A pair of linked cards of 24 GiB at least, and one of 10 GiB anywhere."""
    world.plane.api.call("POST", "/api/v1/nodes", device_info_node("theirs", 16, 8, 32, 32))
    eventually(lambda: world.extender.known("theirs"))
    requests = {f"resource/group/gpugrp0/A/gpu/{name}/{what}": n for name in "xy" for what, n in LARGE}
    requests |= {"resource/group/gpu/z/cards": 1, "resource/group/gpu/z/memory": 10 * GIB}
    told = json.dumps({"runningcontainer": {"main": {"requests": requests}}})
    create(world, "sets", {}, annotations={DEVICE_INFO: told})
    eventually(lambda: world.node_info_of("sets"))  # kube-scheduler may know the node later than the extender
    create(world, "late", {}, annotations={DEVICE_INFO: told})
    decided(world, "late")

    assert [world.node_info_of(name) for name in ("sets", "late")] == ["theirs", ""]
    bound = world.get("sets")
    written = json.loads(bound["metadata"]["annotations"][DEVICE_INFO])
    assert (written["nodename"], [*written["runningcontainer"]]) == ("theirs", ["main"])
    main = written["runningcontainer"]["main"]
    assert main["requests"] == {
        "nvidia.com/gpu": 3,
        "resource/group/gpu/0/cards": 1,
        "resource/group/gpu/0/memory": 10 * GIB,
        **{f"resource/group/gpugrp1/0/gpugrp0/0/gpu/{at}/{what}": n for at in (1, 2) for what, n in LARGE},
    }
    group = "resource/group/gpugrp1/0/gpugrp0"
    assert main["allocatefrom"] == {
        f"{group}/{pair}/gpu/{at}/{what}": f"{group}/{pair}/gpu/{uuid}/{what}"
        for at, (pair, uuid) in enumerate([(0, "GPU-0"), (1, "GPU-2"), (1, "GPU-3")])
        for what in ("cards", "memory")
    }
    assert main["devrequests"].keys() == main["allocatefrom"].keys()
    assert world.cards_of("sets") == ["GPU-0", "GPU-2", "GPU-3"]
    there = world.plane.api.call("GET", "/api/v1/nodes/theirs")
    pod_of_ledger = read_pod(bound)
    assert isinstance(pod_of_ledger, LedgerPod)
    opened = open_session(pod_of_ledger, NodeCards(read_cards(there) or ()), BudgetSettings(), now_ms())
    assert (opened.doubt, opened.rate_milli) == (None, 3000)


def test_replicas_and_instances_of_nvidias_plugin_are_placed_as_it_counts_them(world: World) -> None:
    world.node("shared", cards=0, capacity={"nvidia.com/gpu.shared": "2"})
    world.node("mig", cards=0, capacity={"nvidia.com/mig-3g.20gb": "2"})
    for name in ("a", "b", "c"):
        create(world, f"shared-{name}", {"nvidia.com/gpu.shared": "1"})
        create(world, f"mig-{name}", {"nvidia.com/mig-3g.20gb": "1"})
        decided(world, f"shared-{name}", f"mig-{name}")

    for kind in ("shared", "mig"):
        assert [world.node_info_of(f"{kind}-{name}") for name in ("a", "b", "c")] == [kind, kind, ""]
    annotations = world.get("mig-a")["metadata"]["annotations"]
    (part,) = json.loads(annotations["bursar.dev/devices"])["containers"]["main"]
    assert part["resources"] == {"nvidia.com/mig-3g.20gb": 3}
    assert not any(name.startswith("visible-devices.bursar.dev/") for name in annotations)
