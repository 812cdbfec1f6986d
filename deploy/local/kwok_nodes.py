"""Manifests of kwok nodes with cards, and of devices that pods get by claims."""

import json
import uuid
from collections.abc import Mapping
from typing import Any

from deploy.local.kwok_stages import FAKE_NODE
from deploy.local.tools import KUBERNETES
from sidecar.node.state.node_patch import OF_A_CARD

# A namespace of our own for name-based UUIDs, so that a node's cards have the same UUIDs in every run.
_CARDS = uuid.UUID("6f3c0ad4-6a0c-5d0e-9d3a-2f1f0a6c9b11")
TENCENT_MEMORY_UNIT_MIB = 256
EXAMPLE_DRIVER = "gpu.example.com"


def card_uuid(node: str, index: int) -> str:
    """The made-up UUID of a node's card, in NVIDIA's shape; stable over runs."""
    return f"GPU-{uuid.uuid5(_CARDS, f'{node}/{index}')}"


def inventory(node: str, cards: int, memory_mib: int, model: str) -> str:
    """The value of `bursar.dev/inventory` for a node of equal, healthy, unlinked cards of `memory_mib` each:
    canonical JSON.
    """
    listed: list[dict[str, Any]] = [
        {
            "uuid": card_uuid(node, index),
            "index": index,
            "model": model,
            "memory_mib": memory_mib,
            "healthy": True,
            "numa": 0,
            "links": [],
            "mig": None,
        }
        for index in range(cards)
    ]
    return json.dumps({"version": 1, "cards": listed}, sort_keys=True, separators=(",", ":"))


def our_capacity(cards: int, memory_mib: int) -> dict[str, str]:
    """The capacity that our node agent writes: 100 percent per card, and the cards' MiB in total."""
    counted = {name: str(number * cards) for name, number in OF_A_CARD.items()}
    return {**counted, "bursar.dev/gpu-memory": str(cards * memory_mib)}


def tencent_capacity(cards: int, memory_mib: int) -> dict[str, str]:
    """The capacity that gpu-manager's device plugin writes: 100 cores per card, and memory in units of 256
    MiB."""
    return {
        "tencent.com/vcuda-core": str(100 * cards),
        "tencent.com/vcuda-memory": str(cards * (memory_mib // TENCENT_MEMORY_UNIT_MIB)),
    }


def nvidia_capacity(cards: int) -> dict[str, str]:
    """The capacity that NVIDIA's device plugin writes: whole cards."""
    return {"nvidia.com/gpu": str(cards)}


def kwok_node(
    name: str,
    *,
    cards: int = 0,
    memory_mib: int = 81_920,
    model: str = "H100",
    cpu: int = 64,
    labels: Mapping[str, str] | None = None,
    capacity: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A Node for kwok, with `cards` cards of `memory_mib` MiB each in its inventory.

    `capacity`: its GPU resources, by default `our_capacity`; or `tencent_capacity(...)`,
    `nvidia_capacity(...)`, or a union of them. With a capacity and no cards it is a node of another system,
    without Bursar's agent.
    """
    key, _, value = FAKE_NODE.partition("=")
    annotations = {key: value}
    resources = {"cpu": str(cpu), "memory": "512Gi", "ephemeral-storage": "1Ti", "pods": "250"}
    if cards:
        annotations["bursar.dev/inventory"] = inventory(name, cards, memory_mib, model)
    if cards or capacity:
        resources |= our_capacity(cards, memory_mib) if capacity is None else capacity
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": annotations,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                **(labels or {}),
            },
        },
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "addresses": [
                {"type": "InternalIP", "address": "127.0.0.1"},
                {"type": "Hostname", "address": name},
            ],
            "nodeInfo": _NODE_INFO,
        },
    }


def device_class(driver: str, resource: str = "") -> dict[str, Any]:
    """A DeviceClass of all devices of a driver, under the driver's name. ``resource``: the extended resource
    that it serves too."""
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]}
    spec |= {"extendedResourceName": resource} if resource else {}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": driver},
        "spec": spec,
    }


def device_pool(node: str, devices: int) -> dict[str, Any]:
    """The ResourceSlice with which kubernetes-sigs/dra-example-driver would publish its made-up devices on
    this node. No driver runs there: kube-scheduler allocates them all the same."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{EXAMPLE_DRIVER}"},
        "spec": {
            "driver": EXAMPLE_DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [_device(node, index) for index in range(devices)],
        },
    }


def _device(node: str, index: int) -> dict[str, Any]:
    return {
        "name": f"gpu-{index}",
        "allowMultipleAllocations": False,
        "attributes": {
            "driverVersion": {"version": "1.0.0"},
            "index": {"int": index},
            "model": {"string": "LATEST-GPU-MODEL"},
            "uuid": {"string": f"gpu-{uuid.uuid5(_CARDS, f'{node}/{index}')}"},
        },
        "capacity": {"compute": {"value": "100"}, "memory": {"value": "80Gi"}},
    }


_NODE_INFO = {
    "architecture": "amd64",
    "operatingSystem": "linux",
    "kubeletVersion": f"v{KUBERNETES.version}",
    "kubeProxyVersion": "",
    "containerRuntimeVersion": "kwok://0.8.0",
    "kernelVersion": "",
    "osImage": "",
    "machineID": "",
    "systemUUID": "",
    "bootID": "",
}
