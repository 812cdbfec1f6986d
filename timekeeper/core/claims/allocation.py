"""A ResourceClaim as the ledger sees it: who holds which devices since when, read from its status."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from sys import intern

from timekeeper.core.claims.devices import Amounts, read_amounts
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.object_names import millis, own_labels, owner_of
from timekeeper.core.request.claims import MAX_DEVICES, Requests, read_requests


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """A device, or a share of one, that a claim holds. ``request``: its request, ``main/sub`` of several of
    which one is allocated; ``share``: the ID of the share, "" for a device that nothing else holds;
    ``consumed``: what the share takes of each capacity; ``is_admin``: it only looks at the device."""

    driver: str
    pool: str
    device: str
    request: str = ""
    device_class: str = ""
    share: str = ""
    consumed: Amounts = ()
    is_admin: bool = False


@dataclass(frozen=True, slots=True)
class DeviceAllocation:
    """What a claim holds. ``node``: the one node where it can be used, "" if there are more, or none;
    ``stamp_ms``: when it was made, in whole seconds; None: its writer does not say it."""

    devices: tuple[AllocatedDevice, ...]
    node: str = ""
    stamp_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClaim:
    """A ResourceClaim. ``owner``: its controller as ``Kind/name``, of a claim from a template its pod;
    ``consumers``: the UIDs of the pods that it is reserved for, ``users`` the same as UID/name;
    ``other_consumers``: how many that are no pods, such as PodGroups; ``labels``: its own, as canonical JSON;
    ``requests``: what it asks for."""

    uid: str
    namespace: str
    name: str
    owner: str = ""
    labels: str = "{}"
    allocation: DeviceAllocation | None = None
    consumers: tuple[str, ...] = ()
    other_consumers: int = 0
    users: tuple[str, ...] = ()
    requests: Requests = field(default=(), compare=False)


def read_claim(raw: Json) -> DeviceClaim:
    """The claim. Never raises on JSON from an API server."""
    metadata, status = mapping(raw.get("metadata")), mapping(raw.get("status"))
    reserved = [mapping(each) for each in sequence(status.get("reservedFor"))]
    of_pods = (each for each in reserved if each.get("resource") == "pods" and not each.get("apiGroup"))
    users = tuple(f"{each.get('uid', '')}/{each.get('name', '')}" for each in of_pods)
    pods = tuple(each.partition("/")[0] for each in users)
    classes = _classes(mapping(raw.get("spec")))
    allocation = status.get("allocation")
    return DeviceClaim(
        uid=str(metadata.get("uid", "")),
        namespace=intern(str(metadata.get("namespace", ""))),
        name=str(metadata.get("name", "")),
        owner=intern(owner_of(metadata)),
        labels=intern(json.dumps(own_labels(metadata), separators=(",", ":"))),
        allocation=_allocation(mapping(allocation), classes) if allocation else None,
        consumers=pods,
        other_consumers=len(reserved) - len(pods),
        users=users,
        requests=read_requests(mapping(raw.get("spec"))),
    )


def _allocation(raw: Json, classes: Mapping[str, str]) -> DeviceAllocation:
    results = sequence(mapping(raw.get("devices")).get("results"))[:MAX_DEVICES]
    return DeviceAllocation(
        tuple(_device(mapping(each), classes) for each in results),
        _node(mapping(raw.get("nodeSelector"))),
        millis(raw.get("allocationTimestamp")),
    )


def _device(raw: Json, classes: Mapping[str, str]) -> AllocatedDevice:
    driver, request = intern(str(raw.get("driver", ""))), intern(str(raw.get("request", "")))
    return AllocatedDevice(
        driver,
        intern(str(raw.get("pool", ""))),
        intern(str(raw.get("device", ""))),
        request,
        classes.get(request, ""),
        str(raw.get("shareID") or ""),
        read_amounts(mapping(raw.get("consumedCapacity")), driver),
        raw.get("adminAccess") is True,
    )


def _classes(spec: Json) -> dict[str, str]:
    """The device class of each request, as results name it."""
    found = {}
    for each in map(mapping, sequence(mapping(spec.get("devices")).get("requests"))):
        name = str(each.get("name", ""))
        for path, request in _alternatives(name, each):
            found[path] = intern(str(request.get("deviceClassName", "")))
    return found


def _alternatives(name: str, request: Json) -> Iterator[tuple[str, Json]]:
    yield name, mapping(request.get("exactly"))
    for each in map(mapping, sequence(request.get("firstAvailable"))):
        yield f"{name}/{each.get('name', '')}", each


def _node(selector: Json) -> str:
    """The node's name, where the selector allows that node alone."""
    terms = sequence(selector.get("nodeSelectorTerms"))
    fields = sequence(mapping(terms[0]).get("matchFields")) if len(terms) == 1 else []
    for each in map(mapping, fields):
        values = sequence(each.get("values"))
        if each.get("key") == "metadata.name" and each.get("operator") == "In" and len(values) == 1:
            return intern(str(values[0]))
    return ""
