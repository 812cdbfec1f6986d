"""The devices of each pod, from the kubelet's PodResources service (KEP-606, ``v1``; of claims: KEP-3695).

Only needed on nodes where a device plugin or a claim picks the cards: elsewhere Bursar's placement does.
"""

from __future__ import annotations

from sidecar.node.kubelet import grpc
from sidecar.node.state.device_slices import ClaimedDevice, ClaimingPod
from sidecar.node.state.plugin_devices import PluginDevices
from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LIST = "/v1.PodResourcesLister/List"
# fields of ListPodResourcesResponse, PodResources, ContainerResources, ContainerDevices, DynamicResource and
# ClaimResource
_PODS = 1
_POD_NAME, _POD_NAMESPACE, _POD_CONTAINERS = 1, 2, 3
_CONTAINER_DEVICES, _CONTAINER_CLAIMS = 2, 5
_DEVICES_RESOURCE, _DEVICES_IDS = 1, 2
_CLAIM_RESOURCES = 4
_DRIVER, _POOL, _DEVICE = 2, 3, 4
# how a field's value is written
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_LONGEST_VARINT = 10


class MalformedAnswer(ValueError):
    """The kubelet's answer is malformed; the text says how."""


def listed(socket: str, timeout_s: float = 5.0) -> tuple[PluginDevices, ...]:
    """The pods that have devices, by the kubelet behind the socket. Raises `grpc.CallFailed` and
    `MalformedAnswer`.

    Ordinary init containers are not in the kubelet's answer, nor is a pod whose object is gone, though it may
    run on.
    """
    return parsed(grpc.call(socket, LIST, timeout_s=timeout_s))


def parsed(answer: bytes) -> tuple[PluginDevices, ...]:
    """The pods that have devices in a ListPodResourcesResponse, in its order. Unknown fields are ignored."""
    pods = (_given(body) for body in _messages(answer, _PODS))
    return tuple(pod for pod in pods if pod.devices)


def claims(socket: str, timeout_s: float = 5.0) -> tuple[ClaimingPod, ...]:
    """The pods that have devices by claims; a kubelet before 1.34 shows none. Raises as `listed`."""
    return parsed_claims(grpc.call(socket, LIST, timeout_s=timeout_s))


def parsed_claims(answer: bytes) -> tuple[ClaimingPod, ...]:
    """The pods that have devices by claims in a ListPodResourcesResponse, in its order."""
    pods = (_claiming(body) for body in _messages(answer, _PODS))
    return tuple(pod for pod in pods if pod.devices)


def _claiming(pod: bytes) -> ClaimingPod:
    devices = (
        ClaimedDevice(_text(each, _DRIVER), _text(each, _POOL), _text(each, _DEVICE))
        for container in _messages(pod, _POD_CONTAINERS)
        for claim in _messages(container, _CONTAINER_CLAIMS)
        for each in _messages(claim, _CLAIM_RESOURCES)
    )
    return ClaimingPod(_text(pod, _POD_NAMESPACE), _text(pod, _POD_NAME), tuple(dict.fromkeys(devices)))


def _given(pod: bytes) -> PluginDevices:
    devices = (
        (resource, device)
        for container in _messages(pod, _POD_CONTAINERS)
        for group in _messages(container, _CONTAINER_DEVICES)
        for resource in [_text(group, _DEVICES_RESOURCE)]
        for device in map(_decoded, _messages(group, _DEVICES_IDS))
    )
    return PluginDevices(_text(pod, _POD_NAMESPACE), _text(pod, _POD_NAME), tuple(dict.fromkeys(devices)))


def _text(body: bytes, field: int) -> str:
    """A text field. As in protobuf, the last of several counts, and a missing one is empty."""
    return _decoded(next(reversed([*_messages(body, field)]), b""))


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedAnswer("a text is not UTF-8") from None


def _messages(body: bytes, field: int) -> Iterator[bytes]:
    """The values of a text or message field, in order."""
    return (raw for number, raw in _fields(body) if number == field and raw is not None)


def _fields(body: bytes) -> Iterator[tuple[int, bytes | None]]:
    """The number of each field, and its bytes; None for a field of a numeric type."""
    at = 0
    while at < len(body):
        key, at = _varint(body, at)
        kind, end = key & 7, at
        if kind == _VARINT:
            _, end = _varint(body, at)
        elif kind == _BYTES:
            length, at = _varint(body, at)
            end = at + length
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            end = at + (8 if kind == _EIGHT_BYTES else 4)
        else:
            raise MalformedAnswer(f"a field has the unknown kind {kind}")
        if end > len(body):
            raise MalformedAnswer("a field is cut off")
        yield key >> 3, body[at:end] if kind == _BYTES else None
        at = end


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """A number in base 128, and the index of the byte after it."""
    number = 0
    for place, byte in enumerate(body[at : at + _LONGEST_VARINT]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, at + place + 1
    raise MalformedAnswer("a number is cut off or too long")
