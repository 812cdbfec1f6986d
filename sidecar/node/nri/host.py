"""What this node has for containers: CDI specifications and device nodes."""

from __future__ import annotations

import os
import stat

from sidecar.node.nri.placement import DeviceNode, NodeDevices
from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from sidecar.node.nri.cdi import Specifications

# of NVIDIA's driver, which each container with a card opens
COMMON = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


def node_devices(
    cards: Iterable[str], paths: Mapping[str, str], cdi: Specifications, dev: str, libraries: str, leave: str
) -> NodeDevices:
    """``cards``: the UUIDs; ``paths``: by UUID a card's device node; ``dev``: where the node's /dev is."""
    own = {uuid: node for uuid, path in paths.items() for node in _present((path,), dev)}
    known, common = frozenset(cards), tuple(_present(COMMON, dev))
    names = tuple((uuid, name) for uuid, name in cdi.names(paths).items() if uuid in known)
    return NodeDevices(names, tuple(own.items()), common, libraries, known, leave)


def _present(paths: Iterable[str], dev: str) -> Iterator[DeviceNode]:
    for path in paths:
        try:
            found = os.stat(dev + path.removeprefix("/dev"))
        except OSError:
            continue
        if stat.S_ISCHR(found.st_mode):
            yield DeviceNode(path, os.major(found.st_rdev), os.minor(found.st_rdev))
