"""A real node on this machine: containerd, runc, a bridge and a kubelet, beside the control plane.

For root on Linux. One at a time, since its names are fixed (`cleanup`): a second run waits for the first.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from deploy.local import cleanup
from deploy.local.cleanup import BRIDGE, CGROUP, FOLDER, LOCK, NETWORK
from deploy.local.cluster import ControlPlane
from deploy.local.errors import LocalError
from deploy.local.processes import Processes, apart
from deploy.local.tools import NODE_TOOLS, RUNC, cache_folder, find

# Of the range that is set aside for tests of network devices, which no network uses.
GATEWAY = "198.18.77.1"
_SUBNET = "198.18.77.0/24"
PAUSE = "docker.io/bursar/pause:1"

CDI = FOLDER / "cdi"
NRI = FOLDER / "nri"
STATIC_PODS = FOLDER / "static"
_SOCKET = FOLDER / "containerd.sock"
_CONFIGURED = FOLDER / "config"
_LOGS = FOLDER / "pods"


def hindrance() -> str | None:
    """Why this machine cannot have a real node, in a few words; None if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "a real node needs root on Linux"
    if cleanup.has_other_kubelet():
        return "a real node needs a machine without a kubelet, and one runs here"
    missing = [tool for tool in ("ip", "cc") if not shutil.which(tool)]
    if missing:
        return f"a real node needs {' and '.join(missing)} on the PATH"
    runc = next(tool for tool in NODE_TOOLS if tool.source is RUNC)
    if not find(runc, os.environ, cache_folder()) and not _has_seccomp():
        return "a real node needs runc, and building it libseccomp (on Debian pkg-config, libseccomp-dev)"
    return None


def _has_seccomp() -> bool:
    program = shutil.which("pkg-config")
    return program is not None and subprocess.run([program, "--exists", "libseccomp"]).returncode == 0


class NodeHost:
    """A context manager: this machine is ready for a node, with its bridge up at ``GATEWAY`` and containerd
    running. It removes what an earlier node left first, and all of its own at exit."""

    def __init__(self, tools: Mapping[str, Path]) -> None:
        self.tools = tools
        self._stack = ExitStack()

    def __enter__(self) -> "NodeHost":
        with ExitStack() as stack:
            # The open file holds the lock: the kernel frees it when this process ends.
            lock = stack.enter_context(LOCK.open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            cleanup.sweep()
            stack.callback(cleanup.sweep)
            self._lay_out()
            self.processes = stack.enter_context(Processes(FOLDER))
            self.processes.start(
                "containerd", self.tools["containerd"], [f"--config={_CONFIGURED}/containerd.toml"]
            )
            self.processes.wait("containerd", self._serves)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _lay_out(self) -> None:
        FOLDER.mkdir(mode=0o755)
        cleanup.remember()
        for folder in (_CONFIGURED / "cni", _LOGS, CDI, NRI, STATIC_PODS):
            folder.mkdir(parents=True)
        (_CONFIGURED / "containerd.toml").write_text(_containerd_configuration(self.tools))
        (_CONFIGURED / "cni" / "bridge.conflist").write_text(json.dumps(_NETWORK))
        for command in (
            ("link", "add", BRIDGE, "type", "bridge"),
            ("address", "add", f"{GATEWAY}/24", "dev", BRIDGE),
            ("link", "set", BRIDGE, "up"),
        ):
            _must(["ip", *command])
        for group in cleanup.cgroup_folders():
            _make_cgroup(group)

    def _serves(self) -> bool:
        return _SOCKET.exists() and self.ctr("version").returncode == 0

    def ctr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run containerd's client in Kubernetes' namespace. The caller checks the exit code."""
        command = [str(self.tools["ctr"]), f"--address={_SOCKET}", "--namespace=k8s.io", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=apart(FOLDER))

    def load(self, archive: Path) -> None:
        """Import the images of an OCI archive. Raises LocalError."""
        done = self.ctr("images", "import", "--local", str(archive))
        if done.returncode:
            raise LocalError(f"containerd cannot import the images: {done.stderr.strip()}")


class RealNode:
    """A context manager: a kubelet that has joined the control plane as the node ``name`` and is Ready.

    The API server must listen at ``GATEWAY``, which pods can reach, and have the node's token:
    ``Options(listen=GATEWAY, nodes=(name,))``.
    """

    def __init__(self, machine: NodeHost, control_plane: ControlPlane, name: str) -> None:
        self.machine = machine
        self.cp = control_plane
        self.name = name

    def __enter__(self) -> "RealNode":
        configuration = _CONFIGURED / "kubelet.yaml"
        configuration.write_text(yaml.safe_dump(_kubelet(self.cp.ca_file)))
        self.machine.processes.start(
            "kubelet",
            self.machine.tools["kubelet"],
            [
                f"--config={configuration}",
                f"--kubeconfig={self.cp.node_kubeconfig(self.name)}",
                f"--root-dir={FOLDER}/kubelet",
                f"--cert-dir={FOLDER}/kubelet/pki",
                f"--hostname-override={self.name}",
                f"--node-ip={GATEWAY}",
            ],
        )
        self.wait_until_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # `NodeHost` removes its containers and mounts.
        if "kubelet" in self.machine.processes.running:
            self.machine.processes.stop("kubelet")

    def wait_until_ready(self) -> None:
        """Raises LocalError, with the end of the kubelet's log, after five minutes."""
        self.machine.processes.wait("kubelet", self._is_ready)

    def _is_ready(self) -> bool:
        path = f"/api/v1/nodes/{self.name}"
        if not self.cp.api.answers(path):
            return False
        conditions = self.cp.api.call("GET", path)["status"].get("conditions", [])
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def stop_kubelet(self) -> None:
        """Kill the kubelet. The containers go on."""
        self.machine.processes.stop("kubelet")

    def start_kubelet(self) -> None:
        """Start it again, without waiting for it."""
        self.machine.processes.restart("kubelet")

    def output(self, pod: dict[str, Any], container: str) -> list[str]:
        """The output of all runs of a pod's container, from the kubelet's log files."""
        metadata = pod["metadata"]
        folder = _LOGS / "_".join((metadata["namespace"], metadata["name"], metadata["uid"])) / container
        files = sorted(folder.glob("*.log"), key=lambda file: int(file.stem))
        # "2026-01-01T00:00:00.000000000Z stdout F the line itself"
        return [line.split(" ", 3)[3] for file in files for line in file.read_text().splitlines()]

    def pids(self, container_id: str) -> list[int]:
        """The processes of a running container. ``container_id``: as in the pod's status."""
        done = self.machine.ctr("tasks", "ps", container_id.removeprefix("containerd://"))
        return [int(line.split()[0]) for line in done.stdout.splitlines()[1:]]


def _make_cgroup(group: Path) -> None:
    group.mkdir()
    for file in ("cpuset.cpus", "cpuset.mems"):
        # cgroup v1 leaves them empty, and a process cannot join such a group.
        if (group / file).exists() and not (group / "cgroup.controllers").exists():
            (group / file).write_text((group.parent / file).read_text())


def _must(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise LocalError(f"{' '.join(command)} failed: {done.stderr.strip()}")


_NETWORK = {
    "cniVersion": "1.0.0",
    "name": NETWORK,
    "plugins": [
        {
            "type": "bridge",
            "bridge": BRIDGE,
            "isGateway": True,
            "ipam": {
                "type": "host-local",
                "dataDir": f"{FOLDER}/addresses",
                "ranges": [[{"subnet": _SUBNET}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
    ],
}


def _containerd_configuration(tools: Mapping[str, Path]) -> str:
    """containerd and its children use no program of the PATH and write below our folder."""
    plugins = sorted({str(tools[name].parent) for name in ("bridge", "host-local", "loopback")})
    return f"""\
version = 3
root = "{FOLDER}/containerd"
state = "{FOLDER}/tasks"
[grpc]
  address = "{_SOCKET}"
[ttrpc]
  address = "{_SOCKET}.ttrpc"
[plugins.'io.containerd.nri.v1.nri']
  socket_path = "{FOLDER}/nri/nri.sock"
  plugin_path = "{FOLDER}/nri/plugins"
  plugin_config_path = "{FOLDER}/nri/conf.d"
[plugins.'io.containerd.nri.v1.nri'.default_validator]
  enable = true
[plugins.'io.containerd.internal.v1.opt']
  path = "{FOLDER}/opt"
[plugins.'io.containerd.shim.v1.manager']
  socket_dir = "{FOLDER}/s"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{PAUSE}"
[plugins.'io.containerd.cri.v1.runtime']
  # A sandbox sets a score that needs CAP_SYS_RESOURCE, which this machine may not grant.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  cdi_spec_dirs = ["{CDI}"]
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = {json.dumps(plugins)}
  conf_dir = "{_CONFIGURED}/cni"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  runtime_path = "{tools["containerd-shim-runc-v2"]}"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = "{tools["runc"]}"
  Root = "{FOLDER}/runc"
  SystemdCgroup = false
"""


def _kubelet(ca_file: Path) -> dict[str, Any]:
    """Its server accepts client certificates of this CA only; the API server has one."""
    authentication = {
        "anonymous": {"enabled": False},
        "webhook": {"enabled": False},
        "x509": {"clientCAFile": str(ca_file)},
    }
    return {**_KUBELET, "authentication": authentication}


_KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "address": GATEWAY,
    "healthzPort": 0,
    "authorization": {"mode": "AlwaysAllow"},
    "containerRuntimeEndpoint": f"unix://{_SOCKET}",
    "cgroupDriver": "cgroupfs",
    "cgroupRoot": f"/{CGROUP}",
    "failCgroupV1": False,
    "failSwapOn": False,
    "localStorageCapacityIsolation": False,
    "makeIPTablesUtilChains": False,
    "oomScoreAdj": 0,
    "podLogsDir": str(_LOGS),
    "staticPodPath": str(STATIC_PODS),
    "volumePluginDir": f"{FOLDER}/volume-plugins",
    "resolvConf": "",
    "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
    "imageGCHighThresholdPercent": 100,
    "nodeStatusUpdateFrequency": "1s",
    "syncFrequency": "5s",
}
