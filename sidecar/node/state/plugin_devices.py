"""Which devices the kubelet's device plugins gave to a pod, and which of the node's cards those are. Pure."""

from __future__ import annotations

from sidecar.value import value

# NVIDIA's plugin names a card by its UUID, and one of its replicas (time slicing, MPS) with ::<n> behind it;
# the plugins of others that give out parts of a card put -<n> or -_-<n> there.
_AFTER_A_UUID = ("::", "-")
_NVIDIAS = ("nvidia.com/gpu", "nvidia.com/mig-")


@value
class PluginDevices:
    """What device plugins gave the containers of one pod: pairs of a resource's name and a device's ID, in
    order, each once. The service tells names, no UIDs."""

    namespace: str
    name: str
    devices: tuple[tuple[str, str], ...]


def cards_among(given: PluginDevices, uuids: frozenset[str]) -> tuple[str, ...]:
    """Which of these cards the pod has, in order, each once."""
    named = (_card(device, uuids) for _, device in given.devices)
    return tuple(dict.fromkeys(uuid for uuid in named if uuid))


def unknown_cards(given: PluginDevices, uuids: frozenset[str]) -> tuple[str, ...]:
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
