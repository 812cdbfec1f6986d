"""The manifest on each page of another system, run as it stands: governed, placed on a node that looks like
that system's, and written for its node plugin."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler_ext.binding.manifest import written_for
from scheduler_ext.fit.fit import fit
from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import read_pod
from scheduler_ext.snapshot.node_info import node_info_of
from tests.webhook.worlds import POLICY, governed, violations_of
from tests.worlds import card, inventory
from timekeeper.core.dialects import DIALECTS
from timekeeper.core.values import Placement

Json = dict[str, Any]

PAGES = Path(__file__).parents[3] / "docs" / "coming-from"
OTHERS = replace(POLICY, other_schedulers=frozenset(name for each in DIALECTS for name in each.schedulers))
OURS = {
    "bursar.dev/inventory": inventory(*(card(at, 16_000, numa=0, links=[f"GPU-{at ^ 1}"]) for at in (0, 1)))
}
HAMI = "GPU-0,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true:"
VOLCANO = "GPU-0,10,32768,NVIDIA-Tesla V100-PCIE-32GB,true,hami-core:"
KUBE = {f"resource/group/gpugrp1/0/gpugrp0/0/gpu/GPU-{at}/cards": 1 for at in (0, 1)}

# page -> capacity, annotations and labels of a node, and what the Binding writes that no clock decides
WORLDS: dict[str, tuple[Json, Json, Json, Json]] = {
    **dict.fromkeys(
        ("kubernetes-gpusharing", "gpu-manager"),
        (
            {"tencent.com/vcuda-core": "200", "tencent.com/vcuda-memory": "124"},
            OURS,
            {},
            {"tencent.com/predicate-gpu-idx-0": "0", "tencent.com/gpu-assigned": "false"},
        ),
    ),
    "nano-gpu": ({"nano-gpu/gpu-percent": "200"}, {}, {}, {"nano-gpu/container-main": "0"}),
    "gpushare": (
        {"aliyun.com/gpu-mem": "32", "aliyun.com/gpu-count": "2"},
        {},
        {},
        {"ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_POD": "3", "ALIYUN_COM_GPU_MEM_DEV": "16"},
    ),
    "hami": (
        {"nvidia.com/gpu": "10"},
        {"hami.io/node-nvidia-register": HAMI},
        {},
        {"hami.io/vgpu-devices-to-allocate": ";GPU-0,NVIDIA,3000,30:;", "hami.io/vgpu-node": "n"},
    ),
    "intel-gas": (
        {"gpu.intel.com/i915": "4", "gpu.intel.com/tiles": "4", "gpu.intel.com/millicores": "2000"},
        {},
        {"gpu.intel.com/gpu-numbers": "0.1"},
        {"gas-container-cards": "card0", "gas-container-tiles": "card0:gt0"},
    ),
    "volcano": (
        {"volcano.sh/vgpu-number": "10", "volcano.sh/vgpu-memory": "32768", "volcano.sh/vgpu-cores": "100"},
        {"volcano.sh/node-vgpu-register": VOLCANO},
        {},
        {"volcano.sh/vgpu-ids-new": "GPU-0,NVIDIA,3000,50:", "volcano.sh/vgpu-node": "n"},
    ),
    "nvidia": ({"nvidia.com/gpu": "2"}, OURS, {}, {}),
    "kubegpu": (
        {"nvidia.com/gpu": "2"},
        {"KubeDevice/DeviceInfo": json.dumps({"allocatable": KUBE})},
        {},
        {"visible-devices.bursar.dev/main": "GPU-0,GPU-1"},
    ),
    "genius": ({}, OURS, {}, {"visible-devices.bursar.dev/main": "GPU-0,GPU-1"}),
}


def manifest(page: str) -> Json:
    """The pod on the page."""
    (text,) = re.findall(r"```yaml\n(.*?)```", (PAGES / f"{page}.md").read_text(), re.DOTALL)
    raw: Json = yaml.safe_load(text)
    raw["metadata"] |= {"namespace": "team-a", "uid": "uid-p"}
    return raw


def test_each_page_has_a_manifest_that_is_run_here() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == {*WORLDS, "other-schedulers"}


@pytest.mark.parametrize("page", WORLDS)
def test_its_pod_is_admitted_as_it_stands_and_gets_its_cards_in_the_form_of_its_plugin(page: str) -> None:
    capacity, annotations, labels, expected = WORLDS[page]
    raw = manifest(page)
    node = {
        "metadata": {"name": "n", "annotations": annotations, "labels": labels},
        "status": {"capacity": capacity},
    }
    there = node_info_of("n", read_node(node), {})

    assert violations_of(raw, POLICY) == ()
    pod = read_pod(governed(raw))
    assert pod is not None
    assert pod.request is not None, pod.malformed
    assert there.node_object is not None
    placement = fit(pod.request, there)
    assert isinstance(placement, Placement), placement
    written = written_for(
        pod, pod.request, placement, "n", 7, there.node_object.cards, there.node_object.family
    ).annotations

    assert "bursar.dev/devices" in written
    assert expected.items() <= written.items(), written


def test_a_pod_that_stays_with_its_own_scheduler_is_governed_and_keeps_it() -> None:
    raw = manifest("other-schedulers")

    after = governed(raw, policy=OTHERS)

    assert violations_of(raw, OTHERS) == ()
    assert after["spec"]["schedulerName"] == "kai-scheduler"
    pod = read_pod(after)
    assert pod is not None
    assert pod.request is not None
    assert [each.ask.share_milli for each in pod.request.asks] == [500]
