"""The node agent as its manifest deploys it, on the real node, with a fake NVML that tests write to."""

import json
import os
import stat
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from deploy import rendered
from deploy.local.cleanup import FOLDER
from deploy.local.real_node import CDI, NRI
from sidecar.node.state.node_patch import OURS
from tests.deploy.reading import loaded, the
from tests.kubelet.worlds import CARDS, MEMORY_MIB, MODEL, NODE, Json, World, advertise
from tests.nvml.build import DESCRIPTION, SOURCE, compile_library, describe

DAEMONSETS = "/apis/apps/v1/namespaces/bursar-node/daemonsets"
DRIVERS_MAJOR = 195  # of the device nodes of NVIDIA's driver
_SEEN_AT = "/fake-nvml"


@dataclass(frozen=True, slots=True)
class Agent:
    """The agent; ``description`` is what its NVML tells, ``deployed`` its DaemonSet."""

    world: World
    description: Path
    deployed: Json

    def tell(self, lines: Iterable[str] = (), cards: Iterable[str] = CARDS) -> None:
        """Have NVML tell of these cards, and what the lines say beside."""
        listed = [f"card {uuid} 40 1000 {MEMORY_MIB}\nmodel {uuid} {MODEL}" for uuid in cards]
        describe(self.description, "\n".join([*listed, *lines, ""]))

    def inventory(self) -> dict[str, Json]:
        """The cards on the node by UUID; none where there is no inventory."""
        told = json.loads(self.annotation("inventory") or '{"cards": []}')
        return {each["uuid"]: each for each in told["cards"]}

    def holders(self) -> Json:
        """Who is really there."""
        told: Json = json.loads(self.annotation("holders") or "{}")
        return told

    def annotation(self, name: str) -> str | None:
        """One of the agent's annotations on the node."""
        text: str | None = node(self.world)["metadata"].get("annotations", {}).get(f"bursar.dev/{name}")
        return text

    def is_healthy(self, uuid: str) -> bool:
        """Whether the inventory says so of a card that is in it."""
        return bool(self.inventory()[uuid]["healthy"])


def node(world: World) -> Json:
    """The node as it is now."""
    told: Json = world.stack.cp.api.call("GET", f"/api/v1/nodes/{NODE}")
    return told


def strip(world: World) -> None:
    """Take from the node what an agent would have written."""
    merge = "application/merge-patch+json"
    path = f"/api/v1/nodes/{NODE}"
    nothing = {f"bursar.dev/{name}": None for name in ("inventory", "holders")}
    world.stack.cp.api.call("PATCH", path, {"metadata": {"annotations": nothing}}, content_type=merge)
    amounts = dict.fromkeys(OURS)
    body = {"status": {"capacity": amounts, "allocatable": amounts}}
    world.stack.cp.api.call("PATCH", f"{path}/status", body, content_type=merge)


def deploy(world: World, folder: Path, by: Json | None = None) -> Agent:
    """Create the DaemonSet, that of the manifests where no other is given, and label the node for it. The
    cards have device nodes, as with NVIDIA's driver."""
    dev = folder / "dev"
    dev.mkdir()
    for name, minor in (*((f"nvidia{at}", at) for at in range(len(CARDS))), ("nvidiactl", 255)):
        os.mknod(dev / name, 0o666 | stat.S_IFCHR, os.makedev(DRIVERS_MAJOR, minor))
    agent = Agent(world, folder / "cards", daemon_set(world, folder, by or the("DaemonSet", "bursar-node")))
    agent.tell()
    world.stack.cp.api.call("POST", DAEMONSETS, agent.deployed)
    label(world)
    return agent


@contextmanager
def running_on(world: World, folder: Path, by: Json | None = None) -> Iterator[Agent]:
    """An agent as `deploy` makes it. After it the node is as `world` made it: pods of a node whose inventory
    names its plugin do not start without it."""
    strip(world)
    agent = deploy(world, folder, by)
    try:
        yield agent
    finally:
        world.stack.cp.api.call("DELETE", f"{DAEMONSETS}/bursar-node")
        world.until("the agent to be gone", lambda: not running(world))
        strip(world)
        advertise(world.stack.cp)


def running(world: World) -> list[Json]:
    """The agent's pods."""
    listed: list[Json] = world.stack.cp.api.call("GET", "/api/v1/namespaces/bursar-node/pods")["items"]
    return listed


def label(world: World) -> None:
    """Label the node for the DaemonSet."""
    wanted = the("DaemonSet", "bursar-node")["spec"]["template"]["spec"]["nodeSelector"]
    body = {"metadata": {"labels": wanted}}
    merge = "application/merge-patch+json"
    world.stack.cp.api.call("PATCH", f"/api/v1/nodes/{NODE}", body, content_type=merge)


@contextmanager
def with_driver() -> Iterator[Json]:
    """The chart's DaemonSet for a driver whose files are in a folder of this machine. The folder is a mount
    that is shared, as systems have them: the pod sees what is mounted there later."""
    folder = FOLDER / "driver"
    folder.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "driver", folder], check=True)
        subprocess.run(["mount", "--make-shared", folder], check=True)
        library = folder / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
        library.parent.mkdir(parents=True)
        compile_library(SOURCE, library)
        made = rendered.rendered(rendered.helm(), f"--set=nodeAgent.driverRoot={folder}")
        yield next(each for each in loaded(made["node-agent.yaml"]) if each["kind"] == "DaemonSet")
    finally:
        subprocess.run(["umount", "--lazy", folder], check=False)
        folder.rmdir()


def daemon_set(world: World, folder: Path, by: Json) -> Json:
    """As it stands there, but where API server, timekeeper and kubelet are, and which NVML it reads."""
    body = deepcopy(by)
    spec = body["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    told = [arg for arg in container["args"] if not arg.startswith("--timekeeper-url=")]
    container["args"] = [
        *told,
        f"--timekeeper-url={world.stack.timekeeper_url}",
        f"--api-url={world.stack.cp.url}",
        "--look-every=1s",
        f"--dev={_SEEN_AT}/dev",
    ]
    container["env"].append({"name": DESCRIPTION, "value": f"{_SEEN_AT}/cards"})
    container["volumeMounts"].append({"name": "fake-nvml", "mountPath": _SEEN_AT, "readOnly": True})
    volumes = {each["name"]: each for each in spec["volumes"]}
    volumes["pod-resources"]["hostPath"]["path"] = f"{FOLDER}/kubelet/pod-resources"
    for name in ("containerd", "crio", "nvidia-runtime", "cdi-run"):
        volumes[name]["hostPath"]["path"] = str(folder / name)  # this machine's own are none of the node's
    volumes["nri"]["hostPath"]["path"] = str(NRI)
    volumes["cdi"]["hostPath"]["path"] = str(CDI)
    spec["volumes"].append({"name": "fake-nvml", "hostPath": {"path": str(folder)}})
    return body
