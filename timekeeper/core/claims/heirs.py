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

MOST_DEVICES = 8  # that an heir gets from others
MOST_TOLERATIONS = 16  # of a request (`DeviceTolerationsMaxLength`)
TOKEN = re.compile(r"[0-9a-f]{32}")

DeviceKey = tuple[str, str, str]  # driver, pool, name


@dataclass(frozen=True, slots=True)
class WantedDevice:
    """One device of a class, as a claim asks for it. ``selectors``: its own, beside those of the class;
    ``token``: the value of its own toleration, "" where it has none; ``claim``: the claim's name, "" before
    it is made."""

    device_class: str
    selectors: tuple[str, ...] = ()
    token: str = ""
    claim: str = ""


def wanted_devices(claim: Json) -> tuple[WantedDevice, ...]:
    """What the claim asks for; nothing if that is anything but whole devices, each on terms of which a
    device's earlier allocation says whether it meets them."""
    spec, metadata = mapping(mapping(claim.get("spec")).get("devices")), mapping(claim.get("metadata"))
    found = () if sequence(spec.get("constraints")) else whole_requests(spec)
    if any(len(selectors_of(each)) < len(sequence(each.get("selectors"))) for each in found):
        return ()  # of a kind that is not known
    namespace, name = str(metadata.get("namespace", "")), str(metadata.get("name", ""))
    return tuple(
        WantedDevice(str(each["deviceClassName"]), selectors_of(each), _token(each, namespace), name)
        for each in found
        for _ in range(each.get("count", 1))
    )


def whole_requests(devices: Json) -> tuple[Json, ...]:
    """The terms of each request, if all are for a number of whole devices, and these are few; else none."""
    found = [mapping(mapping(each).get("exactly")) for each in sequence(devices.get("requests"))]
    counts = [each.get("count", 1) for each in found if _is_of_whole_devices(each)]
    return tuple(found) if len(counts) == len(found) and sum(counts) <= MOST_DEVICES else ()


def _is_of_whole_devices(request: Json) -> bool:
    count = request.get("count", 1)
    is_counted = request.get("allocationMode", "ExactCount") == "ExactCount" and isinstance(count, int)
    is_partial = request.get("adminAccess") or request.get("capacity")
    return bool(request.get("deviceClassName")) and is_counted and count > 0 and not is_partial


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
