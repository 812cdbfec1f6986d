"""Maps the devices that the kubelet's device plugins allocated to a pod to the node's cards. Pure."""

from __future__ import annotations

from timekeeper.edge.value import value

# NVIDIA's plugin names a card by its UUID, and appends ::<n> for its replicas (time slicing, MPS); other
# plugins that divide cards append -<n> or -_-<n>.
_AFTER_A_UUID = ("::", "-")


@value
class PluginDevices:
    """The devices that plugins allocated to a pod. The kubelet's service reports the pod's name, not its
    UID."""

    namespace: str
    name: str
    devices: tuple[tuple[str, str], ...]  # the resource's name and the device's ID, in order, each once


def cards_among(given: PluginDevices, uuids: frozenset[str]) -> tuple[str, ...]:
    """Which of these cards the pod has, in order, each once."""
    named = (_card(device, uuids) for _, device in given.devices)
    return tuple(dict.fromkeys(uuid for uuid in named if uuid))


def unknown_cards(given: PluginDevices, uuids: frozenset[str], of_plugin: tuple[str, ...]) -> tuple[str, ...]:
    """The IDs of devices that are none of these cards, of resources that begin so."""
    return tuple(
        device
        for resource, device in given.devices
        if resource.startswith(of_plugin) and not _card(device, uuids)
    )


def _card(device: str, uuids: frozenset[str]) -> str:
    if device in uuids:
        return device
    return next((uuid for uuid in uuids if device.startswith(tuple(uuid + end for end in _AFTER_A_UUID))), "")
