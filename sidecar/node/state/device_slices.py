"""The cards that drivers of device claims publish of this node (ResourceSlices, resource.k8s.io/v1). Pure."""

from __future__ import annotations

from urllib.parse import quote

from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

_UUIDS = ("uuid", "parentUUID")  # of the device, and of the card that it is a part of


@value
class ClaimedDevice:
    """A device of a driver of device claims."""

    driver: str
    pool: str
    device: str


@value
class ClaimingPod:
    """A pod that has devices by claims. The kubelet's service reports its name, not its UID."""

    namespace: str
    name: str
    devices: tuple[ClaimedDevice, ...]  # each once


def slices_path(node: str) -> str:
    """The list of the node's slices."""
    return "/apis/resource.k8s.io/v1/resourceslices?fieldSelector=" + quote(f"spec.nodeName={node}", safe="")


def cards_of(listed: Any) -> dict[ClaimedDevice, frozenset[str]]:
    """The UUIDs of each published device. Raises ValueError if this is no list of ResourceSlices."""
    try:
        return {
            ClaimedDevice(spec["driver"], spec["pool"]["name"], each["name"]): frozenset(_uuids(each))
            for spec in (item["spec"] for item in listed["items"])
            for each in spec.get("devices") or ()
        }
    except (LookupError, TypeError, AttributeError):
        raise ValueError("this is no list of ResourceSlices") from None


def cards_by_pod(
    pods: Iterable[ClaimingPod], published: Mapping[ClaimedDevice, frozenset[str]]
) -> dict[tuple[str, str], frozenset[str]]:
    """The cards that each pod has by claims, by its namespace and name."""
    return {
        (pod.namespace, pod.name): frozenset().union(
            *(published.get(each, frozenset()) for each in pod.devices)
        )
        for pod in pods
    }


def _uuids(device: Any) -> Iterator[str]:
    for name, attribute in (device.get("attributes") or {}).items():
        if name.rpartition("/")[2] in _UUIDS and isinstance(attribute.get("string"), str):
            yield attribute["string"]
