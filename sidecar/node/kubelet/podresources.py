"""Which pod has which device by the kubelet's own books: its PodResources service (KEP-606, ``v1``).

Nodes where a device plugin's kubelet side picks the cards are the only ones where that is not ours to know.
"""

from __future__ import annotations

from sidecar.node.kubelet import grpc as unary
from sidecar.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Iterator

LIST = "/v1.PodResourcesLister/List"
# fields of ListPodResourcesResponse, PodResources, ContainerResources and ContainerDevices
_PODS = 1
_POD_NAME, _POD_NAMESPACE, _POD_CONTAINERS = 1, 2, 3
_CONTAINER_DEVICES = 2
_DEVICES_RESOURCE, _DEVICES_IDS = 1, 2
# how a field's value is written
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_LONGEST_VARINT = 10
# NVIDIA's plugin names a card by its UUID, and one of its replicas (time slicing, MPS) with ::<n> behind it;
# the plugins of others that give out parts of a card put -<n> or -_-<n> there.
_AFTER_A_UUID = ("::", "-")
_NVIDIAS = ("nvidia.com/gpu", "nvidia.com/mig-")


class Malformed(ValueError):
    """The kubelet's answer cannot be read; the text says why."""


@value
class Given:
    """What device plugins gave the containers of one pod: pairs of a resource's name and a device's ID, in
    order, each once. The service tells names, no UIDs."""

    namespace: str
    name: str
    devices: tuple[tuple[str, str], ...]


def listed(socket: str, timeout_s: float = 5.0) -> tuple[Given, ...]:
    """The pods that have devices, by the kubelet behind the socket. Raises `unary.CallFailed` and
    `Malformed`.

    Ordinary init containers are not in the kubelet's answer, nor is a pod whose object is gone, though it may
    run on.
    """
    return parsed(unary.call(socket, LIST, timeout_s=timeout_s))


def parsed(answer: bytes) -> tuple[Given, ...]:
    """The pods that have devices in a ListPodResourcesResponse, in its order. Fields that a later kubelet
    may add are passed over."""
    pods = (_given(body) for body in _messages(answer, _PODS))
    return tuple(pod for pod in pods if pod.devices)


def cards_among(given: Given, uuids: frozenset[str]) -> tuple[str, ...]:
    """Which of these cards the pod has, in order, each once."""
    named = (_card(device, uuids) for _, device in given.devices)
    return tuple(dict.fromkeys(uuid for uuid in named if uuid))


def unknown_cards(given: Given, uuids: frozenset[str]) -> tuple[str, ...]:
    """The IDs of NVIDIA's devices that name none of these cards."""
    return tuple(
        device
        for resource, device in given.devices
        if resource.startswith(_NVIDIAS) and not _card(device, uuids)
    )


def _card(device: str, uuids: frozenset[str]) -> str:
    if device in uuids:
        return device
    return next((uuid for uuid in uuids if device.startswith(tuple(uuid + end for end in _AFTER_A_UUID))), "")


def _given(pod: bytes) -> Given:
    devices = (
        (resource, device)
        for container in _messages(pod, _POD_CONTAINERS)
        for group in _messages(container, _CONTAINER_DEVICES)
        for resource in [_text(group, _DEVICES_RESOURCE)]
        for device in map(_decoded, _messages(group, _DEVICES_IDS))
    )
    return Given(_text(pod, _POD_NAMESPACE), _text(pod, _POD_NAME), tuple(dict.fromkeys(devices)))


def _text(body: bytes, field: int) -> str:
    """A text field; the last counts where there are several, and none is empty, as protobuf has it."""
    return _decoded(next(reversed([*_messages(body, field)]), b""))


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise Malformed("a text is not UTF-8") from None


def _messages(body: bytes, field: int) -> Iterator[bytes]:
    """The values of a field that is a text or a message, in order."""
    return (raw for number, raw in _fields(body) if number == field and raw is not None)


def _fields(body: bytes) -> Iterator[tuple[int, bytes | None]]:
    """Number and bytes of each field; None in place of a number's."""
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
            raise Malformed(f"a field is of kind {kind}, which is none")
        if end > len(body):
            raise Malformed("a field is cut off")
        yield key >> 3, body[at:end] if kind == _BYTES else None
        at = end


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """A number in base 128, and where it ends."""
    number = 0
    for place, byte in enumerate(body[at : at + _LONGEST_VARINT]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, at + place + 1
    raise Malformed("a number is cut off or too long")
