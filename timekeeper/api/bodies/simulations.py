"""The body of ``POST /v1/simulate``. After this module it is a value that needs no further checks."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from timekeeper.api.bodies.heartbeats import read_object
from timekeeper.api.http.parameters import NAME
from timekeeper.api.problem import bad
from timekeeper.core.kube.timestamps import timestamp

MOST_PODS = 50
MOST_BUDGET = 16 * 1024  # characters of an entry
_FIELDS = ("version", "namespace", "pods", "budget")


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    """Pods of one namespace that do not exist, complete enough for a scheduler; ``budget``: the text of the
    namespace's entry that is supposed, None: the present one."""

    namespace: str
    pods: tuple[Mapping[str, Any], ...]
    budget: str | None


def read_simulation(body: bytes, now_ms: int) -> SimulationRequest:
    """Parse the body; the pods are as young as now. Raises a Problem that names the field."""
    raw = read_object(body, ())
    for name in raw:
        if name not in _FIELDS:
            raise bad(name, f"no such field; allowed: {', '.join(_FIELDS)}")
    if raw.get("version") != 1:
        raise bad("version", "it must be 1")
    namespace = raw.get("namespace")
    if not isinstance(namespace, str) or not re.fullmatch(NAME, namespace):
        raise bad("namespace", "it must be the name of a namespace")
    pods = raw.get("pods")
    if not isinstance(pods, list) or not 1 <= len(pods) <= MOST_PODS:
        raise bad("pods", f"it must be a list of 1 to {MOST_PODS} pods")
    budget = raw.get("budget")
    if not isinstance(budget, str | None) or len(budget or "") > MOST_BUDGET:
        raise bad("budget", f"it must be the text of a budget entry, of at most {MOST_BUDGET} characters")
    created = timestamp(now_ms)
    return SimulationRequest(
        namespace, tuple(_pod(each, at, namespace, created) for at, each in enumerate(pods)), budget
    )


def _pod(raw: object, at: int, namespace: str, created: str) -> Mapping[str, Any]:
    where = f"pods[{at}]"
    if not isinstance(raw, dict):
        raise bad(where, "it must be a Pod")
    metadata, spec = raw.get("metadata", {}), raw.get("spec")
    if not isinstance(metadata, dict):
        raise bad(f"{where}.metadata", "it must be an object")
    if not isinstance(spec, dict) or not isinstance(spec.get("containers"), list):
        raise bad(f"{where}.spec", "it must be the spec of a Pod, with containers")
    given = metadata.get("namespace", namespace)
    if given != namespace:
        raise bad(f"{where}.metadata.namespace", f"it must be {namespace}, or absent")
    name = metadata.get("name") or f"{metadata.get('generateName') or 'pod-'}{at}"
    if not isinstance(name, str) or len(name) > 253:
        raise bad(f"{where}.metadata.name", "it must be a name of at most 253 characters")
    known = {"name": name, "namespace": namespace, "uid": f"simulated-{at}", "creationTimestamp": created}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**{k: v for k, v in metadata.items() if k != "resourceVersion"}, **known},
        "spec": spec,
    }
