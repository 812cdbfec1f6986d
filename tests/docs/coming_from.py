"""The manifests on the pages of other systems, and nodes that look like those of these systems."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from tests.worlds import card, inventory

Json = dict[str, Any]

PAGES = Path(__file__).parents[2] / "docs" / "coming-from"
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
