"""Which cards a container gets, and in what form. Pure.

The cards are those of the placement (``bursar.dev/devices``) as the API server has it. Whatever container,
image or sandbox say does not count.
"""

from __future__ import annotations

from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sidecar.node.values import PodState

SIDECAR = "bursar-sidecar"  # it reads the use of all cards of its pod
OF_NVIDIAS_PLUGIN = "nvidia.cdi.k8s.io/container."  # annotation by container: NVIDIA's plugin gives the cards
NVIDIA = "nvidia"  # begins the name of each handler of NVIDIA's runtime
# names under which NRI plugins register
DEFAULT_VALIDATOR = "default-validator"
NVIDIAS_PLUGINS = frozenset({"nvidia-ctk-installer", "nvidia-toolkit"})
FRACTIONING = "gpu-fractioning"
LIBRARIES = "/usr/local/nvidia"  # where the images of CUDA look for the driver's libraries
PATHS = "LD_LIBRARY_PATH"
ALL = "all"  # in a specification of NVIDIA: every card


class Refused(Exception):
    """The container must not be made. The text is a sentence for its pod's Event."""


@value
class DeviceNode:
    """A device node that a container can be given."""

    path: str
    major: int
    minor: int


@value
class NodeDevices:
    """What the node has for containers."""

    cdi: tuple[tuple[str, str], ...]  # by UUID: the name in a CDI specification
    nodes: tuple[tuple[str, DeviceNode], ...]  # by UUID: the card's own device node
    common: tuple[DeviceNode, ...]  # device nodes that each container with a card needs
    libraries: str  # the folder on the node with the driver's libraries; empty: none is mounted
    inventory: frozenset[str]  # the UUIDs of all cards
    leave: str  # why the plugin gives no cards here; empty: it does


@value
class ContainerDevices:
    """What a container gets."""

    cdi: tuple[str, ...]
    nodes: tuple[DeviceNode, ...]
    libraries: str


def cards_of(pod: PodState | None, container: str) -> tuple[str, ...]:
    """The UUIDs of the container's cards; of Bursar's sidecar all cards of the pod."""
    if pod is None:
        return ()
    return pod.cards if container == SIDECAR else dict(pod.containers).get(container, ())


def is_left_to_others(
    devices: NodeDevices, handler: str, annotations: Mapping[str, str], container: str
) -> bool:
    """Whether something else gives the container its cards: NVIDIA's runtime, its NRI plugin, or a device
    plugin."""
    return bool(devices.leave) or handler.startswith(NVIDIA) or OF_NVIDIAS_PLUGIN + container in annotations


def given(devices: NodeDevices, cards: Iterable[str]) -> ContainerDevices:
    """These cards: by CDI where a specification names each, else by device nodes. Raises `Refused`."""
    wanted = tuple(cards)
    names, nodes = dict(devices.cdi), dict(devices.nodes)
    if all(uuid in names for uuid in wanted):
        return ContainerDevices(tuple(names[uuid] for uuid in wanted), (), "")
    for uuid in wanted:
        if uuid not in nodes:
            raise Refused(f"card {uuid} has no CDI specification and no device node on this node")
    return ContainerDevices((), (*(nodes[uuid] for uuid in wanted), *devices.common), devices.libraries)


def strange(devices: NodeDevices, allowed: Iterable[str], cdi: Iterable[str], paths: Iterable[str]) -> str:
    """The first card that plugins together would give the container and that is not ``allowed``; empty: none.

    ``cdi``: names of CDI devices; ``paths``: of device nodes."""
    own = frozenset(allowed)
    at = {node.path: uuid for uuid, node in devices.nodes}
    named = {name: uuid for uuid, name in devices.cdi}
    for name in cdi:
        uuid = named.get(name) or name.rpartition("=")[2]
        meant = sorted(devices.inventory) if uuid == ALL and "nvidia.com/" in name else (uuid,)
        for each in meant:
            if each in devices.inventory and each not in own:
                return each
    return next((at[path] for path in paths if path in at and at[path] not in own), "")
