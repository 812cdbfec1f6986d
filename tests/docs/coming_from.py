"""The manifests on the pages of other systems, nodes that look like those of these systems, and what their
node plugins read on the bound pods."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.worlds import Json, card, inventory

PAGES = Path(__file__).parents[2] / "docs" / "coming-from"
INVENTORY = {
    "bursar.dev/inventory": inventory(*(card(at, 16_000, numa=0, links=[f"GPU-{at ^ 1}"]) for at in (0, 1)))
}
HAMI = "GPU-0,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true:"
VOLCANO = "GPU-0,10,32768,NVIDIA-Tesla V100-PCIE-32GB,true,hami-core:"
PAIR = "resource/group/gpugrp1/0/gpugrp0/0/gpu"
KUBE = {f"{PAIR}/GPU-{at}/cards": 1 for at in (0, 1)}
BOUND_BY_KUBE = {
    "nodename": "n",
    "requests": {"gpu/gpu-generate-topology": 0},
    "runningcontainer": {
        "main": {
            "requests": {"nvidia.com/gpu": 2, f"{PAIR}/0/cards": 1, f"{PAIR}/1/cards": 1},
            "devrequests": {f"{PAIR}/0/cards": 1, f"{PAIR}/1/cards": 1},
            "allocatefrom": {f"{PAIR}/{at}/cards": f"{PAIR}/GPU-{at}/cards" for at in (0, 1)},
        }
    },
}
NS, S = 1, 10**9  # units of times
_OURS = re.compile(r"(^|\.)bursar\.dev/")


@dataclass(frozen=True)
class System:
    """A node of the system, and all that is written for its plugin on the page's pod."""

    capacity: Json
    annotations: Json = field(default_factory=dict)  # without `times`
    times: Mapping[str, int] = field(default_factory=dict)  # annotation -> unit of the time of the Binding
    labels: Json = field(default_factory=dict)
    node_annotations: Json = field(default_factory=dict)
    node_labels: Json = field(default_factory=dict)
    ours: Json = field(default_factory=dict)  # some of Bursar's own annotations

    def written_at(self, now_ns: int) -> Json:
        """The annotations after a Binding at this moment."""
        return self.annotations | {name: str(now_ns // unit) for name, unit in self.times.items()}


def _gpu_manager(admitted: Json) -> System:
    """``admitted``: what the webhook adds."""
    predicate = {"predicate-gpu-idx-0": "0", "predicate-node": "n", "gpu-assigned": "false"}
    return System(
        {"tencent.com/vcuda-core": "200", "tencent.com/vcuda-memory": "124"},
        {f"tencent.com/{name}": text for name, text in predicate.items()} | admitted,
        {"tencent.com/predicate-time": NS},
        node_annotations=INVENTORY,
        ours={"visible-devices.bursar.dev/main": "GPU-0"},
    )


WORLDS: dict[str, System] = {
    "kubernetes-gpusharing": _gpu_manager({"tencent.com/vcuda-core-limit": "50"}),
    "gpu-manager": _gpu_manager({}),  # the page's pod has the limit already
    "nano-gpu": System(
        {"nano-gpu/gpu-percent": "200"},
        {"nano-gpu/container-main": "0", "nano-gpu/assume": "true"},
        labels={"nano-gpu/assume": "true"},
    ),
    "gpushare": System(
        {"aliyun.com/gpu-mem": "32", "aliyun.com/gpu-count": "2"},
        {
            "ALIYUN_COM_GPU_MEM_IDX": "0",
            "ALIYUN_COM_GPU_MEM_POD": "3",
            "ALIYUN_COM_GPU_MEM_DEV": "16",
            "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        },
        {"ALIYUN_COM_GPU_MEM_ASSUME_TIME": NS},
    ),
    "hami": System(
        {"nvidia.com/gpu": "10"},
        {
            # the part before the first semicolon is that of Bursar's sidecar
            "hami.io/vgpu-devices-to-allocate": ";GPU-0,NVIDIA,3000,30:;",
            "hami.io/vgpu-devices-allocated": ";GPU-0,NVIDIA,3000,30:;",
            "hami.io/vgpu-node": "n",
            "hami.io/bind-phase": "allocating",
        },
        {"hami.io/vgpu-time": S, "hami.io/bind-time": S},
        labels={"hami.io/vgpu-node": "n"},
        node_annotations={"hami.io/node-nvidia-register": HAMI},
    ),
    "intel-gas": System(
        {"gpu.intel.com/i915": "4", "gpu.intel.com/tiles": "4", "gpu.intel.com/millicores": "2000"},
        {"gas-container-cards": "card0", "gas-container-tiles": "card0:gt0"},
        {"gas-ts": NS},
        node_labels={"gpu.intel.com/gpu-numbers": "0.1"},
    ),
    "volcano": System(
        {"volcano.sh/vgpu-number": "10", "volcano.sh/vgpu-memory": "32768", "volcano.sh/vgpu-cores": "100"},
        {
            "volcano.sh/vgpu-ids-new": "GPU-0,NVIDIA,3000,50:",
            "volcano.sh/devices-to-allocate": "GPU-0,NVIDIA,3000,50:",
            "volcano.sh/vgpu-node": "n",
            "volcano.sh/bind-phase": "allocating",
        },
        {"volcano.sh/vgpu-time": S, "volcano.sh/bind-time": S},
        node_annotations={"volcano.sh/node-vgpu-register": VOLCANO},
    ),
    "nvidia": System({"nvidia.com/gpu": "2"}, node_annotations=INVENTORY),
    "kubegpu": System(
        {"nvidia.com/gpu": "2"},
        {"KubeDevice/DeviceInfo": json.dumps(BOUND_BY_KUBE, separators=(",", ":"))},
        node_annotations={"KubeDevice/DeviceInfo": json.dumps({"allocatable": KUBE})},
        ours={"visible-devices.bursar.dev/main": "GPU-0,GPU-1"},
    ),
    "genius": System({}, node_annotations=INVENTORY, ours={"visible-devices.bursar.dev/main": "GPU-0,GPU-1"}),
}


def manifest(page: str) -> Json:
    """The pod on the page."""
    (text,) = re.findall(r"```yaml\n(.*?)```", (PAGES / f"{page}.md").read_text(), re.DOTALL)
    raw: Json = yaml.safe_load(text)
    raw["metadata"] |= {"namespace": "team-a", "uid": "uid-p"}
    return raw


def foreign(found: Json, own: Json) -> Json:
    """Of these annotations or labels those that are neither Bursar's nor left as their user wrote them."""
    return {name: text for name, text in found.items() if not _OURS.search(name) and own.get(name) != text}
