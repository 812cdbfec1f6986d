"""A device that is kept for the claim of one waiting pod, its *heir*: what the claim asks for, its own
toleration, and the DeviceTaintRule that keeps the device. Source: k8s.io/api/resource/v1 and v1beta2.

Each claim that may become an heir is created with a toleration of a key that names its namespace, and a value
of its own. The API server refuses such a toleration of another namespace's key, or of every value, so a taint
with this key and value is tolerated by this claim alone.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from timekeeper.core.json_values import Json, annotations_of, mapping, sequence
from timekeeper.core.names import HEIR, HEIR_KEYS, HEIR_UNTIL
from timekeeper.core.object_names import KEEPS_OFF, millis, timestamp

MOST_TOLERATIONS = 16  # of a request (`DeviceTolerationsMaxLength`)
TOKEN = re.compile(r"[0-9a-f]{32}")

DeviceKey = tuple[str, str, str]  # driver, pool, name


@dataclass(frozen=True, slots=True)
class WantedDevice:
    """One device of a class, as a claim asks for it. ``selectors``: its own, beside those of the class;
    ``token``: the value of its own toleration, "" where it has none."""

    device_class: str
    selectors: tuple[str, ...] = ()
    token: str = ""


def wanted_device(claim: Json) -> WantedDevice | None:
    """What the claim asks for; None if that is anything but one whole device of one class, on terms of which
    a device's earlier allocation says whether it meets them."""
    devices = mapping(mapping(claim.get("spec")).get("devices"))
    found = single_request(devices)
    if found is None or sequence(devices.get("constraints")):
        return None
    selectors = selectors_of(found)
    if len(selectors) < len(sequence(found.get("selectors"))):
        return None  # of a kind that is not known
    namespace = str(mapping(claim.get("metadata")).get("namespace", ""))
    return WantedDevice(str(found.get("deviceClassName", "")), selectors, _token(found, namespace))


def single_request(devices: Json) -> Json | None:
    """The terms of the claim's only request, if that is for one whole device; else None."""
    requests = sequence(devices.get("requests"))
    found = mapping(mapping(requests[0]).get("exactly")) if len(requests) == 1 else {}
    is_one = found.get("allocationMode", "ExactCount") == "ExactCount" and found.get("count", 1) == 1
    if not found.get("deviceClassName") or not is_one or found.get("adminAccess") or found.get("capacity"):
        return None
    return found


def selectors_of(request: Json) -> tuple[str, ...]:
    """The expressions of its selectors."""
    found = (
        mapping(mapping(each).get("cel")).get("expression") for each in sequence(request.get("selectors"))
    )
    return tuple(each for each in found if isinstance(each, str))


def selectors_by_request(claim: Json) -> Mapping[str, tuple[str, ...]]:
    """The selectors that the device of each request met when it was allocated, by the request's name as
    results have it."""
    found: dict[str, tuple[str, ...]] = {}
    for each in map(mapping, sequence(mapping(mapping(claim.get("spec")).get("devices")).get("requests"))):
        name = str(each.get("name", ""))
        found[name] = selectors_of(mapping(each.get("exactly")))
        for one in map(mapping, sequence(each.get("firstAvailable"))):
            found[f"{name}/{one.get('name', '')}"] = selectors_of(one)
    return found


def toleration(namespace: str, token: str) -> dict[str, str]:
    """The claim's own."""
    return {"key": f"{HEIR_KEYS}{namespace}", "operator": "Equal", "value": token, "effect": "NoSchedule"}


def _token(request: Json, namespace: str) -> str:
    for each in map(mapping, sequence(request.get("tolerations"))):
        value = str(each.get("value", ""))
        if each == toleration(namespace, value) and TOKEN.fullmatch(value):
            return value
    return ""


@dataclass(frozen=True, slots=True)
class Heir:
    """The claim and the pod that a device is kept for, until then at most."""

    namespace: str
    claim: str
    pod_uid: str
    until_ms: int


def taint_rule(version: str, device: DeviceKey, heir: Heir, token: str) -> dict[str, Any]:
    """The DeviceTaintRule that keeps the device for the heir. ``version``: of the API."""
    driver, pool, name = device
    metadata = {
        "generateName": "bursar-heir-",
        "labels": {"app.kubernetes.io/part-of": "bursar", HEIR: heir.pod_uid},
        "annotations": {HEIR: f"{heir.namespace}/{heir.claim}", HEIR_UNTIL: timestamp(heir.until_ms)},
    }
    kept = {"key": f"{HEIR_KEYS}{heir.namespace}", "value": token, "effect": "NoSchedule"}
    spec = {"deviceSelector": {"driver": driver, "pool": pool, "device": name}, "taint": kept}
    kind = {"apiVersion": f"resource.k8s.io/{version}", "kind": "DeviceTaintRule"}
    return {**kind, "metadata": metadata, "spec": spec}


@dataclass(frozen=True, slots=True)
class TaintRule:
    """A DeviceTaintRule. ``selected``: driver, pool and device, each "" for all; ``heir``: of one of ours."""

    name: str
    selected: DeviceKey
    keeps_off: bool
    heir: Heir | None = None

    def covers(self, device: DeviceKey) -> bool:
        """Whether it keeps claims off the device."""
        pairs = zip(self.selected, device, strict=True)
        return self.keeps_off and all(mine in ("", theirs) for mine, theirs in pairs)


def read_rule(raw: Json) -> TaintRule:
    """The rule. Never raises on JSON from an API server."""
    metadata, spec = mapping(raw.get("metadata")), mapping(raw.get("spec"))
    selector = mapping(spec.get("deviceSelector"))
    driver, pool, device = (str(selector.get(each) or "") for each in ("driver", "pool", "device"))
    keeps_off = mapping(spec.get("taint")).get("effect") in KEEPS_OFF
    return TaintRule(str(metadata.get("name", "")), (driver, pool, device), keeps_off, _heir(raw, metadata))


def _heir(raw: Json, metadata: Json) -> Heir | None:
    uid = mapping(metadata.get("labels")).get(HEIR)
    if uid is None:
        return None
    annotations = annotations_of(raw)
    namespace, _, claim = str(annotations.get(HEIR, "")).partition("/")
    return Heir(namespace, claim, str(uid), millis(annotations.get(HEIR_UNTIL)) or 0)
