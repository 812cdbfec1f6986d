"""Builders of the small worlds that tests are about: pods, nodes, cards, as the API server would give
them."""

import json
from typing import Any

Json = dict[str, Any]


def container(name: str = "main", requests: Json | None = None, **limits: object) -> Json:
    """A container; limits are given as ``gpu_percent="50"`` for bursar.dev/gpu-percent, or in full through
    ``limits_of``."""
    named = {f"bursar.dev/{key.replace('_', '-')}": value for key, value in limits.items()}
    resources: Json = {"limits": named} if named else {}
    if requests is not None:
        resources["requests"] = requests
    return {"name": name, "image": "registry.example/app:1", "resources": resources}


def limits_of(name: str, **resources: object) -> Json:
    """A container whose limits are named by keyword with ``__`` for the slash and ``_`` for a dash:
    tencent_com__vcuda_core."""
    named = {}
    for key, value in resources.items():
        domain, _, resource = key.partition("__")
        named[f"{domain.replace('_', '.')}/{resource.replace('_', '-')}"] = value
    return {"name": name, "image": "registry.example/app:1", "resources": {"limits": named}}


def of_resources(amounts: Json, name: str = "main") -> Json:
    """A container with these limits, named in full."""
    return {"name": name, "image": "registry.example/app:1", "resources": {"limits": amounts}}


def pod(
    *containers: Json, init: list[Json] | None = None, annotations: Json | None = None, **fields: object
) -> Json:
    """A pod of these containers; further keywords go into its spec."""
    spec: Json = {"containers": list(containers), **fields}
    if init:
        spec["initContainers"] = init
    metadata: Json = {"name": "p", "namespace": "team-a", "uid": "uid-p"}
    if annotations is not None:
        metadata["annotations"] = annotations
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": spec,
        "status": {"phase": "Pending"},
    }


def running(since: str) -> Json:
    """A container state."""
    return {"running": {"startedAt": since}}


def terminated(since: str, until: str) -> Json:
    """A container state."""
    return {"terminated": {"startedAt": since, "finishedAt": until, "exitCode": 0}}


def status(phase: str, **states: Json) -> Json:
    """A pod's status with the state of each named container."""
    statuses = [{"name": name, "state": state, "lastState": {}} for name, state in states.items()]
    return {"phase": phase, "containerStatuses": statuses}


def inventory(*cards: Json) -> str:
    """The annotation bursar.dev/inventory."""
    return json.dumps({"version": 1, "cards": list(cards)})


def card(index: int, memory_mib: int = 16000, model: str = "A100", **fields: object) -> Json:
    """One card of an inventory, with the UUID GPU-<index>."""
    return {
        "uuid": f"GPU-{index}",
        "index": index,
        "model": model,
        "memory_mib": memory_mib,
        "healthy": True,
        **fields,
    }
