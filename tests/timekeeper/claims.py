"""Claims on devices and what drivers publish, as dicts."""

from typing import Any

from tests.timekeeper.clocks import iso
from tests.worlds import Json

DRIVER = "gpu.example.com"
EXTENDED = {"resource.kubernetes.io/extended-resource-claim": "true"}


def device_slice(
    *names: str, node: str = "n1", driver: str = DRIVER, model: str = "A100", **more: Any
) -> Json:
    """A ResourceSlice that is the whole pool of a node: whole devices of 80 GiB; ``more``: of each device."""
    device: Json = {
        "attributes": {"model": {"string": model}},
        "capacity": {"memory": {"value": "80Gi"}},
        **more,
    }
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": name, **device} for name in names]
    spec = {"driver": driver, "pool": pool, "nodeName": node, "devices": devices}
    return {"metadata": {"name": f"{node}-{driver}"}, "spec": spec}


def allocated(device: str = "gpu-0", *, pool: str = "n1", driver: str = DRIVER, **more: Any) -> Json:
    """A device in the result of an allocation."""
    return {"request": "r0", "driver": driver, "pool": pool, "device": device, **more}


def device_claim(
    name: str = "c",
    *devices: Json,
    namespace: str = "team-a",
    at_ms: int | None = None,
    pods: tuple[str, ...] = (),
    annotations: Json | None = None,
    owner: str = "",
) -> Json:
    """A ResourceClaim that holds these devices since then, for these pods by their UIDs; without devices it
    holds nothing."""
    owners = [{"kind": "Pod", "name": owner, "uid": f"uid-{owner}", "controller": True}] if owner else []
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": f"claim-{name}",
        "annotations": annotations or {},
        "ownerReferences": owners,
    }
    request = {"name": "r0", "exactly": {"deviceClassName": "gpu"}}
    body: Json = {"metadata": metadata, "spec": {"devices": {"requests": [request]}}, "status": {}}
    if devices:
        allocation: Json = {"devices": {"results": list(devices)}, "nodeSelector": _selector("n1")}
        if at_ms is not None:
            allocation["allocationTimestamp"] = iso(at_ms // 1000 * 1000)
        reserved = [{"resource": "pods", "name": uid, "uid": uid} for uid in pods]
        body["status"] = {"allocation": allocation, "reservedFor": reserved}
    return body


def _selector(node: str) -> Json:
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {"nodeSelectorTerms": [{"matchFields": [field]}]}
