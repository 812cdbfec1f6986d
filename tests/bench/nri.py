"""What NRI costs the node agent: its memory with and without, and how soon it answers the runtime.

``python -m tests.bench.nri [--asks N] [--pods N] [--json FILE]``. A control plane, a real ``python -m
sidecar.node`` with its account's token on a node with 8 cards, a CDI specification as long as the driver's,
and pods with half a card each. The runtime is played by this process over a real socket: after a first
tenth it asks N times after a container with a card, its making and its validation, while each second the
agent looks at its cards and a pod changes. ``rss_mib`` and ``pss_mib`` of the agent, alone on the machine:
``without`` NRI, ``with`` it, and ``more``. ``create_ms`` and ``validate_ms``: from the question to the
answer, with the socket and the waiting for the agent's other threads; ``own_ms``: the longest that the
agent itself counted.
"""

import json
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from deploy.local.cluster import ControlPlane
from sidecar.node.nri.connection import OF_PLUGIN, OF_RUNTIME
from sidecar.node.nri.messages import message, parsed
from tests.bench.agent import CARDS, described
from tests.bench.command import arguments, write
from tests.bench.sidecar import memory_mib
from tests.deploy.reading import AGENTS, MANIFESTS
from tests.node.cluster.test_on_api_server import MERGE, Agent, World
from tests.support.waiting import eventually

Json = dict[str, Any]

LIBRARIES, VARIABLES = 60, 60  # about what a driver has, and what a container is told of Services
SETTLED_S = 20.0
CHANGE_S, PAUSE_S = 1.0, 0.005
SLOWEST = "bursar_node_nri_slowest_seconds "
PODS = f"/api/v1/namespaces/{AGENTS}/pods"


class Runtime:
    """The runtime's side of one connection."""

    def __init__(self, path: Path) -> None:
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(path))
        self._server.listen()
        self._server.settimeout(60)
        self._stream = 1

    def accept(self) -> None:
        """The plugin comes, registers and is configured."""
        self._peer, _ = self._server.accept()
        _, _, name = self._read()
        assert parsed("Request", name).method == "RegisterPlugin"
        self._send(OF_RUNTIME, 1, 2, b"")
        configure = message(
            "Configure", runtime_name="bench", runtime_version="1", request_timeout=2_000
        ).SerializeToString()
        self.ask("Configure", configure)
        self.ask("Synchronize", message("Synchronize").SerializeToString())

    def ask(self, method: str, payload: bytes) -> tuple[float, bytes]:
        """The milliseconds until the answer, and it."""
        self._stream += 2
        call = message("Request", service="nri", method=method, payload=payload).SerializeToString()
        began = time.perf_counter()
        self._send(OF_PLUGIN, self._stream, 1, call)
        _, stream, body = self._read()
        took_ms = 1000 * (time.perf_counter() - began)
        answer = parsed("Response", body)
        if stream != self._stream or answer.status.code:
            raise SystemExit(f"{method} is not answered: {answer.status.message}")
        return took_ms, answer.payload

    def close(self) -> None:
        self._peer.close()
        self._server.close()

    def _send(self, channel: int, stream: int, kind: int, body: bytes) -> None:
        head = len(body).to_bytes(4) + stream.to_bytes(4) + bytes((kind, 0))
        self._peer.sendall(channel.to_bytes(4) + (len(head) + len(body)).to_bytes(4) + head + body)

    def _read(self) -> tuple[int, int, bytes]:
        """Channel, stream and body of a message that is one frame, as the agent's are."""
        frame = self._exactly(8)
        whole = self._exactly(int.from_bytes(frame[4:]))
        return int.from_bytes(frame[:4]), int.from_bytes(whole[4:8]), whole[10:]

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            got = self._peer.recv(count - len(found))
            if not got:
                raise SystemExit("the agent closed the connection")
            found += got
        return found


class Bench:
    """A node whose pods have halves of its cards."""

    def __init__(self, cp: ControlPlane, folder: Path, pods: int) -> None:
        done = cp.kubectl("apply", "--server-side", "-f", str(MANIFESTS))
        if done.returncode:
            raise SystemExit(done.stderr)
        self.world, self.folder = World(cp), folder
        self.world.make_node("n1")
        self.pods = [self._pod(f"p{at}", f"GPU-{at % CARDS}") for at in range(pods)]
        (folder / "cdi").mkdir()
        (folder / "cdi" / "nvidia.yaml").write_text(yaml.safe_dump(specification()))

    def _pod(self, name: str, card: str) -> Json:
        placed = {"main": [{"uuid": card, "index": 0, "share_milli": 500, "memory_mib": 1}]}
        metadata = {
            "name": name,
            "annotations": {"bursar.dev/devices": json.dumps({"version": 1, "containers": placed})},
        }
        spec = {"nodeName": "n1", "containers": [{"name": "main", "image": "example"}]}
        made: Json = self.world.call("POST", PODS, {"metadata": metadata, "spec": spec})["metadata"]
        return made

    @contextmanager
    def agent(self, name: str, nri: Path | None) -> Iterator[Agent]:
        """One agent, until its cards are written."""
        (self.folder / name).mkdir()
        agent = Agent(
            self.world,
            self.folder / name,
            "n1",
            described(),
            nri_socket=str(nri or ""),
            cdi=str(self.folder / "cdi"),
        )
        agent.start()
        try:
            eventually(lambda: len(agent.healthy()) == CARDS)
            yield agent
        finally:
            agent.stop()

    def change(self, at: int) -> None:
        """Have a pod change, so that the agent reads it again."""
        name = self.pods[at % len(self.pods)]["name"]
        self.world.call("PATCH", f"{PODS}/{name}", {"metadata": {"labels": {"at": str(at)}}}, MERGE)


def specification() -> Json:
    """As long as that which NVIDIA's tool makes for a driver."""
    libraries = [
        {
            "hostPath": f"/usr/lib/x86_64-linux-gnu/libnvidia-part-{at}.so.580.95.05",
            "containerPath": f"/usr/lib/x86_64-linux-gnu/libnvidia-part-{at}.so.580.95.05",
            "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
        }
        for at in range(LIBRARIES)
    ]
    devices = [
        {
            "name": f"GPU-{at}",
            "containerEdits": {
                "deviceNodes": [{"path": f"/dev/nvidia{at}"}, {"path": f"/dev/dri/card{at}"}],
                "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["a"]}],
            },
        }
        for at in range(CARDS)
    ]
    common = {"env": ["NVIDIA_VISIBLE_DEVICES=void"], "mounts": libraries}
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": devices,
        "containerEdits": common,
    }


def questions(pod: Json) -> tuple[bytes, bytes]:
    """The runtime's two questions after the pod's container."""
    sandbox = message("Sandbox", name=pod["name"], uid=pod["uid"], namespace=pod["namespace"])
    for key, text in pod["annotations"].items():
        sandbox.annotations.add(key=key, value=text)
    variables = [f"SOME_SERVICE_{at}_PORT_443_TCP_ADDRESS=10.96.0.{at}" for at in range(VARIABLES)]
    container = message("Container", id="c" * 64, name="main", env=variables)
    create = message("CreateContainer", pod=sandbox, container=container)
    validate = message("Validate", pod=sandbox, container=container)
    (placed,) = json.loads(pod["annotations"]["bursar.dev/devices"])["containers"]["main"]
    validate.adjust.cdi_devices.add(name=f"nvidia.com/gpu={placed['uuid']}")
    for name in ("bursar", "default-validator"):
        validate.plugins.add(name=name)
    return create.SerializeToString(), validate.SerializeToString()


def figures(times_ms: list[float]) -> Json:
    """Of the time of answers."""
    parts = statistics.quantiles(times_ms, n=1000)
    return {
        "median": round(statistics.median(times_ms), 2),
        "p99": round(parts[989], 2),
        "longest": round(max(times_ms), 2),
    }


def asked(bench: Bench, runtime: Runtime, count: int) -> Json:
    """The times of answers."""
    pairs = [questions(pod) for pod in bench.pods]
    create, validate = list[float](), list[float]()
    changed_s, at = time.monotonic(), 0
    for number in range(count + count // 10):
        if time.monotonic() - changed_s > CHANGE_S:
            bench.change(at)
            changed_s, at = time.monotonic(), at + 1
        makes, validates = pairs[number % len(pairs)]
        took_ms, answer = runtime.ask("CreateContainer", makes)
        if len(parsed("ContainerCreated", answer).adjust.cdi_devices) != 1:
            raise SystemExit("a container does not get its card")
        create.append(took_ms)
        validate.append(runtime.ask("ValidateContainerAdjustment", validates)[0])
        time.sleep(PAUSE_S)
    return {"create_ms": figures(create[count // 10 :]), "validate_ms": figures(validate[count // 10 :])}


def memory(agent: Agent) -> Json:
    """The agent's, once it is at rest."""
    time.sleep(SETTLED_S)
    assert agent.process
    held = memory_mib(agent.process.pid)
    return {"rss_mib": held["Rss"], "pss_mib": held["Pss"]}


def measured(bench: Bench, count: int) -> Json:
    """All figures."""
    with bench.agent("without", None) as agent:
        without = memory(agent)
    path = bench.folder / "nri.sock"
    runtime = Runtime(path)
    with bench.agent("with", path) as agent:
        runtime.accept()
        times = asked(bench, runtime, count)
        beside = memory(agent)
        slowest = next(x for x in agent.metrics().splitlines() if x.startswith(SLOWEST))
        runtime.close()
    more = {name: round(beside[name] - without[name], 1) for name in without}
    own_ms = round(1000 * float(slowest.rpartition(" ")[2]), 2)
    return {"without": without, "with": beside, "more": more, **times, "own_ms": own_ms}


def main() -> None:
    """Measure, print, and write what was asked for."""
    given = arguments(__doc__, asks=(3_000, "containers"), pods=(100, "on the node"))
    with tempfile.TemporaryDirectory() as folder, ControlPlane() as cp:
        found = measured(Bench(cp, Path(folder), given.pods), given.asks)
    print(json.dumps(found))
    write(given.json, found)


if __name__ == "__main__":
    main()
