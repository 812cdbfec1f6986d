"""DRA drivers on the real node: kubernetes-sigs/dra-example-driver, with the rights of the node itself.

Its devices are made up: a container that has one gets ``GPU_DEVICE_<device>`` and, by its claim's UID,
``GPU_DEVICE_GPU_<device>_RESOURCE_CLAIM`` by CDI.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from deploy.local.cleanup import FOLDER
from deploy.local.real_node import CDI
from tests.kubelet.worlds import NODE, Json, World

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
PROGRAM = "dra-example-kubeletplugin"
_REGISTRY = FOLDER / "kubelet" / "plugins_registry"


@contextmanager
def dra_drivers(world: World, flags: Mapping[str, Sequence[str]]) -> Iterator[dict[str, list[Json]]]:
    """One process for each driver's name, with these flags beside the folders'. Gives each driver's
    ResourceSlices, once its pool is complete."""
    with ExitStack() as stack:
        for name, given in flags.items():
            _start(world, name, given)
            stack.callback(_stop, world, name)
        for name in flags:
            world.until(f"the pool of {name}", lambda name=name: _is_complete(slices(world, name)))  # type: ignore[misc]
        yield {name: slices(world, name) for name in flags}


def slices(world: World, driver: str) -> list[Json]:
    """The driver's ResourceSlices."""
    path = f"{SLICES}?fieldSelector=spec.driver%3D{driver}"
    listed: list[Json] = world.stack.cp.api.call("GET", path)["items"]
    return listed


def _is_complete(published: list[Json]) -> bool:
    return bool(published) and len(published) == published[0]["spec"]["pool"]["resourceSliceCount"]


def _start(world: World, name: str, flags: Sequence[str]) -> None:
    machine = world.node.machine
    machine.processes.start(
        name,
        machine.tools[PROGRAM],
        [
            f"--driver-name={name}",
            f"--node-name={NODE}",
            f"--kubeconfig={world.stack.cp.node_kubeconfig(NODE)}",
            f"--cdi-root={CDI}",
            f"--kubelet-registrar-directory-path={_REGISTRY}",
            f"--kubelet-plugins-directory-path={FOLDER}/kubelet/plugins",
            *flags,
        ],
    )


def _stop(world: World, name: str) -> None:
    """Its socket goes first: the kubelet calls no driver that is being killed."""
    (_REGISTRY / f"{name}-reg.sock").unlink(missing_ok=True)
    world.node.machine.processes.stop(name)
    for file in CDI.glob(f"k8s.{name}-*"):
        file.unlink()
    world.stack.cp.api.call("DELETE", f"{SLICES}?fieldSelector=spec.driver%3D{name}")
