"""A real gRPC server with the kubelet's PodResources service, in Go as the kubelet is: the same library
writes the same frames."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.go_programs import program

SOURCE = Path(__file__).parent / "go"


@dataclass(frozen=True, slots=True)
class Kubelet:
    """What answers at ``socket``."""

    socket: str
    _answer: Path

    def answer(self, whole: Mapping[str, Any]) -> None:
        """From now on: a ListPodResourcesResponse as protobuf's JSON, or what main.go offers beside."""
        self._answer.write_text(json.dumps(whole))

    def has(self, *pods: tuple[str, str, dict[str, list[str]]]) -> None:
        """From now on these pods: namespace, name, and the IDs of its devices by resource."""
        self.answer({"podResources": [pod_json(*pod) for pod in pods]})


def pod_json(namespace: str, name: str, devices: dict[str, list[str]]) -> dict[str, Any]:
    """A pod with one container, which has CPUs and memory of its own too."""
    container = {
        "name": "main",
        "devices": [
            {"resourceName": resource, "deviceIds": ids, "topology": {"nodes": [{"ID": "1"}]}}
            for resource, ids in devices.items()
        ],
        "cpuIds": ["0", "1", "300"],
        "memory": [{"memoryType": "memory", "size": "1073741824"}],
    }
    return {"namespace": namespace, "name": name, "containers": [container]}


def claimed(device: str, pool: str = "n1", driver: str = "gpu.nvidia.com") -> dict[str, Any]:
    """A claim's device in a container."""
    resource = {
        "cdiDevices": [{"name": f"k8s.{driver}/claim=u-{device}"}],
        "driverName": driver,
        "poolName": pool,
        "deviceName": device,
    }
    return {"claimName": "c", "claimNamespace": "team-a", "claimResources": [resource]}


@contextmanager
def serving(folder: Path) -> Iterator[Kubelet]:
    """The server, with no pods."""
    socket, answer = folder / "kubelet.sock", folder / "answer.json"
    socket.unlink(missing_ok=True)  # of the run before, as the kubelet does
    kubelet = Kubelet(str(socket), answer)
    kubelet.has()
    command = [str(node_program("podresources")), "-socket", str(socket), "-answer", str(answer)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield kubelet
    finally:
        process.kill()
        process.communicate()


def node_program(name: str) -> Path:
    """One of the Go programs beside."""
    return program(SOURCE, name)
