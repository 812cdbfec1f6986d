"""A cluster with one real node, and the pods that tests run on it."""

import datetime
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.local.api import ApiError
from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import card_uuid, inventory, our_capacity
from deploy.local.limits import LONGEST_S
from deploy.local.real_node import RealNode
from deploy.local.stack import Stack
from tests.kubelet.images import CUDA

Json = dict[str, Any]

NODE = "real"
NAMESPACE = "gpus"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
CARDS = tuple(card_uuid(NODE, index) for index in range(2))
MODEL = "T4"
MEMORY_MIB = 16_000
SIDECAR = "bursar-sidecar"


@dataclass(frozen=True, slots=True)
class ReceivedBeat:
    """The last heartbeat of one run of a pod's sidecar, as the ledger has it."""

    boot: str
    sequence: int
    received_ms: int


@dataclass(frozen=True, slots=True)
class World:
    """Everything of Bursar, a real node with two cards, and a token that may read the ledger."""

    stack: Stack
    node: RealNode
    reader: str

    def create(self, body: Json) -> Json:
        """Create a pod."""
        pod: Json = self.stack.cp.api.call("POST", PODS, body)
        return pod

    def pod(self, name: str) -> Json:
        """The pod as it is now."""
        pod: Json = self.stack.cp.api.call("GET", f"{PODS}/{name}")
        return pod

    def delete(self, *names: str) -> None:
        """Delete pods at once, and wait until they are gone."""
        for name in names:
            self.stack.cp.api.call("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 1})
        for name in names:
            self.until(f"{name} to be gone", lambda name=name: not self.stack.exists(f"{PODS}/{name}"))  # type: ignore[misc]

    def until(self, what: str, is_so: Callable[[], bool], within_s: float = LONGEST_S) -> None:
        """Wait until it is so. Raises LocalError, also where a role or the node has died."""

        def is_so_on_a_live_node() -> bool:
            self.node.machine.processes.check()
            return is_so()

        self.stack.wait(what, is_so_on_a_live_node, within_s=within_s)

    def running(self, name: str, container: str = "main") -> Json:
        """Wait until a container of the pod runs; the pod."""
        self.until(f"{container} of {name} to run", lambda: "running" in state(self.pod(name), container))
        return self.pod(name)

    def ended(self, name: str, phase: str = "Succeeded") -> Json:
        """Wait until the pod has ended; the pod."""
        self.until(f"{name}: {phase}", lambda: self.pod(name)["status"]["phase"] == phase)
        return self.pod(name)

    def said(self, pod: Json, container: str, line: str) -> None:
        """Wait until the container has printed the line."""
        self.until(f"{container} to say {line!r}", lambda: line in self.node.output(pod, container))

    def pid(self, pod: Json, container: str) -> int:
        """The first process of a running container."""
        return self.node.pids(status_of(pod, container)["containerID"])[0]

    def beats(self, pod: Json) -> list[ReceivedBeat]:
        """What the ledger holds of the pod's sidecar; read from the database, for no report shows it."""
        rows = self._rows(
            "SELECT boot, sequence, received_ms FROM heartbeats WHERE session_uid = ? ORDER BY received_ms",
            pod["metadata"]["uid"],
        )
        return [ReceivedBeat(*row) for row in rows]

    def beaten(self, pod: Json, since: Sequence[ReceivedBeat] = ()) -> list[ReceivedBeat]:
        """Wait until the ledger has heard of the pod's sidecar what it had not heard before."""
        self.until("a heartbeat", lambda: len(set(self.beats(pod)) - set(since)) > 0)
        return self.beats(pod)

    def _rows(self, query: str, *parameters: str) -> list[tuple[Any, ...]]:
        database = Path(self.stack.folder, "bursar.db")
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=LONGEST_S)) as connection:
            return list(connection.execute(query, parameters))

    def session(self, pod: Json) -> Json | None:
        """The pod's session as the REST API tells it; None where there is none."""
        listed = self.stack.get(f"/v1/sessions?namespace={NAMESPACE}", self.reader)["sessions"]
        return next((each for each in listed if each["uid"] == pod["metadata"]["uid"]), None)

    def charged(self, pod: Json) -> int:
        """Wait until the pod's session is settled; what it was charged."""

        def is_settled() -> bool:
            session = self.session(pod)
            return session is not None and session["state"] == "settled"

        self.until(f"{pod['metadata']['name']} to be settled", is_settled)
        session = self.session(pod)
        assert session is not None
        assert session["pending"] == 0
        return int(session["posted"])


def advertise(cp: ControlPlane) -> None:
    """Write what the node agent would: the cards, and what they add up to."""
    path = f"/api/v1/nodes/{NODE}"
    annotations = {"bursar.dev/inventory": inventory(NODE, len(CARDS), MEMORY_MIB, MODEL)}
    merge = "application/merge-patch+json"
    cp.api.call("PATCH", path, {"metadata": {"annotations": annotations}}, content_type=merge)
    status = {"status": {"capacity": our_capacity(len(CARDS), MEMORY_MIB)}}
    cp.api.call("PATCH", f"{path}/status", status, content_type=merge)


def allocatable(stack: Stack) -> Mapping[str, str]:
    """What the kubelet says that pods may ask of the node."""
    told: Mapping[str, str] = stack.cp.api.call("GET", f"/api/v1/nodes/{NODE}")["status"]["allocatable"]
    return told


def container(name: str, program: str, **limits: str) -> Json:
    """A container that runs a Python program; ``limits`` such as ``gpu_percent="50"``."""
    asked = {f"bursar.dev/{key.replace('_', '-')}": value for key, value in limits.items()}
    return {
        "name": name,
        "image": CUDA,
        "imagePullPolicy": "Never",
        "command": ["python", "-u", "-c", program],
        "resources": {"limits": asked},
    }


def gpu_pod(name: str, *containers: Json, **spec: Any) -> Json:
    """A pod that is never restarted and has a second to end, unless ``spec`` says otherwise."""
    given = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": list(containers)}
    return {"metadata": {"name": name}, "spec": {**given, **spec}}


def runs_for(seconds: float) -> str:
    """A program that prints ``begun``, lasts so long, and ends well."""
    return f"import time; print('begun'); time.sleep({seconds})"


# A program that does not obey SIGTERM.
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, lambda *_: print('asked')); print('begun')\n"
    "while True: time.sleep(1)"
)
SHOWS_CARDS = "import os; print('cards', repr(os.environ.get('NVIDIA_VISIBLE_DEVICES')))"


def lives(pid: int) -> bool:
    """Whether the process runs, and is not only not waited for."""
    stat = Path("/proc", str(pid), "stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def status_of(pod: Json, name: str) -> Json:
    """The status of one container, among the init containers or the others; empty where there is none yet."""
    listed = [
        *pod["status"].get("initContainerStatuses", []),
        *pod["status"].get("containerStatuses", []),
    ]
    return next((each for each in listed if each["name"] == name), {})


def state(pod: Json, name: str) -> Json:
    """The state of one container."""
    told: Json = status_of(pod, name).get("state", {})
    return told


def bound_ms(pod: Json) -> int:
    """When the pod was bound, since 1970."""
    (scheduled,) = (each for each in pod["status"]["conditions"] if each["type"] == "PodScheduled")
    return milliseconds(scheduled["lastTransitionTime"])


def held_ms(pod: Json) -> int:
    """How long an ended pod held its cards: from its binding to the last finish of all its containers."""
    listed = [*pod["status"].get("initContainerStatuses", []), *pod["status"]["containerStatuses"]]
    return max(milliseconds(each["state"]["terminated"]["finishedAt"]) for each in listed) - bound_ms(pod)


def milliseconds(timestamp: str) -> int:
    """Of a Kubernetes timestamp, since 1970."""
    return int(datetime.datetime.fromisoformat(timestamp).timestamp() * 1000)


def is_refused(call: Callable[[], object]) -> str:
    """The API server's words of refusal; empty where it took what was asked."""
    try:
        call()
    except ApiError as error:
        return str(error)
    return ""
