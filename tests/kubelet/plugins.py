"""A device plugin on the real node, by the kubelet's own protocol."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kubelet.worlds import World, allocatable
from tests.node.podresources_server import node_program

RESOURCE = "test.bursar.dev/card"  # not NVIDIA's name: the node stays one of ours for all other tests
PLUGIN = "bursar-test.sock"


@contextmanager
def device_plugin(world: World, devices: list[str], cdi: str = "") -> Iterator[None]:
    """It gives out these devices. ``cdi``: the kind by which it names them to the runtime; empty: it does
    not."""
    command = [
        str(node_program("plugin")),
        f"-name={PLUGIN}",
        f"-resource={RESOURCE}",
        f"-devices={','.join(devices)}",
        f"-cdi={cdi}",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        world.until(
            "the plugin's devices", lambda: allocatable(world.stack).get(RESOURCE) == str(len(devices))
        )
        yield
    finally:
        process.kill()
        process.communicate()
        Path("/var/lib/kubelet/device-plugins", PLUGIN).unlink(
            missing_ok=True
        )  # a kubelet that starts empties it
